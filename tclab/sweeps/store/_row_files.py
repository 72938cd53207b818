"""Rows on disk: a folder of results with a file for each point, and one file, Parquet or CSV, for other programs.

A point's file is written whole or not at all, and named by all that decides its rows.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from statistics import fmean
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from tclab._io import atomic_write, held, writing
from tclab._version import __version__
from tclab.errors import InputError, require
from tclab.sweeps.config._point import Point
from tclab.sweeps.config._point_inputs import resolve
from tclab.sweeps.store._code_fingerprint import files_of
from tclab.sweeps.store._rows import SCHEMA, SCHEMA_VERSION, aligned, frame
from tclab.timing._environment import fingerprint

_SWEEP = ".running-sweep"  # which whoever sweeps holds
_WRITTEN, _DIGEST = b"tclab_written_at", b"tclab_digest"  # of a point's file: when it was written; a hash
_SUFFIXES = (".parquet", ".csv")  # of a file for other programs
_LIST = "samples_seconds"
POINT_FILES = "[0-9a-f]" * 24 + ".parquet"  # of a folder of results, as a pattern
Runs = pd.DataFrame | str | Path


@lru_cache(maxsize=4)
def _machine(variables: tuple[tuple[str, str], ...]) -> dict[str, Any]:
    """Return what tells this kind of machine from another, under the variables that this process has now."""
    return fingerprint()


class Results:
    """A folder of results, a file for each point.

    Jobs of a cluster write to one at once, each a file of its own. A file that is damaged is left out with a warning
    that names it.

    **Raises:** `InputError` for what is no path.
    """

    def __init__(self, folder: str | Path) -> None:
        if not isinstance(folder, (str, Path)) or not str(folder):
            raise InputError(f"results is {folder!r}, expected a folder")
        self.folder = Path(folder).expanduser()

    @contextmanager
    def swept(self) -> Iterator[None]:
        """Make the folder where it is missing, and hold it against other sweeps within the block.

        **Raises:** `InputError` where it cannot be written, or that names the process that sweeps into it.
        """
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=self.folder):
                pass
        except (OSError, ValueError) as error:  # a ValueError is of a character that no path can have
            why = getattr(error, "strerror", None) or error
            raise InputError(f"results is {str(self.folder)!r}, expected a folder that can be written: {why}") from None
        with held(self.folder / _SWEEP) as owner:
            if owner is not None:
                why = f"into which {owner} sweeps: wait for its end, or name another folder"
                raise InputError(f"results is {str(self.folder)!r}, {why}")
            yield

    @staticmethod
    def name(
        point: Point, repeat: int = 0, machine: dict[str, Any] | None = None, memory_bytes: int | None = None
    ) -> str:
        """Return the name of a point's file: a hash of the point, its code and files, the schema, machine and versions.

        **Arguments:**

        - `point`: resolved, where this machine runs it. `repeat`: of its runs, the first is 0.
        - `machine`: what tells one kind of machine from another; this one unless given.
        - `memory_bytes`: that its process may take, where that is limited.
        """
        what = {
            "schema": SCHEMA_VERSION,
            "tclab": __version__,
            "point": point.to_dict(),
            "files": files_of(point),
            "machine": machine or _machine(tuple(os.environ.items())),
            "repeat": repeat,
            "memory_bytes": memory_bytes,
        }
        canonical = json.dumps(what, sort_keys=True, default=str)
        return f"{hashlib.sha256(canonical.encode()).hexdigest()[:24]}.parquet"

    def path(self, point: Point) -> Path:
        """Return where the rows of a point's first run here are, or would be."""
        return self.folder / self.name(resolve(point))

    def read(self, name: str) -> pa.Table | None:
        """Return the rows of a file by its name, or `None` where there is none that can be read."""
        path = self.folder / name
        opened = _opened(path) if path.exists() else None
        return None if opened is None else opened[0]

    def write(self, rows: pa.Table, name: str) -> None:
        """Keep a point's rows in a file of that name, in place of any earlier ones.

        **Raises:** `InputError` where it cannot be written, as on a disk that is full.
        """
        written_at = datetime.now(UTC).isoformat()
        marked = rows.replace_schema_metadata({_WRITTEN: written_at, _DIGEST: _digest(written_at, rows)})
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            atomic_write(self.folder / name, _parquet_bytes(marked))
        except OSError as error:
            why = error.strerror or error
            raise InputError(f"the rows of a point could not be kept in {str(self.folder)!r}: {why}") from None

    def _all_opened(self) -> list[tuple[pa.Table, str]]:
        """Return the rows of every file and when they were written, in that order."""
        opened = [_opened(path) for path in sorted(self.folder.glob("[!.]*.parquet"))]
        return sorted((one for one in opened if one is not None), key=lambda one: one[1])

    def frame(self) -> pd.DataFrame:
        """Return the rows of every point in the folder, whichever machine measured them, the newest last."""
        return frame(pa.concat_tables([SCHEMA.empty_table(), *(rows for rows, _ in self._all_opened())]))

    def seconds_a_point(self) -> float | None:
        """Return the mean seconds from a measured point's begin until its rows were written; `None` without any."""
        times = [(rows["measured_at"][0].as_py(), written_at) for rows, written_at in self._all_opened()]
        took = [datetime.fromisoformat(end) - datetime.fromisoformat(begin) for begin, end in times if begin]
        return fmean(one.total_seconds() for one in took) if took else None


