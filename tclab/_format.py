"""Bytes, seconds and durations as text, with the same rounding everywhere: three significant digits."""

from __future__ import annotations

from collections.abc import Sequence


def bytes_text(number: float) -> str:
    """Return a number of bytes as text, in powers of ten: "1,016 B", "45 kB", "1.15 GB".

    Up to 9,999 bytes every byte is given.
    """
    if abs(number) < 1e4:
        return f"{number:,.0f} B"
    return _scaled(number, (("kB", 1e3), ("MB", 1e6), ("GB", 1e9), ("TB", 1e12)))


def counted(number: int, noun: str, many: str = "") -> str:
    """Return a number with its noun: "1 network", "1,016 networks", or "2 copies" where `many` is given."""
    return f"{number:,} {noun if number == 1 else many or noun + 's'}"


def first_of(names: Sequence[str], most: int = 3) -> str:
    """Return the first names as text: "a, b, c and 2 more"."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def seconds_text(seconds: float, beside: float | None = None) -> str:
    """Return a time as text: "2 ns", "1.27 µs", "84.7 ms", "7.29 s", "4,321 s".

    **Arguments:**

    - `beside`: another time, whose unit is taken, so that figures beside one another share it.
    """
    return _scaled(seconds, (("ns", 1e-9), ("µs", 1e-6), ("ms", 1e-3), ("s", 1.0)), beside) if seconds else "0 s"


def us_text(microseconds: float) -> str:
    """Return a time in microseconds, the unit of a profiler's trace, as `seconds_text` does."""
    return seconds_text(microseconds * 1e-6)


def duration_text(seconds: float) -> str:
    """Return a waiting time, in whole seconds: "8 s", "3 min 5 s", "2 h 10 min"."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def _scaled(value: float, units: tuple[tuple[str, float], ...], beside: float | None = None) -> str:
    """Return a value in the smallest of some units, from small to large, in which it rounds to less than 1,000.

    With a value `beside` it is the unit in which that one does.
    """
    for unit, size in units[:-1]:
        if abs(value if beside is None else beside) / size < 999.5:
            return f"{value / size:.3g} {unit}"
    unit, size = units[-1]
    scaled = value / size
    return f"{scaled:.3g} {unit}" if abs(scaled) < 999.5 else f"{scaled:,.0f} {unit}"
