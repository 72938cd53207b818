"""Charts of a graph, and of what several ranks bring and cost."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from tclab._display import counted
from tclab.errors import unknown
from tclab.graph._cell_graph import CellGraph
from tclab.lab.charts._marks import lines, ratios, stacked
from tclab.lab.charts._style import STAGE_COLOURS, chart_title, colours_of, empty_chart
from tclab.lab.reports._cells import records, step_throughput
from tclab.lab.reports._graphs import degree_ranks
from tclab.lab.reports._tables import EXCHANGE, KEY, scaling_table
from tclab.perturbation._dataset import TRAINING_SAMPLES, steps_per_epoch
from tclab.sweeps.store._row_files import Runs, rows_of

_GRAPHS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7")  # Okabe and Ito's, in the order of the graphs
_SHARES = {
    "rows": "rows that differ",
    "messages": "edges a delta sends again",
    "recomputed": "edges read to recompute them",
}


def graph_chart(graphs: Mapping[str, CellGraph]) -> Any:
    """Return degrees over the mean degree, by rank from the largest, a line a network, a panel for each kind of it.

    **Arguments:**

    - `graphs`: name → graph.
    """
    colours = dict(zip(graphs, _GRAPHS * len(graphs), strict=False))
    frame = pd.concat([degree_ranks(graph).assign(graph=name) for name, graph in graphs.items()])
    points = pd.DataFrame(
        {
            "line": frame["graph"] + " · " + frame["network"],
            "kind": frame["graph"],
            "panel": frame["network"].map(_kind),
            "x": frame["rank"],
            "y": frame["of_mean"],
        }
    )
    title = chart_title("How uneven degrees are", "a line a network; logarithmic")
    return lines(
        points, title, x="rank, as a share of nodes", y="degree / mean degree", colours=colours, legend=True, width=170,
        height=110,
    )  # fmt: skip


def _kind(network: str) -> str:
    if network.startswith("string"):
        return network.rpartition("_")[2]
    return "physical" if network.startswith("biogrid") else network


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


def scaling_chart(rows: Runs, of: str) -> Any:
    """Return a chart of what several processes cost and bring.

    **Arguments:**

    - `rows`: of a sweep.
    - `of`: "exchange", the share of a step that several ranks cost: the loss's gather, rank_wait, exposed
      communication; or "accumulation", samples a second at one effective batch size, by more ranks or by more
      accumulated batches.

    **Raises:** `InputError` for another `of`.
    """
    rows = rows_of(rows)
    if of not in ("exchange", "accumulation"):
        raise unknown("chart of scaling", of, ("exchange", "accumulation"))
    return _exchange(rows) if of == "exchange" else _accumulation(rows)


def _exchange(rows: pd.DataFrame) -> Any:
    table = scaling_table(rows, "exchange")
    if table.empty:
        return empty_chart("No point of several ranks was measured.")
    settings = [name for name in table.columns[: table.columns.get_loc("step_seconds")] if name not in KEY]
    varying = [name for name in settings if table[name].nunique(dropna=False) > 1]
    found = []
    for row in records(table):
        label = f"{row['model']} · {row['ranks']} ranks × batch {row['batch_size']}"
        label += f" × {row['accumulate']} accumulated" if row["accumulate"] > 1 else ""
        label += "".join(f" · {name.replace('_', ' ')} {row[name]}" for name in varying)
        seconds = {stage: row[f"{stage}_seconds"] for stage in EXCHANGE}
        found += [
            {"bar": label, "part": stage, "value": took / row["step_seconds"]}
            for stage, took in seconds.items() if took is not None and not pd.isna(took)
        ]  # fmt: skip
    if not found:
        return empty_chart("The rows have no stage of what ranks exchange.")
    more = "rank_wait: for the slowest rank; communication: exposed"
    title = chart_title("What several ranks cost a step", more, rows=rows)
    return stacked(pd.DataFrame(found), title, axis="share of a step (mean over ranks)", colours=STAGE_COLOURS,
                   seconds=False, width=420)  # fmt: skip


def _accumulation(rows: pd.DataFrame) -> Any:
    ok = step_throughput(rows[rows["status"] == "ok"]).sort_values("ranks", kind="stable")
    if ok.empty:
        return empty_chart("No accumulation was measured.")
    lines_ = [
        f"{row['model']} · {counted(row['ranks'], 'rank')} × {row['accumulate']} batches of {row['batch_size']}"
        for row in records(ok)
    ]
    colours = colours_of(ok["strategy"])
    found = pd.DataFrame({"line": lines_, "value": ok["samples_per_second"], "low": ok["low"], "high": ok["high"]})
    found["text"] = found["value"].map("{:.3g} a second".format)
    effective = sorted({int(row["ranks"] * row["batch_size"] * row["accumulate"]) for row in records(ok)})
    more = f"effective batch {' and '.join(map(str, effective))}; line: 95 % interval"
    title = chart_title("More ranks, or more batches per optimizer step", more, rows=rows)
    of_line = dict(zip(lines_, map(colours.__getitem__, ok["strategy"]), strict=True))
    return ratios(found, title, axis="samples a second (logarithmic)", colours=of_line, one=None)


def steps_per_epoch_chart(rows: Runs, *, samples: int = TRAINING_SAMPLES) -> Any:
    """Return the steps of an epoch over ranks × batch size, by arithmetic, with the published runs marked."""
    rows = rows_of(rows)
    ok = rows[(rows["stage"] == "step") & (rows["status"] == "ok")]
    pairs = {(int(row["ranks"]), int(row["batch_size"])): "" for row in records(ok)}
    pairs |= {(4, 28): "published: hetero, ", (4, 64): "published: DANGO, "}
    found = [
        {"line": "", "x": r * b, "y": steps_per_epoch(b, r, samples),
         "text": f"{what}{r} × {b}: {steps_per_epoch(b, r, samples):,}"}
        for (r, b), what in pairs.items()
    ]  # fmt: skip
    hetero, dango = steps_per_epoch(28, 4, samples), steps_per_epoch(64, 4, samples)
    more = f"hetero at 4 × 28 takes {hetero / dango:.2f} × the steps of DANGO at 4 × 64"
    title = chart_title("Steps of an epoch", f"{samples:,} samples; arithmetic, nothing measured: {more}")
    return lines(pd.DataFrame(found), title, x="ranks × batch (logarithmic)", y="steps an epoch (logarithmic)",
                 colours={"": _GRAPHS[0]})  # fmt: skip
