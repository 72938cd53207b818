"""What the rows of points are made into: races, epochs, what happens inside a step; more in each sub-package.

`tclab.Point`, `grid`, `run`, `sweep`, `rows`, `compare`, `advise` and `fits` are in `tclab`.

`tclab.sweeps.config` makes the points of a sweep, `predict` estimates memory and time before anything runs.
"""

from tclab.errors import need

need(__name__, "sweep", "pandas", "pyarrow")

from tclab.sweeps import config, predict
from tclab.sweeps.analysis._inside import inside, trace_point
from tclab.sweeps.analysis._race_points import loop_of, race_grid, race_points
from tclab.sweeps.execution._ranks import run_as_rank
from tclab.sweeps.execution._worker_pool import close_workers
from tclab.sweeps.predict._epoch import run_epoch
from tclab.sweeps.predict._fits import largest_batch
from tclab.sweeps.store._row_files import write_rows

__all__ = [
    "close_workers",
    "config",
    "inside",
    "largest_batch",
    "loop_of",
    "predict",
    "race_grid",
    "race_points",
    "run_as_rank",
    "run_epoch",
    "trace_point",
    "write_rows",
]
__dir__ = __all__.copy  # completion offers these
