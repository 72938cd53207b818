"""The equivalence check: whether a strategy gives the predictions and gradients that `subgraph` gives.

It runs before every measurement, on a small case (`equivalence_graph`, `equivalence_deletions`): the removals that are
hard to get right, on nodes of every degree.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn

from tclab.graph._cell_graph import CellGraph
from tclab.masking import get
from tclab.masking._strategy import view
from tclab.message_passing import View
from tclab.models import ModelKind
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
    """

    strategy: str
    exact: bool
    passed: bool
    fp64_error: float
    fp32_ratio: float
    nodes: int
    edges: int


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


# ---- errors

Forward = Callable[[nn.Module, View], Any]
Outcome = tuple[Tensor, list[Tensor]]  # predictions [B], and each parameter's gradient; on the CPU


def relative_error(result: Outcome, expected: Outcome) -> float:
    """Return the worst relative error of predictions and parameter gradients; infinite where any is not finite."""
    gradients = [(ours, theirs) for ours, theirs in zip(result[1], expected[1], strict=True) if theirs.numel()]
    least = _SMALL * max((theirs.abs().max().item() for _, theirs in gradients), default=0.0)
    return max([_largest_error(result[0], expected[0]), *(_largest_error(*pair, least=least) for pair in gradients)])


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

    gradients = (torch.cat([grad.flatten().double() for grad in side[1]]) for side in (result, expected))
    return max(of(result[0], expected[0]), of(*gradients))


# ---- the check


def _call(model: nn.Module, view: View) -> Any:
    return model(view)


class EquivalenceReference:
    """What `subgraph` computes for a model, a graph and deletions; other strategies are compared with it.

    **Arguments:**

    - `model`: in evaluation mode, or without dropout. The reference changes its weights and dtype.
    - `graph`: on the CPU or the model's device.
    - `deletions`: for each sample the nodes that it removes.
    - `candidate`: the model that strategies run on, if it is not `model`: the same with overheads, and the same names
      of parameters.
    """

    def __init__(
        self,
        model: nn.Module,
        graph: CellGraph,
        deletions: Sequence[Sequence[int]],
        *,
        candidate: nn.Module | None = None,
    ) -> None:
        self.candidate = candidate or model
        self.graph = graph
        self.deletions = deletions
        self._weights = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
        # rotated first, right after as many samples in their own order
        self._more = [[*deletions[1:], *deletions[:1]], list(deletions) * -(-_LARGE_BATCH // len(deletions))]

        @cache
        def subgraph(draw: int, dtype: str) -> Outcome:
            self._load(model, draw, dtype)
            return self._outcome(model, "subgraph", "lean", dtype)

        self._subgraph = subgraph
        self._subgraph_of_more = cache(lambda: self._predictions_of_more(model, "subgraph", "lean"))

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
        # the compiler makes code for the number of threads at that moment
        with nullcontext() if compile else _one_thread():
            fp64 = self._errors(strategy, collation, "float64")
            ratio = median(self._errors(strategy, collation, "float32"))
            expected = self._subgraph_of_more()
            fp64 += map(relative_error, self._predictions_of_more(self.candidate, strategy, collation), expected)
            if exact and (compile or slices or dtype == "bfloat16"):
                errors = self._errors(strategy, collation, dtype, compile=compile, slices=slices)
                if dtype == "float64":
                    fp64 += errors
                else:
                    ratio = max(ratio, median(errors))
        return EquivalenceResult(
            strategy,
            exact,
            passed=exact and max(fp64) <= FP64_TOLERANCE and ratio <= FP32_RATIO,
            fp64_error=max(fp64),
            fp32_ratio=ratio,
            nodes=self.graph.num_nodes[self.graph.deleted_type],
            edges=self.graph.num_edges,
        )

    def _errors(
        self, strategy: str, collation: str, dtype: str, *, compile: bool = False, slices: bool = False
    ) -> list[float]:
        """Return each draw's error in fp64 or, in lower precision, the ratio of its error to `subgraph`'s own."""
        model = self.candidate
        forward: Forward = _call
        if compile:
            forward = compiled_forward(_call)
            self._load(model, 0, dtype)
            self._outcome(model, strategy, collation, dtype, forward)  # the first call runs eagerly
        errors = []
        for draw in range(BFLOAT16_DRAWS if dtype == "bfloat16" else DRAWS):
            expected = self._subgraph(draw, "float64")
            rounded = self._subgraph(draw, dtype)
            self._load(model, draw, dtype)
            found = self._outcome(model, strategy, collation, dtype, forward, slices=slices)
            if dtype == "float64":
                errors.append(relative_error(found, expected))
            else:
                errors.append(norm_error(found, expected) / max(norm_error(rounded, expected), _ROUNDING[dtype]))
        return errors

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
        forward: Forward = _call,
        *,
        slices: bool = False,
    ) -> Outcome:
        """Return a model's predictions, [B], and the gradients of their weighted sum.

        Every sample has another weight, so that swapping two samples' gradients changes the sum.
        """
        device = next(model.parameters()).device
        model.zero_grad(set_to_none=True)
        weights = torch.linspace(-1.0, 2.0, len(self.deletions), dtype=torch.float64, device=device)
        size = _SLICE if slices else len(self.deletions)
        predicted = []
        for first in range(0, len(self.deletions), size):
            part = slice(first, first + size)
            with view(self.graph, self.deletions[part], strategy, device=device, collation=collation) as copies:
                with torch.autocast(device.type, torch.bfloat16, enabled=dtype == "bfloat16"):
                    predictions = forward(model, copies)
                (predictions * weights[part].to(predictions.dtype)).sum().backward()
            predicted.append(predictions.detach().cpu())
        gradients = [torch.zeros_like(p).cpu() if p.grad is None else p.grad.cpu() for p in model.parameters()]
        model.zero_grad(set_to_none=True)
        return torch.cat(predicted), gradients

    def _predictions_of_more(self, model: nn.Module, strategy: str, collation: str) -> list[Outcome]:
        """Return a strategy's predictions in fp64, and no gradients, for the samples rotated and for a large batch."""
        self._load(model, 0, "float64")
        device = next(model.parameters()).device
        outcomes: list[Outcome] = []
        for removed in self._more:
            with view(self.graph, removed, strategy, device=device, collation=collation) as copies:
                outcomes.append((model(copies).detach().cpu(), []))
        return outcomes


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
    kind: ModelKind,
    graph: CellGraph,
    *,
    device: torch.device | str = "cpu",
    metabolism: str = "off",
    seed: int = 0,
    change: Callable[[nn.Module], None] | None = None,
) -> EquivalenceReference:
    """Return the reference with which a sweep compares its strategies, on part of its graph.

    **Arguments:**

    - `kind`: the registered model.
    - `graph`: on the CPU. `device`: where strategies are compared.
    - `metabolism`: passed to the model.
    - `seed`: seed of weights and deletions.
    - `change`: what a point changes in the model that strategies run on, as overheads do; `subgraph` runs without it.
    """
    part = equivalence_graph(graph)
    torch.manual_seed(seed)
    model = kind.build(part, metabolism).to(device).eval()
    candidate = None
    if change is not None:
        candidate = copy.deepcopy(model)
        change(candidate)
    return EquivalenceReference(model, part, equivalence_deletions(part, seed=seed), candidate=candidate)
