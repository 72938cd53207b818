"""Perturbations: `Deletions` with their scores, synthetic samples, and stores of encoded samples."""

from tclab.perturbation._dataset import Perturbations, synthetic_perturbations
from tclab.perturbation._deletions import Deletions

__all__ = ["Deletions", "Perturbations", "synthetic_perturbations"]
__dir__ = __all__.copy  # completion offers these
