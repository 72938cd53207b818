"""Which nodes are deleted, and the score: samples, and stores of encoded samples."""

from tclab.perturbation.dataset import Perturbations, synthetic_perturbations
from tclab.perturbation.deletions import Deletions
from tclab.perturbation.store import Store, write_store

__all__ = ["Deletions", "Perturbations", "Store", "synthetic_perturbations", "write_store"]
