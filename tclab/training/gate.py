"""The equality gate: before any clock is read, a strategy must give what `subgraph` gives."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from tclab.errors import unknown
from tclab.graph import CellGraph
from tclab.masking import get, view
from tclab.message_passing import View
from tclab.models import ModelKind
from tclab.training.gate_case import gate_deletions, gate_graph
from tclab.training.habits import put_on_model
from tclab.training.step import DTYPES, compiled_forward

FP64_TOLERANCE = 1e-10
FP32_RATIO = 2.0
DRAWS = 3
ROUGH_DRAWS = 9  # in bfloat16, where so many activations lie within rounding of a kink that the middle of 3 is luck
_ROUNDING = {"float32": 4 * torch.finfo(torch.float32).eps, "bfloat16": 4 * torch.finfo(torch.bfloat16).eps}
# A parameter whose gradient is exactly zero in theory (a bias in front of a softmax) has rounding noise alone;
# it is compared on this share of the largest gradient instead of on its own size.
_SMALL = 1e-3
_SLICE = 3  # samples, where a batch is gone through in slices


@dataclass(frozen=True)
class Mode:
    """How a step is run: what changes how much is rounded, and not what is computed.

    **Arguments:**

    - `dtype`, `compile`, `checkpoint`: as `tclab.training.Step` has them.
    - `slices`: a batch is gone through in slices, whose gradients are added up.
    """

    dtype: str = "float32"
    compile: bool = False
    checkpoint: bool = False
    slices: bool = False

    @property
    def plain(self) -> bool:
        """Whether fp64 and fp32 as they come are all there is to try."""
        return self.dtype in ("float32", "float64") and not (self.compile or self.checkpoint or self.slices)


@dataclass(frozen=True)
class GateResult:
    """How far a strategy is from `subgraph`, the worst or the middle of `DRAWS` draws of the weights.

    In a mode of bfloat16 the ratio's middle there is that of `ROUGH_DRAWS`.

    **Arguments:**

    - `strategy`: its name; `exact`: what it says of itself.
    - `passed`: it says that it is exact, `fp64_error` is at most 1e-10 and `fp32_ratio` at most 2. What is run
      otherwise than in fp64 or fp32 as they come is tried so, too, and held to the same: `fp64_error` and
      `fp32_ratio` are the worst of both. A ratio in bfloat16 is over `subgraph`'s own error in bfloat16.
    - `fp64_error`: against `subgraph` in fp64: the largest difference over the largest value, of the predictions
      or of one parameter's gradient, in the worst draw.
    - `fp32_error`: against `subgraph` in fp64: the norm of the difference over the norm, of the predictions or of
      the whole gradient, in the middle draw.
    - `fp32_ratio`: that over `subgraph`'s own fp32 error (or fp32's rounding where `subgraph` happens to be
      closer), in the middle draw. Where an activation lies within rounding of ReLU's kink, two right answers
      may fall on its two sides and differ by far more than rounding; that is one draw's luck, so not the worst
      draw decides but the middle one.
    - `nodes`, `edges`, `samples`: what it was tried on.
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


Outcome = tuple[Tensor, list[Tensor]]


def relative_error(found: Outcome, expected: Outcome) -> float:
    """Return the worst relative error of predictions and parameter gradients; infinite where any is not finite."""
    predictions, gradients = expected
    largest = max((g.abs().max().item() for g in gradients if g.numel()), default=0.0)
    pairs = [(found[0], predictions, predictions.abs().max().item())]
    for ours, theirs in zip(found[1], gradients, strict=True):
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


def norm_error(found: Outcome, expected: Outcome) -> float:
    """Return the relative error in the Euclidean norm, of the predictions or the gradient, whichever is worse."""

    def of(ours: Tensor, theirs: Tensor) -> float:
        apart = (ours.double() - theirs.double()).norm().item()
        return apart / (theirs.double().norm().item() or 1.0) if apart == apart else float("inf")

    gradients = (torch.cat([g.flatten().double() for g in side[1]]) for side in (found, expected))
    return max(of(found[0], expected[0]), of(*gradients))


def outcome(
    model: nn.Module,
    graph: CellGraph,
    deletions: Sequence[Sequence[int]],
    strategy: str,
    collation: str = "lean",
    *,
    mode: Mode = Mode(),
    forward: Callable[[nn.Module, View], Any] | None = None,
) -> Outcome:
    """Return a model's predictions, [B], and the gradients of a weighted sum of them, on the model's device.

    Each sample has a weight of its own, so that no two samples' gradients can be exchanged unseen.

    **Arguments:**

    - `mode`: of which bfloat16 and slices are seen to here; fp64 or fp32 is what the model's weights are.
    - `forward`: calls the model on a view.
    """
    device = next(model.parameters()).device
    model.zero_grad(set_to_none=True)
    weights = torch.linspace(-1.0, 2.0, len(deletions), dtype=torch.float64, device=device)
    most = _SLICE if mode.slices else max(len(deletions), 1)
    predicted = []
    for first in range(0, len(deletions), most):
        own = deletions[first : first + most]
        with view(graph, own, strategy, device=device, collation=collation) as copies:
            with torch.autocast(device.type, torch.bfloat16, enabled=mode.dtype == "bfloat16"):
                predictions = (forward or _call)(model, copies)
            (predictions * weights[first : first + most].to(predictions.dtype)).sum().backward()
        predicted.append(predictions.detach().cpu())
    gradients = [torch.zeros_like(p).cpu() if p.grad is None else p.grad.detach().cpu() for p in model.parameters()]
    model.zero_grad(set_to_none=True)
    return torch.cat(predicted), gradients


