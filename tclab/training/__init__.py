"""One training step and what surrounds it: loading, loops, data-parallel training, the equivalence check, estimates."""

from tclab.training._check import Check, check
from tclab.training._distributed import Exchange, Shard
from tclab.training._double_buffer import double_buffered
from tclab.training._epoch_simulation import ContentionFactors, LoaderOverheads, simulate
from tclab.training._equivalence import EquivalenceReference, EquivalenceResult, Numerics, equivalence_reference
from tclab.training._lightning_loop import lightning_module, run_lightning
from tclab.training._loading import Batches, LoadedBatch, Loader, WorkerDiedError
from tclab.training._overheads import OVERHEADS
from tclab.training._plain_loop import run_plain
from tclab.training._step import MODES, Step

__all__ = [
    "MODES",
    "OVERHEADS",
    "Batches",
    "Check",
    "ContentionFactors",
    "EquivalenceReference",
    "EquivalenceResult",
    "Exchange",
    "LoadedBatch",
    "Loader",
    "LoaderOverheads",
    "Numerics",
    "Shard",
    "Step",
    "WorkerDiedError",
    "check",
    "double_buffered",
    "equivalence_reference",
    "lightning_module",
    "run_lightning",
    "run_plain",
    "simulate",
]
__dir__ = __all__.copy  # completion offers these
