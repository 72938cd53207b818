"""Runs against runs as a picture: each point's ratio, its interval, and what was decided."""

from __future__ import annotations

from typing import Any

import altair as alt

from tclab.lab.ratios import ratio_layers, ratio_rows
from tclab.lab.timeline import nothing
from tclab.sweeps import Comparison


def comparison_chart(found: Comparison) -> Any:
    """Return the second runs' time over the first's, a line a point, with 95 % intervals and the margin as a band.

    Hollow where no verdict is given. Points that are in one of them alone, or have no time in one, are counted
    below the title.
    """
    first, second = found.names
    rows = ratio_rows(((pair.cell, pair) for pair in found.pairs), by="point")
    if rows.empty:
        return nothing(f"No point of {first} and {second} has a time in both.")
    margin = max(pair.margin for pair in found.pairs)
    chart = ratio_layers(
        rows, by="point", title=f"{found.stage}: time of {second} over {first}", of=second, margin=margin
    ).properties(
        width=420,
        height=alt.Step(24),
        title=alt.TitleParams(f"{second} against {first}", subtitle=_subtitle(found, margin), anchor="start"),
    )
    return chart


def _subtitle(found: Comparison, margin: float) -> list[str]:
    first, second = found.names
    one = len(set(found.where)) == 1
    lines = (
        [found.where[0]]
        if one
        else [f"{name}: {where}" for name, where in zip(found.names, found.where, strict=True)]
    )
    lines += [f"{name}: {was} → {now}" for name, (was, now) in found.differs.items()]
    lines = [line if len(line) <= 100 else f"{line[:97]}…" for line in lines]
    lines.append(f"95 % intervals, run at different times; grey band: the margin of ±{margin:.0%}")
    alone = [(first, len(found.only_first)), (second, len(found.only_second))]
    lines += [f"{count} more in {name} alone" for name, count in alone if count]
    timeless = sum(pair.ratio is None for pair in found.pairs)
    lines += [f"{timeless} in both without a time in one of them"] if timeless else []
    return lines
