"""The GPU's kernel without a GPU: interpreted against fp64, cross-compiled, and what it is predicted to take.

    python benchmarks/tile_kernel.py [--cases 500] [--compiled] [--model] [--first 0]

--cases    generated graphs (no edge, one node, a hub, empty rows, self-loops, multi-edges, bipartite, sizes around a
           block's 128 rows and a tile's 64 sources), summed forward and backward in fp32 and fp16 by Triton's
           interpreter and held against fp64: 1e-5 and 2e-3 of the largest value are allowed.
--compiled a table of the machine code for sm_80 and sm_90: registers, stack (a spill), shared memory, tensor-core
           instructions, and the bytes of a load of features.
--model    the layer at full size: bytes, flops and predicted milliseconds of today's kernels and of this one, from
           named assumptions (`--l2`, `--memory`, `--flops`, `--tf32`); `make gpu` puts the measured ones beside it.

Without an option all three. It needs Triton. An access out of bounds would end the process: that is a failure, too.
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

ALLOWED = {torch.float32: 1e-5, torch.float16: 2e-3}
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
    dtype: torch.dtype
    seed: int

    def __str__(self) -> str:
        return (
            f"case {self.seed}: {self.kind}, {self.sources} → {self.targets}, {self.edges.size(1)} edges, "
            f"B {self.samples}, H {self.width}, {self.dtype}"
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
    dtype = (torch.float32, torch.float16)[seed // len(KINDS) % 2]
    return Case(kind, sources, targets, torch.from_numpy(np.ascontiguousarray(edges)), samples, width, dtype, seed)


def errors(c: Case) -> dict[str, float]:
    """Return the errors of the sums, and of their gradients, relative to the largest value in fp64."""
    generator = torch.Generator().manual_seed(c.seed)
    network = tclab.graph.Network("edges", c.edges, "a", "a" if c.sources == c.targets else "b", c.sources, c.targets)
    there, back = (Csr(*network.csr_parts(dtype=c.dtype, transpose=t)[:3]) for t in (False, True))
    x = torch.randn(c.samples, c.sources, c.width, generator=generator).to(c.dtype)
    by = torch.randn(c.samples, c.targets, c.width, generator=generator).to(c.dtype)
    keep = torch.rand(c.samples, c.sources, generator=generator) >= 0.1
    receives = keep if c.sources == c.targets else torch.rand(c.samples, c.targets, generator=generator) >= 0.1

    def outcome(dtype: torch.dtype) -> list[Tensor]:
        csrs = [csr._replace(values=csr.values.to(dtype)) for csr in (there, back) if csr.values is not None]
        own = x.to(dtype, copy=True).requires_grad_()
        (summed,) = spmm([SparseMatrix(*csrs)], own, sources=keep, targets=receives)
        return [summed, *torch.autograd.grad((summed.double() * by).sum(), own)]

    before = len(tile_sums._MADE)
    found, exact = outcome(c.dtype), outcome(torch.float64)
    assert len(tile_sums._MADE) == before + 2, "the kernel did not run"
    tile_sums._MADE.clear()
    return {
        name: ((f.double() - e).abs().max() / e.abs().max().clamp_min(1.0)).item() if e.numel() else 0.0
        for name, f, e in zip(("sums", "gradient of x"), found, exact, strict=True)
    }


def proof(first: int, number: int, *, most_columns: int = 2048) -> dict[str, float]:
    """Return the largest error of the cases by dtype, forward and backward; print those that fail."""
    if os.environ.get("TRITON_INTERPRET") != "1":
        raise SystemExit("TRITON_INTERPRET=1 must be set before Triton is imported")
    worst: dict[str, float] = {}
    failed = 0
    for seed in range(first, first + number):
        c = case(seed, most_columns=most_columns)
        found = errors(c)
        for name, error in found.items():
            key = f"{str(c.dtype)[6:]} {name}"
            worst[key] = max(worst.get(key, 0.0), error)
            if not error <= ALLOWED[c.dtype]:
                failed += 1
                print(f"FAILED {c}: {name} off by {error:.1e}, {ALLOWED[c.dtype]:.0e} allowed", flush=True)
    for key, error in sorted(worst.items()):
        print(f"{key:<45} largest error {error:.1e}")
    print(f"{number} cases, {failed} failed", flush=True)
    return worst | {"failed": failed}


# ---- machine code

ARCHITECTURES = (80, 90)
SHARED = {80: 163 * 1024, 90: 227 * 1024}  # bytes a program may have
DTYPES = {torch.bfloat16: "*bf16", torch.float16: "*fp16", torch.float32: "*fp32"}


def compiled() -> Iterator[dict[str, Any]]:
    """Yield, for each architecture and dtype, what the kernel's machine code needs."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from tclab.message_passing.kernels._tile_kernel import tile_kernel

    names = list(tile_kernel.arg_names)
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    for architecture, dtype in product(ARCHITECTURES, DTYPES):
        launch = tile_sums.LAUNCH[dtype.itemsize, architecture >= 90]
        constants = {"H": 64, "BM": tile_sums.ROWS, "BN": launch.columns, "PRECISION": tile_sums.precision(dtype)}
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


# ---- what it is predicted to take


