"""A folder of results: one file a point, never half-written, never another machine's."""

from __future__ import annotations

import hashlib
import json
import os
import re
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import cache, partial
from math import inf
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from tclab._io import atomic_write, held
from tclab._version import __version__
from tclab.errors import InputError
from tclab.sweeps.config._point import Point
from tclab.sweeps.config._point_inputs import file_stamps, resolve
from tclab.sweeps.store._code_fingerprint import library_digests, user_code_digests
from tclab.sweeps.store._rows import COLUMNS_UNTIL_4, SCHEMA, SCHEMA_VERSION, frame, upgraded
from tclab.timing._environment import fingerprint

_NAME = re.compile(r"[0-9a-f]{24}\.parquet")  # of a point's file
_RECENT = 300  # files that are read for an estimate, about a second
_SWEEP = ".running-sweep"  # which whoever sweeps holds
# The variable that says, as JSON, what a cluster was asked for on whose machine this runs
WHERE = "TCLAB_WHERE"

_machine = cache(partial(fingerprint, "machine"))


def results_key(point: Point, repeat: int = 0) -> str:
    """Return the name of a resolved point's file: a hash of the point, its code, the schema, machine and versions.

    Its first run, `repeat` 0, has the name that a point without repeats has.
    """
    what = {"machine": _machine(), "code": library_digests(point)} | ({"repeat": repeat} if repeat else {})
    if where := os.environ.get(WHERE):  # rows of one partition do not stand in for another's
        what["where"] = json.loads(where)
    return point_key(point, what)


