"""Roofline: the neighbour sum of each kernel against this machine's measured bytes and operations a second."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from time import perf_counter, process_time

import numpy as np
import pandas as pd
import torch

from tclab.errors import check_whole
from tclab.graph._cell_graph import CellGraph
from tclab.masking import get as strategy_of
from tclab.message_passing._shared_view import dense_sum, sparse_matrix
from tclab.message_passing.kernels._spmm import spmm
from tclab.perturbation import synthetic_perturbations
from tclab.timing._call_costs import least_seconds

_COPIED = 256 * 1024**2  # bytes: more than any cache
_SIDE = 2048  # of the product
_WIDTH = 64  # features of the sums


@dataclass(frozen=True)
class Ceilings:
    """What this machine reaches: `bytes_per_second` in a copy, read and written, and `flops` in a product."""

    bytes_per_second: float
    flops: float


def ceilings(*, device: str = "cpu") -> Ceilings:
    """Measure both ceilings of a device in float32."""
    source = torch.ones(_COPIED // 4, device=device)
    target = torch.empty_like(source)
    square = torch.randn(_SIDE, _SIDE, device=device)
    least = least_on(device, {"copy": lambda: target.copy_(source), "product": lambda: square @ square}, rounds=7)
    return Ceilings(2 * source.nbytes / least["copy"], 2 * _SIDE**3 / least["product"])


def clock_of(device: str) -> Callable[[], float]:
    """Return the clock to time calls with: processor time on one CPU thread, which other processes do not add to."""
    return process_time if device == "cpu" and torch.get_num_threads() == 1 else perf_counter


def least_on(device: str, calls: Mapping[str, Callable[[], object]], *, rounds: int = 5) -> dict[str, float]:
    """Return the least seconds of each call until the device has done it, after one that warms up."""

    def waited(call: Callable[[], object]) -> Callable[[], None]:
        def both() -> None:
            call()
            if device == "cuda":
                torch.cuda.synchronize()

        return both

    for call in calls.values():
        call()
    return least_seconds({name: waited(call) for name, call in calls.items()}, rounds=rounds, clock=clock_of(device))


def roofline(graph: CellGraph, network: str, limits: Ceilings, *, batch_size: int, device: str = "cpu") -> pd.DataFrame:
    """Return the measured time of each kernel's forward sum over one network, and the machine's limit.

    A row a kernel: `seconds`; `bytes` and `flop`, the least that the kernel's way of summing must move and compute
    (messages are written and read where a kernel makes them; gathers from a cache do not count as memory traffic);
    `flops`, the operations a second that it reached; and `share`, the least time at the machine's rates over `seconds`.

    **Arguments:**

    - `graph`: on the CPU; copied to `device`. `network`: the name of one of its networks.
    - `limits`: of `ceilings`. `batch_size`: of the features, [B, N, 64] float32.

    **Raises:** `InputError` for a network that the graph has not, with the nearest name.
    """
    check_whole("batch_size is", batch_size, least=1)
    own = graph.select([network]).without_metabolism()
    here = own.to(device)
    perturbations, nodes = synthetic_perturbations(own, batch_size), own.num_nodes[own.deleted_type]
    matrix = sparse_matrix(here.networks[network], torch.float32)
    x = torch.randn(batch_size, nodes, _WIDTH, device=device)
    views = {}
    for name in ("edge_mask", "gpu_filter"):
        batch = strategy_of(name)(own).batch(perturbations)
        views[name] = strategy_of(name)(here).view(batch.to(device))
    calls: dict[str, Callable[[], object]] = {
        "edge_mask": lambda: views["edge_mask"].neighbour_sum(network, x.flatten(0, 1)),
        "gpu_filter": lambda: views["gpu_filter"].neighbour_sum(network, x.flatten(0, 1)),
        "node_mask": lambda: spmm([matrix], x),
        "dense": lambda: dense_sum(here.networks[network], x),
    }
    with torch.no_grad():
        seconds = least_on(device, calls)
    entries = here.networks[network].csr_parts(dtype=torch.float32)[1].numel()
    least_work = _least_work(own.num_edges, entries, batch_size, nodes)
    found = pd.DataFrame.from_dict(least_work, orient="index", columns=["bytes", "flop"])
    found.insert(0, "seconds", pd.Series(seconds))
    found["flops"] = found["flop"] / found["seconds"]
    # whichever ceiling is reached first
    least = np.maximum(found["bytes"] / limits.bytes_per_second, found["flop"] / limits.flops)
    found["share"] = least / found["seconds"]
    return found.rename_axis("kernel").reset_index()


def _least_work(edges: int, entries: int, batch_size: int, nodes: int) -> dict[str, tuple[int, int]]:
    """Return the least bytes and operations of each kernel's sum of float32 features over one network.

    **Arguments:**

    - `edges`: of the network. `entries`: of its sparse matrix, where parallel edges are one.
    """
    table = batch_size * nodes * _WIDTH * 4  # features, read; and as many sums, written
    messages = batch_size * edges * _WIDTH * 4
    ends = batch_size * edges * 16  # two of each edge, int64
    return {
        # a message is written, read and written with its mask, and read to be added up; multiplied and added
        "edge_mask": (4 * messages + ends + batch_size * edges + 2 * table, 2 * batch_size * edges * _WIDTH),
        "gpu_filter": (2 * messages + ends + 2 * table, batch_size * edges * _WIDTH),
        # each sample goes through the indices, int32
        "node_mask": (2 * table + batch_size * entries * 4, batch_size * entries * _WIDTH),
        "dense": (2 * table + nodes * nodes * 4, 2 * batch_size * nodes * nodes * _WIDTH),
    }
