"""The equivalence check: whether a strategy gives the predictions and gradients that `subgraph` gives.

It runs before every measurement, and what it compares is small:

- the model on a part of the graph (`equivalence_graph`), with the removals that are hard to get right
  (`equivalence_deletions`);
- a layer and a pool alone on a hub with as many neighbours as the graph's has (`hub_graph`), in every dtype and for
  more than 64 samples. Low precision fails there first, and there the reference itself has to be right;
- for a user's own strategy, the model on the whole graph (`full_size_deletions`), where ids no longer fit a byte.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cache, partial
from math import hypot, inf
from statistics import median_high
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from tclab._display import first_of
from tclab._limits import out_of_memory
from tclab.graph import Network
from tclab.graph._cell_graph import CellGraph
from tclab.masking import Strategy, get
from tclab.masking._strategy import is_users, views
from tclab.message_passing import View
from tclab.models import PygModel
from tclab.training._step import compiled_forward

FP64_TOLERANCE = 1e-10
FP32_RATIO = 2.0
# draws of the weights; in bfloat16 so many activations lie within rounding of a kink that the median of 3 may be luck
DRAWS = {"float64": 2, "float32": 3, "bfloat16": 5}
# what is rounding alone: right strategies were off by up to 1.1e-6, 9 eps, in float32
_ROUNDING = {"float32": 8 * torch.finfo(torch.float32).eps, "bfloat16": 4 * torch.finfo(torch.bfloat16).eps}
_OWN_AT_MOST = 0.15  # what `subgraph`'s own error counts as at most: no ratio to a larger one means anything
# The gradient of a parameter that is exactly zero in theory (a bias in front of a softmax) is rounding noise. Its error
# is taken relative to at least this share of the largest gradient.
_SMALL = 1e-3
_SLICE = 3  # samples a slice, where the check runs with slices
_PART = (20, 35, 50, 100)  # nodes of a type in the check's part of the graph, after each round in which it grows
_HUB_NODES = 2048  # at most, of the graph of a hub: sums in bfloat16 go wrong from 256 on
_HUB_SAMPLES = 66  # more than a word has bits
_AT_HUB = {"float64": FP64_TOLERANCE, "float32": 1e-4, "bfloat16": 0.05}  # right sums are off by up to 2 % in bfloat16
# What may be off on the whole graph, of the largest. On the real cell fp32's rounding is up to 5e-5, and one deleted
# node of three that is kept changes as little as 1e-5: fp64 finds that, fp32 what is gross in it alone.
_FULL_SIZE = {"float64": FP64_TOLERANCE, "float32": 1e-2}
_SIZE_FOR_GRADIENTS = 100_000  # nodes and edges that a whole graph may have for gradients to be compared on it, too


@dataclass(frozen=True)
class EquivalenceResult:
    """How far a strategy is from `subgraph`, over some draws of the weights.

    An activation within rounding of ReLU's kink may fall on either side of it in two right computations, which then
    differ by far more than rounding. That is one draw's luck, so fp32 errors are the median over draws, not the worst.

    **Arguments:**

    - `strategy`: its name.
    - `exact`: whether the strategy declares itself exact.
    - `passed`: the strategy is exact, `fp64_error` is at most 1e-10, `fp32_ratio` at most 2, and nothing was off at the
      hub and on the whole graph. Where it is compared compiled, in slices or in bfloat16 too, `fp64_error` and
      `fp32_ratio` are the larger of both.
    - `fp64_error`: in fp64, the largest difference from `subgraph` over the largest value, of the predictions or of
      one parameter's gradient; the worst draw.
    - `fp32_ratio`: the error in fp32 over `subgraph`'s own, or over fp32's rounding where that is larger; the median
      draw. An error is the norm of the difference from `subgraph` in fp64 over the latter's norm, of the predictions or
      of the whole gradient. In bfloat16, both errors are those in bfloat16. `subgraph`'s own counts as 15 % at most, as
      no ratio to a larger one means anything: a reference that is half off does not pass itself.
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


# ---- the cases: graphs and deletions


