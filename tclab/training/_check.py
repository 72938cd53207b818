"""`check`: the equivalence check on a model, strategies and a graph of the user's, and its report."""

from __future__ import annotations

import copy
import inspect
import traceback
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from time import monotonic

import torch
from torch import Tensor, nn

from tclab._display import Display, Shown, counted, first_of, say
from tclab.errors import InputError, require
from tclab.graph._cell_graph import CellGraph
from tclab.masking import Strategy, get, names
from tclab.masking._strategy import view
from tclab.message_passing._view import NeedsEdgesError
from tclab.models import ModelKind
from tclab.models import get as model_of
from tclab.timing._user_code import is_user_frame
from tclab.training._equivalence import EquivalenceReference, EquivalenceResult, Variant
from tclab.training._step import without_gradient

Build = Callable[[CellGraph], nn.Module]
_SAID_APART_SECONDS = 10.0  # lines of progress
_DIFFERENT = 1e-9  # of the largest prediction; fp64's rounding is far below


@dataclass(frozen=True, repr=False)
class Check(Shown):
    """The result of `check`; `print` it to read it.

    **Arguments:**

    - `model`: name of the model.
    - `graph`: the graph that the check ran on, in words.
    - `samples`: number of samples, each a copy of the graph with other nodes removed.
    - `results`: strategy → how far it is from `subgraph`.
    - `comparable`: whether the model predicts the same twice, and anything else when nodes are removed. For a model
      that ignores deletions, every strategy would pass.
    - `problems`: sentences on the model: why it is not comparable, whether a sample's prediction depends on the other
      samples of its batch, what of the graph does not reach it, and which parameters the predictions do not depend on.
    - `broken`: strategy → the error that it raised.
    - `skipped`: strategy → why the model cannot run with it.
    """

    model: str
    graph: str
    samples: int
    results: dict[str, EquivalenceResult]
    comparable: bool
    problems: list[str] = field(default_factory=list)
    broken: dict[str, str] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)

    @property
    def passed(self) -> bool:
        """Whether every exact strategy that ran is equivalent to `subgraph`, and the model allows the comparison."""
        exact = [result.passed for result in self.results.values() if result.exact]
        return bool(exact) and all(exact) and self.comparable and not self.broken

    def _display(self) -> Display:
        tried = self.results or self.broken
        verdict = "passed" if self.passed else "did not pass" if tried else "every strategy was skipped"
        compared = f"predictions and gradients of {self.samples} samples"
        title = f"The equivalence check of {self.model}, {self.graph}, {compared}: {verdict}."
        texts = {name: _result_text(result) for name, result in self.results.items()}
        texts |= {name: f"FAILED with {why}" for name, why in self.broken.items()}
        texts |= {name: f"skipped: {why}" for name, why in self.skipped.items()}
        each_once = dict.fromkeys(texts.values())
        lines = [(", ".join(name for name in texts if texts[name] == text), text) for text in each_once]
        return Display(title, ("strategy", "result"), lines, self.problems)


def _result_text(result: EquivalenceResult) -> str:
    if not result.exact:
        return f"inexact by design: error {result.fp64_error:.1e} at worst"
    if not result.passed:
        return f"FAILED: {result.where}"
    if result.strategy == "subgraph":
        return "the reference"
    lower = f"in fp32 {result.fp32_ratio:.2g} × subgraph's error"
    whole = "" if result.full_size is None else f"; on the whole graph {result.full_size}"
    return f"passed: error {result.fp64_error:.2g} in fp64, {lower}{whole}"


def check(
    model: nn.Module | ModelKind | str | Build, graph: CellGraph, *,
    strategies: str | type[Strategy] | Iterable[str | type[Strategy]] = "auto",
    deletions: Sequence[Sequence[int]] | None = None, seed: int = 0
) -> Check:  # fmt: skip
    """Run the equivalence check on a model, a graph and strategies.

    >>> import torch, tclab
    >>> ring = torch.tensor([[0, 1, 2, 3], [1, 2, 3, 0]])
    >>> graph = tclab.CellGraph.from_edges({"likes": ring}, num_nodes=4, node_type="person")
    >>> tclab.check("hetero_cell", graph, strategies="node_mask").passed
    True

    **Arguments:**

    - `model`: one of: a function that takes a graph and returns a model, the name of a registered model, or its
      `ModelKind`; the model is then built on a part of the graph with some 100 nodes of each type, hubs included,
      or on the whole graph if `deletions` are given. Or a model: a copy of it runs on the whole graph, on the
      model's device.
    - `graph`: any `CellGraph`.
    - `strategies`: "auto" for every exact strategy that serves the model, or names, or registered classes. Your own
      are compared on the whole graph, too: predictions of two samples, and gradients unless it is large.
    - `deletions`: for each sample the nodes of `graph` that it removes; by default those that show a strategy that is
      nearly right: none, a hub, all of a node's neighbours, a set twice, random sets.
    - `seed`: seed of weights and deletions.

    **Raises:** `InputError` for a graph or model of the wrong type, predictions that are not one number a sample, an
    unknown strategy, or a model that cannot run on a view.
    """
    require("graph", graph, CellGraph, "a tclab.CellGraph: from_edges, from_hetero_data or from_folder makes one")
    if isinstance(model, str):
        model = model_of(model)
    wanted = _strategies(strategies, model if isinstance(model, ModelKind) else None)
    whole = isinstance(model, nn.Module) or deletions is not None  # the user's deletions are of the whole graph
    graph = graph if isinstance(model, nn.Module) else graph.to("cpu")
    reference = EquivalenceReference(partial(_built, model), graph, deletions, seed=seed, whole=whole)
    name = model.name if isinstance(model, ModelKind) else type(reference.candidate).__name__
    part = reference.graph
    comparable, problems = _judged(name, reference)
    results: dict[str, EquivalenceResult] = {}
    broken, skipped = {}, {}
    said_at = monotonic()
    for i, strategy in enumerate(wanted, 1):
        if monotonic() > said_at + _SAID_APART_SECONDS:
            said_at = monotonic()
            say(f"checking {strategy}, {i} of {len(wanted)}")
        try:
            results[strategy] = reference.compare(strategy)
        except NeedsEdgesError as error:
            skipped[strategy] = str(error)
        except Exception as error:  # a user's strategy may fail in any way; the others still run
            broken[strategy] = f"{_described(error)}, at {_line_of(error)}"
    problems += {f"Left out: {result.left_out}." for result in results.values() if result.left_out}
    kind, networks = graph.deleted_type, counted(len(part.networks), "network")
    of = "" if part.num_nodes == graph.num_nodes else f" of {graph.num_nodes[kind]:,}"
    nodes = f"{part.num_nodes[kind]:,}{of} {kind} nodes and {part.num_edges:,} edges of {networks}"
    return Check(name, nodes, len(reference.deletions), results, comparable, problems, broken, skipped)


