"""Rows of whatever holds them: a DataFrame, a folder of results, a file."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from tclab.errors import InputError
from tclab.sweeps.store._export import read_rows
from tclab.sweeps.store._results import Results

Runs = pd.DataFrame | str | Path


def rows_of(runs: Runs) -> pd.DataFrame:
    """Return the rows of a folder of results, or of a file that `write_rows` wrote; rows as they are.

    **Arguments:**

    - `runs`: rows, a folder, or a `.parquet` or `.csv` file.

    **Raises:** `InputError` for what is none of them.
    """
    if isinstance(runs, pd.DataFrame):
        missing = [name for name in ("stage", "status", "samples_seconds") if name not in runs]
        if missing and len(runs.columns):
            raise InputError(f"the rows have no column {missing[0]!r}; expected what tclab.sweep or tclab.run returns")
        return runs
    if not isinstance(runs, (str, Path)):
        raise InputError(f"runs is {runs!r}, expected rows, a folder of results, or a file of rows")
    path = Path(runs)
    if path.is_dir():
        return Results(path).frame()
    if path.is_file():
        return read_rows(path)
    raise InputError(f"runs is {str(runs)!r}, expected rows, a folder of results that exists, or a file of rows")
