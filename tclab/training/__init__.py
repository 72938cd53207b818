"""One step and everything around it: loading, the stages of a step, the gate that goes before any clock."""

from tclab.training.gate import GateResult, Reference, gate
from tclab.training.loading import Batches, LoadedBatch, loader
from tclab.training.step import DTYPES, MODES, Step

__all__ = ["DTYPES", "MODES", "Batches", "GateResult", "LoadedBatch", "Reference", "Step", "gate", "loader"]
