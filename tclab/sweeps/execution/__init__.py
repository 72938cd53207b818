"""Running a point on this machine, in a warm worker process or in ranks that torchrun starts."""

from tclab.sweeps.execution._worker_pool import abort, close_workers, warm_up

__all__ = ["abort", "close_workers", "warm_up"]
__dir__ = __all__.copy  # completion offers these
