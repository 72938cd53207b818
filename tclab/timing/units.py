"""Figures as people read them."""

from __future__ import annotations


def bytes_text(number: float) -> str:
    """Return a number of bytes as people read it: "1.15 GB", "1,016 B"."""
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if number >= size and number >= 1e4:
            return f"{number / size:.3g} {unit}"
    return f"{number:,.0f} B"