def _links(graph: CellGraph, kept: Mapping[str, Tensor] | None = None) -> dict[str, Tensor]:
    """Return how many edge ends over all relations each node has: node type → [nodes] float64.

    Those alone whose other end is `kept`, node type → [nodes] bool, where that is given.
    """
    links = {kind: torch.zeros(nodes, dtype=torch.float64) for kind, nodes in graph.num_nodes.items()}
    for network in graph.relations.values():
        ends = list(zip((network.source, network.target), network.edge_index.cpu(), strict=True))
        for (kind, ids), (other, others) in (ends, ends[::-1]):
            counted = ids if kept is None else ids[kept[other][others].nonzero().flatten()]
            links[kind] += counted.bincount(minlength=len(links[kind]))
    return links


def equivalence_graph(graph: CellGraph) -> CellGraph:
    """Return the part of a graph, on the CPU, that a sweep's equivalence check runs on: nodes of every degree.

    Of each type it keeps 100 nodes, or all that there are. Half are a core, which grows from the hub of each relation:
    each round adds what has the most edges into it, so that hubs have neighbours and there are circles. The other half
    are neighbours of the core's, from those with the most edges into it to those with the fewest.
    """
    if max(graph.num_nodes.values()) <= _PART[-1]:
        return graph
    kept = {kind: torch.full((nodes,), nodes <= _PART[-1]) for kind, nodes in graph.num_nodes.items()}
    for network in graph.relations.values():
        for kind, ids in zip((network.source, network.target), network.edge_index, strict=True):
            kept[kind][ids.bincount().argmax(0, keepdim=True) if len(ids) else ids] = True
    degrees = _links(graph)
    for size in _PART:
        links = _links(graph, kept)
        for kind, chosen in kept.items():
            score = links[kind] * (1 + degrees[kind].sum()) + degrees[kind]  # by its edges into the part, then by all
            best = score.masked_fill(chosen, -1.0).argsort(descending=True, stable=True)[: int((~chosen).sum())]
            room = max(size - int(chosen.sum()), 0)
            step = int(links[kind][best].count_nonzero()) // max(room, 1) if size == _PART[-1] else 1
            chosen[best[:: max(step, 1)][:room]] = True
    return graph.induced({kind: chosen.nonzero().flatten() for kind, chosen in kept.items()})


def equivalence_deletions(graph: CellGraph, *, seed: int = 0) -> list[list[int]]:
    """Return deletions that show a strategy that is nearly right: for each sample, the nodes that it removes.

    They are: three random nodes, no node, the hub, all neighbours of a node of low degree, and the first three nodes
    again. Four more random sets follow, so that the fp32 error of the predictions is not one sample's luck.
    """
    degree = _links(graph)[graph.deleted_type]
    least = int(degree.masked_fill(degree == 0, inf).argmin())
    touching = [n.edge_index[:, (n.edge_index == least).any(dim=0)] for n in graph.networks.values()]
    neighbours = {node for edges in touching for node in edges.flatten().tolist()} - {least}
    generator = torch.Generator().manual_seed(seed)
    three, *rest = (torch.randperm(len(degree), generator=generator)[:3].tolist() for _ in range(5))
    return [three, [], [int(degree.argmax())], sorted(neighbours), three, *rest]


def full_size_deletions(graph: CellGraph) -> list[list[int]]:
    """Return what each of two samples removes from a whole graph: ids from the first to the last, and the hub."""
    degree = _links(graph)[graph.deleted_type]
    ids = torch.linspace(0, len(degree) - 1, min(len(degree), 96)).long().tolist()
    return [ids[0::2], sorted({*ids[1::2], int(degree.argmax())})]


