"""Charts of how far a deletion reaches in a graph, and of what several ranks bring and cost."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from tclab.lab.charts._marks import lines
from tclab.lab.charts._style import chart_title, empty_chart
from tclab.lab.reports._tables import scaling_table
from tclab.sweeps.store._row_files import Runs, rows_of

_GRAPHS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7")  # Okabe and Ito's, in the order of the graphs
_SHARES = {
    "rows": "rows that differ",
    "messages": "edges a delta sends again",
    "recomputed": "edges read to recompute them",
}


def reach_chart(rows: pd.DataFrame) -> Any:
    """Return the share of rows and edges that a deletion affects, layer by layer, with quartiles."""
    frame = rows.melt(["graph", "layer", "sample"], list(_SHARES), "share_of", "share")
    spread = (
        frame.groupby(["share_of", "graph", "layer"], sort=False)["share"]
        .quantile(np.array([0.25, 0.5, 0.75]))
        .unstack()
    )
    spread = spread.set_axis(["low", "y", "high"], axis=1).reset_index()
    points = spread.assign(panel=spread["share_of"].map(_SHARES)).rename(columns={"graph": "line", "layer": "x"})
    colours = dict(zip(dict.fromkeys(rows["graph"]), _GRAPHS * rows["graph"].nunique(), strict=False))
    title = chart_title("What a deletion affects", "median and quartiles over samples")
    return lines(points, title, x="layer", y="share of all", log="", percent=True, colours=colours, legend=True,
                 x_values=sorted(rows["layer"].unique().astype(float)), width=170, height=160)  # fmt: skip


# ---- several ranks


def speed_up(strong: Runs, weak: Runs) -> Any:
    """Return speed-up over ranks, strong and weak scaling side by side, with the ideal and the limit of the cores."""
    sides = {"strong: one batch shared": rows_of(strong), "weak: a batch for each rank": rows_of(weak)}
    found = []
    for panel, rows in sides.items():
        table = scaling_table(rows)
        if table.empty:
            continue
        efficiency = table["efficiency"].map("{:.0%}".format).where(table["ranks"] > table["ranks"].min(), "")
        shown = pd.DataFrame({"line": table["model"] + " · " + table["strategy"], "kind": table["strategy"],
                              "x": table["ranks"], "y": table["speedup"], "text": efficiency})  # fmt: skip
        shown = pd.concat([shown.assign(panel=panel, dashed=False), table], axis=1)
        first = shown[shown["line"] == shown["line"].iloc[0]]
        limits = [
            first.assign(
                y=first[name], line=name.replace("_", " "), kind=name, text="", dashed=True, low=None, high=None
            )
            for name in ("ideal", "cores_allow")
        ]
        found += [shown, *limits]
    if not found:
        return empty_chart("No number of ranks was measured.")
    points = pd.concat(found)
    columns = ["panel", "line", "kind", "x", "y", "low", "high", "text", "dashed"]
    more = "line: 95 % interval; percent: efficiency; dashed: ideal, and what the cores allow"
    title = chart_title("Samples a second, over those of one rank", more, rows=pd.concat(sides.values()))
    return lines(points[columns], title, x="ranks", y="times as many samples a second", log="", width=260, height=240,
                 x_values=sorted(points["x"].unique().astype(float)))  # fmt: skip
