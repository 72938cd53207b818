"""Tables of a sweep: the machine, the equivalence check, the steps, what inexact strategies cost in error."""

from __future__ import annotations

import pandas as pd

from tclab._display import bytes_text
from tclab.sweeps.store._row_files import Runs, rows_of
from tclab.sweeps.store._row_frame import varying_settings
from tclab.sweeps.store._rows import ENVIRONMENT_COLUMNS
from tclab.timing import environment

# Columns of the environment that a point decides, on one machine.
_POINT_COLUMNS = ("allocator_settings", "threads")


def machine(rows: Runs | None = None) -> pd.DataFrame:
    """Return the machine and the versions of its software, one row each; missing ones are left out.

    **Arguments:**

    - `rows`: show the machines that measured these rows, a column each; this machine unless given.
    """
    rows = rows if rows is None else rows_of(rows)
    if rows is not None:
        columns = ["tclab", *(name for name in ENVIRONMENT_COLUMNS if name not in _POINT_COLUMNS)]
        measured = rows.loc[rows["torch"].notna(), columns].drop_duplicates().dropna(axis="columns", how="all")
        if "memory_bytes" in measured:
            measured["memory_bytes"] = measured["memory_bytes"].map(bytes_text, na_action="ignore")
        heads = [""] if len(measured) == 1 else [f"machine {i + 1}" for i in range(len(measured))]
        return measured.astype("string").T.set_axis(heads, axis=1)
    here = {name: value for name, value in environment().items() if value is not None}
    texts = [bytes_text(float(value)) if name == "memory_bytes" else str(value) for name, value in here.items()]
    return pd.DataFrame({"": texts}, index=list(here))


def equivalence(rows: Runs) -> pd.DataFrame:
    """Return the result of the equivalence check for each model and strategy, the worst over its points."""
    rows = rows_of(rows)
    tried = rows[(rows["stage"] == "step") & rows["equivalence"].notna()]
    return tried.groupby(["model", "strategy"], sort=False).agg(
        equivalence=("equivalence", "last"),
        fp64_error=("equivalence_fp64_error", "max"),
        fp32_ratio=("equivalence_fp32_ratio", "max"),
        nodes=("equivalence_nodes", "max"),
        edges=("equivalence_edges", "max"),
    )


def steps(rows: Runs) -> pd.DataFrame:
    """Return one line a point: time of a step, bytes of a batch, host syncs, peak memory, status.

    `mask_bytes`, those of edge masks, are among `edge_bytes`, and these among `batch_bytes`.

    Settings that differ among the points are columns, and device, backend and number of ranks where any point has
    several ranks.
    """
    rows = rows_of(rows)
    whole = rows[rows["stage"] == "step"]
    columns = [
        "model",
        "strategy",
        "batch_size",
        "networks",
        *(["device", "backend", "ranks"] if (whole["ranks"] > 1).any() else []),
        *varying_settings(whole),
        "mean_seconds",
        "low_seconds",
        "high_seconds",
        "median_seconds",
        "samples_per_second",
        "batch_bytes",
        "edge_bytes",
        "mask_bytes",
        "host_syncs",
        "peak_bytes",
        "status",
    ]
    return whole[list(dict.fromkeys(columns))].reset_index(drop=True)


def errors_and_times(rows: Runs) -> pd.DataFrame:
    """Return each strategy's mean step and its equivalence check, the largest error first.

    `error` is the largest relative difference from `subgraph`, in fp64, of predictions or a parameter's gradient,
    on the part of the graph that the equivalence check uses. Missing where a strategy was not measured.

    **Arguments:**

    - `rows`: of points that differ in strategy alone.
    """
    rows = rows_of(rows)
    steps = rows[(rows["stage"] == "step") & (rows["where"].isna() | (rows["where"] == "host"))]
    table = steps.set_index("strategy")[["equivalence", "equivalence_fp64_error", "mean_seconds", "status"]]
    names = {"equivalence_fp64_error": "error", "mean_seconds": "seconds a step"}
    return table.rename(columns=names).sort_values("error", ascending=False)