def hub_graph(graph: CellGraph) -> CellGraph:
    """Return one network of a hub, node 0, with edges to and from as many neighbours as any node of a graph has in one.

    The graph's other nodes are there without edges; there are 2,048 nodes at most in all. Where what a deletion removes
    from the graph may remove more, node 1 removes node 2, which removes node 3.
    """
    kind, nodes = graph.deleted_type, min(graph.num_nodes[graph.deleted_type], _HUB_NODES)
    degrees = {name: int(n.edge_index.flatten().bincount(minlength=1).max()) for name, n in graph.networks.items()}
    name = max(degrees, key=degrees.__getitem__, default="hub")
    spokes = torch.arange(1, min(nodes, 1 + degrees.get(name, 0)))
    edges = torch.stack([spokes, torch.zeros_like(spokes)])
    relations = [Network(name, torch.cat([edges, edges.flip(0)], dim=1), kind, kind, nodes, nodes)]
    cascades = [network for network in graph.relations.values() if network.cascades]
    if nodes > 3 and {network.source for network in cascades} & {network.target for network in cascades}:
        chain = torch.tensor([[1, 2], [2, 3]])
        relations.append(Network(f"cascades of {name}", chain, kind, kind, nodes, nodes, cascades=True))
    num_nodes = {**dict.fromkeys(graph.num_nodes, 1), kind: nodes}
    return CellGraph(num_nodes, {network.name: network for network in relations}, kind)


class _HubModel(nn.Module):
    """A layer and a pool of positive numbers: as nothing cancels, a dtype costs no more than a few roundings."""

    def __init__(self, graph: CellGraph) -> None:
        super().__init__()
        self.network, self.scale = next(iter(graph.networks)), max(graph.num_edges, 1) ** -0.5
        self.features = nn.Parameter(torch.randn(graph.num_nodes[graph.deleted_type], 4).exp())
        self.linear, self.out = (nn.Parameter(0.1 + torch.rand(shape)) for shape in ((4, 4), (8, 1)))

    def forward(self, view: View) -> Tensor:
        """Return a number for each sample, [B], to which the hub's row adds about as much as all others together."""
        pooled = []
        for part in view.with_wild_type():
            # of scores and self-weights of its own the gradient would be a difference, in which much cancels
            x, self_weight = part.begin(self.features) @ self.linear, self.features.new_ones(1)
            (convolved,) = part.convolve([self.network], x, [nn.Identity()], [self_weight])
            summed = part.complete(convolved)
            share = summed / (1 + summed)
            values = torch.cat([share, (self.scale * summed).square()], dim=1)
            # a pool's weights do not change where 100 is added to each score, but its exp would be infinite in float32
            exact = share.to(torch.promote_types(share.dtype, torch.float32))
            pooled.append(part.pool(100 + exact.mean(dim=1, keepdim=True), values))
        wild_type, samples = (torch.cat(pooled) @ self.out).flatten().tensor_split([1])
        return wild_type + samples


# ---- errors


class Outcome(NamedTuple):
    """What a model computes for some samples, by what it is of, in words; tensors are on the CPU."""

    predictions: dict[str, Tensor]  # of each sample, []
    gradients: dict[str, Tensor]  # of each parameter; none without a backward


class Finding(NamedTuple):
    """An error, and what is off, in words; none where the error is allowed."""

    error: float
    where: str


def largest_difference(outcome: Outcome, expected: Outcome, allowed: float) -> Finding:
    """Return the worst relative error of predictions and parameter gradients; infinite where anything is not finite.

    Predictions that are off by more than `allowed` are named alone: gradients follow from them.
    """
    predictions = _errors(outcome.predictions, expected.predictions, least=1.0)
    off = sum(error > allowed for error in predictions.values())
    errors = predictions if off else predictions | _errors(outcome.gradients, expected.gradients, least=_SMALL)
    worst = max(errors, key=errors.__getitem__)
    text = f"{off} of {len(predictions)} predictions are off; worst: {worst}, by {errors[worst]:.1e} of the largest"
    return Finding(errors[worst], text)


def _errors(ours: Mapping[str, Tensor], theirs: Mapping[str, Tensor], *, least: float) -> dict[str, float]:
    """Return each tensor's largest difference over its largest value, or over a share `least` of the largest of all."""
    largest = {name: tensor.abs().max().item() for name, tensor in theirs.items() if tensor.numel()}
    floor = max(least * max(largest.values(), default=0.0), torch.finfo(torch.float64).tiny)
    errors = {}
    for name, size in largest.items():
        error = (ours[name].double() - theirs[name]).abs().max().item() / max(size, floor)
        errors[name] = error if error < inf else inf  # NaN, too
    return errors


