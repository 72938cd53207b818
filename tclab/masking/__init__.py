"""The strategies, one a file, each from a sample to a view; their registry and the batch
that travels; `tclab.view` makes a view by one."""

from tclab._extras import need

need(__name__, "sweep", "scipy")

from tclab.masking._batch import Batch
from tclab.masking._strategy import Strategy
from tclab.masking._strategy_registry import get, names, register

__all__ = ["Batch", "Strategy", "get", "names", "register"]
__dir__ = __all__.copy  # completion offers these
