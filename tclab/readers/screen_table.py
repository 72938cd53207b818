"""The tables that screens are published as: columns by the names in their header, in TSV or XLSX."""

from __future__ import annotations

import re
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from tclab.errors import InputError
from tclab.readers.errors import bad_file, shown
from tclab.readers.source import LIMIT_BYTES, Progress
from tclab.readers.table import NUMBER, TEXT, batches, header, required

MISSING = ("", "NaN", "nan", "NA")

Fields = Mapping[str, tuple[pa.DataType, Sequence[str]]]
"""Field → its type, and the names that a header has for it, without what stands in brackets."""

_LONGEST_NAME = 200
_TITLE_ROWS = 5  # how far down a sheet the header is looked for: the published sheets begin with a title


def screen_columns(
    path: str | Path,
    fields: Fields,
    *,
    limit_bytes: int = LIMIT_BYTES,
    progress: Progress | None = None,
) -> dict[str, np.ndarray]:
    """Return a table's columns by field: text as objects, numbers as float64 with NaN where they are missing.

    **Raises:** `ReadError` with the line, or the sheet's row, for a missing column or a number that is none.
    """
    if Path(path).suffix.lower() == ".xlsx":
        return _from_sheet(path, fields, limit_bytes)
    names = header(path, separator="\t")
    places = _places(path, names, fields, line=1)
    columns = [f"{place + 1} ({name})" for place, name in enumerate(names)]  # a header may repeat a name
    types = {columns[place]: fields[field][0] for field, place in places.items()}
    parts = list(
        batches(
            path,
            columns,
            types,
            separator="\t",
            has_header=True,
            missing=MISSING,
            limit_bytes=limit_bytes,
            progress=progress,
        )
    )
    return columns_of(parts, list(places))


def columns_of(parts: Sequence[pa.RecordBatch], fields: Sequence[str]) -> dict[str, np.ndarray]:
    """Return the columns of batches by field, in their order."""
    table = pa.Table.from_batches(parts)
    # a number that is null becomes NaN
    return {field: table.column(place).to_numpy() for place, field in enumerate(fields)}


def _plain(name: str) -> str:
    name = name[:_LONGEST_NAME]  # so that nothing but brackets takes no time to speak of
    return " ".join(re.sub(r"\(.*?\)", "", name).lower().split())


def _places(path: str | Path, names: Sequence[str], fields: Fields, *, line: int) -> dict[str, int]:
    plain = [_plain(name) for name in names]
    places: dict[str, int] = {}
    for field, (_, known) in fields.items():
        there = [name for name in known if name in plain]
        if not there:
            required(path, plain, known[:1], separator="\t")
        if plain.count(there[0]) > 1:
            raise bad_file(path, f"the header has the column {shown(there[0])} twice", line=line)
        places[field] = plain.index(there[0])
    return places


def _from_sheet(path: str | Path, fields: Fields, limit_bytes: int) -> dict[str, np.ndarray]:
    try:
        import openpyxl
    except ImportError:
        raise InputError(f"{path}: XLSX needs openpyxl: pip install 'tclab[data]'") from None
    try:
        with zipfile.ZipFile(path) as archive:
            unpacked = sum(entry.file_size for entry in archive.infolist())
        if unpacked > limit_bytes:
            raise bad_file(
                path, f"unpacks to more than {limit_bytes:,} bytes, the limit; pass a larger limit_bytes"
            )
        book = openpyxl.load_workbook(path, read_only=True, data_only=True)
        rows = list(book.worksheets[0].iter_rows(values_only=True))
        book.close()
    except OSError as error:
        raise bad_file(path, f"cannot be read: {error.strerror or error}") from None
    except Exception as error:  # openpyxl and zipfile raise what comes where a part of the archive is damaged
        if isinstance(error, InputError):
            raise
        raise bad_file(path, f"is not an XLSX workbook: {error}") from None
    heads = [[str(cell or "") for cell in row] for row in rows[:_TITLE_ROWS]]
    wanted = fields["query"][1]
    at = [line for line, cells in enumerate(heads, 1) if any(_plain(cell) in wanted for cell in cells)]
    if not at:
        raise bad_file(path, f"no column {wanted[0]!r} in the first {_TITLE_ROWS} rows of its sheet")
    names = heads[at[0] - 1]
    places = _places(path, names, fields, line=at[0])
    columns: dict[str, np.ndarray] = {}
    body = [(line, row) for line, row in enumerate(rows, 1) if line > at[0] and any(row)]
    if not body:
        raise bad_file(path, "holds no rows")
    for field, place in places.items():
        kind = fields[field][0]
        if kind == NUMBER:
            columns[field] = np.array([_number(path, line, names[place], row[place]) for line, row in body])
        else:
            columns[field] = np.array([str(row[place] or "") for _, row in body], dtype=object)
    return columns


def _number(path: str | Path, line: int, name: str, cell: object) -> float:
    if cell is None or (isinstance(cell, str) and cell.strip() in MISSING):
        return np.nan
    try:
        return float(cell)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        raise bad_file(path, f"{name} is {shown(cell)}, expected a number", line=line) from None


STRAINS: Fields = {
    "query": (TEXT, ("query strain id",)),
    "array": (TEXT, ("array strain id",)),
}
ALLELES: Fields = {
    "query_allele": (TEXT, ("query allele name",)),
    "array_allele": (TEXT, ("array allele name",)),
}
