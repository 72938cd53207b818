"""Roofline: the neighbour sum of each kernel against this machine's measured bytes and operations a second."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter, process_time

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from tclab.errors import check_whole
from tclab.graph._cell_graph import CellGraph
from tclab.masking import Strategy
from tclab.masking import get as strategy_of
from tclab.message_passing._shared_view import dense_sum, sparse_matrix
from tclab.message_passing.kernels._spmm import spmm
from tclab.perturbation import Perturbations, synthetic_perturbations
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
    calls: dict[str, Callable[[], object]] = {
        "copy": waited(lambda: target.copy_(source), device),
        "product": waited(lambda: square @ square, device),
    }
    least = least_seconds(calls, rounds=7, clock=clock_of(device))
    return Ceilings(2 * source.nbytes / least["copy"], 2 * _SIDE**3 / least["product"])


def clock_of(device: str) -> Callable[[], float]:
    """Return the clock to time calls with: processor time on one CPU thread, which other processes do not add to."""
    return process_time if device == "cpu" and torch.get_num_threads() == 1 else perf_counter


def waited(call: Callable[[], object], device: str) -> Callable[[], None]:
    """Return a call that synchronizes the device before it returns."""

    def both() -> None:
        call()
        if device == "cuda":
            torch.cuda.synchronize()

    return both


def roofline(graph: CellGraph, network: str, limits: Ceilings, *, batch_size: int, device: str = "cpu") -> pd.DataFrame:
    """Return the measured time of each kernel's forward sum over one network, and the machine's limit.

    A row a kernel: `seconds`; `bytes` and `flop`, the least that the kernel's way of summing must move and compute
    (messages are written and read where a kernel makes them; gathers from a cache do not count as memory traffic);
    `bytes_per_second` and `flops`, the rates reached; `floor_seconds`, the least time at the machine's rates; and
    `share`, `floor_seconds` over `seconds`.

    **Arguments:**

    - `graph`: on the CPU; copied to `device`. `network`: the name of one of its networks.
    - `limits`: of `ceilings`. `batch_size`: of the features, [B, N, 64] float32.

    **Raises:** `InputError` for a network that the graph has not, with the nearest name.
    """
    check_whole("batch_size is", batch_size, least=1)
    own = graph.select([network]).without_metabolism()
    perturbations = synthetic_perturbations(own, batch_size)
    here = own.to(device)
    matrix = sparse_matrix(here.networks[network], torch.float32)
    samples = torch.randn(batch_size, own.num_nodes[own.deleted_type], _WIDTH, device=device)
    calls: dict[str, Callable[[], object]] = {
        name: waited(_sum_of(strategy_of(name)(here), perturbations, network, samples.flatten(0, 1)), device)
        for name in ("edge_mask", "gpu_filter")
    }
    calls["node_mask"] = waited(lambda: spmm([matrix], samples), device)
    calls["dense"] = waited(lambda: dense_sum(here.networks[network], samples), device)
    with torch.no_grad():
        for call in calls.values():
            call()  # warm-up: caches are filled
        least = least_seconds(calls, clock=clock_of(device))
    entries = here.networks[network].csr_parts(dtype=torch.float32)[1].numel()
    least_work = _least_work(own.num_edges, entries, batch_size, own.num_nodes[own.deleted_type])
    found = pd.DataFrame.from_dict(least_work, orient="index", columns=["bytes", "flop"])
    found.insert(0, "seconds", pd.Series(least))
    found["bytes_per_second"], found["flops"] = found["bytes"] / found["seconds"], found["flop"] / found["seconds"]
    # whichever ceiling is reached first
    found["floor_seconds"] = np.maximum(found["bytes"] / limits.bytes_per_second, found["flop"] / limits.flops)
    found["share"] = found["floor_seconds"] / found["seconds"]
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


def _sum_of(strategy: Strategy, perturbations: Perturbations, network: str, x: Tensor) -> Callable[[], Tensor]:
    loading = type(strategy)(strategy.graph.to("cpu"))
    view = strategy.view(loading.batch(perturbations).to(x.device))
    return lambda: view.neighbour_sum(network, x)
