"""One training step and what surrounds it: loading, loops, data-parallel training, the equivalence check, estimates."""

from tclab.training._check import check
from tclab.training._distributed import Exchange, Shard
from tclab.training._equivalence import equivalence_reference
from tclab.training._lightning_loop import run_lightning
from tclab.training._loading import Batches, Loader
from tclab.training._overheads import OVERHEADS
from tclab.training._plain_loop import run_plain
from tclab.training._step import MODES, Step

__all__ = [
    "MODES",
    "OVERHEADS",
    "Batches",
    "Exchange",
    "Loader",
    "Shard",
    "Step",
    "check",
    "equivalence_reference",
    "run_lightning",
    "run_plain",
]
__dir__ = __all__.copy  # completion offers these
