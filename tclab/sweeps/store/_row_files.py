"""Rows in one file that other programs read, Parquet or CSV, and rows of whatever holds them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from tclab._io import atomic_write, writing
from tclab.errors import InputError, require
from tclab.sweeps.store._results import Results
from tclab.sweeps.store._rows import SCHEMA, aligned, frame

_SUFFIXES = (".parquet", ".csv")
_LIST = "samples_seconds"
POINT_FILES = "[0-9a-f]" * 24 + ".parquet"  # of a folder of results, as a pattern


def write_rows(rows: pd.DataFrame, path: str | Path) -> Path:
    """Write rows to a `.parquet` or a `.csv` file, in place of an earlier one, and return its path.

    In CSV each step's seconds are a JSON list; what is missing is an empty field, and an empty text is one in
    quotes. Columns that rows do not have are left out.

    **Raises:** `InputError` for another ending, or a file that cannot be written.
    """
    require("rows", rows, pd.DataFrame, "what tclab.sweep or tclab.run returns")
    to = _checked(path)
    known = rows[[name for name in SCHEMA.names if name in rows]]
    schema = pa.schema([SCHEMA.field(name) for name in known])
    table = pa.Table.from_pandas(known, schema=schema, preserve_index=False)
    buffer = pa.BufferOutputStream()
    if to.suffix == ".parquet":
        pa.parquet.write_table(table, buffer, write_page_checksum=True)
    else:
        pa.csv.write_csv(_with_lists(table, json.dumps, pa.string()), buffer)
    with writing("path", path):
        atomic_write(to, buffer.getvalue().to_pybytes())
    return to


def read_rows(path: str | Path) -> pd.DataFrame:
    """Return the rows of a file that `write_rows` wrote, the same as they were; columns that it lacks are null.

    **Raises:** `InputError` where it holds something else.
    """
    path = _checked(path)
    try:
        if path.suffix == ".parquet":
            read = pa.parquet.ParquetFile(path, page_checksum_verification=True).read()
        else:
            types = {field.name: pa.string() if field.name == _LIST else field.type for field in SCHEMA}
            options = pa.csv.ConvertOptions(
                column_types=types, strings_can_be_null=True, quoted_strings_can_be_null=False, null_values=[""]
            )
            read = _with_lists(pa.csv.read_csv(path, convert_options=options), json.loads, SCHEMA.field(_LIST).type)
        if missing := {"stage", "status"} - set(read.column_names):
            raise ValueError(f"it has no column {min(missing)!r}")
        return frame(aligned(read.replace_schema_metadata(None)))
    except Exception as error:  # pyarrow raises a dozen kinds for damaged bytes, MemoryError and OSError among them
        why = (str(error) or type(error).__name__).splitlines()[0]
        raise InputError(f"{path} is no file of rows that this version of tclab can read: {why}") from None


def _with_lists(table: pa.Table, change: Callable[[Any], Any], kind: pa.DataType) -> pa.Table:
    """Return a table whose lists are changed, to text or from it."""
    if _LIST not in table.column_names:
        return table
    lists = [None if value is None else change(value) for value in table[_LIST].to_pylist()]
    return table.set_column(table.column_names.index(_LIST), _LIST, pa.array(lists, kind))


def _checked(path: str | Path) -> Path:
    if Path(path).suffix not in _SUFFIXES:
        raise InputError(f"path is {str(path)!r}, expected it to end with {' or '.join(_SUFFIXES)}")
    return Path(path)


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
        rows = Results(path).frame()
        below = {str(file.parent) for file in path.glob(f"*/{POINT_FILES}")} if rows.empty else ()
        if below:
            raise InputError(f"no rows in {path}; there are some in {', '.join(sorted(below))}")
        return rows
    if path.is_file():
        return read_rows(path)
    raise InputError(f"{path} does not exist; expected a folder of results, or a file of rows")
