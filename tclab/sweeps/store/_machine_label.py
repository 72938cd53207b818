"""The machine, device and graph of rows as text, and how far other processes kept its processors busy."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from tclab._display import counted
from tclab.timing import contention, environment
from tclab.timing._contention import BUSY_PERCENT, Contention
from tclab.timing._environment import cores_within

_PRESSURE = ["conditions", "cores", "cpu_limit_cores", "threads", "workers", "ranks"]
BUSY_COLUMNS = (*_PRESSURE, "stage", "status", "cpu", "gpu")  # those that `busy_text` reads


def contentions(rows: pd.DataFrame) -> pd.DataFrame:
    """Return whether others kept the processors busy during each measured point's timed steps, by its row's index.

    Linux counts whatever waits, a point's own threads too. Others are the cause where these are at most as many as the
    cores, where the load exceeds their number, or where a hypervisor took processors; not where nothing tells. The
    pressure is that of the whole machine, also where a job has cores of its own.

    Columns: `others`, whether they did; and `seen`, the `Contention` then.
    """
    steps = rows[_PRESSURE][(rows["stage"] == "step") & (rows["status"] == "ok")]
    values = steps.astype(object).where(steps.notna(), None)
    found = [_by_others({str(name): value for name, value in row.items()}) for row in values.to_dict("records")]
    made = pd.DataFrame({"seen": pd.Series(found, index=steps.index, dtype=object)})
    return made.assign(others=made["seen"].notna())


def busy_text(rows: pd.DataFrame) -> str:
    """Return a sentence on the points that ran while others wanted the processors; empty without any."""
    rows = rows.reset_index(drop=True)  # rows that were put together may share their indices
    measured = contentions(rows)
    busy = measured[measured["others"]]
    if busy.empty:
        return ""
    worst = max(busy["seen"], key=lambda one: one.waiting or 0.0)
    fewer = "; with OMP_NUM_THREADS=1 torch's threads suffer less" if (rows["threads"][busy.index] > 1).any() else ""
    return (
        f"The machine was busy while {len(busy)} of {counted(len(measured), 'point')} ran ({worst}): such times are "
        f"not the strategy's alone{fewer}."
    )


def _by_others(row: Mapping[str, Any]) -> Contention | None:
    moments = json.loads(row["conditions"] or "[]")
    if len(moments) < 2:
        return None
    seen = contention(moments[0], moments[-1])
    threads, cores = _point_threads(row), cores_within(row["cores"], row["cpu_limit_cores"])
    load = moments[-1].get("load")
    fits = threads is not None and cores is not None and threads <= cores
    much = seen.waiting is None or 100 * seen.waiting > BUSY_PERCENT
    crowded = threads is not None and load is not None and load > threads and much
    return seen if seen.shared and (fits or crowded or seen.stolen) else None


def _point_threads(row: Mapping[str, Any]) -> float | None:
    """Return how many threads of a point can want a processor at once; `None` where not known."""
    threads, ranks = row["threads"], row["ranks"] or 1
    if threads is None:
        return None
    exchange = 1 if ranks > 1 else 0  # the thread that gradients are exchanged in
    return float((threads + (row["workers"] or 0) + exchange) * ranks)


def where_measured(rows: pd.DataFrame) -> str:
    """Return what rows were measured on, for a title: "cpu · 2 cores · Intel Xeon".

    Several ranks come first, with their backend and number: "cpu · gloo · 1 and 4 ranks · 2 cores · …". A machine that
    other processes kept busy ends in that word: "cpu · 2 cores · Intel Xeon · busy".
    """
    ok = rows[rows["status"] == "ok"].reset_index(drop=True)
    if ok.empty:
        return "nothing measured"
    machine = ok["cores"].astype("string") + " cores · " + ok["cpu"]
    machine = machine.where(ok["device"] != "cuda", ok["gpu"])
    others = contentions(ok)["others"]
    busy = set(machine[others.index[others]])
    machines = ok.groupby(machine, sort=False)
    return " and ".join(f"{_ranks(own)} · {name}{' · busy' * (name in busy)}" for name, own in machines)


def graph_text(rows: pd.DataFrame) -> str:
    """Return the graph that all measured rows share: "synthetic, scale 0.05", or a folder's name; else nothing.

    Where their samples are of one file, its name follows: "yeast, samples of screen.tsv".
    """
    ok = rows[rows["status"] == "ok"]
    graphs, files = ok[["graph", "scale"]].dropna(how="all").drop_duplicates(), ok["perturbations"].unique()
    words = []
    if len(graphs) == 1:
        ((graph, scale),) = graphs.itertuples(index=False)
        words.append(Path(graph).name if pd.isna(scale) else f"{graph}, scale {scale:g}")
    if len(files) == 1 and pd.notna(files[0]) and not files[0].isdigit():
        words.append(f"samples of {Path(files[0]).name}")
    return ", ".join(words)


def this_machine(device: str | None = None) -> str:
    """Return this machine as the title of a chart names it, "cpu · 2 cores · Intel Xeon"; both devices unless given."""
    here = environment()
    host = f"{here['cores']} cores · {here['cpu']}"
    if device == "cuda":
        return f"cuda · {here['gpu']}"
    if device == "cpu":
        return f"cpu · {host}"
    return f"{host} · {here['gpu']}" if here["gpu"] else host


def ranks_text(rows: pd.DataFrame) -> str:
    """Return device, backend and number of ranks: "cpu · gloo · 4 ranks"; empty for one alone."""
    return _ranks(rows[(rows["status"] == "ok") & (rows["ranks"] > 1)])


def _ranks(rows: pd.DataFrame) -> str:
    """Return devices with their ranks: "cpu · gloo · 1 and 2 ranks"; one rank by itself is left out."""
    words = []
    for device, own in rows.groupby("device", sort=False):
        words.append(str(device))
        numbers = sorted(set(own["ranks"]))
        if numbers[-1] > 1:
            words += [*own["backend"].dropna().unique(), f"{' and '.join(map(str, numbers))} ranks"]
    return " · ".join(words)
