"""Strategies that send node ids and share the graph's matrices among all samples: K·A·(K·X), no edge copied or masked.

`node_mask` multiplies by sparse matrices, `dense` by dense ones, `fastest` by whichever a short calibration found
fastest here for each network, and with `delta`'s differences where they are.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from tclab.graph._cell_graph import CellGraph
from tclab.masking._batch import Batch, Packed
from tclab.masking._delta import Delta
from tclab.masking._strategy import Strategy
from tclab.message_passing import SharedView, View
from tclab.message_passing._delta_view import DeltaView
from tclab.perturbation import Deletions, Perturbations
from tclab.timing._call_costs import least_seconds

WIDTH = 64  # features a row, as in both models' published configurations
_COLUMNS = 256  # at most so many are timed: the kernels' order does not change beyond
_SAMPLES = 8  # at most so many samples' differences are timed
_DEPTH = 3  # layers, as in both configurations of HeteroCell
_MARGIN = 0.9  # of the default's time, which another choice must be under: a busy machine is off by some percent
_SPARSEST = 200  # where a dense product does more than so many times the work, it is not timed


class NodeMask(Strategy):
    """One sparse matrix a network for all samples; the view makes a 0/1 for each node and sample of the removed ids."""

    name = "node_mask"

    def view(self, batch: Batch) -> View:
        """Return the view that multiplies by the shared matrices."""
        return SharedView(self.graph, batch.deletions)


class Dense(Strategy):
    """One dense matrix a network for all samples and a 0/1 for each node; see `SharedView`.

    For dense networks on a GPU with tensor cores.
    """

    name = "dense"

    def view(self, batch: Batch) -> View:
        """Return the view that multiplies by the shared dense matrices."""
        return SharedView(self.graph, batch.deletions, dense=self.graph.relations)


class Fastest(Delta):
    """The shared product, sparse or dense for each network, and `delta`'s differences unless they are slower.

    `tune` times them for a batch size, dtype and device, once in a process. Untuned it uses every kernel, so that the
    equivalence check covers all of them: networks are sparse and dense in turn, and differences are carried.

    **Arguments:**

    - `dense`: the networks whose sums are dense products; every second one unless given.
    - `delta`: carry what differs from the wild type through the first layers.
    """

    name = "fastest"

    def __init__(
        self, graph: CellGraph, *, dense: Collection[str] | None = None, delta: bool = True, **options: Any
    ) -> None:
        super().__init__(graph, **options)
        self.dense = tuple(graph.networks)[1::2] if dense is None else tuple(dense)
        self.delta = delta

    @classmethod
    def tune(
        cls,
        graph: CellGraph,
        batch_size: int,
        dtype: str,
        device: str,
        *,
        deleted: int = 3,
        width: int = WIDTH,
        workers: int = 0,
        timing: bool = True,
    ) -> dict[str, Any]:
        """Return `dense` and `delta` as they are fastest, timed unless this process has timed the same before.

        Differences count with what it takes the loader's workers to make their matrices.
        """
        asked = (graph.fingerprint(), batch_size, dtype, device, deleted, width, workers)
        if asked not in _CHOSEN and timing:
            x = torch.randn(graph.num_nodes[graph.deleted_type], width, device=device, dtype=getattr(torch, dtype))
            dense = _faster_dense(graph, x, samples=min(batch_size + 1, max(1, _COLUMNS // width)))
            samples = Perturbations.synthetic(graph, min(batch_size, _SAMPLES), deleted=deleted)
            calls: dict[str, Callable[[], Any]] = {}
            for name, delta in (("shared", False), ("delta", True)):
                loads, steps = (cls(half, dense=dense, delta=delta) for half in (graph, graph.to(device)))
                calls[name] = _layers(steps.view(loads.batch(samples).to(device)), x)
            calls["batch"] = partial(loads.batch, samples)  # of `delta`, the last
            seconds = least_seconds(calls, rounds=3)
            carried = seconds["delta"] + seconds["batch"]
            if workers:  # make batches beside the steps
                carried = max(seconds["delta"], seconds["batch"] / workers)
            _CHOSEN[asked] = {"dense": dense, "delta": seconds["shared"] >= _MARGIN * carried}
        return _CHOSEN.get(asked, {"dense": [], "delta": True})

    def encode(self, indices: Sequence[int], removed: dict[str, Deletions]) -> Any:
        """Return what `delta` does, where differences are carried."""
        return super().encode(indices, removed) if self.delta else None

    def pack(self, removed: dict[str, Deletions], encoded: Any) -> Packed:
        """Return what `delta` does, where differences are carried."""
        return ({}, {"layers": 0}) if encoded is None else super().pack(removed, encoded)

    def view(self, batch: Batch) -> View:
        """Return the view that sums by the kernels that were chosen."""
        return DeltaView(self.graph, batch.deletions, self.layers(batch), dense=self.dense)


_CHOSEN: dict[tuple[Any, ...], dict[str, Any]] = {}  # what was asked of `Fastest.tune` → what it chose


def _faster_dense(graph: CellGraph, x: Tensor, *, samples: int) -> list[str]:
    """Return the networks whose sums, forward and backward, are faster by a dense product, for `x: [N, H]`."""
    here = graph.to(x.device)
    nothing = dict.fromkeys(graph.num_nodes, Deletions.nothing(samples, device=x.device))
    faster = []
    for name, network in graph.networks.items():
        if network.num_sources * network.num_targets > _SPARSEST * network.num_edges:
            continue
        views = {"sparse": SharedView(here, nothing), "dense": SharedView(here, nothing, dense=[name])}
        arms = {arm: _both_ways(partial(view.neighbour_sum, name), view.lift(x)) for arm, view in views.items()}
        seconds = least_seconds(arms, rounds=3)
        if seconds["dense"] < _MARGIN * seconds["sparse"]:
            faster.append(name)
    return faster


def _layers(view: View, x: Tensor) -> Callable[[], None]:
    """Return the call of some layers, forward and backward, of the wild type and the samples, for `x: [N, H]`."""
    (both,) = view.with_wild_type()
    names = list(view.graph.networks)

    def forward(x: Tensor) -> Tensor:
        out = both.begin(x)
        for _ in range(_DEPTH):  # tanh keeps numbers small from layer to layer
            ones = [x.new_ones(1)] * len(names)
            out = both.convolve_sum(names, out, [torch.tanh] * len(names), ones) / len(names)
        return both.complete(out)

    return _both_ways(forward, x)


def _both_ways(forward: Callable[[Tensor], Tensor], x: Tensor) -> Callable[[], None]:
    x = x.detach().requires_grad_()

    def call() -> None:
        out = forward(x)
        x.grad = None
        out.backward(torch.ones_like(out))
        if out.is_cuda:
            torch.cuda.synchronize()

    return call
