"""Charts of how far a deletion reaches in a graph, and of what several ranks bring and cost."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pandas as pd

from tclab.errors import InputError
from tclab.graph._cell_graph import CellGraph
from tclab.lab.charts._marks import lines
from tclab.lab.charts._style import chart_title, empty_chart
from tclab.lab.reports._cells import ratio_of_rows, records, rows_of_points
from tclab.sweeps._point import Point
from tclab.sweeps._row_files import Runs


def reach_rows(
    graphs: Mapping[str, CellGraph], *, layers: int = 3, samples: int = 50, deleted: int = 3, seed: int = 0
) -> pd.DataFrame:
    """Return how many rows deletions change, layer by layer: a row for each graph, sample and layer.

    Messages go from source to target, as the models send them. After layer l the rows that differ from the
    wild type are those that a deleted node reaches in l hops, over all networks together. Columns: `graph`, `sample`,
    `layer` (1 …), and as shares of all nodes or edges, 0 to 1:

    - `rows`: nodes whose row differs after the layer, the deleted ones counted.
    - `messages`: edges that start at a row that differed before the layer: what a delta has to send again.
    - `recomputed`: edges that end at a row that differs after it: what recomputing those rows has to read.

    **Raises:** `InputError` where a graph has no edges, or fewer nodes than a sample deletes.
    """
    found = []
    for name, graph in graphs.items():
        nodes = graph.num_nodes[graph.deleted_type]
        if not graph.num_edges or not 1 <= deleted <= nodes:
            raise InputError(f"reach needs edges and 1 to {nodes} deleted nodes, not {deleted!r}")
        ends = [network.edge_index.cpu().numpy() for network in graph.networks.values()]
        source, target = np.concatenate(ends, axis=1).astype(np.int32)
        rng = np.random.default_rng(seed)
        for sample in range(samples):
            differs = np.zeros(nodes, dtype=bool)
            differs[rng.choice(nodes, deleted, replace=False)] = True
            for layer in range(1, layers + 1):
                sent = differs[source]
                differs[target[sent]] = True
                shares = (differs.mean(), sent.mean(), differs[target].mean())
                found.append((name, sample, layer, *shares))
    return pd.DataFrame(found, columns=["graph", "sample", "layer", "rows", "messages", "recomputed"])


_GRAPHS = ("#2b8cc4", "#d55e00", "#009e73", "#cc79a7")  # as Okabe and Ito, in the order of the graphs
_SHARES = {
    "rows": "rows that differ",
    "messages": "edges a delta sends again",
    "recomputed": "edges read to recompute them",
}


def reach_chart(rows: pd.DataFrame) -> Any:
    """Return the share of rows and edges that a deletion affects, layer by layer, with quartiles."""
    frame = rows.melt(["graph", "layer", "sample"], list(_SHARES), "share_of", "share")
    shares = frame.groupby(["share_of", "graph", "layer"], sort=False)["share"]
    quartiles = shares.quantile(np.array([0.25, 0.5, 0.75])).unstack()
    spread = quartiles.set_axis(["low", "y", "high"], axis=1).reset_index()
    points = spread.assign(panel=spread["share_of"].map(_SHARES)).rename(columns={"graph": "line", "layer": "x"})
    colours = dict(zip(dict.fromkeys(rows["graph"]), _GRAPHS * rows["graph"].nunique(), strict=False))
    title = chart_title("What a deletion affects", "median and quartiles over samples")
    return lines(points, title, x="layer", y="share of all", log="", percent=True, colours=colours, legend=True,
                 width=170, height=160)  # fmt: skip


# ---- several ranks


def speed_up(rows: Runs, strong: Iterable[Point], weak: Iterable[Point]) -> Any:
    """Return samples a second over those of the fewest ranks, strong and weak scaling side by side.

    Dashed lines are the ideal, as many times as there are more ranks, and the same where only the cores of the machine
    are shared; the percentage at a point is its efficiency, speed-up over ideal.

    **Arguments:**

    - `rows`: of a sweep over ranks.
    - `strong`, `weak`: which of its points are of which kind, as `tclab.sweeps.config.scaling_points` returns them.
    """
    kinds = {"strong: one batch shared": strong, "weak: a batch for each rank": weak}
    sides = {panel: rows_of_points(rows, points) for panel, points in kinds.items()}
    found = [one for panel, side in sides.items() for one in _speed_ups(side, panel)]
    if not found:
        return empty_chart("No two numbers of ranks were measured: there is no speed-up yet.")
    points = pd.DataFrame(found)
    more = "line: 95 % interval; percent: efficiency; dashed: ideal, and what the cores allow"
    title = chart_title(_efficiencies(found), more, rows=pd.concat(sides.values()))
    return lines(points, title, x="ranks", y="times as many samples per second", log="", width=260, height=240)


def _efficiencies(found: list[dict[str, Any]]) -> list[str]:
    """Return what the most ranks bring, a line for each kind of scaling."""
    said = []
    for panel in dict.fromkeys(one["panel"] for one in found):
        reached = [one for one in found if one["panel"] == panel and one["text"] and not one["dashed"]]
        best = max(reached, key=lambda one: (one["x"], one["y"]))
        more = f"{best['y']:.3g}× the samples/s on {best['x']:g} ranks, an efficiency of {best['text']}"
        said.append(f"{panel.partition(':')[0].capitalize()} scaling: {best['line']} has {more}")
    return said


def _speed_ups(rows: pd.DataFrame, panel: str) -> list[dict[str, Any]]:
    """Return the points of one panel, as `lines` takes them."""
    found: list[dict[str, Any]] = []
    limits: dict[tuple[str, int], dict[str, Any]] = {}
    ok = rows[(rows["stage"] == "step") & (rows["status"] == "ok")].sort_values("ranks")
    for (model, strategy), group in ok.groupby(["model", "strategy"], sort=False):
        first, *more_ranks = each = records(group)
        for row in each if more_ranks else []:
            more = row["ranks"] / first["ranks"]
            times = row["samples_per_second"] / first["samples_per_second"]
            ratio, low, high = ratio_of_rows(first, row)  # of steps, whose samples may differ
            at = {"panel": panel, "kind": strategy, "x": row["ranks"]}
            ends = {"low": times * low / ratio, "high": times * high / ratio}
            words = f"{times / more:.0%}" if more > 1 else ""
            found.append(at | ends | {"line": f"{model} · {strategy}", "y": times, "text": words, "dashed": False})
            cores = row["cores"] / first["threads"] / first["ranks"] if row["device"] == "cpu" else more
            for name, y in (("ideal", more), ("cores allow", min(more, max(1.0, cores)))):
                limits[name, row["ranks"]] = at | {"line": name, "kind": name, "y": y, "text": "", "dashed": True}
    return [*found, *limits.values()]