def norm_error(outcome: Outcome, expected: Outcome) -> float:
    """Return the relative error in the Euclidean norm, of the predictions or the gradient, whichever is worse."""
    errors = []
    for ours, theirs in zip(outcome, expected, strict=True):
        apart = [ours[name].double() - tensor for name, tensor in theirs.items()]
        errors.append(_norm(apart) / (_norm([*theirs.values()]) or 1.0))
    return max(error if error < inf else inf for error in errors)


def _norm(tensors: list[Tensor]) -> float:
    """Return the Euclidean norm of the elements of some tensors."""
    return hypot(*map(float, torch._foreach_norm(tensors))) if tensors else 0.0


# ---- the check


@dataclass(frozen=True)
class Variant:
    """How an outcome is computed: unless it says otherwise, by `subgraph` in float64, eagerly, the batch at once.

    **Arguments:**

    - `strategy`, `collation`: the strategy's name, and one of its collations.
    - `dtype`: one of `DTYPES`; "bfloat16" is autocast.
    - `draw`: which draw of the weights; 0 are the model's own.
    - `sliced`: the batch slice by slice.
    - `compiled`: by `torch.compile`.
    """

    strategy: str = "subgraph"
    collation: str = "lean"
    dtype: str = "float64"
    draw: int = 0
    sliced: bool = False
    compiled: bool = False

    def __str__(self) -> str:
        return f"in {self.dtype}{' compiled' * self.compiled}{' in slices' * self.sliced}"

    def draws(self) -> list[Variant]:
        """Return this variant with each draw that it is compared with."""
        return [replace(self, draw=draw) for draw in range(DRAWS[self.dtype])]


def _call(model: nn.Module, view: View) -> Any:
    return model(view)


