"""Tables that a notebook shows: the machine, the gate, the steps."""

from __future__ import annotations

import pandas as pd

from tclab.sweeps.rows import ENVIRONMENT_COLUMNS
from tclab.timing import environment

# Of the environment what a point decides, on one machine.
_OF_A_POINT = ("allocator_settings", "threads")


def machine(rows: pd.DataFrame | None = None) -> pd.DataFrame:
    """Return the machine and the versions, one row each; what is not there is left out.

    **Arguments:**

    - `rows`: those of the machines that measured them, a column each; `None` for this one.
    """
    if rows is not None:
        columns = ["tclab", *(name for name in ENVIRONMENT_COLUMNS if name not in _OF_A_POINT)]
        measured = rows.loc[rows["torch"].notna(), columns].drop_duplicates().dropna(axis="columns", how="all")
        heads = [""] if len(measured) == 1 else [f"machine {i + 1}" for i in range(len(measured))]
        return measured.astype("string").T.set_axis(heads, axis=1)
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
