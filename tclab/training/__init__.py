"""One training step and what surrounds it: loading, loops, data-parallel training, the check, estimates."""

from tclab.training._overheads import OVERHEADS

__all__ = ["OVERHEADS"]
__dir__ = __all__.copy  # completion offers these
