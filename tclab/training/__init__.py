"""One step and everything around it: loading, a step's stages, the loops, the gate that goes before any clock."""

from tclab.training.checking import Check, check
from tclab.training.ddp import BUCKET_MB, COMPRESSIONS, Exchange
from tclab.training.double_buffer import double_buffered
from tclab.training.gate import GateResult, Reference, gate
from tclab.training.habits import HABITS, Habit
from tclab.training.lightning_loop import lightning_module, run_lightning
from tclab.training.loading import START_METHODS, Batches, LoadedBatch, Loader, WorkerDiedError, loader
from tclab.training.loops import LOOPS, run_plain
from tclab.training.pipeline import Machinery, Simulated, Speeds, simulate
from tclab.training.shards import Shard
from tclab.training.step import DTYPES, MODES, OPTIMIZERS, Step

__all__ = [
    "BUCKET_MB",
    "COMPRESSIONS",
    "DTYPES",
    "HABITS",
    "LOOPS",
    "MODES",
    "OPTIMIZERS",
    "START_METHODS",
    "Batches",
    "Check",
    "Exchange",
    "GateResult",
    "Habit",
    "LoadedBatch",
    "Loader",
    "Machinery",
    "Reference",
    "Shard",
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
