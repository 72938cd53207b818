"""One step and everything around it: loading, a step's stages, the loops, the gate that goes before any clock."""

from tclab.training.checking import Check, check
from tclab.training.double_buffer import double_buffered
from tclab.training.gate import GateResult, Reference, gate
from tclab.training.habits import HABITS, Habit
from tclab.training.lightning_loop import lightning_module, run_lightning
from tclab.training.loading import START_METHODS, Batches, LoadedBatch, Loader, WorkerDiedError, loader
from tclab.training.loops import LOOPS, run_plain
from tclab.training.pipeline import Machinery, Simulated, Speeds, simulate
from tclab.training.step import DTYPES, MODES, OPTIMIZERS, Step

__all__ = [
    "DTYPES",
    "HABITS",
    "LOOPS",
    "MODES",
    "OPTIMIZERS",
    "START_METHODS",
    "Batches",
    "Check",
    "GateResult",
    "Habit",
    "LoadedBatch",
    "Loader",
    "Machinery",
    "Reference",
    "Simulated",
    "Speeds",
    "Step",
    "WorkerDiedError",
    "check",
    "double_buffered",
    "gate",
    "lightning_module",
    "loader",
    "run_lightning",
    "run_plain",
    "simulate",
]
