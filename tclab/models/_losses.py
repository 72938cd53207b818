"""Losses: log-cosh, DANGO's with its schedules, and MleWassSupCR, which may gather over ranks."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, distributed
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from tclab.errors import InputError, check_known, check_whole, need
from tclab.graph import Network
from tclab.graph._cell_graph import CellGraph
from tclab.graph._csr import SparseMatrix
from tclab.message_passing.kernels._row_ops import in_float32
from tclab.message_passing.kernels._spmm import spmm
from tclab.models._dango import DangoOutput, Reconstruction
from tclab.models._hetero_cell import HeteroCellOutput


def log_cosh(predictions: Tensor, targets: Tensor) -> Tensor:
    """Return the mean of log(cosh(prediction - target)), without overflow; both are [B]."""
    error = (in_float32(predictions) - targets).abs()  # what is left of log 2 is too little for two bytes
    return (error + F.softplus(-2.0 * error) - math.log(2.0)).mean()


Stage = Callable[[str], AbstractContextManager[Any]]  # name → the context that the stage runs in
TRANSITION_EPOCH = 10  # when α has fallen
# name → (epoch, epoch of the transition) → α, the share of the reconstruction
SCHEDULES: dict[str, Callable[..., float]] = {
    "PreThenPost": lambda epoch, at: 1.0 if epoch < at else 0.0,
    "LinearUntilUniform": lambda epoch, at: 1.0 - 0.5 * min(epoch / at, 1.0),
    "LinearUntilFlipped": lambda epoch, at: 1.0 - min(epoch / at, 1.0),
}


def zero_weight(network: str) -> float:
    """Return λ, the weight of zeros in a network's reconstruction.

    0.1 for STRING v9.1's and v11.0's neighborhood, coexpression and experimental, 1.0 for every other network
    (for all of v12.0 too, as in the case study).
    """
    old = network.startswith(("string9_1_", "string11_0_"))
    return 0.1 if old and network.endswith(("neighborhood", "coexpression", "experimental")) else 1.0


# ---- DANGO's; a reconstruction and its loss have two factors: nothing here has N × N numbers


class ReconstructionLoss:
    """(Σ (r - 1)² over edges + λ Σ r² over all other pairs) / N², where r are the entries of a reconstruction R.

    Over all pairs Σ r² is ⟨AᵀA, BᵀB⟩, and each edge adds 1 - 2·r + (1 - λ)·r² to λ times that. Over edges Σ m·r is
    ⟨M·A, B⟩ for the sparse matrix M with the values m. If λ is 1, M has ones, and no single r is needed. Otherwise M
    has the constants 1 - (1 - λ)·r, so that the gradient of -2·⟨M·A, B⟩ is that of the sum that the edges add; a second
    derivative, which would not be right, is refused.

    In a good fit these sums nearly cancel, so they are float32 or more, also under autocast: the loss is off by about
    float32's rounding of E / N².

    **Arguments:**

    - `network`: its edges are the targets, each once, of whatever weight.
    - `zero_weight`: λ.
    """

    def __init__(self, network: Network, zero_weight: float) -> None:
        edges, self.network = network.edge_index, network.unweighted()  # edges are sorted
        if not bool((edges[:, 1:] != edges[:, :-1]).any(dim=0).all()):  # each once, else with the matrices that it has
            self.network = replace(self.network, edge_index=edges.unique_consecutive(dim=1))
        self.zero_weight = zero_weight
        if zero_weight != 1:  # where the matrix has each entry of its transpose
            self._order = self.network.matrix(torch.float32).csr.col.argsort(stable=True)

    def __call__(self, reconstruction: Reconstruction) -> Tensor:
        """Return the loss, [], in float32 or more."""
        with torch.autocast(reconstruction.sources.device.type, enabled=False):
            a, b = map(in_float32, reconstruction)
            edges, rest = self.network.matrix(a.dtype), float(self.network.num_edges)
            if self.zero_weight != 1:
                a, b = map(_OnceDifferentiable.apply, (a, b))
                r = torch.ops.tclab.dots(*edges.csr[:2], b.detach(), a.detach())
                m = 1 - (1 - self.zero_weight) * r
                values = edges.csr._replace(values=m), edges.transposed._replace(values=m[self._order])
                edges, rest = SparseMatrix(*values, lasting=False), rest - ((1 - m) * r).sum()
            on_edges = rest - 2 * (spmm([edges], a.unsqueeze(0))[0].squeeze(0) * b).sum()
            return (self.zero_weight * ((a.t() @ a) * (b.t() @ b)).sum() + on_edges) / (len(a) * len(b))


class _OnceDifferentiable(torch.autograd.Function):
    """The identity, through which a second derivative raises an error."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad


