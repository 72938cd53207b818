"""Where the labels of a logarithmic axis stand: among the figures, however close these are."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

_WITHIN = ((1.0, 3.0), (1.0, 2.0, 5.0), (1.0, 1.5, 2.0, 3.0, 5.0, 7.0))  # of a decade
_FEWEST = 4  # labels


def log_ticks(values: Iterable[float | None]) -> list[float]:
    """Return round numbers from the least to the largest of some figures: decades, or finer where these are few.

    Of figures that are all within a part of a decade, steps of one size. What is missing, or not above 0, is not
    looked at.
    """
    known = np.asarray([np.nan if value is None else value for value in values], dtype=float)
    known = known[np.isfinite(known) & (known > 0)]
    if not len(known):
        return []
    low, high = float(known.min()), float(known.max())
    if high / low < 1 + 1e-9:
        return [float(f"{low:.3g}")]
    powers = np.arange(np.floor(np.log10(low)), np.ceil(np.log10(high)) + 1)
    tried = [10.0 ** powers[powers % every == 0] for every in (3, 2, 1)]
    tried += [np.multiply.outer(10.0**powers, steps).ravel() for steps in _WITHIN]
    tried.append(_even(low, high))
    for ticks in tried:
        inside = ticks[(ticks >= low * (1 - 1e-9)) & (ticks <= high * (1 + 1e-9))]
        if len(inside) >= _FEWEST:
            break
    return [float(f"{tick:.12g}") for tick in inside]


def _even(low: float, high: float) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Return multiples of 1, 2 or 5 times a power of ten, at least four of them between two figures."""
    widest = (high - low) / (_FEWEST + 1)
    power = 10.0 ** np.floor(np.log10(widest))
    step = max(factor * power for factor in (1, 2, 5) if factor * power <= widest * (1 + 1e-9))
    return step * np.arange(np.floor(low / step), np.ceil(high / step) + 1)
