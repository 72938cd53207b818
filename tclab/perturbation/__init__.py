"""Perturbations: `Deletions` with their scores, synthetic samples, and stores of encoded samples."""

from tclab.perturbation._deletions import Deletions, Perturbations

__all__ = ["Deletions", "Perturbations"]
__dir__ = __all__.copy  # completion offers these
