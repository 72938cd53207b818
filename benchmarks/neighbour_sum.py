"""The neighbour sum by itself: gathered bytes a second over batch sizes, and the same layer through PyG.

    python benchmarks/neighbour_sum.py [--scale 1.0] [--batch-sizes 1,4,8,16,28] [--parts bandwidth,pyg]

Gathered bytes: edges × columns × bytes of a number, what a sum must read of its input if nothing is kept in a
register from one edge to the next. "untiled" is one product over all columns, "in tiles" what `SharedGraph` runs,
"in groups" what the views of `node_mask` and `delta` run. The second part is one GIN layer over all networks,
forward and backward, on the same samples: through `SharedGraph`, and through PyG's `GINConv` on a replicated batch
(edges without those that touch a deleted node), on an `EdgeIndex` of it, and on a torch CSR `adj_t` of it. Arms
take turns in one process; ratios are medians over rounds. With one thread (OMP_NUM_THREADS=1) the clock is the
processor's time, which other processes disturb less.
"""

from __future__ import annotations

import argparse
import statistics
import warnings
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

import tclab
from tclab.masking._on_device import GpuFilter
from tclab.message_passing._row_layout import Order
from tclab.message_passing._shared_view import link_of
from tclab.message_passing.kernels._shared_sums import shared_sums
from tclab.message_passing.kernels._spmm import Tiling, columns, multiply, tiling_of
from tclab.perturbation import synthetic_perturbations
from tclab.sweeps.predict._roofline import clock_of

WIDTH = 64
K = TypeVar("K")


def race(arms: dict[K, Callable[[], Any]], rounds: int) -> dict[K, list[float]]:
    """Return the seconds of each call, the arms in alternating order; one round more warms up."""
    clock = clock_of("cpu")
    seconds: dict[K, list[float]] = {name: [] for name in arms}
    for number in range(rounds + 1):
        for name in list(arms) if number % 2 else list(arms)[::-1]:
            begin = clock()
            arms[name]()
            if number:
                seconds[name].append(clock() - begin)
    return seconds


def bandwidth(graph: tclab.CellGraph, batch_sizes: list[int], rounds: int) -> None:
    """Print the gathered GB/s of the sums over all networks, for each batch size."""
    matrices = [network.csr(dtype=torch.float32) for network in graph.networks.values()]
    entries = sum(matrix.values().numel() for matrix in matrices)
    nodes = graph.num_nodes[graph.deleted_type]
    inputs = {size: torch.randn(nodes, size * WIDTH) for size in batch_sizes}

    def sums(x: Tensor, tiling: Tiling) -> Callable[[], None]:
        def call() -> None:
            right = columns(x, tiling)
            for matrix in matrices:
                multiply(matrix, right)

        return call

    links = [link_of(network, torch.float32) for network in graph.networks.values()]

    def grouped(x: Tensor, size: int) -> Callable[[], object]:
        return lambda: shared_sums(x, links, size, group=Order.on(x.device, size).group)

    arms: dict[tuple[str, int], Callable[[], object]] = {}
    for size, x in inputs.items():
        for kernel in ("aten", "library"):
            arms[f"{kernel} untiled", size] = sums(x, Tiling(kernel, None))
        arms["in tiles", size] = sums(x, tiling_of(x))
        arms["in groups", size] = grouped(x.view(-1, WIDTH), size)
    seconds = race(arms, rounds)
    speed = {arm: entries * arm[1] * WIDTH * 4 / statistics.median(t) / 1e9 for arm, t in seconds.items()}
    print(f"\ngathered GB/s, {graph.num_edges:,} edges, {torch.get_num_threads()} threads")
    names = list(dict.fromkeys(name for name, _ in arms))
    print(f"  {'batch':>6}" + "".join(f"{name:>17}" for name in names) + "   tiles")
    for size, x in inputs.items():
        kernel, tile = tiling_of(x)
        print(f"  {size:>6}" + "".join(f"{speed[name, size]:>17.1f}" for name in names) + f"   {kernel}, {tile}")
    for name in names:
        best = max(speed[name, size] for size in batch_sizes)
        print(f"  {name}: batch {batch_sizes[-1]} reaches {speed[name, batch_sizes[-1]] / best:.0%} of its best")


