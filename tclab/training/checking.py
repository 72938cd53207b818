"""The equality gate on anybody's model, strategy and graph, and what it found in words."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from tclab.errors import InputError
from tclab.graph import CellGraph
from tclab.masking import Strategy, get, names, view
from tclab.message_passing import NeedsEdgesError
from tclab.models import ModelKind
from tclab.models import get as model_of
from tclab.training.gate import FP32_RATIO, FP64_TOLERANCE, GateResult, Reference
from tclab.training.gate_case import gate_deletions, gate_graph

Build = Callable[[CellGraph], nn.Module]
_FELT = 1e-9  # of the largest prediction: what fp64 rounds is far below
_NAMED = 5  # parameters that are named before "and n more"


@dataclass(frozen=True)
class Check:
    """What the gate found of a model on a graph; `print` it for the same in words.

    **Arguments:**

    - `model`: its name. `graph`: what it was tried on, in words. `samples`: how many node-deleted copies.
    - `results`: strategy → how far it is from `subgraph`.
    - `broken`: strategy → why it gave nothing: it needs single edges, or the error that it raised.
    - `feels_deletions`: some prediction changes when nodes are deleted; a gate on a model that does not would
      pass whatever a strategy did.
    - `repeats`: the model predicts the same when asked twice.
    - `batch_error`: in fp64, the largest difference between a sample's prediction in the batch and alone, over
      the largest prediction.
    - `without_gradient`: parameters that the predictions do not depend on.
    """

    model: str
    graph: str
    samples: int
    results: dict[str, GateResult]
    feels_deletions: bool
    repeats: bool
    batch_error: float
    broken: dict[str, str] = field(default_factory=dict)
    without_gradient: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        """Whether every exact strategy that could be tried gave what `subgraph` gives, and the gate could tell."""
        tried = [found for found in self.results.values() if found.exact]
        failed = [why for why in self.broken.values() if not why.startswith("skipped")]
        return bool(tried) and all(f.passed for f in tried) and not failed and self.feels_deletions and self.repeats

    def __str__(self) -> str:
        verdict = "passed" if self.passed else "did not pass"
        lines = [f"The gate on {self.model}, {self.graph}, {self.samples} samples: {verdict}."]
        lines += [f"  {name}: {_words(found)}" for name, found in self.results.items()]
        lines += [f"  {name}: {why}" for name, why in self.broken.items()]
        lines += [f"  {sentence}" for sentence in self._of_the_model()]
        return "\n".join(lines)

    def _of_the_model(self) -> list[str]:
        said = []
        if not self.repeats:
            said.append("The model predicts otherwise when it is asked twice, in eval(): nothing can be compared.")
        if not self.feels_deletions:
            said.append(
                "No prediction changes when nodes are deleted, so any strategy would have passed: does the model "
                "call view.lift, view.neighbour_sum and view.pool?"
            )
        if self.batch_error > _FELT:
            said.append(
                f"A prediction depends on who else is in the batch, by {self.batch_error:.1e} of the largest one: "
                "a norm over the whole batch does that."
            )
        if self.without_gradient:
            named = ", ".join(self.without_gradient[:_NAMED])
            more = len(self.without_gradient) - _NAMED
            said.append(f"Without a gradient: {named}{f' and {more} more' if more > 0 else ''}.")
        return said


def _words(found: GateResult) -> str:
    if not found.exact:
        return f"inexact, as it says of itself: off by {found.fp64_error:.1e} at worst"
    if found.passed:
        return (
            f"passed. Predictions and gradients are subgraph's to {found.fp64_error:.1e} in fp64, and in fp32 its "
            f"error is {found.fp32_ratio:.2g} × subgraph's own"
        )
    if not found.fp64_error <= FP64_TOLERANCE:
        off = "not finite" if found.fp64_error == float("inf") else f"off by {found.fp64_error:.1e}"
        return f"FAILED. It computes something else: in fp64 {off}, at most {FP64_TOLERANCE:.0e} is allowed"
    return (
        f"FAILED. Equal in fp64 ({found.fp64_error:.1e}), but in fp32 its error is {found.fp32_ratio:.2g} × "
        f"subgraph's own, at most {FP32_RATIO:g} × is allowed: it adds up in a way that loses digits"
    )


def check(
    model: nn.Module | ModelKind | str | Build,
    graph: CellGraph,
    *,
    strategies: str | type[Strategy] | Iterable[str | type[Strategy]] = "auto",
    deletions: Sequence[Sequence[int]] | None = None,
    seed: int = 0,
) -> Check:
    """Run the equality gate on a model, a graph and strategies of one's own, and say what passed.

    >>> import torch, tclab
    >>> ring = torch.tensor([[0, 1, 2, 3], [1, 2, 3, 0]])
    >>> graph = tclab.CellGraph.from_edges({"likes": ring}, num_nodes=4, node_type="person")
    >>> tclab.check("hetero_cell", graph, strategies="node_mask").passed
    True

    **Arguments:**

    - `model`: a call that takes a graph and returns a model; or the name of a registered one, or its `ModelKind`.
      These are built on a part of the graph, at most 100 nodes of each type, hubs among them, or where
      `deletions` are given on the whole graph. Or a model that is made already: a copy of it is tried, on the
      whole graph, on the model's device.
    - `graph`: of any field.
    - `strategies`: "auto" for every exact one that serves the model, or names, or registered classes.
    - `deletions`: for each sample the nodes of `graph` that it deletes; unless given, those that break what is
      nearly right: nothing, a hub, all of a node's neighbours, a set twice, random ones.
    - `seed`: of weights and deletions.

    **Raises:** `InputError` for a graph or model that is none, predictions that are not one number a sample, an
    unknown strategy, or a model that cannot be run at all.
    """
    if not isinstance(graph, CellGraph):
        raise InputError(
            f"graph is a {type(graph).__name__}, expected a tclab.CellGraph: CellGraph.from_edges, "
            "from_hetero_data or from_folder makes one"
        )
    name, built, part = _built(model, graph, seed, whole=deletions is not None)
    kind = model if isinstance(model, ModelKind) else model_of(model) if isinstance(model, str) else None
    wanted = _strategies(strategies, kind)
    samples = gate_deletions(part, seed=seed) if deletions is None else [list(nodes) for nodes in deletions]
    found = _probe(name, built, part, samples)
    reference = Reference(built, part, samples)
    results, broken = {}, {}
    for strategy in wanted:
        try:
            results[strategy] = reference.compare(strategy)
        except NeedsEdgesError:
            broken[strategy] = "skipped: the model needs single edges, which this strategy has not"
        except Exception as error:  # a strategy of one's own may fail in any way; the others are still tried
            broken[strategy] = f"FAILED with {type(error).__name__}: {_first_line(error)}"
    return Check(name, _graph_words(part, graph), len(samples), results, broken=broken, **found)


def _first_line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), "")


def _graph_words(part: CellGraph, graph: CellGraph) -> str:
    kind = graph.deleted_type
    of = "" if part.num_nodes == graph.num_nodes else f" of {graph.num_nodes[kind]:,}"
    networks = len(part.networks)
    return (
        f"{part.num_nodes[kind]:,}{of} {kind} nodes and {part.num_edges:,} edges of {networks} "
        f"network{'' if networks == 1 else 's'}"
    )


def _built(
    model: nn.Module | ModelKind | str | Build, graph: CellGraph, seed: int, *, whole: bool
) -> tuple[str, nn.Module, CellGraph]:
    """Return the model's name, a copy of it that may be changed, and the graph that it is tried on.

    **Arguments:**

    - `whole`: build it on the whole graph, whose nodes somebody has named; a part has numbers of its own.
    """
    if isinstance(model, nn.Module):
        return type(model).__name__, copy.deepcopy(model).float().eval(), graph
    part = graph.to("cpu") if whole else gate_graph(graph.to("cpu"))
    torch.manual_seed(seed)
    if isinstance(model, str):
        model = model_of(model)
    if isinstance(model, ModelKind):
        return model.name, model.build(part, "off").float().eval(), part
    if not callable(model):
        raise InputError(
            f"model is a {type(model).__name__}, expected an nn.Module, a call that makes one of a graph, "
            "or the name of a registered model"
        )
    built = model(part)
    if not isinstance(built, nn.Module):
        raise InputError(f"model made a {type(built).__name__} of the graph, expected an nn.Module")
    return type(built).__name__, built.float().eval(), part


def _strategies(
    strategies: str | type[Strategy] | Iterable[str | type[Strategy]], kind: ModelKind | None
) -> list[str]:
    if strategies == "auto":
        every = [(name, get(name)) for name in names()]
        # a model of one's own, that is not registered, reads the masked graph
        return [n for n, own in every if own.exact and (own.masks_graph if kind is None else kind.served_by(own))]
    listed = [strategies] if isinstance(strategies, type) else strategies
    listed = [word.strip() for word in listed.split(",")] if isinstance(listed, str) else list(listed)
    found = []
    for one in listed:
        name = one if isinstance(one, str) else getattr(one, "name", one.__name__)
        if not isinstance(one, str) and (name not in names() or get(name) is not one):
            raise InputError(f"strategy {name!r} is not registered; put @tclab.masking.register above its class")
        get(name)
        found.append(name)
    return found


def _predicted(model: nn.Module, graph: CellGraph, deletions: Sequence[Sequence[int]]) -> Tensor:
    with torch.no_grad(), view(graph, deletions, "subgraph", device=next(model.parameters()).device) as copies:
        return torch.as_tensor(model(copies)).detach().cpu()


def _probe(name: str, model: nn.Module, graph: CellGraph, deletions: Sequence[Sequence[int]]) -> dict[str, Any]:
    """Return what a model must be for the gate to mean anything, found in fp64 with `subgraph`."""
    if next(model.parameters(), None) is None:
        raise InputError(f"{name} has no parameters, so there are no gradients to compare")
    try:
        model.double()
        together = _predicted(model, graph, deletions)
        again = _predicted(model, graph, deletions)
    except InputError:
        raise
    except Exception as error:
        raise InputError(
            f"{name} cannot be run on a view of {len(deletions)} samples: {type(error).__name__}: "
            f"{_first_line(error)}"
        ) from error
    if together.shape != (len(deletions),):
        raise InputError(
            f"{name} gives {list(together.shape)} for {len(deletions)} samples, expected [{len(deletions)}]: one "
            "number a sample"
        )
    if not together.isfinite().all():
        raise InputError(f"{name} predicts {together.tolist()}, expected finite numbers")
    largest = float(together.abs().max()) or 1.0
    alone = torch.cat([_predicted(model, graph, [nodes]).reshape(1) for nodes in deletions])
    whole = _predicted(model, graph, [[]])
    model.zero_grad(set_to_none=True)
    with view(graph, deletions, "subgraph", device=next(model.parameters()).device) as copies:
        model(copies).sum().backward()
    unused = tuple(n for n, p in model.named_parameters() if p.requires_grad and p.grad is None)
    model.zero_grad(set_to_none=True)
    model.float()
    return {
        "feels_deletions": bool(((alone - whole).abs() > _FELT * largest).any()),
        "repeats": bool(torch.equal(together, again)),
        "batch_error": float((together - alone).abs().max()) / largest,
        "without_gradient": unused,
    }