def _digest(written_at: str, rows: pa.Table) -> str:
    """Return a hash of what the CRCs of Parquet's pages leave out: the columns, the number of rows, the metadata."""
    columns = [[field.name, field.type.id] for field in rows.schema]
    return hashlib.sha256(json.dumps([written_at, columns, len(rows)]).encode()).hexdigest()


def _opened(path: Path) -> tuple[pa.Table, str] | None:
    """Return a point's rows and when they were written; `None`, with a warning, where they are not as written."""
    try:
        rows = _read_parquet(path)
        written_at = rows.schema.metadata[_WRITTEN].decode()
        if rows.schema.metadata[_DIGEST].decode() != _digest(written_at, rows):
            raise ValueError("it is not as it was written")
        return aligned(rows), written_at
    except Exception as error:  # pyarrow raises a dozen kinds for damaged bytes, MemoryError and OSError among them
        warnings.warn(
            f"{path} is left out, as it is damaged or no file of rows ({_first_line(error)}); delete it, or sweep its "
            "point again, which writes it anew",
            stacklevel=3,
        )
        return None


def _first_line(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]


def _parquet_bytes(table: pa.Table) -> bytes:
    buffer = pa.BufferOutputStream()
    pq.write_table(table, buffer, write_page_checksum=True)
    return buffer.getvalue().to_pybytes()


def _read_parquet(path: Path) -> pa.Table:
    file = pq.ParquetFile(pa.BufferReader(path.read_bytes()), page_checksum_verification=True)
    return file.read(use_threads=False)


# ---- one file


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
    if to.suffix == ".parquet":
        content = _parquet_bytes(table)
    else:
        buffer = pa.BufferOutputStream()
        pa.csv.write_csv(_with_lists(table, json.dumps, pa.string()), buffer)
        content = buffer.getvalue().to_pybytes()
    with writing("path", path):
        atomic_write(to, content)
    return to


def read_rows(path: str | Path) -> pd.DataFrame:
    """Return the rows of a file that `write_rows` wrote, the same as they were; columns that it lacks are null.

    **Raises:** `InputError` where it holds something else.
    """
    path = _checked(path)
    try:
        read = _read_parquet(path) if path.suffix == ".parquet" else _read_csv(path)
        if missing := {"stage", "status"} - set(read.column_names):
            raise ValueError(f"it has no column {min(missing)!r}")
        return frame(aligned(read))
    except Exception as error:  # as many kinds as for a point's file
        why = _first_line(error)
        raise InputError(f"{path} is no file of rows that this version of tclab can read: {why}") from None


def _read_csv(path: Path) -> pa.Table:
    types = {field.name: pa.string() if field.name == _LIST else field.type for field in SCHEMA}
    options = pa.csv.ConvertOptions(
        column_types=types, strings_can_be_null=True, quoted_strings_can_be_null=False, null_values=[""]
    )
    return _with_lists(pa.csv.read_csv(path, convert_options=options), json.loads, SCHEMA.field(_LIST).type)


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
