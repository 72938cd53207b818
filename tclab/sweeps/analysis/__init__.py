"""Rows compared with rows, points raced against points, changes advised."""

from tclab.sweeps.analysis._race_points import cells_of, loop_of

__all__ = [
    "cells_of",
    "loop_of",
]
__dir__ = __all__.copy  # completion offers these
