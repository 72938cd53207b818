"""The nine neighbour sums of a layer alone, forward and backward: `spmm`, and what could do the same.

    python benchmarks/layer.py [--scale 1.0] [--batch-sizes 2,16,28] [--threads 1,2] [--rounds 7]

"bags" is a bare loop of `embedding_bag` calls that write into [B, N, H]; "bags in two threads" hands the samples to two
threads of Python, each call on one; "ATen" and "MKL" are torch's sparse products, with "sum" and without, on
[N, B · H]. Below them: a layer of GIN over all networks through `SharedGINConv`, against PyG's `GINConv` on the
replicated batch (edges of deleted nodes left out, as many as `--most-edges` lets be). Results are compared first. Arms
take turns in one process; a ratio is the median over rounds, with quartiles. With one thread the clock is the
processor's time, which other processes disturb less.
"""

from __future__ import annotations

import argparse
import statistics
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch_geometric.nn import GINConv
from tqdm import trange

import tclab
from tclab.graph import Network
from tclab.message_passing import SharedGINConv, to_grid, to_rows
from tclab.message_passing._shared_view import sparse_matrix
from tclab.message_passing.kernels._spmm import Csr, spmm

WIDTH = 64
Sums = tuple[list[Tensor], Tensor]  # of each network [B, N, H], and the gradient of x, [B, N, H]


def bag(csr: Csr, x: Tensor) -> Tensor:
    """Return A·X of one sample, [N, H]."""
    return F.embedding_bag(csr.col, x, csr.crow, mode="sum", include_last_offset=True, per_sample_weights=csr.values)


def arms_of_sums(networks: list[Network], size: int, pool: ThreadPoolExecutor) -> dict[str, Callable[[], Sums]]:
    """Return the ways of computing each sum of `x: [B, N, H]`, and of its gradient."""
    matrices = [sparse_matrix(network, torch.float32) for network in networks]
    n = networks[0].num_sources
    x = torch.randn(size, n, WIDTH, requires_grad=True)
    grads = [torch.randn(size, n, WIDTH) for _ in networks]
    plain, wide = x.detach(), x.detach().transpose(0, 1).reshape(n, -1)
    wide_grads = [grad.transpose(0, 1).reshape(n, -1) for grad in grads]

    def by_spmm() -> Sums:
        sums = spmm(matrices, x)
        return sums, torch.autograd.grad(sums, x, grads)[0]

    def bags(each: Callable[[Callable[[int], None]], object]) -> Sums:
        sums, to_x = [torch.empty(size, n, WIDTH) for _ in networks], torch.zeros(size, n, WIDTH)

        def sample(b: int) -> None:
            for matrix, summed, grad in zip(matrices, sums, grads, strict=True):
                summed[b] = bag(matrix.csr, plain[b])
                to_x[b] += bag(matrix.transposed, grad[b])

        each(sample)
        return sums, to_x

    def tensor(csr: Csr) -> Tensor:
        values = torch.ones(len(csr.col)) if csr.values is None else csr.values
        return torch.sparse_csr_tensor(csr.crow, csr.col, values, size=(n, n), check_invariants=False)

    both = [(tensor(matrix.csr), tensor(matrix.transposed)) for matrix in matrices]

    def grid(rows: Tensor) -> Tensor:
        return rows.view(n, size, WIDTH).transpose(0, 1)

    def by_products(*reduce: str) -> Sums:
        sums = [torch.sparse.mm(a, wide, *reduce) for a, _ in both]
        to_x = torch.stack([torch.sparse.mm(at, g, *reduce) for (_, at), g in zip(both, wide_grads, strict=True)])
        return [grid(summed) for summed in sums], grid(to_x.sum(0))

    arms: dict[str, Callable[[], Sums]] = {
        "spmm": by_spmm,
        "bags": lambda: bags(lambda sample: [sample(b) for b in range(size)]),
        "ATen": lambda: by_products("sum"),
        "MKL": by_products,
    }
    if torch.get_num_threads() > 1:
        arms["bags in two threads"] = lambda: bags(lambda sample: list(pool.map(sample, range(size))))
    return arms


