"""Roofline: the neighbour sum of each kernel against this machine's measured bytes and operations a second."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter, process_time

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from tclab.errors import InputError
from tclab.graph._cell_graph import CellGraph
from tclab.masking import Strategy
from tclab.masking import get as strategy_of
from tclab.message_passing._shared_view import dense_sum, sparse_matrix
from tclab.message_passing.kernels._spmm import spmm
from tclab.perturbation import synthetic_perturbations
from tclab.timing._least_seconds import least_seconds

_COPIED = 256 * 1024**2  # bytes: more than any cache
_SIDE = 2048  # of the product


@dataclass(frozen=True)
class Ceilings:
    """What this machine reaches: `bytes_per_second` in a copy, read and written, and `flops` in a product."""

    bytes_per_second: float
    flops: float


def ceilings(*, device: str = "cpu", dtype: torch.dtype = torch.float32, rounds: int = 7) -> Ceilings:
    """Measure both ceilings of a device."""
    source = torch.ones(_COPIED // dtype.itemsize, dtype=dtype, device=device)
    target = torch.empty_like(source)
    square = torch.randn(_SIDE, _SIDE, device=device).to(dtype)
    arms: dict[str, Callable[[], object]] = {
        "copy": waited(lambda: target.copy_(source), device),
        "product": waited(lambda: square @ square, device),
    }
    least = least_seconds(arms, rounds=rounds, clock=clock_of(device))
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


def roofline(
    graph: CellGraph,
    network: str,
    *,
    batch_size: int,
    width: int = 64,
    device: str = "cpu",
    limits: Ceilings | None = None,
    rounds: int = 5,
) -> pd.DataFrame:
    """Return the measured time of each kernel's forward sum over one network, and the machine's limit.

    A row a kernel: `seconds`; `bytes` and `flop`, the least that the kernel's way of summing must move and compute
    (messages are written and read where a kernel makes them; gathers from a cache do not count as memory traffic);
    `bytes_per_second` and `flops`, the rates reached; `floor_seconds`, the least time at the machine's rates; and
    `share`, `floor_seconds` over `seconds`.

    **Arguments:**

    - `graph`: on the CPU; copied to `device`.
    - `network`: one of the graph's; its name.
    - `limits`: the ceilings, measured now unless given.
    - `batch_size`, `width`: of the features, [B, N, H]. `rounds`: that each kernel is timed in.

    **Raises:** `InputError` for a network that the graph has not, with the nearest name.
    """
    limits = limits or ceilings(device=device)
    if batch_size < 1:
        raise InputError(f"batch_size is {batch_size!r}, expected at least 1")
    own = graph.select([network]).without_metabolism()
    perturbations = synthetic_perturbations(own, batch_size)
    here = own.to(device)
    edges, nodes, size = own.num_edges, own.num_nodes[own.deleted_type], 4
    entries = here.networks[network].csr_parts(dtype=torch.float32)[1].numel()
    x = torch.randn(nodes * batch_size, width, device=device)
    table, messages = x.numel() * size, edges * batch_size * width * size
    both = edges * batch_size * 16  # the two ends of each edge, int64
    added = edges * batch_size * width  # features that messages bring
    sparse = 2 * table + batch_size * entries * 4  # each sample goes through the indices
    floors = {
        # a message is written, read and written with its mask, and read to be added up
        # multiplied by the mask, and added
        "edge_mask": (4 * messages + both + edges * batch_size + 2 * table, 2 * added),
        "gpu_filter": (2 * messages + both + 2 * table, added),
        "node_mask": (sparse, entries * batch_size * width),
        "dense": (2 * table + nodes * nodes * size, 2 * nodes * nodes * batch_size * width),
    }
    calls: dict[str, Callable[[], object]] = {
        name: waited(_sum_of(strategy_of(name)(here), perturbations, network, x, device), device)
        for name in ("edge_mask", "gpu_filter")
    }
    matrix, samples = sparse_matrix(here.networks[network], torch.float32), x.view(batch_size, nodes, width)
    calls["node_mask"] = waited(lambda: spmm([matrix], samples), device)
    calls["dense"] = waited(lambda: dense_sum(here.networks[network], samples), device)
    with torch.no_grad():
        for call in calls.values():
            call()  # warm-up: caches are filled
        least = least_seconds(calls, rounds=rounds, clock=clock_of(device))
    found = pd.DataFrame.from_dict(floors, orient="index", columns=["bytes", "flop"])
    found.insert(0, "seconds", pd.Series(least))
    found["bytes_per_second"], found["flops"] = found["bytes"] / found["seconds"], found["flop"] / found["seconds"]
    # whichever ceiling is reached first
    found["floor_seconds"] = np.maximum(found["bytes"] / limits.bytes_per_second, found["flop"] / limits.flops)
    found["share"] = found["floor_seconds"] / found["seconds"]
    return found.rename_axis("kernel").reset_index()


def _sum_of(strategy: Strategy, perturbations: object, network: str, x: Tensor, device: str) -> Callable[[], Tensor]:
    loading = type(strategy)(strategy.graph.to("cpu"))
    view = strategy.view(loading.batch(perturbations).to(device))  # type: ignore[arg-type]
    return lambda: view.neighbour_sum(network, x)
