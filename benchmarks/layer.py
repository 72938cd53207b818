"""One layer's masked sums over all networks, forward and backward: what each kernel takes, and how exact it is.

    python benchmarks/layer.py [--device cuda] [--scale 1.0] [--batch-sizes 28,64] [--dtypes bfloat16,float32]

Every kernel sums the same samples with the same deletions, Yᵢ = Aᵢ·(K·X) + w·(K·X) for all networks i, and is held
against the sums in fp64 in the rows that are kept. Kernels take turns in one process; a time is the shortest of some
rounds. `make gpu` runs it as its part (c).
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import product
from time import perf_counter
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.nn import functional as F

import tclab
from tclab.masking import get
from tclab.message_passing import SharedView
from tclab.message_passing._shared_view import sparse_matrix
from tclab.message_passing.kernels import _tile_sums
from tclab.message_passing.kernels._tile_sums import Launch, tile_sums, tiles_for, tiles_of
from tclab.perturbation import synthetic_perturbations
from tclab.timing._call_costs import least_seconds

WIDTH = 64
# of the fp64 sums' norm; a sum of some hundred numbers that are rounded once each
ALLOWED = {torch.float64: 1e-12, torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 2e-2}


@dataclass
class Arms:
    """The kernels, and what they sum; rows lie sample after sample, [B·N, H]."""

    calls: dict[str, Callable[[Tensor], list[Tensor]]]  # kernel → its sums over all networks
    x: Tensor
    keep: Tensor  # [B·N] bool, the rows in which kernels are compared


def arms(scale: float, size: int, dtype: torch.dtype, device: str) -> Arms:
    """Return the kernels over a synthetic graph's networks, for so many samples."""
    from torch_geometric.utils import scatter

    graph = tclab.CellGraph.synthetic(scale).without_metabolism()
    perturbations = synthetic_perturbations(graph, size)
    here, names = graph.to(device), list(graph.networks)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(size * graph.num_nodes[graph.deleted_type], WIDTH, generator=generator).to(device, dtype)
    weights = torch.full((len(names),), 1.5, device=device, dtype=dtype)

    shared = get("node_mask")(here).view(get("node_mask")(graph).batch(perturbations).to(device))
    assert isinstance(shared, SharedView)
    copies = get("gpu_filter")(here).view(get("gpu_filter")(graph).batch(perturbations).to(device))
    keep = shared.keep[graph.deleted_type]
    matrices = [sparse_matrix(network, dtype).csr for network in here.networks.values()]

    def of_view(view: tclab.message_passing.View) -> Callable[[Tensor], list[Tensor]]:
        return lambda x: list(view.neighbour_sums(names, x, self_weights=list(weights.unsqueeze(1))))

    def scattered(x: Tensor) -> list[Tensor]:
        x = x * keep.unsqueeze(1)
        edges = [copies.edges(name)[0] for name in names]
        sums = [scatter(x[e[0]], e[1], dim_size=len(x), reduce="sum") for e in edges]
        return [summed + weight * x for summed, weight in zip(sums, weights, strict=True)]

    def bags(x: Tensor) -> list[Tensor]:
        x = x * keep.unsqueeze(1)
        samples = x.view(size, -1, WIDTH).unbind()
        sums = [
            torch.cat([F.embedding_bag(col, s, crow, mode="sum", include_last_offset=True) for s in samples])
            for crow, col, _ in matrices
        ]
        return [summed + weight * x for summed, weight in zip(sums, weights, strict=True)]

    calls = {"sparse library": of_view(shared)}
    # in two bytes; on a CPU the interpreter runs it: not in bfloat16, which it gets wrong
    nodes = len(x) // size
    if all(tiles_for(x, *matrix, nodes) is not None for matrix in matrices):
        calls["tiles"] = of_view(shared)
    calls |= {"embedding_bag": bags, "PyG scatter": scattered}
    if device == "cuda":  # on a CPU it compiles longer than all else takes
        calls["PyG scatter, compiled"] = torch.compile(scattered)
    return Arms(calls, x, keep)


