"""Losses: log-cosh, and DANGO's loss with its schedules."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from tclab.errors import InputError, unknown
from tclab.graph._cell_graph import CellGraph
from tclab.models._dango import DangoOutput


def log_cosh(predictions: Tensor, targets: Tensor) -> Tensor:
    """Return the mean of log(cosh(prediction - target)), without overflow; both are [B]."""
    error = (predictions - targets).abs()
    return (error + F.softplus(-2.0 * error) - math.log(2.0)).mean()


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


def reconstruction_loss(reconstruction: Tensor, edge_index: Tensor, weight: float) -> Tensor:
    """Return (Σ squared error on edges + λ Σ on non-edges) / N² without making the dense target.

    Σ over all of λ·r² and, on the edges alone, (r - 1)² - λ·r² more.

    **Arguments:**

    - `reconstruction`: [N, N]
    - `edge_index`: [2, E] int64, each edge once.
    - `weight`: λ.
    """
    on_edges = reconstruction[edge_index[0], edge_index[1]]
    everywhere = weight * reconstruction.square().sum()
    correction = ((on_edges - 1.0).square() - weight * on_edges.square()).sum()
    return (everywhere + correction) / reconstruction.numel()


class DangoLoss:
    """α · reconstruction, averaged over networks, + (1 - α) · mean log-cosh of the score.

    **Arguments:**

    - `graph`: what the reconstructions should look like, on their device.
    - `schedule`: "PreThenPost", "LinearUntilUniform" or "LinearUntilFlipped": how α falls from epoch to epoch.
    - `transition_epoch`: when it has fallen.
    - `zero_weights`: network → λ; `zero_weight` unless given.
    """

    def __init__(
        self,
        graph: CellGraph,
        *,
        schedule: str = "LinearUntilUniform",
        transition_epoch: int = 10,
        zero_weights: Mapping[str, float] | None = None,
    ) -> None:
        if schedule not in SCHEDULES:
            raise unknown("schedule", schedule, SCHEDULES)
        if transition_epoch < 1:
            raise InputError(f"transition_epoch is {transition_epoch!r}, expected 1 or more")
        self.alpha = partial(SCHEDULES[schedule], at=transition_epoch)
        self.edges = {name: n.edge_index.unique(dim=1) for name, n in graph.networks.items()}
        self.zero_weights = {name: zero_weight(name) for name in self.edges} | dict(zero_weights or {})

    def reconstruction(self, reconstructions: Mapping[str, Tensor]) -> Tensor:
        """Return the reconstruction part: its mean over networks, each [N, N]."""
        parts = [
            reconstruction_loss(dense, self.edges[name], self.zero_weights[name])
            for name, dense in reconstructions.items()
        ]
        return torch.stack(parts).mean()

    def __call__(self, output: DangoOutput, targets: Tensor, *, epoch: int = 0) -> Tensor:
        """Return the loss of one pass in an epoch; `targets: [B]`."""
        alpha = self.alpha(epoch)
        interaction = log_cosh(output.predictions, targets)
        return alpha * self.reconstruction(output.reconstructions) + (1.0 - alpha) * interaction
