"""A grid of points, running one, keeping rows."""

from tclab.sweeps.advising import advise
from tclab.sweeps.batch_limit import LargestBatch, largest_batch
from tclab.sweeps.bytes_ahead import expected_batch_bytes
from tclab.sweeps.comparing import Comparison, compare
from tclab.sweeps.contest import cells_of, loop_of, race_grid, race_points
from tclab.sweeps.cost_model import (
    Cell,
    CostModel,
    HitRate,
    beside_measured,
    cells,
    fit_costs,
    measure_cells,
    named_cells,
    removed_share,
)
from tclab.sweeps.epoch import Epoch, EpochError, Prediction, predict_epoch, run_epoch
from tclab.sweeps.epoch_costs import Costs
from tclab.sweeps.exporting import read_rows, write_rows
from tclab.sweeps.fitting import Fits, fits
from tclab.sweeps.gpus import ranks_of
from tclab.sweeps.grids import grid, listed
from tclab.sweeps.on_paper import Link, OnPaper, cores_slowdown, step_on_paper
from tclab.sweeps.originals import experiment_083, experiment_084
from tclab.sweeps.point import Point
from tclab.sweeps.results import Results
from tclab.sweeps.roofline import Ceilings, ceilings, roofline
from tclab.sweeps.running import close_children, run, warm_up
from tclab.sweeps.scaling import accumulated, by_ranks, strong_scaling, weak_scaling
from tclab.sweeps.sweeping import Progress, sweep
from tclab.sweeps.whole_step import in_each_mode, over_bytes, with_each_habit

__all__ = [
    "Ceilings",
    "Cell",
    "Comparison",
    "CostModel",
    "Costs",
    "Epoch",
    "EpochError",
    "Fits",
    "HitRate",
    "LargestBatch",
    "Link",
    "OnPaper",
    "Point",
    "Prediction",
    "Progress",
    "Results",
    "accumulated",
    "advise",
    "beside_measured",
    "by_ranks",
    "ceilings",
    "cells",
    "cells_of",
    "close_children",
    "compare",
    "cores_slowdown",
    "expected_batch_bytes",
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
    "ranks_of",
    "read_rows",
    "removed_share",
    "roofline",
    "run",
    "run_epoch",
    "step_on_paper",
    "strong_scaling",
    "sweep",
    "warm_up",
    "weak_scaling",
    "with_each_habit",
    "write_rows",
]
