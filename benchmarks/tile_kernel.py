"""The GPU's kernel without a GPU: interpreted against fp64, and cross-compiled.

    python benchmarks/tile_kernel.py [--cases 500] [--compiled] [--first 0]

--cases    generated graphs (no edge, one node, a hub, empty rows, self-loops, multi-edges, bipartite, sizes around a
           block's 128 rows and a tile's 64 sources), summed forward and backward in fp16 by Triton's
           interpreter and held against fp64: 2e-3 of the largest value is allowed.
--compiled a table of the machine code for sm_80 and sm_90: registers, stack (a spill), shared memory, tensor-core
           instructions, and the bytes of a load of features.

It needs Triton. An access out of bounds would end the process: that is a failure, too.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import tclab
from tclab.message_passing.kernels import _tile_sums as tile_sums
from tclab.message_passing.kernels._spmm import Csr, SparseMatrix, spmm

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

    def __str__(self) -> str:
        return (
            f"case {self.seed}: {self.kind}, {self.sources} → {self.targets}, {self.edges.size(1)} edges, "
            f"B {self.samples}, H {self.width}"
        )


def case(seed: int, *, most_columns: int = 2048) -> Case:
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
    if kind == "hub":  # one node hears from all, and all from it
        others = np.arange(sources)
        ends = np.stack([others, np.full_like(others, draw.integers(0, sources))])
        edges = np.concatenate([edges, ends, ends[::-1]], axis=1)
    if kind == "empty rows":
        edges = edges[:, edges[1] % 3 == 0]
    if kind == "self-loops":
        edges = np.concatenate([edges, np.tile(np.arange(sources), (2, 1))], axis=1)
    if kind == "multi-edges":
        edges = np.concatenate([edges, *[edges[:, :: k + 1] for k in range(1, 12)]], axis=1)
    if kind == "full":
        edges = np.stack(np.meshgrid(np.arange(sources), np.arange(targets))).reshape(2, -1)
    if kind != "multi-edges":
        edges = np.unique(edges, axis=1)
    return Case(kind, sources, targets, torch.from_numpy(np.ascontiguousarray(edges)), samples, width, seed)


def errors(c: Case) -> dict[str, float]:
    """Return the errors of the sums, and of their gradients, relative to the largest value in fp64."""
    generator = torch.Generator().manual_seed(c.seed)
    network = tclab.graph.Network("edges", c.edges, "a", "a" if c.sources == c.targets else "b", c.sources, c.targets)
    there, back = (Csr(*network.csr_parts(dtype=DTYPE, transpose=t)[:3]) for t in (False, True))
    x = torch.randn(c.samples, c.sources, c.width, generator=generator).to(DTYPE)
    by = torch.randn(c.samples, c.targets, c.width, generator=generator).to(DTYPE)
    keep = torch.rand(c.samples, c.sources, generator=generator) >= 0.1
    receives = keep if c.sources == c.targets else torch.rand(c.samples, c.targets, generator=generator) >= 0.1

    def outcome(dtype: torch.dtype) -> list[Tensor]:
        csrs = [csr._replace(values=csr.values.to(dtype)) for csr in (there, back) if csr.values is not None]
        own = x.to(dtype, copy=True).requires_grad_()
        (summed,) = spmm([SparseMatrix(*csrs)], own, sources=keep, targets=receives)
        return [summed, *torch.autograd.grad((summed.double() * by).sum(), own)]

    before = len(tile_sums._MADE)
    found, exact = outcome(DTYPE), outcome(torch.float64)
    assert len(tile_sums._MADE) == before + 2, "the kernel did not run"
    tile_sums._MADE.clear()
    return {
        name: ((f.double() - e).abs().max() / e.abs().max().clamp_min(1.0)).item() if e.numel() else 0.0
        for name, f, e in zip(("sums", "gradient of x"), found, exact, strict=True)
    }


def proof(first: int, number: int, *, most_columns: int = 2048) -> int:
    """Print the largest error of the cases, forward and backward, and those that fail; return how many do."""
    worst: dict[str, float] = {}
    failed = 0
    for seed in range(first, first + number):
        c = case(seed, most_columns=most_columns)
        found = errors(c)
        for name, error in found.items():
            worst[name] = max(worst.get(name, 0.0), error)
            if not error <= ALLOWED:
                failed += 1
                print(f"FAILED {c}: {name} off by {error:.1e}, {ALLOWED:.0e} allowed", flush=True)
    for name, error in sorted(worst.items()):
        print(f"{name:<45} largest error {error:.1e}")
    print(f"{number} cases, {failed} failed", flush=True)
    return failed


# ---- machine code

ARCHITECTURES = (80, 90)
SHARED = {80: 163 * 1024, 90: 227 * 1024}  # bytes a program may have
DTYPES = {torch.bfloat16: "*bf16", torch.float16: "*fp16"}


def compiled() -> Iterator[dict[str, Any]]:
    """Yield, for each architecture and dtype, what the kernel's machine code needs."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from tclab.message_passing.kernels._tile_kernel import tile_kernel

    names = list(tile_kernel.arg_names)
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    for architecture, dtype in product(ARCHITECTURES, DTYPES):
        launch = tile_sums.LAUNCH
        constants = {"H": 64, "BM": tile_sums.ROWS, "BN": launch.columns}
        numbers = dict.fromkeys(("C", "x_sample", "x_row", "out_sample", "out_row"), "i32")
        pointers = dict.fromkeys(("x", "out"), DTYPES[dtype]) | numbers
        signature = {n: "constexpr" if n in constants else pointers.get(n, "*i32") for n in names}
        aligned: dict[Any, Any] = {
            (names.index(name),): [["tt.divisibility", 16]] for name in names if name not in constants
        }
        source = ASTSource(
            fn=tile_kernel,
            signature=signature,
            constexprs={(names.index(name),): value for name, value in constants.items()},
            attrs=aligned,
        )
        options = {"num_warps": launch.warps, "num_stages": launch.stages}
        made = triton.compile(source, target=GPUTarget("cuda", architecture, 32), options=options)
        with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
            file.write(made.asm["cubin"])
            file.flush()
            said = subprocess.run([tool, "-res-usage", file.name], capture_output=True, text=True, check=True).stdout
        usage = {name: int(number) for name, number in re.findall(r"(REG|STACK|LOCAL):(\d+)", said)}
        code = made.asm["ptx"]
        copies = re.findall(r"cp\.async\.c[ag]\.shared\.global \[[^\]]*\], \[[^\]]*\], (0x[0-9a-f]+|\d+)", code)
        yield {
            "architecture": f"sm_{architecture}",
            "dtype": str(dtype)[6:],
            "columns": launch.columns,
            "registers": usage["REG"],
            "stack": usage["STACK"] + usage["LOCAL"],
            "shared": made.metadata.shared,
            "wgmma": len(re.findall(r"wgmma\.mma_async", code)),
            "mma": len(re.findall(r"mma\.sync", code)),
            "load_bytes": max((int(size, 0) for size in copies), default=0),
            "store_bytes": 16 if "st.global.v4.b32" in code else 4,
        }


def main() -> None:
    """Do what is asked for, and print; a failure is an exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--cases", type=int, default=0)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--most-columns", type=int, default=2048)
    parser.add_argument("--compiled", action="store_true")
    options = parser.parse_args()
    if options.compiled:
        for row in compiled():
            print("  ".join(f"{name} {value}" for name, value in row.items()), flush=True)
    if options.cases:
        os.environ["TRITON_INTERPRET"] = "1"  # before Triton is imported
        sys.exit(proof(options.first, options.cases, most_columns=options.most_columns) > 0)


if __name__ == "__main__":
    main()
