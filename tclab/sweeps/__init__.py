"""Points, sweeps of points, and the rows that they give; more in each sub-package.

`tclab.sweeps.config` makes the points of a sweep, `predict` estimates memory and time before anything runs.
"""

from tclab._extras import need

need(__name__, "sweep", "pandas", "pyarrow")

from tclab.sweeps import config, predict
from tclab.sweeps._sweep import sweep
from tclab.sweeps.analysis._advise import advise
from tclab.sweeps.analysis._compare_runs import compare
from tclab.sweeps.analysis._export import export
from tclab.sweeps.analysis._inside import inside, trace_point
from tclab.sweeps.analysis._race_points import loop_of, race_grid, race_points
from tclab.sweeps.config._grid import grid
from tclab.sweeps.config._point import Point
from tclab.sweeps.execution._run import run
from tclab.sweeps.execution._worker_pool import close_workers
from tclab.sweeps.predict._epoch import run_epoch
from tclab.sweeps.predict._fits import fits, largest_batch
from tclab.sweeps.store._row_files import rows_of as rows
from tclab.sweeps.store._row_files import write_rows

__all__ = [
    "Point",
    "advise",
    "close_workers",
    "compare",
    "config",
    "export",
    "fits",
    "grid",
    "inside",
    "largest_batch",
    "loop_of",
    "predict",
    "race_grid",
    "race_points",
    "rows",
    "run",
    "run_epoch",
    "sweep",
    "trace_point",
    "write_rows",
]
__dir__ = __all__.copy  # completion offers these
