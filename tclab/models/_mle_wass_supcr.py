"""The loss MleWassSupCR: squared error, distance of distributions, contrast of embeddings, and a buffer of rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import functional as F

from tclab.errors import InputError, need
from tclab.models._gathered_ranks import Peers

if TYPE_CHECKING:
    from tclab.models._hetero_cell import HeteroCellOutput


class CircularBuffer:
    """The last `capacity` rows of some tensors, detached, the oldest overwritten first; the host never waits."""

    def __init__(self, capacity: int = 256) -> None:
        if capacity < 1:
            raise InputError(f"capacity is {capacity!r}, expected 1 or more")
        self.capacity = capacity
        self._columns: dict[str, Tensor] = {}
        self._next = 0
        self._filled = 0

    def __len__(self) -> int:
        """How many rows are kept now."""
        return self._filled

    def __getitem__(self, name: str) -> Tensor:
        """Return the rows of one tensor that are kept, [len, …], in the order in which their places come."""
        return self._columns[name][: self._filled]

    def push(self, rows: Mapping[str, Tensor]) -> None:
        """Keep the rows of some tensors, each [n, …], the same n; of more than fit, the last."""
        number = len(next(iter(rows.values())))
        for name, tensor in rows.items():
            last = tensor.detach()[-self.capacity :]
            if name not in self._columns:
                self._columns[name] = last.new_zeros(self.capacity, *last.shape[1:])
            places = torch.arange(len(last), device=last.device).add_(self._next).remainder_(self.capacity)
            self._columns[name].index_copy_(0, places, last.to(self._columns[name].dtype))
        kept = min(number, self.capacity)
        self._next = (self._next + kept) % self.capacity
        self._filled = min(self._filled + kept, self.capacity)

    def state_dict(self) -> dict[str, Any]:
        """Return copies of the rows, and where the next one goes."""
        columns = {name: tensor.clone() for name, tensor in self._columns.items()}
        return {"columns": columns, "next": self._next, "filled": self._filled}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` of a buffer of this capacity returned.

        **Raises:** `InputError` for one of another capacity.
        """
        for tensor in state["columns"].values():
            if len(tensor) != self.capacity:
                raise InputError(f"the state holds {len(tensor)} rows, expected a buffer of {self.capacity}")
        self._columns = {name: tensor.clone() for name, tensor in state["columns"].items()}
        self._next, self._filled = int(state["next"]), int(state["filled"])


class MleWassSupCR:
    """MSE + 0.1 · Wasserstein + 0.001 · SupCR on z_p, over the batch and what a circular buffer remembers.

    Wasserstein is geomloss's debiased Sinkhorn divergence between predictions and targets, p = 2: about half the
    squared distance of the two distributions. All of it runs in float32 or more, also under autocast. Under
    DDP the buffer takes every rank's batch each `gather_interval` passes (three all-gathers), its own otherwise.
    The case study's draws from its buffer by a schedule, which ends at 252 of 256 rows at batch 28; this one always
    uses all of them.

    With a buffer, R ranks of batch b do not train as one process of batch R · b does: the two distances are each
    rank's own, of its batch and what it remembers, and what is remembered carries no gradient. Without one
    (`capacity=None`) every rank takes the loss of all ranks' batches together, and they do.

    **Arguments:**

    - `wasserstein`, `sup_cr`: the weights of the two terms.
    - `blur`: the standard deviation that the Sinkhorn divergence cannot see below, in units of the targets.
    - `temperature`: of the contrast.
    - `capacity`: of the buffer, rows; `None` remembers nothing, and gathers in each pass, with gradients.
    - `gather_interval`: passes; `None` never gathers.
    - `diameter`: where the annealing of the Sinkhorn iterations begins, in units of the targets. geomloss would
      ask the device for the true one, which makes the host wait; one that is too large costs a few iterations.
    """

    over_batch = True  # no mean over samples: a batch that comes in slices is put together for it

    def __init__(
        self,
        *,
        wasserstein: float = 0.1,
        sup_cr: float = 0.001,
        blur: float = 0.05,
        temperature: float = 0.1,
        capacity: int | None = 256,
        gather_interval: int | None = 1,
        diameter: float = 4.0,
    ) -> None:
        if gather_interval is not None and gather_interval < 1:
            raise InputError(f"gather_interval is {gather_interval!r}, expected 1 or more, or None")
        self.weights = (wasserstein, sup_cr)
        self.temperature = temperature
        self.gather_interval = gather_interval if capacity is not None else None
        self.buffer = None if capacity is None else CircularBuffer(capacity)
        need("the loss MleWassSupCR", "sweep", "geomloss")
        from geomloss import SamplesLoss  # both models have other losses, which do without it

        self._distance = SamplesLoss(
            "sinkhorn", p=2, blur=blur, scaling=0.9, debias=True, diameter=diameter, backend="tensorized"
        )
        self._passes = 0

    def __call__(
        self, output: HeteroCellOutput, targets: Tensor, *, epoch: int = 0, peers: Peers | None = None
    ) -> Tensor:
        """Return the loss of one pass, and remember its batch; `targets: [B]`.

        **Arguments:**

        - `peers`: the ranks that take this step; those of the process's group unless given.
        """
        peers = peers or Peers.here()
        with torch.autocast(targets.device.type, enabled=False):
            predictions = output.predictions.to(targets.dtype)
            z_p = output.z_p.to(targets.dtype)
            now = {"predictions": predictions, "targets": targets, "z_p": z_p}
            if self.buffer is None:
                every = {name: peers.gather(rows, gradients=True) for name, rows in now.items()}
                return self._of(every, every)
            remembered = {name: torch.cat([rows, self.buffer[name]]) for name, rows in now.items() if self.buffer}
            loss = self._of(now, remembered or now)
            with torch.no_grad():
                self.buffer.push(self._gathered(now, peers))
        return loss

    def _of(self, batch: Mapping[str, Tensor], every: Mapping[str, Tensor]) -> Tensor:
        """Return the squared error of a batch and the two distances of some rows."""
        ours, theirs = (every[name].unsqueeze(-1) for name in ("predictions", "targets"))
        loss: Tensor = (
            F.mse_loss(batch["predictions"], batch["targets"])
            + self.weights[0] * self._distance(ours, theirs)
            + self.weights[1] * sup_cr(every["z_p"], every["targets"], temperature=self.temperature)
        )
        return loss

    def _gathered(self, rows: dict[str, Tensor], peers: Peers) -> dict[str, Tensor]:
        """Return every rank's rows where it is time to gather, otherwise these."""
        self._passes += 1
        if peers.ranks == 1 or self.gather_interval is None or (self._passes - 1) % self.gather_interval:
            return rows
        return {name: peers.gather(tensor) for name, tensor in rows.items()}

    def state_dict(self) -> dict[str, Any]:
        """Return the buffer and the number of passes."""
        buffer = None if self.buffer is None else self.buffer.state_dict()
        return {"buffer": buffer, "passes": self._passes}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        if self.buffer is not None:
            self.buffer.load_state_dict(state["buffer"])
        self._passes = int(state["passes"])


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
