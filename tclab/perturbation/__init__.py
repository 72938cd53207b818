"""Perturbations: `Deletions` with their scores, synthetic samples, and stores of encoded samples."""

from tclab.perturbation._build_store import Progress, StoreSize, bar, build_store
from tclab.perturbation._dataset import (
    Perturbations,
    Samples,
    planted_perturbations,
    split,
    steps_per_epoch,
    synthetic_perturbations,
)
from tclab.perturbation._deletions import Deletions, removed_by
from tclab.perturbation._stored_samples import StoredSamples

__all__ = [
    "Deletions",
    "Perturbations",
    "Progress",
    "Samples",
    "StoreSize",
    "StoredSamples",
    "bar",
    "build_store",
    "planted_perturbations",
    "removed_by",
    "split",
    "steps_per_epoch",
    "synthetic_perturbations",
]