class Reference:
    """What `subgraph` gives for a model, a graph and deletions: what every other strategy is compared with.

    **Arguments:**

    - `model`: in evaluation mode, or without dropout; its weights are left as they were, in float32.
    - `graph`: on the CPU or the model's device. `deletions`: for each sample the nodes it deletes.
    - `tried`: the same model in another guise (with habits, say) under the same names of parameters, which
      strategies are tried on; the model itself unless given.
    """

    def __init__(
        self,
        model: nn.Module,
        graph: CellGraph,
        deletions: Sequence[Sequence[int]],
        *,
        tried: nn.Module | None = None,
    ) -> None:
        self.model = model
        self.tried = model if tried is None else tried
        self.graph = graph
        self.deletions = deletions
        self._weights = [{name: tensor.detach().clone() for name, tensor in model.state_dict().items()}]
        self._generator = torch.Generator().manual_seed(0)
        self._expected: list[tuple[Outcome, Outcome]] = []
        self._expectations(DRAWS)

    def _outcomes(
        self, model: nn.Module, strategy: str, draw: int, collation: str = "lean"
    ) -> tuple[Outcome, Outcome]:
        """Return what a strategy gives with one draw of the weights, in fp64 and in fp32."""
        model.load_state_dict(self._weights[draw])
        try:
            return (
                outcome(model.double(), self.graph, self.deletions, strategy, collation),
                outcome(model.float(), self.graph, self.deletions, strategy, collation),
            )
        finally:
            model.float().load_state_dict(self._weights[0])

    def _in_mode(self, strategy: str, collation: str, mode: Mode) -> tuple[list[float], list[float]]:
        """Return the fp64 errors, or the ratios to `subgraph`'s own errors, of each draw in a mode of its own."""
        plain = Mode(mode.dtype)
        every = self._expectations(ROUGH_DRAWS if mode.dtype == "bfloat16" else DRAWS)
        before = getattr(self.tried, "checkpoint", None)
        if mode.checkpoint:
            self.tried.checkpoint = True  # type: ignore[assignment]
        errors: list[float] = []
        ratios: list[float] = []
        try:
            forward = _call if not mode.compile else compiled_forward(_call)
            for draw, (expected, own32) in enumerate(every):
                self._load(self.tried, draw, mode.dtype)
                tried = (self.tried, self.graph, self.deletions)
                if mode.compile and draw == 0:  # the first call is not compiled
                    outcome(*tried, strategy, collation, forward=forward)
                found = outcome(*tried, strategy, collation, mode=mode, forward=forward)
                if mode.dtype == "float64":
                    errors.append(relative_error(found, expected))
                    continue
                own = own32
                if mode.dtype != "float32":
                    self._load(self.model, draw, mode.dtype)
                    own = outcome(self.model, self.graph, self.deletions, "subgraph", mode=plain)
                ratios.append(norm_error(found, expected) / max(norm_error(own, expected), _ROUNDING[mode.dtype]))
        finally:
            if mode.checkpoint:
                self.tried.checkpoint = before  # type: ignore[assignment]
            for model in (self.model, self.tried):
                self._load(model, 0, "float32")
        return errors, ratios

    def _expectations(self, draws: int) -> list[tuple[Outcome, Outcome]]:
        """Return what `subgraph` gives in so many draws of the weights, the first of which is the model's own."""
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

    def compare(self, strategy: str, collation: str = "lean", *, mode: Mode = Mode()) -> GateResult:
        """Return how far a strategy is from `subgraph`.

        **Arguments:**

        - `strategy`: its name. `collation`: one of its own.
        - `mode`: how else an exact strategy is tried than in fp64 and fp32 as they come.
        """
        if mode.dtype not in DTYPES:
            raise unknown("dtype", mode.dtype, DTYPES)
        fp64, fp32 = [], []
        with _one_thread():
            for draw, (expected, own) in enumerate(self._expectations(DRAWS)):
                found64, found32 = self._outcomes(self.tried, strategy, draw, collation)
                fp64.append(relative_error(found64, expected))
                error = norm_error(found32, expected)
                fp32.append((error / max(norm_error(own, expected), _ROUNDING["float32"]), error))
        ratio, error = sorted(fp32)[DRAWS // 2]
        if get(strategy).exact and not mode.plain:
            # what the compiler makes is for as many threads as there are when it makes it
            with nullcontext() if mode.compile else _one_thread():
                more64, ratios = self._in_mode(strategy, collation, mode)
            fp64 += more64
            middle = len(ratios) // 2
            ratio = max([ratio, *sorted(ratios)[middle : middle + 1]])
        return GateResult(
            strategy,
            get(strategy).exact,
            passed=get(strategy).exact and max(fp64) <= FP64_TOLERANCE and ratio <= FP32_RATIO,
            fp64_error=max(fp64),
            fp32_error=error,
            fp32_ratio=ratio,
            nodes=self.graph.num_nodes[self.graph.deleted_type],
            edges=self.graph.num_edges,
            samples=len(self.deletions),
        )


@contextmanager
def _one_thread() -> Iterator[None]:
    """Run on one thread of the CPU: the gate's tensors are small, and on a busy machine threads wait for others."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _call(model: nn.Module, view: View) -> Any:
    return model(view)


def gate(
    kind: ModelKind, graph: CellGraph, *, metabolism: str = "off", seed: int = 0, habits: Iterable[str] = ()
) -> Reference:
    """Return the reference that a sweep compares its strategies with, on part of its graph.

    The graph's device is where they are compared. Strategies are tried with habits, `subgraph` has none.
    """
    part = gate_graph(graph.to("cpu"))

    def built() -> nn.Module:
        torch.manual_seed(seed)
        return kind.build(part, metabolism).to(graph.device).eval()

    model, tried = built(), built()
    put_on_model(tried, habits)
    return Reference(model, part, gate_deletions(part, seed=seed), tried=tried)
