"""The machine, device and graph of rows, as labels for titles and sentences."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from tclab.sweeps.analysis._cpu_pressure import pressures
from tclab.timing import environment


def where_measured(rows: pd.DataFrame) -> str:
    """Return what rows were measured on, for a title: "cpu · 2 cores · Intel Xeon".

    Several ranks come first, with their backend and number: "cpu · gloo · 4 ranks · 2 cores · …". A machine that other
    processes kept busy ends in that word: "cpu · 2 cores · Intel Xeon · busy".
    """
    ok = rows[rows["status"] == "ok"].reset_index(drop=True)
    if ok.empty:
        return "nothing measured"
    machines: dict[str, list[tuple[str, int]]] = {}
    others = pressures(ok)["others"].fillna(False).astype(bool)
    busy = {_name(row) for _, row in ok.loc[others[others].index].iterrows()}
    for _, row in ok.drop_duplicates(["device", "backend", "gpu", "cpu", "cores", "ranks"]).iterrows():
        through = str(row["device"]) if row["ranks"] == 1 else f"{row['device']} · {row['backend']}"
        machines.setdefault(_name(row), []).append((through, int(row["ranks"])))
    return " and ".join(f"{_ranks(each)} · {name}{' · busy' * (name in busy)}" for name, each in machines.items())


def _name(row: pd.Series) -> str:
    return str(row["gpu"]) if row["device"] == "cuda" else f"{row['cores']} cores · {row['cpu']}"


def graph_text(rows: pd.DataFrame) -> str:
    """Return the graph that all measured rows share: "synthetic, scale 0.05", or a folder's name; else nothing."""
    graphs = rows[rows["status"] == "ok"][["graph", "scale"]].drop_duplicates()
    if len(graphs) != 1 or graphs["graph"].isna().any():
        return ""
    graph, scale = graphs.iloc[0]
    return Path(graph).name if pd.isna(scale) else f"{graph}, scale {scale:g}"


def this_machine(device: str | None = None) -> str:
    """Return this machine as the title of a chart names it: "cpu · 2 cores · Intel Xeon".

    **Arguments:**

    - `device`: "cpu" or "cuda", the one that was measured; both are named unless given.
    """
    here = environment()
    host = f"{here['cores']} cores · {here['cpu']}"
    if device == "cuda":
        return f"cuda · {here['gpu']}"
    if device == "cpu":
        return f"cpu · {host}"
    return f"{host} · {here['gpu']}" if here["gpu"] else host


def ranks_text(rows: pd.DataFrame) -> str:
    """Return device, backend and number of ranks: "cpu · gloo · 4 ranks"; empty for one alone."""
    many = rows[(rows["status"] == "ok") & (rows["ranks"] > 1)]
    each = {(f"{row['device']} · {row['backend']}", int(row["ranks"])) for _, row in many.iterrows()}
    return _ranks(list(each))


def _ranks(each: list[tuple[str, int]]) -> str:
    """Return devices with their ranks: "cpu · gloo · 2 and 4 ranks"; one rank by itself is left out."""
    numbers_of: dict[str, list[int]] = {}
    for through, ranks in sorted(each, key=lambda pair: pair[1]):
        numbers_of.setdefault(through, []).append(ranks)
    parts = []
    for through, numbers in numbers_of.items():
        many = "" if numbers == [1] else f" · {' and '.join(map(str, numbers))} ranks"
        parts.append(through + many)
    return " and ".join(parts)
