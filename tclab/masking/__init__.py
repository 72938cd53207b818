"""The ways of masking: one file tells one strategy's whole way from a sample to a view."""

from tclab.masking.batch import Batch
from tclab.masking.packing import Piece, SharedMemoryError
from tclab.masking.registry import get, names, register, view
from tclab.masking.strategy import Strategy

__all__ = ["Batch", "Piece", "SharedMemoryError", "Strategy", "get", "names", "register", "view"]
