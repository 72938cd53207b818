"""What a point or an epoch will need before it runs: memory, bytes, seconds."""

from tclab.sweeps.predict._alpha_beta import Link, PredictedStep, cores_slowdown, predict_step
from tclab.sweeps.predict._batch_bytes import expected_batch_bytes
from tclab.sweeps.predict._cost_model import (
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
from tclab.sweeps.predict._epoch import Epoch, EpochError, Prediction
from tclab.sweeps.predict._epoch_costs import Costs
from tclab.sweeps.predict._fits import Fits
from tclab.sweeps.predict._largest_batch import LargestBatch
from tclab.sweeps.predict._roofline import Ceilings, ceilings, roofline

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
    "Link",
    "PredictedStep",
    "Prediction",
    "beside_measured",
    "ceilings",
    "cells",
    "cores_slowdown",
    "expected_batch_bytes",
    "fit_costs",
    "measure_cells",
    "named_cells",
    "predict_step",
    "removed_share",
    "roofline",
]