@dataclass(frozen=True)
class Assumptions:
    """What the prediction rests on: an H200's rates as a kernel like this one reaches them, none of them measured."""

    l2: float = 5.5e12  # bytes a second that gathers get from the L2 cache
    memory: float = 4.3e12  # bytes a second of the GPU's memory
    flops: float = 650e12  # of tensor cores in bf16
    # of theirs in tf32: in fp32 tiles take two products of it; a dense one counts three, more than torch's own may use
    tf32: float = 330e12


def predicted(
    graph: tclab.CellGraph, samples: int, assumed: Assumptions, *, width: int = 64, size: int = 2
) -> list[dict[str, Any]]:
    """Return a row for each network and kernel: bytes, flops and milliseconds of one forward sum.

    A sparse product gathers a row of X for each edge. A dense one multiplies all rows. The tiles gather a row for each
    place of a tile, padding too, and multiply it by 128 rows; gathers and products overlap, so the longer one counts.
    Each writes its sums, and reads X and itself once from memory; that counts where it is the longest.

    **Arguments:**

    - `samples`: B. `width`: H. `size`: bytes of a number.
    """
    columns = samples * width
    rate, products = (assumed.flops, {}) if size == 2 else (assumed.tf32, {"dense": 3, "tiles": 2})
    rows = []
    for name, network in graph.networks.items():
        matrix = Csr(*network.csr_parts(dtype=torch.float32)[:3])
        tiles = tile_sums.tiles_of(*matrix, network.num_sources)
        assert tiles is not None
        places = tiles.sources.numel()
        once = 2 * network.num_targets * columns * size
        work = {
            "sparse": (matrix.col.numel() * columns * size, 0),
            "dense": (0, 2 * network.num_sources * network.num_targets * columns),
            "tiles": (places * columns * size + tiles.bits.nbytes * columns // 128, 2 * 128 * places * columns),
        }
        for kernel, (gathered, computed) in work.items():
            seconds = max(gathered / assumed.l2, products.get(kernel, 1) * computed / rate, once / assumed.memory)
            rows.append(
                {
                    "network": name,
                    "kernel": kernel,
                    "edges": network.num_edges,
                    "gathered_bytes": gathered,
                    "memory_bytes": once,
                    "flop": computed,
                    "milliseconds": 1e3 * seconds,
                }
            )
    return rows


def layer_milliseconds(rows: list[dict[str, Any]]) -> dict[str, float]:
    """Return the milliseconds of all networks: by each kernel, and by today's better one for each network."""
    total: dict[str, float] = {}
    networks: dict[str, dict[str, float]] = {}
    for row in rows:
        total[row["kernel"]] = total.get(row["kernel"], 0.0) + row["milliseconds"]
        networks.setdefault(row["network"], {})[row["kernel"]] = row["milliseconds"]
    today = sum(min(ways["sparse"], ways["dense"]) for ways in networks.values())
    return {**total, "the better of sparse and dense for each network": today}


def print_model(graph: tclab.CellGraph, assumed: Assumptions) -> None:
    """Print the assumptions, each network at batch 64, and the layer at batch 28 and 64, in bf16 and fp32."""
    print("assumed, not measured: " + ", ".join(f"{name} {value:.3g}/s" for name, value in vars(assumed).items()))
    print("\nbatch 64, bfloat16")
    print(f"{'network':<26} {'kernel':<8} {'gathered GB':>12} {'memory GB':>10} {'TFLOP':>8} {'ms':>8}")
    for row in predicted(graph, 64, assumed):
        print(
            f"{row['network']:<26} {row['kernel']:<8} {row['gathered_bytes'] / 1e9:>12.3f} "
            f"{row['memory_bytes'] / 1e9:>10.3f} {row['flop'] / 1e12:>8.3f} {row['milliseconds']:>8.3f}"
        )
    for samples, size in product((28, 64), (2, 4)):
        found = layer_milliseconds(predicted(graph, samples, assumed, size=size))
        today, ours = found["the better of sparse and dense for each network"], found["tiles"]
        words = ", ".join(f"{name} {value:.2f} ms" for name, value in found.items())
        kind = "bfloat16" if size == 2 else "float32"
        print(f"\nall networks, forward, batch {samples}, {kind}: {words}")
        print(f"  tiles: {found['sparse'] / ours:.1f} times less than sparse, {today / ours:.1f} times less than today")


def main() -> None:
    """Do what is asked for, and print; a failure is an exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--cases", type=int)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--most-columns", type=int, default=2048)
    parser.add_argument("--compiled", action="store_true")
    parser.add_argument("--model", action="store_true")
    parser.add_argument("--scale", type=float, default=1.0)
    for name, value in vars(Assumptions()).items():
        parser.add_argument(f"--{name}", type=float, default=value)
    options = parser.parse_args()
    every = options.cases is None and not (options.compiled or options.model)
    failed = 0.0
    if options.model or every:
        assumed = Assumptions(options.l2, options.memory, options.flops, options.tf32)
        print_model(tclab.CellGraph.synthetic(options.scale).without_metabolism(), assumed)
    if options.compiled or every:
        for row in compiled():
            print("  ".join(f"{name} {value}" for name, value in row.items()), flush=True)
    if options.cases is not None:
        failed = proof(options.first, options.cases, most_columns=options.most_columns)["failed"]
    elif every:  # Triton interprets from its import on
        how = [sys.executable, __file__, "--cases", "500"]
        failed = subprocess.run(how, env={**os.environ, "TRITON_INTERPRET": "1"}).returncode
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
