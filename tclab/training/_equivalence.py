"""The equivalence check: whether a strategy gives the predictions and gradients that `subgraph` gives.

It runs before every measurement, on a small case (`equivalence_graph`, `equivalence_deletions`): the removals that are
hard to get right, on nodes of every degree.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from tclab.errors import unknown
from tclab.graph._cell_graph import CellGraph
from tclab.masking import get
from tclab.masking._strategy import view
from tclab.message_passing import View
from tclab.models import ModelKind
from tclab.training._overheads import apply_to_model
from tclab.training._step import DTYPES, compiled_forward

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
class Numerics:
    """The settings of a step that change its rounding and not what it computes."""

    dtype: str = "float32"  # one of `DTYPES`
    compile: bool = False  # the model runs through `torch.compile`
    checkpoint: bool = False  # the model recomputes activations in the backward
    slices: bool = False  # a batch runs in slices, whose gradients are summed

    @property
    def plain(self) -> bool:
        """Whether these are eager fp32 or fp64 without checkpointing or slices, which every check covers."""
        return self.dtype in ("float32", "float64") and not (self.compile or self.checkpoint or self.slices)


@dataclass(frozen=True)
class EquivalenceResult:
    """How far a strategy is from `subgraph`, over `DRAWS` draws of the weights (`BFLOAT16_DRAWS` in bfloat16).

    An activation within rounding of ReLU's kink may fall on either side of it in two right computations, which then
    differ by far more than rounding. That is one draw's luck, so fp32 errors are the median over draws, not the worst.

    **Arguments:**

    - `strategy`: its name.
    - `exact`: whether the strategy declares itself exact.
    - `passed`: the strategy is exact, `fp64_error` is at most 1e-10 and `fp32_ratio` at most 2. For numerics other
      than plain ones, the errors with these are included: `fp64_error` and `fp32_ratio` are the larger of both.
    - `fp64_error`: in fp64, the largest difference from `subgraph` over the largest value, of the predictions or of
      one parameter's gradient; the worst draw. The predictions of two more batches count with them: one of more than
      64 samples, and the samples in another order, where what the batch before left behind would show.
    - `fp32_error`: in fp32, the norm of the difference from `subgraph` in fp64 over the latter's norm, of the
      predictions or of the whole gradient; the median draw.
    - `fp32_ratio`: `fp32_error` over `subgraph`'s own fp32 error, or over fp32's rounding where that is larger; the
      median draw. In bfloat16, both errors are those in bfloat16.
    - `nodes`: nodes, of the type that samples remove, in the graph that the check ran on.
    - `edges`: its edges.
    - `samples`: samples of the check.
    """

    strategy: str
    exact: bool
    passed: bool
    fp64_error: float
    fp32_error: float
    fp32_ratio: float
    nodes: int
    edges: int
    samples: int


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
    for node_type, number in graph.num_nodes.items():
        if number > 2 * _HALF:
            by_degree = torch.argsort(_degrees(graph, node_type), descending=True, stable=True)
            hubs, rest = by_degree[:_HALF], by_degree[_HALF:]
            kept[node_type] = torch.cat([hubs, rest[:: len(rest) // _HALF][:_HALF]]).sort().values
    return graph.induced(kept) if kept else graph


def equivalence_deletions(graph: CellGraph, *, seed: int = 0) -> list[list[int]]:
    """Return deletions that show a strategy that is nearly right: for each sample, the nodes that it removes.

    They are: three random nodes, no node, the hub, all neighbours of a node of low degree, and the first three nodes
    again. Four more random sets follow, so that the fp32 error of the predictions is not one sample's luck.
    """
    number = graph.num_nodes[graph.deleted_type]
    degree = _degrees(graph, graph.deleted_type)
    hub = int(degree.argmax())
    least = int(degree.masked_fill(degree == 0, float("inf")).argmin())
    neighbours: set[int] = set()
    for network in graph.networks.values():
        source, target = network.edge_index
        neighbours |= set(target[source == least].tolist()) | set(source[target == least].tolist())
    generator = torch.Generator().manual_seed(seed)
    three, *rest = (torch.randperm(number, generator=generator)[:3].tolist() for _ in range(5))
    return [three, [], [hub], sorted(neighbours - {least}), three, *rest]


# ---- predictions and gradients, and their errors

Outcome = tuple[Tensor, list[Tensor]]  # predictions [B], and each parameter's gradient


def outcome(
    model: nn.Module,
    graph: CellGraph,
    deletions: Sequence[Sequence[int]],
    strategy: str,
    collation: str = "lean",
    *,
    numerics: Numerics = Numerics(),
    forward: Callable[[nn.Module, View], Any] | None = None,
) -> Outcome:
    """Return a model's predictions, [B], and the gradients of their weighted sum, all on the CPU.

    Every sample has another weight, so that swapping two samples' gradients changes the sum.

    **Arguments:**

    - `model`: decides the device, and fp32 or fp64 by its weights.
    - `graph`: the graph.
    - `deletions`: for each sample the nodes that it removes.
    - `strategy`: name of the strategy.
    - `collation`: one of the strategy's collations.
    - `numerics`: whose bfloat16 and slices apply here; the caller sees to the rest.
    - `forward`: (model, view) → predictions; a call of the model by default.
    """
    device = next(model.parameters()).device
    model.zero_grad(set_to_none=True)
    weights = torch.linspace(-1.0, 2.0, len(deletions), dtype=torch.float64, device=device)
    slice_size = _SLICE if numerics.slices else max(len(deletions), 1)
    predicted = []
    for first in range(0, len(deletions), slice_size):
        removed = deletions[first : first + slice_size]
        with view(graph, removed, strategy, device=device, collation=collation) as copies:
            with torch.autocast(device.type, torch.bfloat16, enabled=numerics.dtype == "bfloat16"):
                predictions = (forward or _call)(model, copies)
            (predictions * weights[first : first + slice_size].to(predictions.dtype)).sum().backward()
        predicted.append(predictions.detach().cpu())
    gradients = [torch.zeros_like(p).cpu() if p.grad is None else p.grad.detach().cpu() for p in model.parameters()]
    model.zero_grad(set_to_none=True)
    return torch.cat(predicted), gradients


def _call(model: nn.Module, view: View) -> Any:
    return model(view)


def relative_error(result: Outcome, expected: Outcome) -> float:
    """Return the worst relative error of predictions and parameter gradients; infinite where any is not finite."""
    predictions, gradients = expected
    largest = max((g.abs().max().item() for g in gradients if g.numel()), default=0.0)
    pairs = [(result[0], predictions, predictions.abs().max().item())]
    for ours, theirs in zip(result[1], gradients, strict=True):
        if theirs.numel():
            pairs.append((ours, theirs, max(theirs.abs().max().item(), _SMALL * largest)))
    worst = 0.0
    for ours, theirs, scale in pairs:
        difference = (ours.double() - theirs.double()).abs().max().item()
        if difference != difference or difference == float("inf"):
            return float("inf")
        if difference > 0.0:
            worst = max(worst, difference / scale if scale > 0.0 else float("inf"))
    return worst


def norm_error(result: Outcome, expected: Outcome) -> float:
    """Return the relative error in the Euclidean norm, of the predictions or the gradient, whichever is worse."""

    def of(ours: Tensor, theirs: Tensor) -> float:
        difference = (ours.double() - theirs.double()).norm().item()
        return difference / (theirs.double().norm().item() or 1.0) if difference == difference else float("inf")

    gradients = (torch.cat([g.flatten().double() for g in side[1]]) for side in (result, expected))
    return max(of(result[0], expected[0]), of(*gradients))


# ---- the check


class EquivalenceReference:
    """The outcomes of `subgraph` for a model, a graph and deletions, with which other strategies are compared.

    **Arguments:**

    - `model`: in evaluation mode, or without dropout; its weights are float32, and stay as they are.
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
        self.model = model
        self.candidate = model if candidate is None else candidate
        self.graph = graph
        self.deletions = deletions
        # one for each draw; the first is the model's
        self._weights = [{name: tensor.detach().clone() for name, tensor in model.state_dict().items()}]
        self._generator = torch.Generator().manual_seed(0)
        self._expected: list[tuple[Outcome, Outcome]] = []
        self._expectations(DRAWS)
        # rotated first, right after as many samples in their own order
        self._more = [[*deletions[1:], *deletions[:1]], list(deletions) * -(-_LARGE_BATCH // max(len(deletions), 1))]
        with _one_thread():
            self._expected_of_more = self._predictions_of_more(model, "subgraph")

    def compare(self, strategy: str, collation: str = "lean", *, numerics: Numerics = Numerics()) -> EquivalenceResult:
        """Return how far a strategy is from `subgraph`.

        **Arguments:**

        - `strategy`: its name.
        - `collation`: one of its collations.
        - `numerics`: other settings that an exact strategy is checked with, in addition to eager fp64 and fp32.
        """
        if numerics.dtype not in DTYPES:
            raise unknown("dtype", numerics.dtype, DTYPES)
        fp64, fp32 = [], []
        with _one_thread():
            for draw, (expected, subgraph32) in enumerate(self._expectations(DRAWS)):
                outcome64, outcome32 = self._outcomes(self.candidate, strategy, draw, collation)
                fp64.append(relative_error(outcome64, expected))
                error = norm_error(outcome32, expected)
                fp32.append((error / max(norm_error(subgraph32, expected), _ROUNDING["float32"]), error))
            more = self._predictions_of_more(self.candidate, strategy, collation)
        fp64 += map(relative_error, more, self._expected_of_more)
        ratio, error = sorted(fp32)[DRAWS // 2]
        exact = get(strategy).exact
        if exact and not numerics.plain:
            # the compiler makes code for the number of threads at that moment
            with nullcontext() if numerics.compile else _one_thread():
                more64, ratios = self._with_numerics(strategy, collation, numerics)
            fp64 += more64
            middle = len(ratios) // 2
            ratio = max([ratio, *sorted(ratios)[middle : middle + 1]])
        return EquivalenceResult(
            strategy,
            exact,
            passed=exact and max(fp64) <= FP64_TOLERANCE and ratio <= FP32_RATIO,
            fp64_error=max(fp64),
            fp32_error=error,
            fp32_ratio=ratio,
            nodes=self.graph.num_nodes[self.graph.deleted_type],
            edges=self.graph.num_edges,
            samples=len(self.deletions),
        )

    def _outcomes(self, model: nn.Module, strategy: str, draw: int, collation: str = "lean") -> tuple[Outcome, Outcome]:
        """Return a strategy's outcomes in fp64 and in fp32 for one draw of the weights."""
        model.load_state_dict(self._weights[draw])
        try:
            return (
                outcome(model.double(), self.graph, self.deletions, strategy, collation),
                outcome(model.float(), self.graph, self.deletions, strategy, collation),
            )
        finally:
            model.float().load_state_dict(self._weights[0])

    def _predictions_of_more(self, model: nn.Module, strategy: str, collation: str = "lean") -> list[Outcome]:
        """Return a strategy's predictions in fp64, and no gradients, for the samples rotated and for a large batch."""
        device = next(model.parameters()).device
        model.load_state_dict(self._weights[0])
        outcomes: list[Outcome] = []
        try:
            for removed in self._more:
                with view(self.graph, removed, strategy, device=device, collation=collation) as copies:
                    outcomes.append((model.double()(copies).detach().cpu(), []))
            return outcomes
        finally:
            model.float().load_state_dict(self._weights[0])

    def _with_numerics(self, strategy: str, collation: str, numerics: Numerics) -> tuple[list[float], list[float]]:
        """Return each draw's fp64 error, or else each draw's ratio to `subgraph`'s own error, with other numerics."""
        expectations = self._expectations(BFLOAT16_DRAWS if numerics.dtype == "bfloat16" else DRAWS)
        checkpoint = getattr(self.candidate, "checkpoint", None)
        if numerics.checkpoint:
            self.candidate.checkpoint = True  # type: ignore[assignment]
        errors: list[float] = []
        ratios: list[float] = []
        try:
            forward = _call if not numerics.compile else compiled_forward(_call)
            for draw, (expected, subgraph32) in enumerate(expectations):
                self._load(self.candidate, draw, numerics.dtype)
                case = (self.candidate, self.graph, self.deletions, strategy, collation)
                if numerics.compile and draw == 0:  # the first call runs eagerly
                    outcome(*case, forward=forward)
                result = outcome(*case, numerics=numerics, forward=forward)
                if numerics.dtype == "float64":
                    errors.append(relative_error(result, expected))
                    continue
                subgraph = subgraph32
                if numerics.dtype != "float32":
                    self._load(self.model, draw, numerics.dtype)
                    plain = Numerics(numerics.dtype)
                    subgraph = outcome(self.model, self.graph, self.deletions, "subgraph", numerics=plain)
                own_error = max(norm_error(subgraph, expected), _ROUNDING[numerics.dtype])
                ratios.append(norm_error(result, expected) / own_error)
        finally:
            if numerics.checkpoint:
                self.candidate.checkpoint = checkpoint  # type: ignore[assignment]
            for model in (self.model, self.candidate):
                self._load(model, 0, "float32")
        return errors, ratios

    def _expectations(self, draws: int) -> list[tuple[Outcome, Outcome]]:
        """Return `subgraph`'s outcomes in fp64 and fp32 for some draws of the weights; the first is the model's own."""
        with _one_thread():
            while len(self._expected) < draws:
                if self._expected:
                    self._weights.append({name: self._noisy(tensor) for name, tensor in self._weights[0].items()})
                self._expected.append(self._outcomes(self.model, "subgraph", len(self._expected)))
        return self._expected[:draws]

    def _noisy(self, tensor: Tensor) -> Tensor:
        if not tensor.is_floating_point():
            return tensor.clone()
        return tensor * (1.0 + 0.01 * torch.randn(tensor.shape, generator=self._generator).to(tensor))

    def _load(self, model: nn.Module, draw: int, dtype: str) -> None:
        model.to(torch.float64 if dtype == "float64" else torch.float32).load_state_dict(self._weights[draw])


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
    kind: ModelKind, graph: CellGraph, *, metabolism: str = "off", seed: int = 0, overheads: Iterable[str] = ()
) -> EquivalenceReference:
    """Return the reference with which a sweep compares its strategies, on part of its graph.

    **Arguments:**

    - `kind`: the registered model.
    - `graph`: its device is where strategies are compared.
    - `metabolism`: passed to the model.
    - `seed`: seed of weights and deletions.
    - `overheads`: applied to the model that strategies run on; the one that `subgraph` runs on has none.
    """
    part = equivalence_graph(graph.to("cpu"))

    def build() -> nn.Module:
        torch.manual_seed(seed)
        return kind.build(part, metabolism).to(graph.device).eval()

    model, candidate = build(), build()
    apply_to_model(candidate, overheads)
    return EquivalenceReference(model, part, equivalence_deletions(part, seed=seed), candidate=candidate)