def point_key(point: Point, more: dict[str, Any]) -> str:
    """Return a hash of a point, its files, the user's code in it, the versions, and whatever else tells rows apart."""
    what = {
        "schema": SCHEMA_VERSION,
        "tclab": __version__,
        "point": point.to_dict(),
        "files": file_stamps(point),
        **more,
    }
    if users_code := user_code_digests(point):  # of a user's own, each version of its file stands for itself
        what["own_code"] = users_code
    canonical = json.dumps(what, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(canonical.encode()).hexdigest()[:24]


class Results:
    """A folder of results, a file for each point.

    A file is written under another name and renamed when it is whole: jobs of a cluster write to one at once. A file
    that is damaged is left out with a warning that names it.

    **Raises:** `InputError` for what is no path.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = results_folder(folder)

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

    def sweeping(self) -> str | None:
        """Return which process sweeps into this folder and since when; `None` where none does."""
        if not (self.folder / _SWEEP).exists():
            return None
        with held(self.folder / _SWEEP) as owner:
            return owner

    def path(self, point: Point) -> Path:
        """Return where a point's rows are, or would be."""
        return self.folder / self.name(resolve(point))

    @staticmethod
    def name(point: Point, repeat: int = 0) -> str:
        return f"{results_key(point, repeat)}.parquet"

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
        about = {"schema": SCHEMA_VERSION, "tclab": __version__, "point": point.to_dict()}
        about["digest"] = _digest(about, rows)
        described = rows.replace_schema_metadata({_ABOUT: json.dumps(about)})
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            buffer = pa.BufferOutputStream()
            pq.write_table(described, buffer, write_page_checksum=True)
            atomic_write(self.folder / name if name else self.path(point), buffer.getvalue().to_pybytes())
        except OSError as error:
            why = error.strerror or error
            raise InputError(f"the rows of a point could not be kept in {str(self.folder)!r}: {why}") from None

    def _all_opened(self) -> list[tuple[pa.Table, dict[str, Any]]]:
        """Return rows of every file and what it says of itself, in the order in which they were measured."""
        opened = []
        for path in sorted(self.folder.glob("[!.]*.parquet")):
            if (one := _opened(path)) is not None:
                # the file's own time for rows of a point that failed, which have none; a copied file has a new one
                written = path.stat().st_mtime
                written_at = datetime.fromtimestamp(written, UTC).isoformat(timespec="milliseconds")
                opened.append((one[0]["measured_at"][0].as_py() or written_at, written, one))
        return [one for *_, one in sorted(opened, key=lambda pair: pair[:2])]

    def step_durations(self, columns: list[str]) -> list[dict[str, Any]]:
        """Return columns of each measured point's step, and `took_seconds`: from its begin until its file was written.

        A file that was copied may have the copy's time; the next point's begin is a bound then. What cannot be read, or
        lacks a column, is left out without a word, and of many points the last ones count.
        """
        found: list[tuple[float, float, dict[str, Any]]] = []
        files = [(path.stat().st_mtime, path) for path in self.folder.glob("*.parquet") if _NAME.fullmatch(path.name)]
        for written, path in sorted(files)[-_RECENT:]:
            try:
                file = pq.ParquetFile(pa.BufferReader(path.read_bytes()), page_checksum_verification=True)
                rows = file.read([*columns, "status", "stage", "measured_at"], use_threads=False).to_pylist()
                if not rows[0].keys() >= set(columns):  # of an earlier version
                    continue
                row = next(row for row in rows if row["status"] == "ok" and row["stage"] == "step")
                found.append((datetime.fromisoformat(row["measured_at"]).timestamp(), written, row))
            except Exception:  # pyarrow raises a dozen kinds for damaged bytes
                continue
        found.sort(key=lambda one: one[0])
        begins = [begin for begin, *_ in found[1:]] + [inf]
        return [
            {**row, "took_seconds": min(written, after) - begin}
            for (begin, written, row), after in zip(found, begins, strict=False)
        ]

    def frame(self) -> pd.DataFrame:
        """Return the rows of every point in the folder, whichever machine measured them.

        **Raises:** `InputError` for a file that a newer version of tclab wrote.
        """
        return frame(pa.concat_tables([SCHEMA.empty_table(), *(rows for rows, _ in self._all_opened())]))

    def kept(self) -> dict[Point, pa.Table]:
        """Return the points in the folder with their rows, whichever machine measured them, the newest last.

        A point whose strategy this process does not know is left out.

        **Raises:** `InputError` for a file that a newer version of tclab wrote.
        """
        tables: dict[Point, pa.Table] = {}
        for rows, about in self._all_opened():
            try:
                fields = {COLUMNS_UNTIL_4.get(name, name): value for name, value in about["point"].items()}
                point = Point.from_dict(fields)
            except (InputError, TypeError, KeyError):
                continue
            tables.pop(point, None)
            tables[point] = rows
        return tables


def folders_beside(folder: Path) -> list[Path]:
    """Return the other folders of results beside one, or beside the folder that it lies in (`runs/a/rows`)."""
    near = {path.parent for level in ("*", "*/*") for path in folder.parent.parent.glob(f"{level}/[!.]*.parquet")}
    return sorted(near - {folder})


def results_folder(folder: str | Path) -> Path:
    """Return a results folder as a path, with `~` for the user's own.

    **Raises:** `InputError` for what is no path, or an empty one.
    """
    if not isinstance(folder, (str, os.PathLike)) or not os.fspath(folder):
        raise InputError(f"results is {folder!r}, expected a folder")
    try:
        return Path(folder).expanduser()
    except RuntimeError as error:
        raise InputError(f"results is {str(folder)!r}, expected a folder: {error}") from None


# the key of what a file says of itself: schema, version, point, and a digest of these and the columns
_ABOUT = b"tclab"


def _digest(about: dict[str, Any], rows: pa.Table) -> str:
    """Return a hash of what Parquet's own checksums of the values leave out: columns, number of rows, metadata."""
    columns = [[field.name, field.type.id] for field in rows.schema]
    what = [{name: value for name, value in about.items() if name != "digest"}, columns, len(rows)]
    return hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()


def _opened(path: Path) -> tuple[pa.Table, dict[str, Any]] | None:
    """Return a file's rows, and what it says of itself; `None`, with a warning, where it cannot be read as written.

    **Raises:** `InputError` for a file that a newer version of tclab wrote.
    """
    try:
        file = pq.ParquetFile(pa.BufferReader(path.read_bytes()), page_checksum_verification=True)
        rows = file.read(use_threads=False)
        about = json.loads((rows.schema.metadata or {})[_ABOUT])
        if not len(rows):
            raise ValueError("it has no row")
        if "digest" in about and about["digest"] != _digest(about, rows):
            raise ValueError("it is not as it was written")
        if not isinstance(about.get("point", {}), dict):
            raise ValueError("it does not say which point it is of")
        newer = int(about["schema"]) > SCHEMA_VERSION
        rows = rows if newer else upgraded(rows.replace_schema_metadata(None), whole=True)
    except Exception as error:  # pyarrow raises a dozen kinds for damaged bytes, MemoryError and OSError among them
        why = (str(error) or type(error).__name__).splitlines()[0]
        warnings.warn(
            f"{path} is left out, as it is damaged or no file of rows ({why}); delete it, or sweep its point again, "
            "which writes it anew",
            stacklevel=3,
        )
        return None
    if newer:
        raise InputError(
            f"{path} was written by a newer tclab ({about.get('tclab')}, rows of version {about['schema']}; this is "
            f"{__version__}, which reads version {SCHEMA_VERSION}): update tclab, or choose another results folder"
        )
    return rows, about
