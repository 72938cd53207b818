"""A grid of points, running one, keeping rows."""

from tclab.sweeps.contest import cells_of, loop_of, race_grid, race_points
from tclab.sweeps.epoch import Epoch, EpochError, Prediction, predict_epoch, run_epoch
from tclab.sweeps.epoch_costs import Costs
from tclab.sweeps.grids import grid
from tclab.sweeps.on_paper import Link, OnPaper, cores_slowdown, step_on_paper
from tclab.sweeps.originals import experiment_083, experiment_084
from tclab.sweeps.point import Point
from tclab.sweeps.results import Results
from tclab.sweeps.running import close_children, run
from tclab.sweeps.scaling import accumulated, by_ranks, strong_scaling, weak_scaling
from tclab.sweeps.sweeping import Progress, sweep
from tclab.sweeps.whole_step import in_each_mode, over_bytes, with_each_habit

__all__ = [
    "Costs",
    "Epoch",
    "EpochError",
    "Link",
    "OnPaper",
    "Point",
    "Prediction",
    "Progress",
    "Results",
    "accumulated",
    "by_ranks",
    "cells_of",
    "close_children",
    "cores_slowdown",
    "experiment_083",
    "experiment_084",
    "grid",
    "in_each_mode",
    "loop_of",
    "over_bytes",
    "predict_epoch",
    "race_grid",
    "race_points",
    "run",
    "run_epoch",
    "step_on_paper",
    "strong_scaling",
    "sweep",
    "weak_scaling",
    "with_each_habit",
]