def against_pyg(graph: tclab.CellGraph, size: int, rounds: int) -> None:
    """Print one GIN layer's times through `SharedGraph` and through PyG, and by how much results differ."""
    from torch_geometric import EdgeIndex
    from torch_geometric.nn import GINConv
    from torch_geometric.utils import to_torch_csr_tensor

    nodes = graph.num_nodes[graph.deleted_type]
    strategy = GpuFilter(graph)
    view = strategy.view(strategy.batch(synthetic_perturbations(graph, size)))
    kept = view.keep[graph.deleted_type].view(size, nodes).t().contiguous()  # [N, B]
    shared = {name: tclab.SharedGraph(n.edge_index, nodes) for name, n in graph.networks.items()}
    edges = {name: view.edges(name)[0] for name in graph.networks}
    rows = size * nodes
    indices = {name: EdgeIndex(e, sparse_size=(rows, rows)).sort_by("col").values for name, e in edges.items()}
    for index in indices.values():
        index.fill_cache_()
    adjacencies = {name: to_torch_csr_tensor(e.flip(0), size=(rows, rows)) for name, e in edges.items()}
    torch.manual_seed(0)
    mlps = {name: nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH)) for name in graph.networks}
    convolutions = {name: GINConv(mlp) for name, mlp in mlps.items()}
    x = torch.randn(nodes, size, WIDTH).masked_fill(~kept.unsqueeze(-1), 0.0).requires_grad_()
    replicated = x.detach().transpose(0, 1).reshape(rows, WIDTH).clone().requires_grad_()

    def ours() -> Tensor:
        return torch.stack([mlps[name](layer(x, kept) + x) for name, layer in shared.items()]).sum(0)

    def theirs(structure: dict[str, Any]) -> Callable[[], Tensor]:
        return lambda: torch.stack([conv(replicated, structure[n]) for n, conv in convolutions.items()]).sum(0)

    arms = {
        "SharedGraph": ours,
        "PyG GINConv, replicated": theirs(edges),
        "PyG GINConv, EdgeIndex": theirs(indices),
        "PyG GINConv, CSR adj_t": theirs(adjacencies),
    }

    def step(forward: Callable[[], Tensor]) -> Callable[[], None]:
        def call() -> None:
            forward().square().mean().backward()
            x.grad = replicated.grad = None

        return call

    expected = ours().detach().transpose(0, 1).reshape(rows, WIDTH)
    left = kept.t().reshape(rows, 1)
    print(f"\none GIN layer over {len(shared)} networks, forward and backward, batch {size}")
    able = {}
    for name, forward in arms.items():
        try:
            found = forward()
            step(forward)()
        except (RuntimeError, ValueError, NotImplementedError) as error:
            print(f"  {name:<26} cannot: {str(error).splitlines()[0]}")
            continue
        able[name] = step(forward)
        if forward is not ours:
            apart = (found - expected).mul(left).abs().max().item()
            print(f"  {name:<26} apart from SharedGraph by at most {apart:.1e}")
    seconds = race(able, rounds)
    for name, times in seconds.items():
        ratios = [t / own for t, own in zip(times, seconds["SharedGraph"], strict=True)]
        print(f"  {name:<26} {statistics.median(times):8.3f} s  {statistics.median(ratios):6.2f} ×")


def main() -> None:
    """Measure in this process, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--batch-sizes", default="1,4,8,16,28")
    parser.add_argument("--pyg-batch-size", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--parts", default="bandwidth,pyg")
    options = parser.parse_args()
    warnings.filterwarnings("ignore", "Sparse CSR tensor support is in beta")
    graph = tclab.CellGraph.synthetic(options.scale).without_metabolism()
    if "bandwidth" in options.parts:
        bandwidth(graph, [int(size) for size in options.batch_sizes.split(",")], options.rounds)
    if "pyg" in options.parts:
        against_pyg(graph, options.pyg_batch_size, options.rounds)


if __name__ == "__main__":
    main()
