"""A folder of results: one file a point, never half-written, never another machine's."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from tclab._io import atomic_write
from tclab._version import __version__
from tclab.errors import InputError
from tclab.sweeps.config._point import Point
from tclab.sweeps.store._code_fingerprint import own_code, tclabs_code
from tclab.sweeps.store._rows import SCHEMA, SCHEMA_VERSION, frame, upgraded, upgraded_point
from tclab.timing._environment import fingerprint

# The variable that says, as JSON, what a cluster was asked for on whose machine this runs
WHERE = "TCLAB_WHERE"


@cache
def _machine() -> dict[str, Any]:
    return dict(fingerprint("machine"))


def results_key(point: Point) -> str:
    """Return the name of a resolved point's file: a hash of the point, its code, the schema, machine and versions."""
    what = {
        "schema": SCHEMA_VERSION,
        "tclab": __version__,
        "point": point.to_dict(),
        "machine": _machine(),
        "files": point.file_stamps(),
        "code": tclabs_code(point),
    }
    own = own_code(point)
    if own:  # of a user's own, each version of its file stands for itself
        what["own_code"] = own
    if where := os.environ.get(WHERE):  # rows of one partition do not stand in for another's
        what["where"] = json.loads(where)
    canonical = json.dumps(what, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()[:24]


class Results:
    """A folder of results, made where it is missing.

    Many processes may write to it at once: a file is written under another name and renamed when it is whole.

    **Raises:** `InputError` where it cannot be written.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=self.folder):
                pass
        except OSError as error:
            why = error.strerror or error
            raise InputError(f"results is {str(folder)!r}, expected a folder that can be written: {why}") from None

    def path(self, point: Point) -> Path:
        """Return where a point's rows are, or would be."""
        return self.folder / self.name(point.resolved())

    @staticmethod
    def name(point: Point) -> str:
        """Return the name of a resolved point's file."""
        return f"{results_key(point)}.parquet"

    def read(self, point: Point) -> pa.Table | None:
        """Return a point's rows, or `None` where it has not been run here."""
        return self.read_file(self.path(point).name)

    def read_file(self, name: str) -> pa.Table | None:
        """Return the rows of one file by its name, or `None` where there is none."""
        path = self.folder / name
        return _read(path) if path.exists() else None

    def write(self, point: Point, rows: pa.Table) -> None:
        """Keep a point's rows in place of any earlier ones."""
        self.write_file(self.path(point).name, point, rows)

    def write_file(self, name: str, point: Point, rows: pa.Table) -> None:
        """Keep a point's rows in a file by its name."""
        about = {"schema": SCHEMA_VERSION, "tclab": __version__, "point": point.to_dict()}
        described = rows.replace_schema_metadata({_ABOUT: json.dumps(about)})
        atomic_write(self.folder / name, lambda temporary: pq.write_table(described, temporary))

    def _files(self) -> list[Path]:
        return sorted(self.folder.glob("[!.]*.parquet"))

    def frame(self) -> pd.DataFrame:
        """Return the rows of every point in the folder, whichever machine measured them."""
        return frame(pa.concat_tables([SCHEMA.empty_table(), *map(_read, self._files())]))

    def kept(self) -> dict[Point, pa.Table]:
        """Return the points in the folder with their rows, whichever machine measured them, the newest last.

        A point whose graph is no longer where it was, or whose strategy this process does not know, is left out.

        **Raises:** `InputError` for a file that a newer version of tclab wrote.
        """
        found: dict[Point, pa.Table] = {}
        for path in sorted(self._files(), key=lambda path: path.stat().st_mtime_ns):
            rows, about = _opened(path)
            try:
                point = Point.from_dict(upgraded_point(about["point"]))
            except (InputError, TypeError, KeyError):
                continue
            found.pop(point, None)
            found[point] = rows
        return found


_ABOUT = b"tclab"  # the key of what a file says of itself: schema, version, point


def _read(path: Path) -> pa.Table:
    return _opened(path)[0]


def _opened(path: Path) -> tuple[pa.Table, dict[str, Any]]:
    """Return a file's rows, and what it says of itself."""
    try:
        rows = pq.read_table(path)
        about = json.loads((rows.schema.metadata or {}).get(_ABOUT, b"{}"))
        newer = about.get("schema", SCHEMA_VERSION) > SCHEMA_VERSION
        if not newer:
            return upgraded(rows.replace_schema_metadata(None), whole=True), about
    except (pa.ArrowInvalid, ValueError) as error:
        why = str(error).splitlines()[0]
        raise InputError(f"{path} is no file of rows that this version of tclab can read: {why}") from None
    raise InputError(
        f"{path} was written by a newer tclab ({about.get('tclab')}, rows of version {about['schema']}; this is "
        f"{__version__}, which reads version {SCHEMA_VERSION}): update tclab, or choose another results folder"
    )
