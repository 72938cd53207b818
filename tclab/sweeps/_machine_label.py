"""What rows were measured on, as text: machine, graph, ranks; and which points shared its processors with others."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from tclab._display import counted
from tclab.timing._environment import HARDWARE, contention, cores_within, environment

_OWN = re.compile(r"\bgraph-([0-9a-f]{6})[0-9a-f]{6}\.npz$")  # where `keep_graph` puts a graph that was given in memory


def contention_text(row: Mapping[str, Any]) -> str | None:
    """Return how other processes used the processors during a row's timed steps; `None` where not, or not known.

    Linux counts whatever waits, a point's own threads too. Others are the cause where these are at most as many as the
    cores, where the load exceeds their number, or where a hypervisor took processors. The pressure is that of the whole
    machine, also where a job has cores of its own.

    **Arguments:**

    - `row`: its columns; those that are read are `conditions`, the environment's, `workers` and `ranks`.
    """
    moments = json.loads(row.get("conditions") or "[]")
    if len(moments) < 2:
        return None
    seen, load = contention(moments[0], moments[-1]), moments[-1].get("load")
    if not seen.shared or seen.stolen:
        return str(seen) or None
    cores, threads = cores_within(row.get("cores"), row.get("cpu_limit_cores")), row.get("threads")
    if threads is None:
        return None
    ranks = row.get("ranks") or 1
    exchange = 1 if ranks > 1 else 0  # the thread that gradients are exchanged in
    own = (threads + (row.get("workers") or 0) + exchange) * ranks  # that can want a processor at once
    crowded = load is not None and load > own and seen.busy_percent is not None
    return str(seen) if crowded or (cores is not None and own <= cores) else None


def busy_text(rows: pd.DataFrame) -> str:
    """Return which points shared the processors with other processes, and what to do; empty without any."""
    steps = rows[(rows["stage"] == "step") & (rows["status"] == "ok")]
    busy = steps[steps["contention"].notna()]
    if busy.empty:
        return ""
    fewer = " With OMP_NUM_THREADS=1 torch's threads suffer less." if (busy["threads"] > 1).any() else ""
    return (
        f"{len(busy)} of {counted(len(steps), 'point')} ran while other processes used the processors, so their times "
        f"are not the strategy's alone: {points_text(busy)} (in the timed steps of the first, "
        f"{busy['contention'].iloc[0]}). Measure them again on a quiet machine, into another results folder, or race "
        f"them (race_points, tclab race), where all take turns.{fewer}"
    )


def points_text(rows: pd.DataFrame) -> str:
    """Return the points of some rows by their short names: "3 of hetero_cell edge_mask, batch 4; … and 2 more"."""
    points: Any = rows.groupby(["model", "strategy", "batch_size"], sort=False, dropna=False).size()
    names = [f"{n} of " * (1 < n < len(rows)) + "{} {}, batch {}".format(*point) for point, n in points.items()]
    return "; ".join(names[:3]) + f" and {points.iloc[3:].sum()} more" * (len(names) > 3)


def of_this_machine(row: pd.Series) -> bool:
    """Return whether a row was measured on hardware such as this machine's."""
    here = environment()
    return all((None if pd.isna(row[name]) else row[name]) == here[name] for name in HARDWARE)


def this_machine(device: str | None = None) -> str:
    """Return this machine as the title of a chart names it, "cpu · 2 cores · Intel Xeon"; both devices unless given."""
    here = environment()
    cores = counted(here["cores"], "core")  # type: ignore[arg-type]
    names = {"cpu": f"{cores} · {here['cpu']}", "cuda": str(here["gpu"])}
    if device is None:
        return " · ".join(names.values()) if here["gpu"] else names["cpu"]
    return f"{device} · {names[device]}"


def where_measured(rows: pd.DataFrame) -> str:
    """Return what rows were measured on, for a title: "cpu · 2 cores · Intel Xeon".

    Several ranks come first, with their backend and number: "cpu · gloo · 1 and 4 ranks · 2 cores · …". A machine that
    other processes kept busy ends in that word: "cpu · 2 cores · Intel Xeon · busy".
    """
    ok = rows[rows["status"] == "ok"]
    cores = ok["cores"].map(lambda number: counted(number, "core"), na_action="ignore").astype("string")
    names = (cores + " · " + ok["cpu"]).where(ok["device"] != "cuda", ok["gpu"])
    machines = ok.assign(machine=names).groupby("machine", sort=False)
    busy = {name for name, own in machines if own["contention"].notna().any()}
    named = [f"{ranks_text(own)} · {name}{' · busy' if name in busy else ''}" for name, own in machines]
    return " and ".join(named) or "nothing measured"


def ranks_text(rows: pd.DataFrame) -> str:
    """Return the device of measured rows and, where several ranks ran, what they were: "cpu · gloo · 1 and 4 ranks"."""
    numbers = sorted(set(rows["ranks"]))
    several = numbers[-1] > 1
    how = [*rows["backend"].dropna().unique(), f"{' and '.join(map(str, numbers))} ranks"] if several else []
    return " · ".join([*rows["device"].unique(), *how])


def graph_text(rows: pd.DataFrame) -> str:
    """Return the graph that all measured rows share, else nothing.

    "synthetic, scale 0.05"; a folder's or file's name; "own graph, 1,234 nodes" where it was given in memory.
    """
    graphs = rows.loc[rows["status"] == "ok", ["graph", "scale", "nodes"]].dropna(how="all").drop_duplicates()
    if len(graphs.drop(columns="nodes").drop_duplicates()) != 1:
        return ""
    graph, scale, nodes = graphs.iloc[0]
    if graph_name(graph) != graph:
        return f"own graph, {counted(int(nodes), 'node')}"
    return Path(graph).name if pd.isna(scale) else f"{graph}, scale {scale:g}"


def graph_name(graph: str) -> str:
    """Return a point's graph as it is told from others: what was given; "own 2630cd" where that was no name."""
    own = _OWN.search(graph)
    return f"own {own[1]}" if own else graph
