"""Runs against runs as a picture: each point's ratio, its interval, and what was decided."""

from __future__ import annotations

from typing import Any

import altair as alt
import pandas as pd

from tclab.lab.timeline import nothing
from tclab.lab.trust import VERDICT_COLOURS
from tclab.sweeps import Comparison
from tclab.timing import UNDECIDED


def comparison_chart(found: Comparison) -> Any:
    """Return the second runs' time over the first's, a line a point, with 95 % intervals and the margin as a band.

    Hollow where no verdict is given. Points that are in one of them alone, or have no time in one, are counted
    below the title.
    """
    first, second = found.names
    rows = pd.DataFrame(
        [
            {
                "point": pair.cell,
                "ratio": pair.ratio,
                "low": pair.interval[0] if pair.interval else None,
                "high": pair.interval[1] if pair.interval else None,
                "verdict": pair.verdict,
                "place": place,
            }
            for place, pair in enumerate(found.pairs)
        ],
        columns=["point", "ratio", "low", "high", "verdict", "place"],
    ).dropna(subset=["ratio"])
    if rows.empty:
        return nothing(f"No point of {first} and {second} has a time in both.")
    margin = max(pair.margin for pair in found.pairs)
    y = alt.Y(
        "point:N", title=None, sort=alt.EncodingSortField("place", order="ascending"), axis=alt.Axis(labelLimit=330)
    )
    x = alt.X(
        "ratio:Q",
        title=f"{found.stage}: time of {second} over {first} (logarithmic; left is faster)",
        scale=alt.Scale(type="log", nice=False, padding=16),
        axis=alt.Axis(format="~g", tickCount=6),
    )
    shown = [verdict for verdict in VERDICT_COLOURS if verdict in set(rows["verdict"])]
    colour = alt.Color(
        "verdict:N",
        title=second,
        scale=alt.Scale(domain=shown, range=[VERDICT_COLOURS[verdict] for verdict in shown]),
    )
    band = pd.DataFrame({"from": [1 / (1 + margin)], "to": [1 + margin]})
    base = alt.Chart(rows).encode(y=y, color=colour)
    chart: Any = alt.layer(
        alt.Chart(band).mark_rect(color="#bbbbbb", opacity=0.4).encode(x=alt.X("from:Q"), x2="to:Q"),
        base.mark_rule(strokeWidth=2).encode(x=alt.X("low:Q"), x2="high:Q"),
        base.transform_filter(alt.datum.verdict != UNDECIDED).mark_point(filled=True, size=80).encode(x=x),
        base.transform_filter(alt.datum.verdict == UNDECIDED).mark_point(filled=False, size=80).encode(x=x),
    ).properties(
        width=420,
        height=alt.Step(24),
        title=alt.TitleParams(f"{second} against {first}", subtitle=_subtitle(found, margin), anchor="start"),
    )
    return chart


def _subtitle(found: Comparison, margin: float) -> list[str]:
    first, second = found.names
    lines = [f"{name}: {was} → {now}" for name, (was, now) in found.differs.items()]
    lines = [line if len(line) <= 100 else f"{line[:97]}…" for line in lines]
    lines.append(f"95 % intervals, run at different times; grey band: the margin of ±{margin:.0%}")
    alone = [(first, len(found.only_first)), (second, len(found.only_second))]
    lines += [f"{count} more in {name} alone" for name, count in alone if count]
    timeless = sum(pair.ratio is None for pair in found.pairs)
    lines += [f"{timeless} in both without a time in one of them"] if timeless else []
    return lines
