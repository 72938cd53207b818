"""The strategies by name, and one call from deletions to a view."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor

from tclab.errors import InputError, require, unknown
from tclab.graph._cell_graph import CellGraph
from tclab.masking._delta import Delta
from tclab.masking._dense import Dense
from tclab.masking._edge_mask import EdgeMask
from tclab.masking._fastest import Fastest
from tclab.masking._gene_mask_cache import GeneMaskCache
from tclab.masking._gpu_filter import GpuFilter
from tclab.masking._gpu_mask import GpuMask
from tclab.masking._gpu_mask_cached import GpuMaskCached
from tclab.masking._gpu_mask_loop import GpuMaskLoop
from tclab.masking._indices import Indices
from tclab.masking._khop import OneHop, ThreeHops, TwoHops
from tclab.masking._node_mask import NodeMask
from tclab.masking._sampled_edges import SampledEdges
from tclab.masking._stored_index import StoredIndex
from tclab.masking._stored_mask import StoredMask
from tclab.masking._strategy import Strategy
from tclab.masking._subgraph import Subgraph
from tclab.message_passing import View
from tclab.perturbation import Deletions, Perturbations

S = TypeVar("S", bound=type[Strategy])
_STRATEGIES: dict[str, type[Strategy]] = {}

# strategies that copy every edge for every sample, as most training code does; the most common first
BASELINES = ("edge_mask", "stored_index", "stored_mask", "subgraph")


def register(strategy: S) -> S:
    """Register a strategy by its `name`; a decorator for a user's class.

    Registering the same class again, as a notebook cell that is run twice does, replaces it.

    **Raises:** `InputError` where it is no strategy, or another class has that name.
    """
    if not (isinstance(strategy, type) and issubclass(strategy, Strategy)):
        raise InputError(f"{strategy!r} is no subclass of tclab.masking.Strategy")
    name = getattr(strategy, "name", None)
    if not isinstance(name, str) or not name:
        raise InputError(f"{strategy.__name__} has no name; give the class one: name = 'my_strategy'")
    taken = _STRATEGIES.get(name)
    if taken is not None and (taken.__module__, taken.__qualname__) != (
        strategy.__module__,
        strategy.__qualname__,
    ):
        raise InputError(f"{name!r} is already a strategy: {taken.__module__}.{taken.__qualname__}")
    _STRATEGIES[name] = strategy
    return strategy


for _own in (
    Subgraph,
    EdgeMask,
    GeneMaskCache,
    StoredIndex,
    StoredMask,
    GpuMaskLoop,
    GpuMask,
    GpuMaskCached,
    GpuFilter,
    NodeMask,
    Dense,
    Delta,
    Fastest,
    OneHop,
    TwoHops,
    ThreeHops,
    SampledEdges,
    Indices,
):
    register(_own)


def names() -> list[str]:
    """Return the names of all strategies, a user's last."""
    return list(_STRATEGIES)


def get(name: str) -> type[Strategy]:
    """Return the strategy of a name.

    **Raises:** `InputError` with the nearest name where there is none.
    """
    if name == "auto":
        raise InputError(
            "unknown strategy 'auto'; the one that a calibration finds fastest here is called 'fastest' ('auto' is "
            "all of them, where a list is asked for)"
        )
    if isinstance(name, type):  # a point names its strategy: it crosses to another process as text
        raise InputError(
            f"strategy is the class {name.__name__}, expected its name, {getattr(name, 'name', None) or 'mine'!r}; "
            "@tclab.masking.register above the class makes it known"
        )
    if name not in _STRATEGIES:
        raise unknown("strategy", name, _STRATEGIES, registrable=True)
    return _STRATEGIES[name]


def view(
    graph: CellGraph,
    deletions: Iterable[Sequence[int] | Tensor],
    strategy: str = "node_mask",
    *,
    device: torch.device | str = "cpu",
    collation: str = "lean",
) -> View:
    """Return the view of some node-deleted copies, made by a strategy, from samples to the device.

    **Arguments:**

    - `graph`: the whole one, on the CPU.
    - `deletions`: for each sample the ids of the nodes it deletes; an empty one deletes nothing.
    - `strategy`: one of `names()`.
    - `device`: where the model is.
    - `collation`: one of the strategy's `collations`.

    **Raises:** `InputError` for an unknown strategy, a node out of range, or no sample at all.
    """
    kind = get(strategy)
    require("graph", graph, CellGraph, "a tclab.CellGraph")
    wanted = Deletions.of(deletions, num_nodes=graph.num_nodes[graph.deleted_type])
    if len(wanted) == 0:
        raise InputError("deletions is empty, expected at least one sample ([[]] deletes nothing)")
    perturbations = Perturbations(wanted, torch.zeros(len(wanted)))
    loading = kind(graph, collation=collation)
    with tempfile.TemporaryDirectory() as folder:
        loading.prepare(perturbations, Path(folder) / "store")
        batch = loading.batch(perturbations)
        loading.close()
    copies = kind(graph.to(device)).view(batch.to(device))
    require(f"what the view of strategy {kind.name!r} returns", copies, View, "a View")
    return copies
