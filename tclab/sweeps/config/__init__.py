"""What is run: a point, and the points of a sweep."""

import pkgutil
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tclab.sweeps.config._gpus import ranks_of
    from tclab.sweeps.config._grid import in_each_mode, over_bytes, scaling_points, with_each_overhead

__all__ = [
    "in_each_mode",
    "over_bytes",
    "ranks_of",
    "scaling_points",
    "with_each_overhead",
]
__dir__ = __all__.copy  # completion offers these


def __getattr__(name: str) -> Any:  # the command reads what a point is without torch
    if name not in __all__:
        raise AttributeError(f"module 'tclab.sweeps.config' has no attribute {name!r}")
    module = "_gpus" if name == "ranks_of" else "_grid"
    return pkgutil.resolve_name(f"{__name__}.{module}:{name}")
