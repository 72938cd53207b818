"""The equivalence check: whether a strategy gives the predictions and gradients that `subgraph` gives.

It runs before every measurement, on a small case (`equivalence_graph`, `equivalence_deletions`): the removals that are
hard to get right, on nodes of every degree. A user's own strategy is then compared on the whole graph
(`full_size_deletions`), where ids no longer fit a byte and a hub has more neighbours than a block.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache, partial
from statistics import median_high
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from tclab._display import first_of
from tclab._limits import out_of_memory
from tclab.graph._cell_graph import CellGraph
from tclab.masking import Strategy, get
from tclab.masking._strategy import is_users, views
from tclab.message_passing import View
from tclab.models import PygModel
from tclab.training._step import compiled_forward

FP64_TOLERANCE = 1e-10
FP32_RATIO = 2.0
DRAWS = 3  # draws of the weights
BFLOAT16_DRAWS = 9  # in bfloat16 so many activations lie within rounding of a kink that the median of 3 is luck
_ROUNDING = {"float32": 4 * torch.finfo(torch.float32).eps, "bfloat16": 4 * torch.finfo(torch.bfloat16).eps}
# The gradient of a parameter that is exactly zero in theory (a bias in front of a softmax) is rounding noise. Its error
# is taken relative to at least this share of the largest gradient.
_SMALL = 1e-3
_SLICE = 3  # samples a slice, where the check runs with slices
_HALF = 50  # of the nodes of a type in the check's graph
_LARGE_BATCH = 66  # samples at least of the large batch: more than a word has bits
# What predictions on the whole graph may be off by, of the largest. On the real cell fp32's rounding is up to 5e-5, and
# one deleted node of three that is kept changes as little as 1e-5: fp64 finds that, fp32 what is gross in it alone.
_FULL_SIZE = {"float64": FP64_TOLERANCE, "float32": 1e-2}
_FULL_SIZE_DELETED = 48  # nodes that each of the two samples there removes


@dataclass(frozen=True)
class EquivalenceResult:
    """How far a strategy is from `subgraph`, over `DRAWS` draws of the weights (`BFLOAT16_DRAWS` in bfloat16).

    An activation within rounding of ReLU's kink may fall on either side of it in two right computations, which then
    differ by far more than rounding. That is one draw's luck, so fp32 errors are the median over draws, not the worst.

    **Arguments:**

    - `strategy`: its name.
    - `exact`: whether the strategy declares itself exact.
    - `passed`: the strategy is exact, `fp64_error` is at most 1e-10 and `fp32_ratio` at most 2. Where it is compared
      compiled, in slices or in bfloat16 too, `fp64_error` and `fp32_ratio` are the larger of both.
    - `fp64_error`: in fp64, the largest difference from `subgraph` over the largest value, of the predictions or of
      one parameter's gradient; the worst draw. The predictions of two more batches count with them: one of more than
      64 samples, and the samples in another order, where what the batch before left behind would show.
    - `fp32_ratio`: the error in fp32 over `subgraph`'s own, or over fp32's rounding where that is larger; the median
      draw. An error is the norm of the difference from `subgraph` in fp64 over the latter's norm, of the predictions or
      of the whole gradient. In bfloat16, both errors are those in bfloat16.
    - `nodes`: nodes, of the type that samples remove, in the graph that the check ran on.
    - `edges`: its edges.
    - `where`: what is off where an exact strategy has not passed, in words: which samples, with what they remove, or
      the gradient of which parameter, and by how much.
    - `full_size`: "passed", "failed" or "not compared: …", on the whole graph; `None` where it was not tried there.
    - `left_out`: what of the graph does not reach the model, with any strategy, in words; `None` where all does.
    """

    strategy: str
    exact: bool
    passed: bool
    fp64_error: float
    fp32_ratio: float
    nodes: int
    edges: int
    where: str = ""
    full_size: str | None = None
    left_out: str | None = None


# ---- the case: a graph and deletions


def _degrees(graph: CellGraph, node_type: str) -> Tensor:
    """Return each node's number of edge ends over all relations, [nodes] float32."""
    degree = torch.zeros(graph.num_nodes[node_type])
    for network in graph.relations.values():
        for end, ids in zip((network.source, network.target), network.edge_index, strict=True):
            if end == node_type:
                degree += torch.bincount(ids, minlength=len(degree))
    return degree


