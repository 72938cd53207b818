"""One step and everything around it: loading, the stages of a step, the gate that goes before any clock."""

from tclab.training.double_buffer import double_buffered
from tclab.training.gate import GateResult, Reference, gate
from tclab.training.loading import START_METHODS, Batches, LoadedBatch, Loader, Making, WorkerDiedError, loader
from tclab.training.step import DTYPES, MODES, Step

__all__ = [
    "DTYPES",
    "MODES",
    "START_METHODS",
    "Batches",
    "GateResult",
    "LoadedBatch",
    "Loader",
    "Making",
    "Reference",
    "Step",
    "WorkerDiedError",
    "double_buffered",
    "gate",
    "loader",
]
