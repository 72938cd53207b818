"""The GPU's kernel without a GPU: interpreted, against fp64.

    python benchmarks/tile_kernel.py [--cases 500] [--first 0] [--most-columns 2048]

Cases are generated graphs (no edge, a hub, empty rows, self-loops, multi-edges, bipartite, all pairs, sizes around a
block's 128 rows and a tile's 64 sources), summed forward and backward in fp16 by Triton's interpreter and held against
fp64: 2e-3 of the largest value is allowed.

It needs Triton. An access out of bounds would end the process: that is a failure, too.
"""

import os
from dataclasses import dataclass

import numpy as np
import torch
from cyclopts import run
from torch import Tensor

import tclab
from tclab.message_passing.kernels import _tile_sums as tile_sums
from tclab.message_passing.kernels._spmm import spmm

DTYPE, ALLOWED = torch.float16, 2e-3
KINDS = ("random", "none", "hub", "empty rows", "self-loops", "multi-edges", "bipartite", "full")
SIZES = (1, 2, 63, 64, 65, 127, 128, 129, 200, 257)
SAMPLES = (1, 2, 3, 5, 8, 31, 63, 64, 65)
WIDTHS = (16, 32, 64, 128, 256)


@dataclass(frozen=True)
class Case:
    """A generated graph and the sums over it."""

    kind: str
    sources: int
    targets: int
    edges: Tensor  # [2, E] int64
    samples: int
    width: int
    seed: int

    @property
    def network(self) -> tclab.graph.Network:
        """Its edges as a network."""
        target = "a" if self.sources == self.targets else "b"
        return tclab.graph.Network("edges", self.edges, "a", target, self.sources, self.targets)

    def __str__(self) -> str:
        size = f"{self.sources} → {self.targets}, {self.edges.size(1)} edges, B {self.samples}, H {self.width}"
        return f"case {self.seed}: {self.kind}, {size}"


def case(seed: int, most_columns: int = 2048) -> Case:
    """Return a case; the same for the same number."""
    draw = np.random.default_rng(seed)
    kind = KINDS[seed % len(KINDS)]
    sources = targets = int(draw.choice(SIZES))
    if kind == "bipartite":
        targets = int(draw.choice(SIZES))
    samples = int(draw.choice([b for b in SAMPLES if b * WIDTHS[0] <= most_columns]))
    width = int(draw.choice([w for w in WIDTHS if w * samples <= most_columns]))
    count = 0 if kind == "none" else int(draw.integers(1, 8 * max(sources, targets) + 1))
    edges = np.stack([draw.integers(0, sources, count), draw.integers(0, targets, count)])
    nodes = np.arange(sources)
    if kind == "hub":  # one node hears from all, and all from it
        hub = np.full_like(nodes, draw.integers(0, sources))
        edges = np.hstack([edges, [nodes, hub], [hub, nodes]])
    elif kind == "empty rows":
        edges = edges[:, edges[1] % 3 == 0]
    elif kind == "self-loops":
        edges = np.hstack([edges, [nodes, nodes]])
    elif kind == "full":
        edges = np.stack(np.meshgrid(nodes, nodes)).reshape(2, -1)
    if kind == "multi-edges":
        edges = np.hstack([edges, *[edges[:, :: k + 1] for k in range(1, 12)]])
    else:
        edges = np.unique(edges, axis=1)
    return Case(kind, sources, targets, torch.from_numpy(np.ascontiguousarray(edges)), samples, width, seed)


def errors(c: Case) -> tuple[float, ...]:
    """Return the errors of the sums and of their gradients, relative to the largest value in fp64."""
    generator = torch.Generator().manual_seed(c.seed)
    x = torch.randn(c.samples, c.sources, c.width, generator=generator).to(DTYPE)
    by = torch.randn(c.samples, c.targets, c.width, generator=generator).to(DTYPE)
    keep = torch.rand(c.samples, c.sources, generator=generator) >= 0.1
    receives = keep if c.sources == c.targets else torch.rand(c.samples, c.targets, generator=generator) >= 0.1

    def outcome(dtype: torch.dtype) -> list[Tensor]:
        own = x.to(dtype, copy=True).requires_grad_()
        (summed,) = spmm([c.network.matrix(dtype)], own, sources=keep, targets=receives)
        return [summed, *torch.autograd.grad((summed.double() * by).sum(), own)]

    before = len(tile_sums.MADE)
    found, exact = outcome(DTYPE), outcome(torch.float64)
    assert len(tile_sums.MADE) == before + 2, "the kernel did not run"
    tile_sums.MADE.clear()
    return tuple(
        ((f.double() - e).abs().max() / e.abs().max().clamp_min(1.0)).item() for f, e in zip(found, exact, strict=True)
    )


def proof(first: int, number: int, most_columns: int) -> int:
    """Print the largest errors of the cases, forward and backward, and those that fail; return how many do."""
    worst, failed = (0.0, 0.0), 0
    for seed in range(first, first + number):
        c = case(seed, most_columns)
        found = errors(c)
        worst = tuple(map(max, worst, found))
        if not max(found) <= ALLOWED:
            failed += 1
            print(f"FAILED {c}: off by {found}, {ALLOWED:.0e} allowed", flush=True)
    print(f"largest error of the sums {worst[0]:.1e}, of the gradients of x {worst[1]:.1e}")
    print(f"{number} cases, {failed} failed", flush=True)
    return failed


def main(*, cases: int = 500, first: int = 0, most_columns: int = 2048) -> int:
    os.environ["TRITON_INTERPRET"] = "1"  # before Triton is imported
    return int(proof(first, cases, most_columns) > 0)


if __name__ == "__main__":
    main.__doc__ = __doc__
    run(main)