def compare(found: Arms, device: str, *, batch_size: int, dtype: torch.dtype, rounds: int = 5) -> list[dict[str, Any]]:
    """Return a row a kernel: `seconds` of forward and backward, and `error` against fp64, with what is `allowed`."""
    rows = []

    def both(kernel: str, dtype: torch.dtype = dtype) -> Tensor:
        x = found.x.to(dtype, copy=True).requires_grad_()
        off = mock.patch.object(_tile_sums, "_serves", return_value=False)
        with nullcontext() if kernel == "tiles" else off:
            sums = found.calls[kernel](x)
            torch.autograd.backward(sums, [found.keep.unsqueeze(1).to(dtype).expand_as(y) for y in sums])
        assert x.grad is not None
        return torch.stack([*sums, x.grad]).detach()[:, found.keep]  # [networks + 1, kept rows, H]

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the compiler's own
        exact = both("sparse library", torch.float64)
        for kernel in found.calls:
            row: dict[str, Any] = {"batch_size": batch_size, "dtype": str(dtype).split(".")[1], "kernel": kernel}
            rows.append(row)
            try:
                apart = both(kernel).double() - exact
                row["error"] = max(
                    (apart[:-1].norm() / exact[:-1].norm()).item(), (apart[-1].norm() / exact[-1].norm()).item()
                )
                del apart
                seconds = []
                for _ in range(1 if kernel == "tiles" and device == "cpu" else rounds):
                    _wait(device)
                    begin = perf_counter()
                    both(kernel)
                    _wait(device)
                    seconds.append(perf_counter() - begin)
                row |= {"seconds": min(seconds), "allowed": ALLOWED[dtype], "status": "ok"}
            except (RuntimeError, NotImplementedError) as error:
                row["status"] = f"cannot: {str(error).splitlines()[0][:100]}"
    return rows


def launches(
    graph: tclab.CellGraph, samples: int, dtype: torch.dtype, device: str, rounds: int
) -> list[dict[str, Any]]:
    """Return the seconds of launches of the tile kernel over the largest network, those of today first."""
    network = max(graph.networks.values(), key=lambda network: network.num_edges).to(device)
    tiles = tiles_of(*sparse_matrix(network, dtype).csr, network.num_sources)
    assert tiles is not None
    x = torch.randn(samples, network.num_sources, WIDTH, device=device).to(dtype)
    today, rows = _tile_sums.LAUNCH, []
    others = [Launch(*launch) for launch in product((64, 128, 256), (4, 8), (2, 3, 4))]

    def call() -> None:
        tile_sums(tiles, x, rows=network.num_targets)
        _wait(device)

    for launch in dict.fromkeys([today, *(others if device == "cuda" else others[:1])]):
        row: dict[str, Any] = launch._asdict()
        rows.append(row)
        try:
            with mock.patch.object(_tile_sums, "LAUNCH", launch):
                row["seconds"] = least_seconds({"tiles": call}, rounds=rounds)["tiles"]
        except Exception as error:  # a launch that asks for more than the device has
            row["status"] = f"cannot: {type(error).__name__} {str(error).splitlines()[0] if str(error) else ''}"
    return rows


def _wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def main() -> None:
    """Measure in this process, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--batch-sizes", default="28,64")
    parser.add_argument("--dtypes", default="bfloat16,float32")
    options = parser.parse_args()
    for size in map(int, options.batch_sizes.split(",")):
        for dtype in options.dtypes.split(","):
            kind = getattr(torch, dtype)
            for row in compare(arms(options.scale, size, kind, options.device), options.device,
                               batch_size=size, dtype=kind):  # fmt: skip
                print("  ".join(f"{name} {value}" for name, value in row.items()), flush=True)


if __name__ == "__main__":
    main()