@torch.library.custom_op(
    "tclab::dots", mutates_args=(), schema="(Tensor crow, Tensor col, Tensor x, Tensor y) -> Tensor"
)
def _dots(crow: Tensor, col: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Return the entries of X·Yᵀ where a sparse matrix has its own, [E]: dot products of rows of X and of Y."""
    pattern = torch.sparse_csr_tensor(crow, col, x.new_zeros(col.shape), (len(x), len(y)), check_invariants=False)
    return torch.sparse.sampled_addmm(pattern, x, y.t(), beta=0).values()


_dots.register_fake(lambda crow, col, x, y: x.new_empty(col.shape))


class DangoLoss:
    """α · reconstruction, averaged over networks, + (1 - α) · mean log-cosh of the score.

    **Arguments:**

    - `graph`: what the reconstructions should look like, on their device.
    - `schedule`: "PreThenPost", "LinearUntilUniform" or "LinearUntilFlipped": how α falls until epoch 10.
    """

    def __init__(self, graph: CellGraph, *, schedule: str = "LinearUntilUniform") -> None:
        check_known("schedule", SCHEDULES, schedule)
        self.alpha = partial(SCHEDULES[schedule], at=TRANSITION_EPOCH)
        self.of_networks = {name: ReconstructionLoss(n, zero_weight(name)) for name, n in graph.networks.items()}

    def reconstruction(self, reconstructions: Mapping[str, Reconstruction]) -> Tensor:
        """Return the reconstruction part: its mean over networks."""
        return torch.stack([self.of_networks[name](found) for name, found in reconstructions.items()]).mean()

    def __call__(self, output: DangoOutput, targets: Tensor, *, epoch: int = 0) -> Tensor:
        """Return the loss of one pass in an epoch; `targets: [B]`."""
        alpha = self.alpha(epoch)
        interaction = log_cosh(output.predictions, targets)
        return alpha * self.reconstruction(output.reconstructions) + (1.0 - alpha) * interaction


# ---- MleWassSupCR

# Where the annealing of the Sinkhorn iterations begins, in units of the targets. geomloss would ask the device for the
# true one, which makes the host wait; one that is too large costs a few iterations.
_DIAMETER = 4.0


def gathered(rows: Tensor, stage: Stage = nullcontext) -> Tensor:
    """Return every rank's rows [n, …], one rank after the other, without gradients; a collective of several ranks.

    **Arguments:**

    - `stage`: the ledger's; the exchange is its stage `gather`.
    """
    rows = rows.detach().contiguous()
    ranks = distributed.get_world_size() if distributed.is_available() and distributed.is_initialized() else 1
    if ranks == 1:
        return rows
    parts = [torch.empty_like(rows) for _ in range(ranks)]
    with stage("gather"):
        distributed.all_gather(parts, rows)
    return torch.cat(parts)


class MleWassSupCR:
    """MSE + 0.1 · Wasserstein + 0.001 · SupCR on z_p, over the batch and the rows before it that a buffer remembers.

    Wasserstein is geomloss's debiased Sinkhorn divergence between predictions and targets, p = 2: about half the
    squared distance of the two distributions. All of it runs in float32 or more, also under autocast. Under
    DDP, in every `gather_interval`-th pass the buffer takes the batches of all ranks (three all-gathers); in the others
    only its own rank's. The case study's loss draws from its buffer by a schedule, which ends at 252 of 256 rows at
    batch 28; this one always uses all rows.

    R ranks of batch b do not train as one process of batch R · b does: each rank takes the two distances over its own
    batch and its buffer, and rows of the buffer have no gradient.

    **Arguments:**

    - `wasserstein`, `sup_cr`: the weights of the two terms.
    - `blur`: in units of the targets; the Sinkhorn divergence does not see differences that are smaller.
    - `capacity`: of the buffer, rows.
    - `gather_interval`: passes; `None` never gathers.
    """

    over_batch = True  # no mean over samples, so that a batch cannot come in slices

    def __init__(
        self, *, wasserstein: float = 0.1, sup_cr: float = 0.001, blur: float = 0.05, capacity: int = 256,
        gather_interval: int | None = 1
    ) -> None:  # fmt: skip
        if gather_interval is not None and gather_interval < 1:
            raise InputError(f"gather_interval is {gather_interval!r}, expected 1 or more, or None")
        check_whole("capacity is", capacity, least=1)
        self.weights = (wasserstein, sup_cr)
        self.capacity = capacity
        self.gather_interval = gather_interval
        self.remembered: dict[str, Tensor] = {}  # at most `capacity` rows of each, the newest last
        need("the loss MleWassSupCR", "sweep", "geomloss")
        from geomloss import SamplesLoss  # both models have other losses, which do without it

        self._distance = SamplesLoss(
            "sinkhorn", p=2, blur=blur, scaling=0.9, debias=True, diameter=_DIAMETER, backend="tensorized"
        )
        self._passes = 0

    def __call__(
        self, output: HeteroCellOutput, targets: Tensor, *, epoch: int = 0, stage: Stage = nullcontext
    ) -> Tensor:
        """Return the loss of one pass, and remember its batch; `targets: [B]`.

        **Arguments:**

        - `stage`: the ledger's, for the exchange with other ranks.
        """
        with torch.autocast(targets.device.type, enabled=False):
            predictions, z_p = output.predictions.to(targets.dtype), output.z_p.to(targets.dtype)
            now = {"predictions": predictions, "targets": targets, "z_p": z_p}
            loss = self._of(now, self._with_remembered(now))
            gathers = self.gather_interval is not None and self._passes % self.gather_interval == 0
            new = {name: gathered(rows, stage) if gathers else rows.detach() for name, rows in now.items()}
            self.remembered = {name: rows[-self.capacity :] for name, rows in self._with_remembered(new).items()}
            self._passes += 1
        return loss

    def _with_remembered(self, rows: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return the rows that are remembered, then some more: [n + M, …] for `rows: [M, …]`."""
        if not self.remembered:
            return rows
        return {name: torch.cat([self.remembered[name], new]) for name, new in rows.items()}

    def _of(self, batch: Mapping[str, Tensor], every: Mapping[str, Tensor]) -> Tensor:
        """Return the squared error of a batch and the two distances of some rows."""
        error = F.mse_loss(batch["predictions"], batch["targets"])
        distance: Tensor = self._distance(every["predictions"].unsqueeze(-1), every["targets"].unsqueeze(-1))
        return error + self.weights[0] * distance + self.weights[1] * sup_cr(every["z_p"], every["targets"])


def sup_cr(z: Tensor, targets: Tensor, *, temperature: float = 0.1) -> Tensor:
    """Return the contrastive loss of every pair; the host waits for nothing.

    For an anchor i and another j it is `-log(exp(s_ij) / Σ exp(s_ik))` over those k (not i) whose target is at
    least as far from i's as j's is; s is the cosine similarity over the temperature. Zha et al., "Supervised
    contrastive regression", eq. 3. Each anchor's others are sorted by distance, so that the sums are running
    log-sums from the far end; equal distances share the sum that begins at the first of them.

    **Arguments:**

    - `z`: [M, H], the embeddings.
    - `targets`: [M], the scores.
    - `temperature`: what similarities are divided by.

    **Returns:** [], the mean over all pairs; 0 where there is no pair.
    """
    if z.size(0) < 2:
        return z.sum() * 0.0
    unit = F.normalize(z, dim=-1)
    itself = torch.eye(z.size(0), dtype=torch.bool, device=z.device)
    distance = (targets.unsqueeze(1) - targets).abs().masked_fill(itself, -1.0)
    ordered, order = distance.sort(dim=1)
    ordered, order = ordered[:, 1:].contiguous(), order[:, 1:]  # each came first in its own row
    similarity = (unit @ unit.t() / temperature).gather(1, order)
    at_least_as_far = similarity.flip(1).logcumsumexp(1).flip(1)
    first_of_equals = torch.searchsorted(ordered, ordered)
    return (at_least_as_far.gather(1, first_of_equals) - similarity).mean()
