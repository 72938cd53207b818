"""A grid of points, running one, keeping rows."""

from tclab.sweeps.batch_limit import LargestBatch, largest_batch
from tclab.sweeps.contest import cells_of, loop_of, race_grid, race_points
from tclab.sweeps.cost_model import (
    Cell,
    CostModel,
    HitRate,
    cells,
    compare,
    fit_costs,
    measure_cells,
    named_cells,
    removed_share,
)
from tclab.sweeps.epoch import Epoch, EpochError, Prediction, predict_epoch, run_epoch
from tclab.sweeps.epoch_costs import Costs
from tclab.sweeps.fitting import Fits, fits
from tclab.sweeps.grids import device_of, grid, listed
from tclab.sweeps.originals import experiment_083, experiment_084
from tclab.sweeps.point import Point
from tclab.sweeps.results import Results
from tclab.sweeps.roofline import Ceilings, ceilings, roofline
from tclab.sweeps.running import close_children, run
from tclab.sweeps.sweeping import Progress, sweep
from tclab.sweeps.whole_step import in_each_mode, over_bytes, with_each_habit

__all__ = [
    "Ceilings",
    "Cell",
    "CostModel",
    "Costs",
    "Epoch",
    "EpochError",
    "Fits",
    "HitRate",
    "LargestBatch",
    "Point",
    "Prediction",
    "Progress",
    "Results",
    "ceilings",
    "cells",
    "cells_of",
    "close_children",
    "compare",
    "device_of",
    "experiment_083",
    "experiment_084",
    "fit_costs",
    "fits",
    "grid",
    "in_each_mode",
    "largest_batch",
    "listed",
    "loop_of",
    "measure_cells",
    "named_cells",
    "over_bytes",
    "predict_epoch",
    "race_grid",
    "race_points",
    "removed_share",
    "roofline",
    "run",
    "run_epoch",
    "sweep",
    "with_each_habit",
]
