"""What rows were measured on, as text: machine, graph, ranks; and which points shared its processors with others."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from tclab._display import counted, first_of
from tclab.timing import contention, environment
from tclab.timing._contention import BUSY_PERCENT
from tclab.timing._environment import HARDWARE, cores_within

BUSY_COLUMNS = ("shared", "threads", "stage", "status", "model", "strategy", "batch_size")  # that `busy_text` reads


def shared_text(row: Mapping[str, Any]) -> str | None:
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
    cores, threads = cores_within(row.get("cores"), row.get("cpu_limit_cores")), row.get("threads")
    fits = crowded = False
    if threads is not None:
        ranks = row.get("ranks") or 1
        exchange = 1 if ranks > 1 else 0  # the thread that gradients are exchanged in
        own = (threads + (row.get("workers") or 0) + exchange) * ranks  # that can want a processor at once
        fits = cores is not None and own <= cores
        much = seen.waiting is None or 100 * seen.waiting > BUSY_PERCENT
        crowded = load is not None and load > own and much
    return str(seen) if seen.shared and (fits or crowded or seen.stolen) else None


def busy_text(rows: pd.DataFrame) -> str:
    """Return which points shared the processors with other processes, and what to do; empty without any."""
    steps = rows[(rows["stage"] == "step") & (rows["status"] == "ok")]
    busy = steps[steps["shared"].notna()]
    if busy.empty:
        return ""
    fewer = " With OMP_NUM_THREADS=1 torch's threads suffer less." if (busy["threads"] > 1).any() else ""
    return (
        f"{len(busy)} of {counted(len(steps), 'point')} ran while other processes used the processors, so their times "
        f"are not the strategy's alone: {points_text(busy)} ({busy['shared'].max()}). Measure them again on a quiet "
        f"machine, into another results folder, or race them (race_points, tclab race), where all take turns.{fewer}"
    )


def points_text(rows: pd.DataFrame) -> str:
    """Return the points of some rows by their short names: "hetero_cell edge_mask, batch 4; … and 2 more"."""
    points = rows[["model", "strategy", "batch_size"]].drop_duplicates().itertuples(index=False)
    return first_of([f"{model} {strategy}, batch {size}" for model, strategy, size in points], between="; ")


def of_this_machine(row: pd.Series) -> bool:
    """Return whether a row was measured on hardware such as this machine's."""
    here = environment()
    return all((None if pd.isna(row[name]) else row[name]) == here[name] for name in HARDWARE)


def where_measured(rows: pd.DataFrame) -> str:
    """Return what rows were measured on, for a title: "cpu · 2 cores · Intel Xeon".

    Several ranks come first, with their backend and number: "cpu · gloo · 1 and 4 ranks · 2 cores · …". A machine that
    other processes kept busy ends in that word: "cpu · 2 cores · Intel Xeon · busy".
    """
    ok = rows[rows["status"] == "ok"].reset_index(drop=True)
    if ok.empty:
        return "nothing measured"
    cores = ok["cores"].map(lambda number: counted(number, "core"), na_action="ignore").astype("string")
    machine = cores + " · " + ok["cpu"]
    machine = machine.where(ok["device"] != "cuda", ok["gpu"])
    busy = set(machine[ok["shared"].notna()])
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
    host = f"{here['cores']} core{'s' * (here['cores'] != 1)} · {here['cpu']}"
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
