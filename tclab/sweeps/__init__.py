"""A grid of points, running one, keeping rows."""

from tclab.sweeps.grids import grid
from tclab.sweeps.point import Point
from tclab.sweeps.results import Results
from tclab.sweeps.running import close_children, run
from tclab.sweeps.sweeping import Progress, sweep

__all__ = ["Point", "Progress", "Results", "close_children", "grid", "run", "sweep"]