def arms_of_layers(networks: list[Network], size: int) -> dict[str, Callable[[], Sums]]:
    """Return a layer of GIN over all networks with one or two nodes deleted in each sample, and PyG's."""
    n = networks[0].num_sources
    keep = torch.ones(n, size, dtype=torch.bool).scatter_(0, torch.randint(n, (2, size)), False)
    rows = to_rows(torch.randn(n, size, WIDTH) * keep.unsqueeze(-1)).requires_grad_()
    mlps = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH)) for _ in networks]
    graphs = [tclab.SharedGraph(network.edge_index, n) for network in networks]
    ours, theirs = [SharedGINConv(mlp) for mlp in mlps], [GINConv(mlp) for mlp in mlps]
    left = to_rows(keep.unsqueeze(-1))

    def edges_of(network: Network) -> Tensor:
        whole = [network.edge_index[:, keep[network.edge_index, b].all(0)] + b * n for b in range(size)]
        return torch.cat(whole, dim=1)

    batch = [edges_of(network) for network in networks]

    def layer(parts: list[Tensor]) -> Sums:
        return parts, torch.autograd.grad(torch.stack([part * left for part in parts]).square().mean(), rows)[0]

    return {
        "SharedGINConv": lambda: layer(
            [to_rows(conv(to_grid(rows, size), graph, keep)) for conv, graph in zip(ours, graphs, strict=True)]
        ),
        "PyG's GINConv": lambda: layer([conv(rows, e) * left for conv, e in zip(theirs, batch, strict=True)]),
    }


def race(arms: dict[str, Callable[[], Sums]], rounds: int) -> None:
    """Compare the results, and print the arms' seconds and by how much they are more than the first's."""
    first, *others = arms
    expected = arms[first]()
    for name in others:
        torch.testing.assert_close(arms[name](), expected, rtol=1e-3, atol=1e-3)
    clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
    seconds: dict[str, list[float]] = {name: [] for name in arms}
    for i in trange(rounds + 1, desc="rounds", leave=False):
        for name in list(arms)[:: 1 if i % 2 else -1]:
            begin = clock()
            arms[name]()
            if i:  # the first round warms up
                seconds[name].append(clock() - begin)
    for name, times in seconds.items():
        ratios = [t / of_first for t, of_first in zip(times, seconds[first], strict=True)]
        low, _, high = statistics.quantiles(ratios, n=4)
        ratio = f"{statistics.median(ratios):6.2f} × [{low:.2f}, {high:.2f}]"
        print(f"  {name:<22} {statistics.median(times):9.4f} s  {ratio}", flush=True)


def main() -> None:
    """Measure in this process, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--batch-sizes", default="2,16,28")
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--rounds", type=int, default=7, help="at least 2")
    parser.add_argument("--most-edges", type=float, default=1e7, help="of PyG's batch; 256 bytes each are copied")
    options = parser.parse_args()
    graph = tclab.CellGraph.synthetic(options.scale).without_metabolism()
    networks = list(graph.networks.values())
    pool, meet = ThreadPoolExecutor(2, initializer=torch.set_num_threads, initargs=(1,)), threading.Barrier(2)
    list(pool.map(lambda _: meet.wait(), range(2)))  # both have begun, before this thread says how many it takes
    for threads in map(int, options.threads.split(",")):
        torch.set_num_threads(threads)
        for size in map(int, options.batch_sizes.split(",")):
            print(f"\n{graph.num_edges:,} edges, batch {size}, threads {threads}: the sums of a layer")
            race(arms_of_sums(networks, size, pool), options.rounds)
            if size * graph.num_edges <= options.most_edges:
                print("a layer of GIN")
                race(arms_of_layers(networks, size), options.rounds)


if __name__ == "__main__":
    main()
