"""What inexact ways of masking cost in error, and gain in time."""

from __future__ import annotations

import pandas as pd


def errors_and_times(rows: pd.DataFrame) -> pd.DataFrame:
    """Return each strategy's median step beside what the gate found of it, the largest error first.

    `error` is the largest relative difference from `subgraph`, in fp64, of predictions or a parameter's gradient,
    on the part of the graph that the gate is tried on. Missing where a strategy was not measured.

    **Arguments:**

    - `rows`: of points that differ in strategy alone.
    """
    steps = rows[(rows["stage"] == "step") & (rows["where"].isna() | (rows["where"] == "host"))]
    found = steps.set_index("strategy")[["gate", "gate_fp64_error", "median_seconds", "status"]]
    names = {"gate_fp64_error": "error", "median_seconds": "seconds a step"}
    return found.rename(columns=names).sort_values("error", ascending=False)
