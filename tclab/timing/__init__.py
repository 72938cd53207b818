"""Clocks for any training loop: where a step's time goes, which of two is faster, and how far to trust the figures.

It knows nothing of graphs and can be used around any loop. A ledger needs Python alone. torch is imported for CUDA
and for a loader in a race, pandas for a frame and for advice, numpy and scipy for a race, a verdict and advice.
"""

from tclab._lazy import lazy

# each name is imported at its first use: a loop that only has a ledger loads nothing else
__getattr__, __dir__, __all__ = lazy(__name__, __file__)
