"""Running a point on this machine, in a warm worker process or in ranks that torchrun starts."""

from tclab.sweeps.execution._worker_pool import close_workers

__all__ = [
    "close_workers",
]
__dir__ = __all__.copy  # completion offers these
