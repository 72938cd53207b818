"""Two published experiments as points of a sweep."""

from __future__ import annotations

from typing import Any

from tclab.sweeps.config._grid import grid
from tclab.sweeps.config._point import Point

# the production model with `edge_mask`: every edge is copied once a sample
_SET_UP: dict[str, Any] = {"models": "hetero_cell_production", "strategies": "edge_mask", "batch_sizes": 28}


def experiment_083(**more: Any) -> list[Point]:
    """Return the points of experiment 083: does a step's time follow the edges? One network, and all of them.

    As published, a step was about 2.4 times as fast on the coexpression network alone (0.91 against 0.38 it/s),
    which has 41 % of the edges.

    **Arguments:**

    - `more`: as for `grid`: `tclab.sweep(experiment_083(scale=0.1, batch_sizes=2), results="runs/083")`.
    """
    return [
        *grid(**{**_SET_UP, "networks": "all", **more}),
        *grid(**{**_SET_UP, "networks": "string12_0_coexpression", **more}),
    ]


def experiment_084(**more: Any) -> list[Point]:
    """Return the points of experiment 084: what do the loss's all-gathers cost? With them, and without.

    As published, there was no difference on four GPUs (0.35 it/s without).

    **Arguments:**

    - `more`: as for `grid`.
    """
    loss = "mle_wass_supcr,mle_wass_supcr_no_gather"
    return grid(**{**_SET_UP, "networks": "all", "loss": loss, "gpus": 4, **more})
