"""The ways of masking: one file tells one strategy's whole way from a sample to a view."""

from tclab.masking.batch import Batch
from tclab.masking.registry import get, names, register, view
from tclab.masking.strategy import Sample, Strategy

__all__ = ["Batch", "Sample", "Strategy", "get", "names", "register", "view"]
