"""One layer's masked sums over all networks, forward and backward: what each kernel takes, and how exact it is.

`make gpu PARTS=c` runs it. Every kernel sums the same samples with the same deletions, Yᵢ = Aᵢ·(K·X) + w·(K·X) for all
networks i, and is held against the sums in fp64 in the rows that are kept. A time is the shortest of some rounds.
"""

import warnings
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.nn import functional as F
from torch_geometric.utils import scatter

import tclab
from tclab.masking import get
from tclab.message_passing.kernels import _tile_sums
from tclab.message_passing.kernels._tile_sums import tiles_for
from tclab.perturbation import Perturbations
from tclab.sweeps.predict import least_seconds

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
    graph = tclab.CellGraph.synthetic(scale).without_metabolism()
    perturbations = Perturbations.synthetic(graph, size)
    here, names = graph.to(device), list(graph.networks)
    shared, copies = (
        get(name)(here).view(get(name)(graph).batch(perturbations).to(device)) for name in ("node_mask", "gpu_filter")
    )
    keep = shared.keep[graph.deleted_type]
    x = torch.randn(len(keep), WIDTH, generator=torch.Generator().manual_seed(0)).to(device, dtype)
    matrices = [network.matrix(dtype).csr for network in here.networks.values()]
    weight = 1.5

    def of_view(x: Tensor) -> list[Tensor]:
        return list(shared.neighbour_sums(names, x, self_weights=[x.new_tensor([weight])] * len(names)))

    def scattered(x: Tensor) -> list[Tensor]:
        x = x * keep.unsqueeze(1)
        edges = [copies.edges(name)[0] for name in names]
        return [scatter(x[e[0]], e[1], dim_size=len(x), reduce="sum") + weight * x for e in edges]

    def bags(x: Tensor) -> list[Tensor]:
        x = x * keep.unsqueeze(1)
        of_sample = partial(F.embedding_bag, mode="sum", include_last_offset=True)
        samples = x.view(size, -1, WIDTH)
        return [torch.cat([of_sample(col, s, crow) for s in samples]) + weight * x for crow, col, _ in matrices]

    calls = {"sparse library": of_view}
    # in two bytes; on a CPU the interpreter runs it: not in bfloat16, which it gets wrong
    if all(tiles_for(x, *matrix, len(x) // size) is not None for matrix in matrices):
        calls["tiles"] = of_view
    calls |= {"embedding_bag": bags, "PyG scatter": scattered}
    if device == "cuda":  # on a CPU it compiles longer than all else takes
        calls["PyG scatter, compiled"] = torch.compile(scattered)
    return Arms(calls, x, keep)


def compare(found: Arms, *, batch_size: int) -> list[dict[str, Any]]:
    """Return a row a kernel: `seconds` of forward and backward, and `error` against fp64, with what is `allowed`."""
    device, dtype = found.x.device.type, found.x.dtype

    def both(kernel: str, dtype: torch.dtype = dtype) -> Tensor:
        x = found.x.to(dtype, copy=True).requires_grad_()
        off = mock.patch.object(_tile_sums, "_serves", return_value=False)
        with nullcontext() if kernel == "tiles" else off:
            sums = found.calls[kernel](x)
            torch.autograd.backward(sums, [found.keep.unsqueeze(1).to(dtype).expand_as(y) for y in sums])
        assert x.grad is not None
        return torch.stack([*sums, x.grad]).detach()[:, found.keep]  # [networks + 1, kept rows, H]

    def error(kernel: str, exact: Tensor) -> float:
        """Return the larger of the errors of the sums and of the gradient."""
        apart = both(kernel).double() - exact
        return max((apart[part].norm() / exact[part].norm()).item() for part in (slice(-1), slice(-1, None)))

    rows = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the compiler's own
        exact = both("sparse library", torch.float64)
        for kernel in found.calls:
            row: dict[str, Any] = {"batch_size": batch_size, "dtype": str(dtype).split(".")[1], "kernel": kernel}
            rows.append(row)
            rounds = 1 if kernel == "tiles" and device == "cpu" else 5
            try:
                row |= {"error": error(kernel, exact), "allowed": ALLOWED[dtype], "status": "ok"}
                call = {kernel: partial(both, kernel)}
                row["seconds"] = least_seconds(call, device, rounds)[kernel]
            except (RuntimeError, NotImplementedError) as problem:
                row["status"] = f"cannot: {str(problem).splitlines()[0][:100]}"
    return rows
