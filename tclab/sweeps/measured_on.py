"""What rows were measured on, in words: for titles and sentences."""

from __future__ import annotations

import pandas as pd

from tclab.timing import environment


def where_measured(rows: pd.DataFrame) -> str:
    """Return what rows were measured on, for a title: "cpu · 2 cores · Intel Xeon".

    Of several ranks how they exchange and how many they are, before all else: "cpu · gloo · 4 ranks · 2 cores · …".
    """
    ok = rows[rows["status"] == "ok"]
    if ok.empty:
        return "nothing measured"
    machines: dict[str, list[tuple[str, int]]] = {}
    for _, row in ok.drop_duplicates(["device", "backend", "gpu", "cpu", "cores", "ranks"]).iterrows():
        name = row["gpu"] if row["device"] == "cuda" else f"{row['cores']} cores · {row['cpu']}"
        through = str(row["device"]) if row["ranks"] == 1 else f"{row['device']} · {row['backend']}"
        machines.setdefault(name, []).append((through, int(row["ranks"])))
    return " and ".join(f"{_ranks(each)} · {name}" for name, each in machines.items())


def this_machine(device: str | None = None) -> str:
    """Return this machine, for the title of what was measured here: "cpu · 2 cores · Intel Xeon".

    **Arguments:**

    - `device`: "cpu" or "cuda", whichever it was measured on; both are named unless it is known.
    """
    here = environment()
    host = f"{here['cores']} cores · {here['cpu']}"
    if device == "cuda":
        return f"cuda · {here['gpu']}"
    if device == "cpu":
        return f"cpu · {host}"
    return f"{host} · {here['gpu']}" if here["gpu"] else host


def ranks_text(rows: pd.DataFrame) -> str:
    """Return what ranks exchanged through and how many they were: "cpu · gloo · 4 ranks"; empty for one alone."""
    many = rows[(rows["status"] == "ok") & (rows["ranks"] > 1)]
    each = {(f"{row['device']} · {row['backend']}", int(row["ranks"])) for _, row in many.iterrows()}
    return _ranks(list(each))


def _ranks(each: list[tuple[str, int]]) -> str:
    """Return devices with their ranks: "cpu · gloo · 2 and 4 ranks"; one rank by itself needs no words."""
    found: dict[str, list[int]] = {}
    for through, ranks in sorted(each, key=lambda pair: pair[1]):
        found.setdefault(through, []).append(ranks)
    parts = []
    for through, numbers in found.items():
        many = "" if numbers == [1] else f" · {' and '.join(map(str, numbers))} ranks"
        parts.append(through + many)
    return " and ".join(parts)