def _described(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).strip()}".splitlines()[0]


def _line_of(error: Exception) -> str:
    """Return file and line of the innermost code that is the user's own, or else of the innermost."""
    frames = list(traceback.walk_tb(error.__traceback__))
    frame, line = ([one for one in frames if is_user_frame(one[0])] or frames)[-1]
    return f"{Path(frame.f_code.co_filename).name}:{line}"


def _built(model: nn.Module | ModelKind | Build, graph: CellGraph) -> nn.Module:
    """Return a copy of the model, or one made of the graph, that may be changed."""
    if isinstance(model, nn.Module):
        return copy.deepcopy(model).eval().float()
    if isinstance(model, ModelKind):
        return model.build(graph, "off").eval()
    expected = "an nn.Module, a function that takes a graph and returns one, or the name of a registered model"
    require("model", model, Callable, expected)  # type: ignore[arg-type]
    try:
        built = model(graph)
    except TypeError as error:
        raise InputError(
            f"{getattr(model, '__name__', model)} makes no model of a graph: {error}; expected a function that takes "
            "a tclab.CellGraph and returns an nn.Module (one of PyG's: tclab.models.PygModel(model, features))"
        ) from error
    require("what model makes of the graph", built, nn.Module, "an nn.Module")
    return built.eval().float()


def _strategies(strategies: str | type[Strategy] | Iterable[str | type[Strategy]], kind: ModelKind | None) -> list[str]:
    if strategies == "auto":  # a model that is not registered is taken to read the masked graph
        serves = kind.served_by if kind else lambda strategy: strategy.masks_graph
        return [name for name in names() if get(name).exact and serves(get(name))]
    if isinstance(strategies, str):
        strategies = strategies.split(",")
    each = [strategies] if isinstance(strategies, type) else strategies
    return [get(str(getattr(one, "name", one)).strip()).name for one in each]  # raises for an unknown one


def _judged(name: str, reference: EquivalenceReference) -> tuple[bool, list[str]]:
    """Return whether a comparison means anything, and the problems of a model; from fp64 with `subgraph`.

    **Raises:** `InputError` for a model without parameters, one that cannot run, or predictions of a wrong shape.
    """
    model, deletions, count = reference.candidate, reference.deletions, len(reference.deletions)
    if next(model.parameters(), None) is None:
        raise InputError(f"{name} has no parameters, so there are no gradients to compare")
    drawn = Variant(draw=1)  # a model whose last weights begin with 0 predicts the same for all
    reference.load(model, drawn)

    @torch.no_grad()
    def predicted(samples: Sequence[Sequence[int]]) -> Tensor:
        with view(reference.graph, samples, "subgraph", device=next(model.parameters()).device) as copies:
            return torch.as_tensor(model(copies))

    try:
        together = predicted(deletions)
    except InputError:
        raise
    except Exception as error:
        what = _described(error)
        if "edge_index" in inspect.signature(model.forward).parameters:
            what += "; a model of PyG's runs as tclab.models.PygModel(model, features)"
        raise InputError(f"{name} cannot run on a view of {count} samples: {what}") from error
    if (shape := list(together.shape)) != [count]:
        raise InputError(f"{name} gives {shape} for {count} samples, expected [{count}]: one number a sample")
    outcome = reference.subgraph(drawn)
    unused = without_gradient(model)
    endless = [name for name, x in (outcome.predictions | outcome.gradients).items() if not x.isfinite().all()]
    if endless:
        raise InputError(f"{name} with subgraph: not finite is {first_of(endless)}; expected finite numbers")
    *others, whole, first = predicted([*deletions[1:], [], deletions[0]])
    elsewhere = torch.stack([first, *others])  # each sample in other company
    largest = float(together.abs().max()) or 1.0
    same_twice = torch.equal(together, elsewhere) or torch.equal(together, predicted(deletions))
    hears = bool(((together - whole).abs() > _DIFFERENT * largest).any())
    apart = float((together - elsewhere).abs().max()) / largest
    problems = {
        "The model is not deterministic in eval(): two calls differ, so nothing can be compared.": not same_twice,
        "No prediction changes when nodes are removed, so any strategy would pass: does the model call view.lift, "
        "view.neighbour_sum and view.pool?": not hears,
        f"A prediction depends on the other samples of the batch, by {apart:.1e} of the largest one: a norm over the "
        "whole batch does that, or dropout that is still on.": apart > _DIFFERENT,
        f"Without a gradient: {first_of(unused)}.": bool(unused),
    }
    return same_twice and hears, [text for text, applies in problems.items() if applies]
