"""The GPU's kernel, where there is no GPU: its tiles, its sums interpreted, its machine code."""

import os
import subprocess
import sys

import pytest
import tile_kernel
import torch

from tclab.message_passing.kernels import _tile_sums as kernel
from tclab.message_passing.kernels._spmm import Csr
from tclab.message_passing.kernels._tile_sums import ROWS, SOURCES, tiles_for, tiles_of


def matrix_of(tiles, columns):
    """Return the dense matrix that tiles say, entry by entry."""
    found = torch.zeros(int(tiles.rows.max()) + 1, columns, dtype=torch.int64)
    block = torch.arange(len(tiles.rows)).repeat_interleave(tiles.ptr.diff())
    on = (tiles.bits.long().unsqueeze(-1) >> torch.arange(32)).bitwise_and(1).view(-1, ROWS, SOURCES)
    tile, row, place = on.nonzero().t()
    at = tiles.rows[block[tile], row].long(), tiles.sources[tile, place].long()
    return found.index_put_(at, torch.ones_like(tile), accumulate=True)


@pytest.mark.parametrize("seed", range(8))
def test_tiles_are_the_matrix_with_rows_by_degree(seed):
    case = tile_kernel.case(seed)
    dense, csr = case.network.dense(dtype=torch.int64), case.network.matrix(torch.float32).csr
    tiles = tiles_of(*csr, case.sources)
    assert torch.equal(matrix_of(tiles, case.sources), dense)
    real = tiles.rows.flatten()[: case.targets].long()
    assert real.sort().values.tolist() == list(range(case.targets))
    assert (csr.crow.diff()[real].diff() <= 0).all()
    if len(csr.col):
        for weight in (0.5, 17.0, -1.0):
            values = torch.ones(len(csr.col)).index_fill(0, torch.tensor([0]), weight)
            assert tiles_of(*csr._replace(values=values), case.sources) is None
    assert tiles_for(torch.ones(1, 1, 1), *csr, 1) is None  # a CPU has faster ways


@pytest.fixture
def on_this_cpu(monkeypatch):
    """As on a device that the kernel serves, with another kernel in its place."""
    monkeypatch.setattr(kernel, "_serves", lambda device: True)
    kernel._is_right.cache_clear()
    yield lambda sums: monkeypatch.setattr(kernel, "tile_sums", sums)
    kernel._is_right.cache_clear()


def by_the_dense_matrix(tiles, x, *, rows):
    return matrix_of(tiles, x.size(1)).to(x.dtype) @ x


def test_a_kernel_serves_where_it_is_right_and_is_left_out_with_a_warning_where_it_is_wrong_or_fails(on_this_cpu):
    def wrong(tiles, x, *, rows):
        return by_the_dense_matrix(tiles, x, rows=rows) * 1.1

    def failing(tiles, x, *, rows):
        raise FileNotFoundError("no C compiler")

    csr = Csr(torch.tensor([0, 1]).int(), torch.tensor([0]).int(), torch.ones(1))
    x = torch.ones(1, 1, 1, dtype=torch.bfloat16)
    on_this_cpu(by_the_dense_matrix)
    assert tiles_for(x, *csr, 1) is tiles_for(x, *csr, 1) is not None
    assert tiles_for(x.double(), *csr, 1) is None
    assert tiles_for(x.float(), *csr, 1) is None
    for sums, why in ((wrong, r"off by 1\.\de-01"), (failing, "FileNotFoundError no C compiler")):
        on_this_cpu(sums)
        kernel._is_right.cache_clear()
        with pytest.warns(UserWarning, match=why):
            assert tiles_for(x, *csr, 1) is None
        assert tiles_for(x, *csr, 1) is None  # and says it once


def interpreted(root, *command):
    """Run Python with Triton's interpreter in a process of its own, which an access out of bounds ends."""
    pytest.importorskip("triton")
    environment = {**os.environ, "PYTHONPATH": str(root), "TRITON_INTERPRET": "1"}
    found = subprocess.run([sys.executable, *command], cwd=root, capture_output=True, text=True, env=environment)
    assert found.returncode == 0, found.stdout + found.stderr
    return found.stdout


@pytest.mark.skipif(sys.platform != "linux", reason="Triton is for Linux")
@pytest.mark.parametrize(
    ("first", "cases", "columns"), [("5", "3", "32"), pytest.param("11", "32", "1040", marks=pytest.mark.slow)]
)
def test_interpreted_sums_and_gradients_are_those_of_fp64(root, first, cases, columns):
    options = ["--first", first, "--cases", cases, "--most-columns", columns]
    assert interpreted(root, "benchmarks/tile_kernel.py", *options).splitlines()[-1] == f"{cases} cases, 0 failed"


@pytest.mark.slow
def test_it_goes_through_compile_whole_and_two_runs_give_the_same_bits(root):
    code = """
import torch, tclab
from tclab.message_passing.kernels import _tile_sums
generator = torch.Generator().manual_seed(0)
graph = tclab.SharedGraph(torch.randint(0, 150, (2, 900), generator=generator), 150)
x = torch.randn(150, 3, 16, generator=generator).half()
keep = torch.rand(150, 3, generator=generator) < 0.9
found = []
for call in (graph, graph, torch.compile(graph, backend="aot_eager", fullgraph=True)):
    own = x.clone().requires_grad_()
    y = call(own, keep)
    y.float().square().sum().backward()
    found.append((y.detach(), own.grad))
assert any(tiles is not None for _, tiles in _tile_sums.MADE.values())
assert torch.equal(found[0][0], found[1][0]) and torch.equal(found[0][1], found[1][1])
torch.testing.assert_close(found[2], found[0], rtol=1e-3, atol=1e-3)
made = len(_tile_sums.MADE)
call(x, keep)
assert len(_tile_sums.MADE) == made  # a compiled call makes no tiles anew
"""
    interpreted(root, "-c", code)


@pytest.mark.slow
@pytest.mark.parametrize(("architecture", "product"), [(80, "mma.sync"), (90, "wgmma.mma_async")])
def test_it_compiles_for_tensor_cores_where_no_gpu_is(architecture, product):
    triton = pytest.importorskip("triton")
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from tclab.message_passing.kernels import _tile_kernel

    names = _tile_kernel.tile_kernel.arg_names
    constants = {"H": 64, "BM": ROWS, "BN": kernel.COLUMNS}
    numbers = dict.fromkeys(("C", "x_sample", "x_row", "out_sample", "out_row"), "i32")
    kinds = {"x": "*bf16", "out": "*bf16"} | numbers | dict.fromkeys(constants, "constexpr")
    source = ASTSource(
        fn=_tile_kernel.tile_kernel,
        signature={name: kinds.get(name, "*i32") for name in names},
        constexprs={(names.index(name),): value for name, value in constants.items()},
        attrs={(i,): [["tt.divisibility", 16]] for i, name in enumerate(names) if name not in constants},
    )
    options = {"num_warps": kernel.WARPS, "num_stages": kernel.STAGES}
    made = triton.compile(source, target=GPUTarget("cuda", architecture, 32), options=options)
    assert product in made.asm["ptx"]
    assert made.metadata.shared <= {80: 163, 90: 227}[architecture] * 1024  # bytes that a program may have
