"""Rows on disk: a folder of results with a Parquet file for each point, or one such file of rows.

A point's file is written whole or not at all, and named by all that decides its rows.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from tclab._io import atomic_write, held, writing
from tclab._source import guarded
from tclab._version import __version__
from tclab.errors import InputError, require
from tclab.sweeps._fingerprint import unchanged
from tclab.sweeps._point import Point
from tclab.sweeps._point_inputs import file_stamps, resolve
from tclab.sweeps._rows import SCHEMA_VERSION, aligned, code_in, frame, with_code
from tclab.timing._environment import fingerprint

_SWEEP = ".running-sweep"  # which whoever sweeps holds
_DIGEST = b"tclab_digest"
_NEEDED = ("stage", "status", "samples_seconds")  # columns without which a table is none of rows
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
        if not isinstance(folder, (str, Path)) or not str(folder) or "\0" in str(folder):
            raise InputError(f"results is {folder!r}, expected a folder", name="results")
        self.folder = Path(folder).expanduser()

    @contextmanager
    def swept(self) -> Iterator[None]:
        """Make the folder where it is missing, and hold it against other sweeps within the block.

        **Raises:** `InputError` where it cannot be written, or that names the process that sweeps into it.
        """
        with writing("results", self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            tempfile.TemporaryFile(dir=self.folder).close()
        with held(self.folder / _SWEEP) as owner:
            if owner is not None:
                why = f"into which {owner} sweeps: wait for its end, or name another folder"
                raise InputError(f"results is {str(self.folder)!r}, {why}", name="results")
            yield

    @staticmethod
    def name(point: Point, repeat: int = 0, machine: dict[str, Any] | None = None) -> str:
        """Return the name of a point's file: a hash of the point, the files it names, schema, machine and versions.

        Its rows say which code measured them.

        **Arguments:**

        - `point`: resolved, where this machine runs it. `repeat`: of its runs, the first is 0.
        - `machine`: what tells one kind of machine from another; this one unless given.
        """
        what = {
            "schema": SCHEMA_VERSION,
            "tclab": __version__,
            "point": point.to_dict(),
            "files": file_stamps(point),
            "machine": machine or _machine(tuple(os.environ.items())),
            "repeat": repeat,
        }
        canonical = json.dumps(what, sort_keys=True, default=str)
        return f"{hashlib.sha256(canonical.encode()).hexdigest()[:24]}.parquet"

    def read(self, name: str) -> pa.Table | None:
        """Return the rows of a point by its file's name, measured by the code that there is now; `None` without any."""
        path = self.folder / name
        if not path.exists():
            return None
        for file in (path, *sorted(self.folder.glob(f"{path.stem}-*.parquet"))):
            if (rows := _read(file)) is not None:
                code = code_in(rows)
                # no process that fails to import its code says which that is
                if unchanged(code) if code else not rows["status"][0].as_py().startswith("failed"):
                    return rows
        return None

    def read_point(self, point: Point, repeat: int = 0) -> pa.Table | None:
        """Return the rows of one of a point's runs here, or `None`."""
        return self.read(self.name(resolve(point), repeat))

    def write(self, rows: pa.Table, name: str) -> None:
        """Keep a point's rows in a file of that name, in place of earlier ones; those of other code stay beside them.

        **Raises:** `InputError` where it cannot be written, as on a disk that is full.
        """
        path = self.folder / name
        marked = rows.replace_schema_metadata({**(rows.schema.metadata or {}), _DIGEST: _digest(rows)})
        with writing("results", self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            if path.exists() and (before := _read(path)) is not None and not unchanged(code_in(before)):
                path.rename(_beside(path, before))
            _beside(path, rows).unlink(missing_ok=True)
            atomic_write(path, lambda file: pq.write_table(marked, file, write_page_checksum=True))

    def frame(self) -> pd.DataFrame:
        """Return the rows of every point in the folder, whichever machine measured them.

        The newest stand last, but for points that no process began: those stand behind all others.
        """
        read = [rows for path in sorted(self.folder.glob("[!.]*.parquet")) if (rows := _read(path)) is not None]
        read.sort(key=lambda rows: rows["measured_at"][0].as_py() or "never")  # digits sort before letters
        return frame(*read)


def _beside(path: Path, rows: pa.Table) -> Path:
    """Return where rows of a point stay once those of other code have taken their place."""
    code = json.dumps(code_in(rows), sort_keys=True).encode()
    return path.with_stem(f"{path.stem}-{hashlib.sha256(code).hexdigest()[:8]}")


def _digest(rows: pa.Table) -> bytes:
    """Return a hash of what the CRCs of Parquet's pages leave out: the columns and the number of rows."""
    columns = [[field.name, field.type.id] for field in rows.schema]
    return hashlib.sha256(json.dumps([columns, len(rows)]).encode()).hexdigest().encode()


def _read(path: Path) -> pa.Table | None:
    """Return a point's rows; `None`, with a warning, where they are not as they were written."""
    try:
        # from memory, as pyarrow maps a file, which another process may put in place of it
        file = pq.ParquetFile(pa.BufferReader(path.read_bytes()), page_checksum_verification=True)
        rows = file.read(use_threads=False)
        if (rows.schema.metadata or {}).get(_DIGEST) != _digest(rows):
            raise ValueError("not as a sweep wrote it; where to_parquet did, tclab.rows reads the file by its name")
        return with_code(aligned(rows), code_in(rows))
    except Exception as error:  # pyarrow raises a dozen kinds for damaged bytes, MemoryError and OSError among them
        why = (str(error) or type(error).__name__).splitlines()[0]
        warnings.warn(
            f"{path} is left out, as it is damaged or no file of rows ({why}); delete it, or sweep its point again, "
            "which writes it anew",
            stacklevel=3,
        )
        return None


def rows_of(runs: Runs) -> pd.DataFrame:
    """Return the rows of a folder of results, or of a Parquet file of rows (`rows.to_parquet`); rows as they are.

    A column that a file lacks is null.

    **Arguments:**

    - `runs`: rows, a folder, or a file.

    **Raises:** `InputError` for what is none of them.
    """
    if isinstance(runs, pd.DataFrame):
        if len(runs.columns):
            _check(runs.columns)
        return runs
    require("runs", runs, (str, Path), "rows, a folder of results, or a file of rows")
    path = Path(runs)
    if path.is_dir():
        rows = Results(path).frame()
        below = {str(file.parent) for file in path.glob("*/[!.]*.parquet")} if rows.empty else ()
        if below:
            raise InputError(f"no rows in {path}; there are some in {', '.join(sorted(below))}")
        return rows
    if not path.exists():
        raise InputError(f"{path} does not exist; expected a folder of results, or a file of rows")
    with guarded(path, "a Parquet file of rows; `tclab trace` reads a trace"):
        read = pq.read_table(path)
        _check(read.column_names)
        return frame(aligned(read))


rows = rows_of  # its name in `tclab`


def _check(columns: Iterable[str]) -> None:
    for name in _NEEDED:
        if name not in columns:
            raise InputError(f"the rows have no column {name!r}; expected what tclab.sweep or tclab.run returns")
