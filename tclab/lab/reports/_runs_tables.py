"""Tables and sentences of runs side by side on one device."""

from __future__ import annotations

from typing import Any

import pandas as pd

from tclab._format import bytes_text
from tclab.errors import InputError
from tclab.lab.reports._comparable_rows import ratio_of_rows, records, step_throughput
from tclab.sweeps.predict._fits import fits
from tclab.sweeps.store._rows import plain, point_of

RUNS_KEY = ["model", "strategy", "batch_size", "networks"]
_COLUMNS = [
    *RUNS_KEY, "runs", "samples_per_second", "low", "high", "gain", "slowdown", "slowest", "peak_bytes",
    "device_sharing", "best",
]  # fmt: skip


def runs_table(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the `scaling_table` of runs side by side on one device."""
    every = rows[rows["status"] == "ok"]
    found: list[dict[str, Any]] = []
    for _, group in step_throughput(every).groupby(RUNS_KEY, sort=False):
        each = records(group.sort_values("runs"))
        if len({row["runs"] for row in each}) < 2:
            continue
        first, most = each[0], max(each, key=lambda row: float(row["samples_per_second"]))
        best = min(
            row["runs"] for row in each if row["samples_per_second"] >= min(most["low"], most["samples_per_second"])
        )
        for row in each:
            same = (every["stage"] == "whole") & (every["runs"] == row["runs"])
            for name in RUNS_KEY:
                same &= every[name] == row[name]
            worst = every[same]["mean_seconds"].max()
            found.append(
                {name: plain(row[name]) for name in _COLUMNS if name in row}
                | {
                    "gain": row["samples_per_second"] / first["samples_per_second"],
                    "slowdown": ratio_of_rows(row, first)[0],
                    "slowest": None if pd.isna(worst) else float(worst) / first["mean_seconds"],
                    "best": bool(row["runs"] == best),
                }
            )
    return pd.DataFrame(found, columns=_COLUMNS)


def runs_findings(rows: pd.DataFrame) -> list[str]:
    """Return for each model and strategy how many runs side by side are best, what they bring, and what `fits` says."""
    table = runs_table(rows)
    found = []
    for row in records(table[table["best"].astype(bool)]) if len(table) else []:
        steps = rows[(rows["status"] == "ok") & (rows["stage"] == "step") & (rows["runs"] == row["runs"])]
        for name in RUNS_KEY:
            steps = steps[steps[name] == row[name]]
        what = f"{row['model']} with {row['strategy']}, batch {row['batch_size']}"
        if row["runs"] == 1:
            found.append(f"{what}: one run on this device is best; more side by side bring no more samples a second.")
            continue
        worst: str = "" if pd.isna(row["slowest"]) else f" (the slowest {row['slowest']:.2f} ×)"
        memory: str = "" if pd.isna(row["peak_bytes"]) else f"; together they hold {bytes_text(row['peak_bytes'])}"
        how = {"mps": "by MPS", "cores": "each with its share of the cores"}.get(
            row["device_sharing"], "by time slicing" if row["device_sharing"] else "side by side"
        )
        found.append(
            f"{what}: {row['runs']} runs on this device, {how}, bring {row['gain']:.2f} × the samples a second; a step "
            f"of each takes {row['slowdown']:.2f} × as long{worst}{memory}. {_fits_text(steps.iloc[0])}"
        )
    return found


def _fits_text(row: pd.Series) -> str:
    try:
        refusal = fits(point_of({str(name): value for name, value in row.items()})).refusal
    except InputError:
        return "What `fits` says is not known here."
    return "By `fits` they fit." if refusal is None else f"By `fits` they do not fit: {refusal}."
