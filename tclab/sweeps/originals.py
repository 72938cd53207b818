"""Experiments of the original team, each as the one line that it is here."""

from __future__ import annotations

from typing import Any

from tclab.sweeps.grids import grid
from tclab.sweeps.point import Point

# ways the original trained with, the one that it ended with first
ORIGINAL_WAYS = ("edge_mask", "stored_index", "stored_mask", "subgraph")
# the production model, on what the original collated: every edge, once a sample
_SET_UP: dict[str, Any] = {"models": "hetero_cell_production", "strategies": "edge_mask", "batch_sizes": 28}


def experiment_083(**more: Any) -> list[Point]:
    """Return the points of experiment 083: does a step's time follow the edges? One network, and all of them.

    The original's step was about 2.4 times as fast on the coexpression network alone (0.91 against 0.38 it/s),
    which has 41 % of the edges. `more` goes to `grid`: `tclab.sweep(experiment_083(scale=0.1, batch_sizes=2), …)`.
    """
    return [
        *grid(**{**_SET_UP, "networks": "all", **more}),
        *grid(**{**_SET_UP, "networks": "string12_0_coexpression", **more}),
    ]


def experiment_084(**more: Any) -> list[Point]:
    """Return the points of experiment 084: what do the loss's all-gathers cost? With them, and without.

    The original saw no difference on its four GPUs (0.35 it/s without).
    """
    loss = "mle_wass_supcr,mle_wass_supcr_no_gather"
    return grid(**{**_SET_UP, "networks": "all", "loss": loss, "gpus": 4, **more})
