"""Delimited tables by pyarrow, strictly: every row has every column, and a bad one is told by its line."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from itertools import islice
from pathlib import Path

import pyarrow as pa
import pyarrow.csv

from tclab.readers.errors import ReadError, bad_file, shown
from tclab.readers.source import LIMIT_BYTES, Progress, Source, decoded, raw_lines, text_lines

NAME = pa.dictionary(pa.int32(), pa.string())  # each distinct name once a batch
TEXT, INTEGER, NUMBER = pa.string(), pa.int64(), pa.float64()

_BLOCK_BYTES = 1 << 20
_SEPARATORS = {"\t": "tab", " ": "space", ",": "comma", ";": "semicolon", "|": "bar"}
_LOOKS_LIKE = {
    INTEGER: (re.compile(r"\s*-?\d+\s*"), "a whole number"),
    NUMBER: (re.compile(r"\s*[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?\s*"), "a number"),
}


def header(
    path: str | Path, *, separator: str, comment: str | None = None, limit_bytes: int = LIMIT_BYTES
) -> list[str]:
    """Return the cells of a table's first line that is not blank, without quotes or a leading `#`.

    Lines that begin with `comment` before it are passed over.
    """
    _, line = first_line(path, comment=comment, limit_bytes=limit_bytes)
    return [cell.strip().strip('"') for cell in line.lstrip("#").split(separator)]


def required(path: str | Path, columns: Sequence[str], wanted: Sequence[str], *, separator: str) -> None:
    """Raise `ReadError` where a header lacks a column, or has one twice, with the nearest that it has."""
    for name in wanted:
        if name not in columns:
            few = [column for column in columns[:200] if len(column) <= 100]  # matching takes long on long names
            near = get_close_matches(name, few, n=1, cutoff=0.6)
            has = f"did you mean {near[0]!r}?" if near else f"the header has {shown(', '.join(columns), 120)}"
            between = _SEPARATORS.get(separator, repr(separator))
            raise bad_file(path, f"no column {name!r} between {between}s; {has}", line=1)
    if len(set(columns)) < len(columns):
        twice = next(name for name in columns if columns.count(name) > 1)
        raise bad_file(path, f"the header has the column {shown(twice)} twice", line=1)


def first_line(path: str | Path, *, comment: str | None = None, limit_bytes: int = LIMIT_BYTES) -> tuple[int, str]:
    """Return (number, text) of the first line that is neither blank nor a comment.

    **Raises:** `ReadError` where there is none.
    """
    for number, line in text_lines(path, limit_bytes=limit_bytes):
        if comment is None or not line.startswith(comment):
            return number, line
    raise bad_file(path, "holds nothing but blank lines and comments")


def batches(
    path: str | Path,
    columns: Sequence[str],
    types: Mapping[str, pa.DataType],
    *,
    separator: str,
    has_header: bool,
    missing: Sequence[str] = (),
    comment: str | None = None,
    limit_bytes: int = LIMIT_BYTES,
    progress: Progress | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield a table's rows in pieces of a few megabytes, so that memory does not grow with the file.

    **Arguments:**

    - `columns`: the names of all columns, in the file's order.
    - `types`: those to read, with their types (`NAME`, `TEXT`, `INTEGER`, `NUMBER`).
    - `separator`: what stands between two columns; quotes have no meaning.
    - `has_header`: whether the first line that is not blank is to be passed over.
    - `missing`: what stands for a missing number; it becomes null.
    - `comment`: what the lines before the header begin with that are to be passed over.

    **Raises:** `ReadError` with the line for a wrong number of columns, a number that is none, or bytes that
    are not UTF-8; without a line where there is no row.
    """
    rows = 0
    skip = first_line(path, comment=comment, limit_bytes=limit_bytes)[0] if has_header else 0
    try:
        with Source(path, limit_bytes=limit_bytes, progress=progress) as source:
            reader = pa.csv.open_csv(
                pa.PythonFile(source, mode="r"),
                read_options=pa.csv.ReadOptions(
                    use_threads=False, block_size=_BLOCK_BYTES, column_names=list(columns), skip_rows=skip
                ),
                parse_options=pa.csv.ParseOptions(delimiter=separator, quote_char=False, double_quote=False),
                convert_options=pa.csv.ConvertOptions(
                    column_types=dict(types),
                    include_columns=list(types),
                    null_values=list(missing),
                    strings_can_be_null=False,
                ),
            )
            for batch in reader:
                rows += batch.num_rows
                yield batch
    except (pa.ArrowInvalid, pa.ArrowKeyError) as error:
        if "Empty CSV file" in str(error):
            raise no_rows(path) from None
        raise _first_fault(path, columns, types, separator, skip, missing, limit_bytes, error) from None
    if not rows:
        raise no_rows(path)


def no_rows(path: str | Path) -> ReadError:
    """Return the error for a file without a single row."""
    return bad_file(path, "holds no rows; the file was cut short, or its export was empty")


def _first_fault(
    path: str | Path,
    columns: Sequence[str],
    types: Mapping[str, pa.DataType],
    separator: str,
    skip: int,
    missing: Sequence[str],
    limit_bytes: int,
    error: Exception,
) -> ReadError:
    """Return the error for the first bad line; pyarrow's own words where no line can be blamed."""
    places = [
        (columns.index(name), name, *_LOOKS_LIKE[kind]) for name, kind in types.items() if kind in _LOOKS_LIKE
    ]
    lines = raw_lines(path, limit_bytes=limit_bytes)
    try:
        for number, raw in lines:
            if number <= skip:
                continue
            cells = decoded(path, number, raw).split(separator)
            if len(cells) != len(columns):
                named = _SEPARATORS.get(separator, repr(separator))
                return bad_file(
                    path,
                    f"{len(cells)} column{'s' * (len(cells) != 1)} between {named}s, expected "
                    f"{len(columns)} ({', '.join(columns[:6])}{', …' * (len(columns) > 6)}): "
                    f"{shown(raw.decode())}",
                    line=number,
                )
            for place, name, pattern, expected in places:
                if cells[place] not in missing and not pattern.fullmatch(cells[place]):
                    return bad_file(path, f"{name} is {shown(cells[place])}, expected {expected}", line=number)
    except ReadError as fault:
        return fault
    return bad_file(path, str(error))


def bad_row(path: str | Path, row: int, why: str, *, has_header: bool) -> ReadError:
    """Return the error for a row, counted from 0, with the line that it was read from."""
    lines = raw_lines(path, limit_bytes=sys.maxsize)
    number, _ = next(islice(lines, row + has_header, None))
    return bad_file(path, why, line=number)
