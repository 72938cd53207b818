"""A folder of results: one Parquet file a point, written whole or not at all, named by all that decides its rows."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from statistics import fmean
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from tclab._io import atomic_write, held
from tclab._version import __version__
from tclab.errors import InputError
from tclab.sweeps.config._point import Point
from tclab.sweeps.config._point_inputs import resolve
from tclab.sweeps.store._code_fingerprint import files_of
from tclab.sweeps.store._rows import SCHEMA, SCHEMA_VERSION, aligned, frame
from tclab.timing._environment import fingerprint

_SWEEP = ".running-sweep"  # which whoever sweeps holds
_ABOUT, _DIGEST = b"tclab", b"tclab_digest"  # of a file's metadata: its point and when it was written; a hash


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

    def make(self) -> Results:
        """Make the folder where it is missing, look whether it can be written, and return this.

        **Raises:** `InputError` where it cannot be.
        """
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=self.folder):
                pass
        except (OSError, ValueError) as error:  # a ValueError is of a character that no path can have
            why = getattr(error, "strerror", None) or error
            raise InputError(f"results is {str(self.folder)!r}, expected a folder that can be written: {why}") from None
        return self

    @contextmanager
    def swept(self) -> Iterator[None]:
        """Hold the folder against other sweeps within the block.

        **Raises:** `InputError` that names the process that sweeps into it.
        """
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
        """Return where a point's rows are, or would be."""
        return self.folder / self.name(resolve(point))

    def read(self, point: Point) -> pa.Table | None:
        """Return a point's rows, or `None` where it has not been run here."""
        return self.read_file(self.path(point).name)

    def read_file(self, name: str) -> pa.Table | None:
        """Return the rows of one file by its name, or `None` where there is none that can be read."""
        path = self.folder / name
        opened = _opened(path) if path.exists() else None
        return None if opened is None else opened[0]

    def write(self, point: Point, rows: pa.Table, name: str | None = None) -> None:
        """Keep a point's rows in place of any earlier ones; in a file of another name where one is given.

        **Raises:** `InputError` where it cannot be written, as on a disk that is full.
        """
        about = json.dumps({"point": point.to_dict(), "written_at": datetime.now(UTC).isoformat()})
        buffer = pa.BufferOutputStream()
        described = rows.replace_schema_metadata({_ABOUT: about, _DIGEST: _digest(about, rows)})
        pq.write_table(described, buffer, write_page_checksum=True)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            atomic_write(self.folder / name if name else self.path(point), buffer.getvalue().to_pybytes())
        except OSError as error:
            why = error.strerror or error
            raise InputError(f"the rows of a point could not be kept in {str(self.folder)!r}: {why}") from None

    def _all_opened(self) -> list[tuple[pa.Table, dict[str, Any]]]:
        """Return rows of every file and what it says of itself, in the order in which they were written."""
        opened = [_opened(path) for path in sorted(self.folder.glob("[!.]*.parquet"))]
        return sorted((one for one in opened if one is not None), key=lambda one: str(one[1]["written_at"]))

    def frame(self) -> pd.DataFrame:
        """Return the rows of every point in the folder, whichever machine measured them."""
        return frame(pa.concat_tables([SCHEMA.empty_table(), *(rows for rows, _ in self._all_opened())]))

    def kept(self) -> dict[Point, pa.Table]:
        """Return the points in the folder with their rows, whichever machine measured them, the newest last.

        A point whose strategy this process does not know is left out.
        """
        tables: dict[Point, pa.Table] = {}
        for rows, about in self._all_opened():
            try:
                point = Point(**about["point"])
            except (InputError, TypeError):
                continue
            tables.pop(point, None)
            tables[point] = rows
        return tables

    def seconds_a_point(self) -> float | None:
        """Return the mean seconds from a measured point's begin until its rows were written; `None` without any."""
        times = [(rows["measured_at"][0].as_py(), about["written_at"]) for rows, about in self._all_opened()]
        took = [datetime.fromisoformat(end) - datetime.fromisoformat(begin) for begin, end in times if begin]
        return fmean(one.total_seconds() for one in took) if took else None


def _digest(about: str, rows: pa.Table) -> str:
    """Return a hash of what the CRCs of Parquet's pages leave out: the columns, the number of rows, the metadata."""
    columns = [[field.name, field.type.id] for field in rows.schema]
    return hashlib.sha256(json.dumps([about, columns, len(rows)]).encode()).hexdigest()


def _opened(path: Path) -> tuple[pa.Table, dict[str, Any]] | None:
    """Return a file's rows, and what it says of itself; `None`, with a warning, where it cannot be read as written."""
    try:
        file = pq.ParquetFile(pa.BufferReader(path.read_bytes()), page_checksum_verification=True)
        rows = file.read(use_threads=False)
        about = rows.schema.metadata[_ABOUT].decode()
        if rows.schema.metadata[_DIGEST].decode() != _digest(about, rows):
            raise ValueError("it is not as it was written")
        return aligned(rows.replace_schema_metadata(None)), json.loads(about)
    except Exception as error:  # pyarrow raises a dozen kinds for damaged bytes, MemoryError and OSError among them
        why = (str(error) or type(error).__name__).splitlines()[0]
        warnings.warn(
            f"{path} is left out, as it is damaged or no file of rows ({why}); delete it, or sweep its point again, "
            "which writes it anew",
            stacklevel=3,
        )
        return None
