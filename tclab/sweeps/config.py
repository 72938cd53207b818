"""What is run: a point, and the points of a sweep."""

from tclab.sweeps._grid import in_each_mode, scaling_points, with_each_overhead

__all__ = ["in_each_mode", "scaling_points", "with_each_overhead"]
__dir__ = __all__.copy  # completion offers these
