"""Delimited text tables, read strictly by pyarrow in batches: the one loader under all table formats."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from itertools import islice
from pathlib import Path

import pyarrow as pa
import pyarrow.csv

from tclab.readers._old_source import (
    LIMIT_BYTES,
    Progress,
    ReadError,
    Source,
    bad_file,
    decoded,
    quoted,
    raw_lines,
    text_lines,
)

NAME = pa.dictionary(pa.int32(), pa.string())  # each distinct name once a batch
TEXT, INTEGER, NUMBER = pa.string(), pa.int64(), pa.float64()

_BLOCK_BYTES = 1 << 20
_SEPARATORS = {"\t": "tab", " ": "space", ",": "comma", ";": "semicolon", "|": "bar"}
_PATTERNS = {
    INTEGER: (re.compile(r"\s*-?\d+\s*"), "a whole number"),
    NUMBER: (re.compile(r"\s*[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?\s*"), "a number"),
}


class Table:
    """A delimited text file: its columns, and its rows in batches.

    Quotes have no meaning between separators. Every row must have every column.

    **Arguments:**

    - `columns`: the names of all columns, in order, of a file without a header; None reads them from the first line
      that is not blank, without quotes or a leading `#`.
    - `skip_header`: whether the first line is skipped although `columns` are given.
    - `comment`: prefix, or several, of lines before the header or the first row that are skipped.

    **Raises:** `ReadError` for a file that cannot be read, or has no line but comments.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        separator: str = "\t",
        columns: Sequence[str] | None = None,
        skip_header: bool = False,
        comment: str | tuple[str, ...] = (),
        limit_bytes: int = LIMIT_BYTES,
        progress: Progress | None = None,
    ) -> None:
        self.path, self.separator = path, separator
        self._limit_bytes, self._progress = limit_bytes, progress
        self._skipped = 0
        if columns is None or skip_header or comment:
            number, line = first_line(path, comment=comment, limit_bytes=limit_bytes)
            self._skipped = number if columns is None or skip_header else number - 1
            if columns is None:
                columns = [cell.strip().strip('"') for cell in line.lstrip("#").split(separator)]
        self.columns = list(columns)

    def require(self, *names: str) -> None:
        """Raise `ReadError` for a column of `names` that is missing, with the nearest, and for one that is twice."""
        for name in names:
            if name not in self.columns:
                raise no_column(self.path, name, self.columns, separator=self.separator)
        if len(set(self.columns)) < len(self.columns):
            twice = next(name for name in self.columns if self.columns.count(name) > 1)
            raise bad_file(self.path, f"the header has the column {quoted(twice)} twice", line=1)

    def batches(self, types: Mapping[str, pa.DataType], *, missing: Sequence[str] = ()) -> Iterator[pa.RecordBatch]:
        """Yield the rows in batches of about a megabyte of text, so that memory does not grow with the file.

        `types` are the columns to read, in this order, each `NAME`, `TEXT`, `INTEGER` or `NUMBER`; `missing` the
        spellings of a missing number, which becomes null.

        **Raises:** `ReadError` with the line for a wrong number of columns, an invalid number, or bytes that are not
        UTF-8; without a line where there is no row.
        """
        rows = 0
        try:
            with Source(self.path, limit_bytes=self._limit_bytes, progress=self._progress) as source:
                for block, skipped in self._blocks(source):
                    table = pa.csv.read_csv(
                        pa.BufferReader(block),
                        read_options=pa.csv.ReadOptions(
                            use_threads=False, column_names=self.columns, skip_rows=skipped
                        ),
                        parse_options=pa.csv.ParseOptions(
                            delimiter=self.separator, quote_char=False, double_quote=False
                        ),
                        convert_options=pa.csv.ConvertOptions(
                            column_types=dict(types),
                            include_columns=list(types),
                            null_values=list(missing),
                            strings_can_be_null=False,
                        ),
                    )
                    rows += table.num_rows
                    yield from table.to_batches()
        except (pa.ArrowInvalid, pa.ArrowKeyError) as error:
            if "Empty CSV file" in str(error):
                raise no_rows(self.path) from None
            raise self._first_fault(types, missing, error) from None
        if not rows:
            raise no_rows(self.path)

    def _blocks(self, source: Source) -> Iterator[tuple[bytes, int]]:
        """Yield blocks of whole lines, and how many lines to skip in each.

        pyarrow's own streaming reader (26.0) aborts a process that ends soon after it, as its threads still run.
        """
        rest, skipped, none = b"", self._skipped, True
        while data := source.read(_BLOCK_BYTES):
            lines, end, rest = (rest + data).rpartition(b"\n")
            if lines.strip():
                yield lines + end, skipped
                skipped, none = 0, False
        if rest.strip() or none:  # a file of no row is pyarrow's to refuse
            yield rest, skipped

    def rows(self, *names: str) -> Iterator[tuple[str, ...]]:
        """Yield the cells of some columns, row by row, as text."""
        self.require(*names)
        for batch in self.batches(dict.fromkeys(names, TEXT)):
            yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)

    def bad_row(self, row: int, why: str) -> ReadError:
        """Return the error for a row, counted from 0 after the header, with its line in the file."""
        lines = raw_lines(self.path, limit_bytes=sys.maxsize)
        number, _ = next(islice((line for line in lines if line[0] > self._skipped), row, None))
        return bad_file(self.path, why, line=number)

    def _first_fault(self, types: Mapping[str, pa.DataType], missing: Sequence[str], error: Exception) -> ReadError:
        """Return the error for the first bad line; pyarrow's message where no line is at fault."""
        checks = [
            (self.columns.index(name), name, *_PATTERNS[kind]) for name, kind in types.items() if kind in _PATTERNS
        ]
        few = f"{', '.join(self.columns[:6])}{', …' * (len(self.columns) > 6)}"
        try:
            for number, raw in raw_lines(self.path, limit_bytes=self._limit_bytes):
                if number <= self._skipped:
                    continue
                cells = decoded(self.path, number, raw).split(self.separator)
                if len(cells) != len(self.columns):
                    count = f"{len(cells)} column{'s' * (len(cells) != 1)} between {_separator_name(self.separator)}s"
                    why = f"{count}, expected {len(self.columns)} ({few}): {quoted(raw.decode())}"
                    return bad_file(self.path, why, line=number)
                for place, name, pattern, expected in checks:
                    if cells[place] not in missing and not pattern.fullmatch(cells[place]):
                        why = f"{name} is {quoted(cells[place])}, expected {expected}"
                        return bad_file(self.path, why, line=number)
        except ReadError as fault:
            return fault
        return bad_file(self.path, str(error))


def first_line(
    path: str | Path, *, comment: str | tuple[str, ...] = (), limit_bytes: int = LIMIT_BYTES
) -> tuple[int, str]:
    """Return (number, text) of the first line that is neither blank nor a comment; raise `ReadError` without one."""
    for number, line in text_lines(path, limit_bytes=limit_bytes):
        if not line.startswith(comment):
            return number, line
    raise bad_file(path, "holds nothing but blank lines and comments")


def no_rows(path: str | Path) -> ReadError:
    """Return the error for a file without a single row."""
    return bad_file(path, "holds no rows; the file was cut short, or its export was empty")


def no_column(path: str | Path, name: str, columns: Sequence[str], *, separator: str) -> ReadError:
    """Return the error for a column that a header lacks, with the nearest that it has."""
    few = [column for column in columns[:200] if len(column) <= 100]  # matching is slow on long names
    near = get_close_matches(name, few, n=1, cutoff=0.6)
    has = f"did you mean {near[0]!r}?" if near else f"the header has {quoted(', '.join(columns), 120)}"
    return bad_file(path, f"no column {name!r} between {_separator_name(separator)}s; {has}", line=1)


def _separator_name(separator: str) -> str:
    return _SEPARATORS.get(separator, repr(separator))
