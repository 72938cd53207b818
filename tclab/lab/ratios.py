"""Ratios of two times with their intervals and verdicts: a line each, and the margin as a band."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import altair as alt
import pandas as pd

from tclab.lab.log_ticks import log_ticks
from tclab.timing import FASTER, SAME, SLOWER, UNDECIDED, Pair

# Okabe and Ito again: what is decided in colours, what is not in grey
VERDICT_COLOURS = {FASTER: "#009e73", SAME: "#0072b2", SLOWER: "#d55e00", UNDECIDED: "#999999"}


def ratio_rows(pairs: Iterable[tuple[str | None, Pair]], *, by: str) -> pd.DataFrame:
    """Return pairs that have a ratio as rows, under the names that they are given in column `by`."""
    return pd.DataFrame(
        [
            {
                by: name,
                "ratio": pair.ratio,
                "low": pair.interval[0] if pair.interval else None,
                "high": pair.interval[1] if pair.interval else None,
                "verdict": pair.verdict,
            }
            for name, pair in pairs
        ],
        columns=[by, "ratio", "low", "high", "verdict"],
    ).dropna(subset=["ratio"])


def ratio_layers(rows: pd.DataFrame, *, by: str, title: str, of: str, margin: float) -> Any:
    """Return the ratios of `ratio_rows` in their order, with 95 % intervals; hollow where nothing is decided.

    **Arguments:**

    - `title`: of the axis; `of`: of the colours. `margin`: half the band's width, of 1.
    """
    ends = [1 / (1 + margin), 1 + margin]
    y = alt.Y(f"{by}:N", title=None, sort=None, axis=alt.Axis(labelLimit=330))
    x = alt.X(
        "ratio:Q",
        title=f"{title} (logarithmic; left is faster)",
        scale=alt.Scale(type="log", nice=False, padding=16),
        axis=alt.Axis(format="~g", values=log_ticks([*ends, *rows["ratio"], *rows["low"], *rows["high"]])),
    )
    shown = [verdict for verdict in VERDICT_COLOURS if verdict in set(rows["verdict"])]
    colours = alt.Scale(domain=shown, range=[VERDICT_COLOURS[verdict] for verdict in shown])
    band = pd.DataFrame({"from": ends[:1], "to": ends[1:]})
    base = alt.Chart(rows).encode(y=y, color=alt.Color("verdict:N", title=of, scale=colours))
    return alt.layer(
        alt.Chart(band).mark_rect(color="#bbbbbb", opacity=0.4).encode(x="from:Q", x2="to:Q"),
        base.mark_rule(strokeWidth=2).encode(x=alt.X("low:Q"), x2="high:Q"),
        base.transform_filter(alt.datum.verdict != UNDECIDED).mark_point(filled=True, size=80).encode(x=x),
        base.transform_filter(alt.datum.verdict == UNDECIDED).mark_point(filled=False, size=80).encode(x=x),
    )
