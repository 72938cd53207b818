"""Tables that a notebook shows: the machine, the gate, the steps."""

from __future__ import annotations

import pandas as pd

from tclab.timing import environment


def machine() -> pd.DataFrame:
    """Return the machine and the versions, one row each; what is not there is left out."""
    found = {name: value for name, value in environment().items() if value is not None}
    return pd.DataFrame({"": list(map(str, found.values()))}, index=list(found))


def gate(rows: pd.DataFrame) -> pd.DataFrame:
    """Return what the gate found for each model and strategy, the worst over the points that were run."""
    tried = rows[(rows["stage"] == "step") & rows["gate"].notna()]
    return tried.groupby(["model", "strategy"], sort=False).agg(
        gate=("gate", "last"),
        fp64_error=("gate_fp64_error", "max"),
        fp32_ratio=("gate_fp32_ratio", "max"),
        nodes=("gate_nodes", "max"),
        edges=("gate_edges", "max"),
    )


def steps(rows: pd.DataFrame) -> pd.DataFrame:
    """Return one line a point: how long a step took, what travelled, where the host waited, what went wrong.

    What ranks exchange through is shown where there are several.
    """
    whole = rows[rows["stage"] == "step"]
    columns = [
        "model",
        "strategy",
        "batch_size",
        "networks",
        *(["device", "backend", "ranks"] if (whole["ranks"] > 1).any() else []),
        "median_seconds",
        "q1_seconds",
        "q3_seconds",
        "samples_per_second",
        "batch_bytes",
        "host_syncs",
        "peak_bytes",
        "status",
    ]
    return whole[columns].reset_index(drop=True)
