"""Which nodes are deleted, and the score: samples, and stores of encoded samples."""

from tclab.perturbation.build import Building, Progress, StoreSize, bar, build_store
from tclab.perturbation.dataset import (
    Perturbations,
    Samples,
    Split,
    planted_perturbations,
    split,
    synthetic_perturbations,
)
from tclab.perturbation.deletions import Deletions, Int64s, ranges
from tclab.perturbation.store import Store
from tclab.perturbation.stored import STORES, StoredSamples, stored

__all__ = [
    "STORES",
    "Building",
    "Deletions",
    "Int64s",
    "Perturbations",
    "Progress",
    "Samples",
    "Split",
    "Store",
    "StoreSize",
    "StoredSamples",
    "bar",
    "build_store",
    "planted_perturbations",
    "ranges",
    "split",
    "stored",
    "synthetic_perturbations",
]
