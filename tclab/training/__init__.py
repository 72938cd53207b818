"""One training step and what surrounds it: loading, loops, data-parallel training, the equivalence check, estimates."""

from tclab.training._check import check
from tclab.training._overheads import OVERHEADS

__all__ = ["OVERHEADS", "check"]
__dir__ = __all__.copy  # completion offers these