def equivalence_graph(graph: CellGraph) -> CellGraph:
    """Return the part of a graph, on the CPU, that a sweep's equivalence check runs on: nodes of every degree.

    Of each type it keeps at most 100: half of them those of highest degree, half spread over the rest.
    """
    kept = {}
    for node_type, nodes in graph.num_nodes.items():
        if nodes > 2 * _HALF:
            by_degree = torch.argsort(_degrees(graph, node_type), descending=True, stable=True)
            hubs, rest = by_degree[:_HALF], by_degree[_HALF:]
            kept[node_type] = torch.cat([hubs, rest[:: len(rest) // _HALF][:_HALF]]).sort().values
    return graph.induced(kept) if kept else graph


def equivalence_deletions(graph: CellGraph, *, seed: int = 0) -> list[list[int]]:
    """Return deletions that show a strategy that is nearly right: for each sample, the nodes that it removes.

    They are: three random nodes, no node, the hub, all neighbours of a node of low degree, and the first three nodes
    again. Four more random sets follow, so that the fp32 error of the predictions is not one sample's luck.
    """
    nodes = graph.num_nodes[graph.deleted_type]
    degree = _degrees(graph, graph.deleted_type)
    hub = int(degree.argmax())
    least = int(degree.masked_fill(degree == 0, float("inf")).argmin())
    neighbours: set[int] = set()
    for network in graph.networks.values():
        source, target = network.edge_index
        neighbours |= set(target[source == least].tolist()) | set(source[target == least].tolist())
    generator = torch.Generator().manual_seed(seed)
    three, *rest = (torch.randperm(nodes, generator=generator)[:3].tolist() for _ in range(5))
    return [three, [], [hub], sorted(neighbours - {least}), three, *rest]


def full_size_deletions(graph: CellGraph) -> list[list[int]]:
    """Return what each of two samples removes from a whole graph: ids from the first to the last, and the hub."""
    nodes = graph.num_nodes[graph.deleted_type]
    ids = torch.linspace(0, nodes - 1, min(nodes, 2 * _FULL_SIZE_DELETED)).long().tolist()
    hub = int(_degrees(graph, graph.deleted_type).argmax())
    return [sorted({*ids[0::2]}), sorted({*ids[1::2], hub})]


# ---- errors

Forward = Callable[[nn.Module, View], Any]


class Outcome(NamedTuple):
    """What a model computes for some samples; tensors are on the CPU."""

    samples: Sequence[Sequence[int]]  # the nodes that each removes
    predictions: Tensor  # [B]
    gradients: dict[str, Tensor]  # by parameter; none without a backward


def largest_difference(found: Outcome, expected: Outcome, allowed: float) -> tuple[float, str]:
    """Return the worst relative error of predictions and parameter gradients, and what is off, in words.

    The error is infinite where anything is not finite. Predictions that are off by more than `allowed` are named alone:
    gradients follow from them.
    """
    largest = expected.predictions.abs().max().item()
    sides = zip(found.predictions.split(1), expected.predictions.split(1), strict=True)
    # of samples by number, and of parameters by name
    errors: dict[int | str, float] = {i: _largest_error(*pair, least=largest) for i, pair in enumerate(sides)}
    worst = max(errors, key=errors.__getitem__)
    off = sum(error > allowed for error in errors.values())
    gradients = {name: grad for name, grad in expected.gradients.items() if grad.numel()}
    least = _SMALL * max((grad.abs().max().item() for grad in gradients.values()), default=0.0)
    for name, grad in gradients.items():
        errors[name] = _largest_error(found.gradients[name], grad, least=least)
    worst = worst if off else max(errors, key=errors.__getitem__)
    what = f"the gradient of {worst}"
    if isinstance(worst, int):
        what = f"sample {worst}, which removes {first_of([*map(str, found.samples[worst])], 5) or 'nothing'}"
    text = f"{off} of {len(found.samples)} predictions are off; worst: {what}, by {errors[worst]:.1e} of the largest"
    return max(errors.values()), text


def _largest_error(ours: Tensor, theirs: Tensor, *, least: float = 0.0) -> float:
    """Return the largest difference over the largest value, which is taken to be at least `least`."""
    difference = (ours.double() - theirs.double()).abs().max().item()
    scale = max(theirs.abs().max().item(), least)
    if difference == 0.0:
        return 0.0
    return difference / scale if difference < float("inf") and scale > 0.0 else float("inf")


def norm_error(result: Outcome, expected: Outcome) -> float:
    """Return the relative error in the Euclidean norm, of the predictions or the gradient, whichever is worse."""

    def of(ours: Tensor, theirs: Tensor) -> float:
        difference = (ours.double() - theirs.double()).norm()
        return float("inf") if difference.isnan() else difference.item() / (theirs.double().norm().item() or 1.0)

    sides = (result.gradients, expected.gradients)
    gradients = (torch.cat([grad.flatten().double() for grad in side.values()]) for side in sides)
    return max(of(result.predictions, expected.predictions), of(*gradients))


# ---- the check


def _call(model: nn.Module, view: View) -> Any:
    return model(view)


_AS_RUN = ("slices", "forward")  # how a point runs it, other than `subgraph` does


def _words(*, slices: bool = False, forward: Forward = _call, **how: Any) -> str:
    return " compiled" * (forward is not _call) + " in slices" * slices


def _left_out(model: nn.Module, graph: CellGraph) -> str | None:
    """Return what of a graph does not reach a model that is or has a `PygModel`; `None` where all does."""
    weighted = any(network.weight is not None for network in graph.networks.values())
    of_pyg = any(isinstance(part, PygModel) for part in model.modules())
    return "edge weights are not passed on to a PyG model" if weighted and of_pyg else None


class EquivalenceReference:
    """What `subgraph` computes for a model, a graph and deletions; other strategies are compared with it.

    **Arguments:**

    - `model`: in evaluation mode, or without dropout. The reference changes its weights and dtype.
    - `graph`: on the CPU or the model's device.
    - `deletions`: for each sample the nodes that it removes.
    - `candidate`: the model that strategies run on, if it is not `model`: the same with overheads, and the same names
      of parameters.
    - `whole`: makes the reference of the whole graph where `graph` is a part of it; for strategies of a user's own.
    """

    def __init__(
        self,
        model: nn.Module,
        graph: CellGraph,
        deletions: Sequence[Sequence[int]],
        *,
        candidate: nn.Module | None = None,
        whole: Callable[[], EquivalenceReference] | None = None,
    ) -> None:
        self.candidate = candidate or model
        self.graph = graph
        self.deletions = deletions
        self._weights = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
        # rotated second, right after as many samples in their own order
        self._cases = [deletions, [*deletions[1:], *deletions[:1]], [*deletions] * -(-_LARGE_BATCH // len(deletions))]
        self._subgraph = cache(partial(self._outcome, model, "subgraph", "lean"))
        self._whole = whole
        self._full_size = cache(self._at_full_size)

    def compare(
        self,
        strategy: str,
        collation: str = "lean",
        *,
        dtype: str = "float32",
        compile: bool = False,
        slices: bool = False,
    ) -> EquivalenceResult:
        """Return how far a strategy is from `subgraph`.

        **Arguments:**

        - `strategy`: its name.
        - `collation`: one of its collations.
        - `dtype`, `compile`, `slices`: how an exact strategy is compared in addition to eager float64 and float32 of
          whole batches.
        """
        exact = get(strategy).exact
        whole_batches = [{"draw": draw} for draw in range(DRAWS)]
        predictions = [{"case": case, "backward": False} for case in (1, 2)]
        # the compiler makes code for the number of threads at that moment
        with nullcontext() if compile else _one_thread():
            fp64 = [self._difference(strategy, collation, "float64", **how) for how in (*whole_batches, *predictions)]
            lower = [self._ratio(strategy, collation, "float32")]
            if exact and (compile or slices or dtype == "bfloat16"):
                as_run: dict[str, Any] = {"slices": slices, "forward": compiled_forward(_call) if compile else _call}
                if compile:
                    self._outcome(self.candidate, strategy, collation, dtype, **as_run)  # the first call runs eagerly
                if dtype == "float64":
                    fp64 += [self._difference(strategy, collation, dtype, **how, **as_run) for how in whole_batches]
                else:
                    lower.append(self._ratio(strategy, collation, dtype, **as_run))
        error, where = max(fp64)
        ratio, where_lower = max(lower)
        passed, full_size = exact and error <= FP64_TOLERANCE and ratio <= FP32_RATIO, None
        where = where if error > FP64_TOLERANCE else where_lower
        if passed and self._whole is not None and is_users(strategy):
            full_size, where = self._full_size(get(strategy), collation)
            passed = full_size != "failed"
        return EquivalenceResult(
            strategy,
            exact,
            passed,
            fp64_error=error,
            fp32_ratio=ratio,
            nodes=self.graph.num_nodes[self.graph.deleted_type],
            edges=self.graph.num_edges,
            where="" if passed or not exact else where,
            full_size=full_size,
            left_out=_left_out(self.candidate, self.graph),
        )

    def _at_full_size(self, strategy: type[Strategy], collation: str) -> tuple[str, str]:
        """Return "passed", "failed" or "not compared: …" on the whole graph, and what is off there.

        Predictions are compared, in fp64 and, for what is gross, in fp32. Nothing that is made there is kept.
        """
        assert self._whole is not None
        try:
            whole = self._whole()
            for dtype, allowed in _FULL_SIZE.items():
                error, where = whole._difference(strategy.name, collation, dtype, allowed=allowed, backward=False)
                if error > allowed:
                    return "failed", f"on the whole graph {where}"
        except Exception as error:
            if not out_of_memory(error):
                raise
            return "not compared: memory ran out", ""
        return "passed", ""

    def _difference(
        self, strategy: str, collation: str, dtype: str, *, allowed: float = FP64_TOLERANCE, **how: Any
    ) -> tuple[float, str]:
        """Return the largest difference from `subgraph` in a dtype, with what is off; `how` is as for `_outcome`."""
        found = self._outcome(self.candidate, strategy, collation, dtype, **how)
        case = {name: value for name, value in how.items() if name not in _AS_RUN}
        error, where = largest_difference(found, self._subgraph(dtype, **case), allowed)
        return error, f"in {dtype}{_words(**how)}, {where}"

    def _ratio(self, strategy: str, collation: str, dtype: str, **as_run: Any) -> tuple[float, str]:
        """Return the ratio of the error in lower precision to `subgraph`'s own, the median draw's, with what is off."""
        found = []
        for draw in range(BFLOAT16_DRAWS if dtype == "bfloat16" else DRAWS):
            expected = self._subgraph("float64", draw=draw)
            own = max(norm_error(self._subgraph(dtype, draw=draw), expected), _ROUNDING[dtype])
            outcome = self._outcome(self.candidate, strategy, collation, dtype, draw=draw, **as_run)
            _, where = largest_difference(outcome, expected, FP32_RATIO * own)
            found.append((norm_error(outcome, expected) / own, f"in {dtype}{_words(**as_run)}, {where}"))
        return median_high(found)

    def _load(self, model: nn.Module, draw: int, dtype: str) -> None:
        """Give a model a draw's weights in a dtype: the first are its own, those of others are some 1 % off."""
        generator = torch.Generator().manual_seed(draw)
        weights = dict(self._weights)
        for name, tensor in self._weights.items():
            if draw > 0 and tensor.is_floating_point():
                weights[name] = tensor * (1.0 + 0.01 * torch.randn(tensor.shape, generator=generator).to(tensor))
        model.to(torch.float64 if dtype == "float64" else torch.float32).load_state_dict(weights)

    def _outcome(
        self,
        model: nn.Module,
        strategy: str,
        collation: str,
        dtype: str,
        *,
        draw: int = 0,
        case: int = 0,
        slices: bool = False,
        backward: bool = True,
        forward: Forward = _call,
    ) -> Outcome:
        """Return a model's predictions of a case, and the gradients of their weighted sum.

        Every sample has another weight, so that swapping two samples' gradients changes the sum.
        """
        model.zero_grad(set_to_none=True)
        self._load(model, draw, dtype)
        samples, device = self._cases[case], next(model.parameters()).device
        weights = torch.linspace(-1.0, 2.0, len(samples), dtype=torch.float64, device=device)
        size = _SLICE if slices else len(samples)
        parts = [slice(first, first + size) for first in range(0, len(samples), size)]
        batches = [[*samples[1:], []], *(samples[part] for part in parts)]
        made = views(self.graph, batches, strategy, device=device, collation=collation)
        next(made).close()  # what a strategy keeps of one batch must not reach the next of its size
        predicted = []
        for part, copies in zip(parts, made, strict=True):
            with torch.set_grad_enabled(backward), copies:
                with torch.autocast(device.type, torch.bfloat16, enabled=dtype == "bfloat16"):
                    predictions = forward(model, copies)
                if backward:
                    (predictions * weights[part].to(predictions.dtype)).sum().backward()
            predicted.append(predictions.detach().cpu())
        named = model.named_parameters() if backward else ()
        gradients = {name: torch.zeros_like(p).cpu() if p.grad is None else p.grad.cpu() for name, p in named}
        return Outcome(samples, torch.cat(predicted), gradients)


@contextmanager
def _one_thread() -> Iterator[None]:
    """Run on one CPU thread: the check's tensors are small, and on a busy machine threads wait for one another."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def equivalence_reference(
    build: Callable[[CellGraph], nn.Module],
    graph: CellGraph,
    *,
    seed: int = 0,
    change: Callable[[nn.Module], None] | None = None,
    full_size: bool = False,
) -> EquivalenceReference:
    """Return the reference with which a sweep compares its strategies, on part of its graph.

    **Arguments:**

    - `build`: makes the model of a graph, on the device where strategies are compared, in evaluation mode.
    - `graph`: on the CPU.
    - `seed`: seed of weights and deletions.
    - `change`: what a point changes in the model that strategies run on, as overheads do; `subgraph` runs without it.
    - `full_size`: on a copy of the whole graph, with which all that is made of it goes.
    """
    part = graph.induced({}) if full_size else equivalence_graph(graph)
    torch.manual_seed(seed)
    model = build(part)
    candidate = None
    if change is not None:
        candidate = copy.deepcopy(model)
        change(candidate)
    deletions = full_size_deletions(part) if full_size else equivalence_deletions(part, seed=seed)
    whole = partial(equivalence_reference, build, graph, seed=seed, change=change, full_size=True)
    return EquivalenceReference(
        model, part, deletions, candidate=candidate, whole=None if full_size or part is graph else whole
    )