class EquivalenceReference:
    """What `subgraph` computes for a model on a graph, by which a sweep compares its strategies.

    **Arguments:**

    - `build`: makes the model of a graph, on the device where strategies are compared, in evaluation mode, or without
      dropout. Its weights and dtype are changed.
    - `graph`: on the CPU, or the model's device if `whole`.
    - `deletions`: for each sample the nodes that it removes; by default those that show a strategy that is nearly
      right.
    - `seed`: seed of weights and deletions.
    - `change`: what a point changes in the model that strategies run on, as overheads do; `subgraph` runs without it.
    - `whole`: on the whole graph instead of a part of it.
    - `place`: in words, where this is not the model on a part of the graph. Gradients are then compared on a small
      graph alone.
    """

    def __init__(
        self, build: Callable[[CellGraph], nn.Module], graph: CellGraph,
        deletions: Sequence[Sequence[int]] | None = None, *, seed: int = 0,
        change: Callable[[nn.Module], None] | None = None, whole: bool = False, place: str = ""
    ) -> None:  # fmt: skip
        self.graph, self._whole = graph if whole else equivalence_graph(graph), graph
        given = equivalence_deletions(self.graph, seed=seed) if deletions is None else deletions
        self.deletions = [list(nodes) for nodes in given]
        torch.manual_seed(seed)
        self.candidate = model = build(self.graph)
        if change is not None:
            self.candidate = copy.deepcopy(model)
            change(self.candidate)
        self._again = partial(EquivalenceReference, build, seed=seed, change=change, whole=True)
        size = sum(self.graph.num_nodes.values()) + self.graph.num_edges
        self._gradients, self._place = not place or size <= _SIZE_FOR_GRADIENTS, place
        self._own = copy.deepcopy(dict(model.named_parameters()))
        self._weights = cache(self._draw)
        self.subgraph = cache(partial(self._outcome, model, led=False))
        self._hub = cache(self._hub_reference)
        self._full_size = cache(self._at_full_size)

    def compare(
        self, strategy: str, collation: str = "lean", *, dtype: str = "float32", compile: bool = False,
        slices: bool = False
    ) -> EquivalenceResult:  # fmt: skip
        """Return how far a strategy is from `subgraph`.

        **Arguments:**

        - `strategy`: its name.
        - `collation`: one of its collations.
        - `dtype`, `compile`, `slices`: how an exact strategy is compared in addition to eager float64 and float32 of
          whole batches.
        """
        kind, double = get(strategy), Variant(strategy, collation)
        as_run = replace(double, dtype=dtype, sliced=slices, compiled=compile) if kind.exact else double
        variants = dict.fromkeys([double, replace(double, dtype="float32"), as_run])
        with ExitStack() as stack:
            if as_run.compiled:  # for the number of threads at that moment
                self._compiled = compiled_forward(_call)
                self._outcome(self.candidate, as_run)  # the first call runs eagerly
            else:  # the tensors are small, and on a busy machine threads wait for one another
                stack.callback(torch.set_num_threads, torch.get_num_threads())
                torch.set_num_threads(1)
            draws = [draw for variant in variants if variant.dtype == "float64" for draw in variant.draws()]
            fp64 = max(self._differences(dict.fromkeys(draws, FP64_TOLERANCE)))
            lower = max(self._ratio(variant) for variant in variants if variant.dtype != "float64")
            findings, full_size = [fp64, lower], None
            if is_users(strategy) and self.graph is not self._whole and not (fp64.where or lower.where):
                full_size, of_whole = self._full_size(double, kind)
                findings += of_whole
            if kind.exact and kind.masks_graph:
                dtypes = {variant.dtype: replace(double, dtype=variant.dtype) for variant in variants}
                findings += self._hub()._differences({each: _AT_HUB[name] for name, each in dtypes.items()})
        failed = [finding.where for finding in findings if finding.where]
        left_out = [part.left_out(self.graph) for part in self.candidate.modules() if isinstance(part, PygModel)]
        return EquivalenceResult(
            strategy,
            kind.exact,
            passed=kind.exact and not failed,
            fp64_error=fp64.error,
            fp32_ratio=lower.error,
            nodes=self.graph.num_nodes[self.graph.deleted_type],
            edges=self.graph.num_edges,
            where=failed[0] if failed and kind.exact else "",
            full_size=full_size,
            left_out=next(filter(None, left_out), None),
        )

    def _at_full_size(self, double: Variant, kind: type[Strategy]) -> tuple[str, list[Finding]]:
        """Return "passed", "failed" or "not compared: …" on the whole graph, and what was found there.

        In fp64 and, for what is gross, in fp32. Nothing that is made there is kept. The result is of the class `kind`:
        another may have its name later.
        """
        try:
            graph = self._whole.induced({})  # a copy, with which all that is made of it goes
            whole = self._again(graph, full_size_deletions(graph), place="on the whole graph ")
            findings = whole._differences({replace(double, dtype=dtype): most for dtype, most in _FULL_SIZE.items()})
        except Exception as error:
            if not out_of_memory(error):
                raise
            return "not compared: memory ran out", []
        return "failed" if any(finding.where for finding in findings) else "passed", findings

    def _hub_reference(self) -> EquivalenceReference:
        """Return the reference of a layer and a pool at a hub, with samples that leave it there."""
        device, graph = next(self.candidate.parameters()).device, hub_graph(self._whole)
        place = f"at a hub of {next(iter(graph.networks.values())).num_edges // 2:,} neighbours "
        nodes = range(1, graph.num_nodes[graph.deleted_type])
        samples = [nodes[::2], *(nodes[first::_HUB_SAMPLES] for first in range(_HUB_SAMPLES))]
        return EquivalenceReference(lambda graph: _HubModel(graph).to(device), graph, samples, whole=True, place=place)

    def _differences(self, allowed: Mapping[Variant, float]) -> list[Finding]:
        """Return how far each variant is from `subgraph` in fp64, of which so much is `allowed`."""
        findings = []
        for variant, most in allowed.items():
            outcome = self._outcome(self.candidate, variant)
            error, where = largest_difference(outcome, self.subgraph(Variant(draw=variant.draw)), most)
            findings.append(Finding(error, f"{self._place}{variant}, {where}" if error > most else ""))
        return findings

    def _ratio(self, variant: Variant) -> Finding:
        """Return the ratio of the error in lower precision to `subgraph`'s own, the median draw's."""
        ratios = []
        for drawn in variant.draws():
            expected = self.subgraph(Variant(draw=drawn.draw))
            own = norm_error(self.subgraph(Variant(dtype=drawn.dtype, draw=drawn.draw)), expected)
            allowed = FP32_RATIO * min(max(own, _ROUNDING[drawn.dtype]), _OWN_AT_MOST)
            outcome = self._outcome(self.candidate, drawn)
            error = norm_error(outcome, expected)
            where = f"{variant}, {largest_difference(outcome, expected, allowed).where}" if error > allowed else ""
            ratios.append(Finding(FP32_RATIO * error / allowed, where))
        return median_high(ratios)

    def _draw(self, draw: int) -> dict[str, Tensor]:
        """Return a draw's weights: the first are the model's own, those of others some 1 % off, and nowhere 0.

        What is 0 (a bias, GIN's ε, the end of a residual branch) becomes some 0.1, or its value would not matter. It is
        positive, as a model may take its root.
        """
        generator, weights = torch.Generator().manual_seed(draw), {}
        for name, own in self._own.items():
            noise = torch.randn(own.shape, generator=generator).to(own)
            drawn = torch.where(own == 0, 0.1 * noise.abs(), own * (1 + 0.01 * noise)).detach()
            weights[name] = drawn if draw > 0 and own.requires_grad else own
        return weights

    @torch.no_grad()
    def load(self, model: nn.Module, variant: Variant) -> dict[str, nn.Parameter]:
        """Give a model the weights of a variant's draw, in its dtype, and no gradients; return its parameters."""
        dtype = torch.float64 if variant.dtype == "float64" else torch.float32
        parameters = dict(model.named_parameters())
        for parameter in parameters.values():
            parameter.grad = None  # before `to`, which would change it, and an outcome keeps it
        if any(tensor.dtype != dtype for tensor in (*parameters.values(), *model.buffers())):
            model.to(dtype)
        for name, parameter in parameters.items():
            parameter.copy_(self._weights(variant.draw)[name])
        return parameters

    def _outcome(self, model: nn.Module, variant: Variant, *, led: bool = True) -> Outcome:
        """Return a model's predictions, and the gradients of their weighted sum.

        Every sample has another weight, so that swapping two samples' gradients changes the sum; of either sign, as a
        loss's gradients have. What a strategy keeps of one batch must not reach the next of its size, so another batch
        is made before them (`led`), unless it is the reference's.
        """
        parameters = self.load(model, variant)
        device, count = next(model.parameters()).device, len(self.deletions)
        order = [(variant.draw + i) % count for i in range(count)]  # what a batch before left behind would show
        samples = [self.deletions[i] for i in order]
        # of one draw a sample is alone, as an epoch's last may be; a compiler would compile again for it
        together = count if variant.draw != 1 or variant.compiled else max(count - 1, 1)
        size = _SLICE if variant.sliced else together
        batches = [samples[first : first + size] for first in range(0, count, size)]
        leading = [[*samples[1:], []]] if led else []
        made = views(self.graph, leading + batches, variant.strategy, device=device, collation=variant.collation)
        for _ in leading:
            next(made).close()
        predicted: list[Tensor] = []
        for weights in torch.linspace(-1.0, 2.0, count, dtype=torch.float64, device=device).split(size):
            with torch.set_grad_enabled(self._gradients), next(made) as copies:
                with torch.autocast(device.type, torch.bfloat16, enabled=variant.dtype == "bfloat16"):
                    predictions = (self._compiled if variant.compiled else _call)(model, copies)
                if self._gradients:
                    (predictions * weights.to(predictions.dtype)).sum().backward()
            predicted += predictions.detach().cpu()
        removed = [first_of([*map(str, nodes)], 5) or "nothing" for nodes in samples]
        labels = [f"sample {i}, which removes {nodes}" for i, nodes in zip(order, removed, strict=True)]
        gradients = {}
        for name, p in parameters.items() if self._gradients else ():
            gradients[f"the gradient of {name}"] = torch.zeros_like(p).cpu() if p.grad is None else p.grad.cpu()
        return Outcome(dict(zip(labels, predicted, strict=True)), gradients)
