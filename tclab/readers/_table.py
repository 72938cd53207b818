"""Delimited text, read strictly by pyarrow: the one loader under all tables."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from tclab.errors import InputError

NAME = pa.dictionary(pa.int32(), pa.string())  # each distinct name once
INTEGER, SCORE, NUMBER = pa.int64(), pa.int16(), pa.float64()

_LONGEST_LINE_BYTES = 1 << 20  # longer than in any published table
_LARGEST = np.finfo(np.float64).max
_BLANKS = "".join(filter(str.isspace, map(chr, range(0x3001)))) + "\u200b\ufeff"
SIGNS = {"\t": "tabs", ",": "commas", ";": "semicolons", " ": "spaces"}


class ReadError(InputError):
    """A file that its format does not allow; the message is one line with the file, the reason and the format."""


class Column(NamedTuple):
    """A column to read, and what its cells may be; none may be missing unless the table is read with `missing`."""

    i: int  # its position in the table
    kind: pa.DataType
    low: float = -_LARGEST
    high: float = _LARGEST
    fault: Callable[[str], str | None] = lambda name: None  # what is wrong with a name, or None


class Table(NamedTuple):
    """The content of a delimited text file, as `sniff` finds it; every row has every column.

    Rows are counted from 1, without the header, comments before it, and blank lines.
    """

    columns: list[str]  # their names, without quotes or a leading `#`; where none are given those of the first line
    separator: str
    first: str  # the first line that is neither blank nor a comment
    commented: str  # the last comment before it, which may be the header; else empty
    content: bytes  # of the rows; the first line is one unless it is the header
    loose: bool

    def column(self, *names: str) -> int:
        """Return the position of the column that the header calls one of some names.

        Case, blanks and what is in brackets make no difference.
        """
        plain, known = [plain_name(column) for column in self.columns], [plain_name(name) for name in names]
        found = [i for i, column in enumerate(plain) if column in known]
        if not found:
            near = get_close_matches(known[0], [column[:100] for column in plain[:200]], n=1)
            has = f"did you mean {near[0]!r}?" if near else f"the header has {quoted(', '.join(self.columns), 120)}"
            raise ValueError(f"no column {names[0]!r} between {self.between}; {has}")
        if len(found) > 1:
            raise ValueError(f"the header has the column {quoted(self.columns[found[1]])} twice")
        return found[0]

    @property
    def between(self) -> str:
        """What is between cells: "tabs"."""
        return SIGNS.get(self.separator, repr(self.separator))

    def read(self, columns: Mapping[str, Column], *, missing: tuple[str, ...] = ()) -> pd.DataFrame:
        """Return some columns by names of the caller's own: names as categories, numbers with NaN where missing.

        `missing` are the spellings of a missing number.

        **Raises:** `ValueError` with the row for a wrong number of columns, or a cell that is not as its column
        expects; where there is no row.
        """
        content = _single_blanks(self.content) if self.loose and self.separator == " " else self.content
        if not content.strip(b"\r\n"):
            raise ValueError("holds no rows; the file was cut short, or its export was empty")
        types = {str(column.i): column.kind for column in columns.values()}
        positions = [str(i) for i in range(len(self.columns))]
        # Errors have a row where a thread alone reads one block.
        reading = pa.csv.ReadOptions(use_threads=False, block_size=len(content) + 1, column_names=positions)
        parsing = pa.csv.ParseOptions(delimiter=self.separator, quote_char=self.loose and '"', double_quote=self.loose)
        # of texts none is null, whatever `missing` is: pyarrow reads them so unless asked
        converting = pa.csv.ConvertOptions(column_types=types, include_columns=list(types), null_values=missing)
        try:
            cells = pa.csv.read_csv(pa.BufferReader(content), reading, parsing, converting)
        except pa.ArrowInvalid as error:
            text = re.sub(r"In CSV column #(\d+)", lambda match: f"column {self.columns[int(match[1])]}", str(error))
            text = text.removeprefix("CSV parse error: ").replace("Row #", "row ")[:300]
            raise ValueError(f"{text}; cells are between {self.between}") from error
        frame = {name: self._values(cells[str(column.i)].combine_chunks(), column) for name, column in columns.items()}
        return pd.DataFrame(frame, copy=False)

    def _values(self, cells: Any, column: Column) -> Any:
        """Return the cells of a column; raise `ValueError` for one that is not as the column expects."""
        if column.kind is NAME:
            if self.loose:
                cells = pc.utf8_trim(cells.cast(pa.string()), _BLANKS).dictionary_encode()
            names = cells.dictionary.to_pylist()
            for code, name in enumerate(names):
                if why := column.fault(name):
                    row = pc.index(cells.indices, code).as_py() + 1
                    raise ValueError(f"row {row}: {self.columns[column.i]} {why}")
            return pd.Categorical.from_codes(cells.indices.to_numpy(), pd.Index(names, dtype=object), validate=False)
        values = cells.to_numpy(zero_copy_only=False)
        bad = ~((values >= column.low) & (values <= column.high)) & cells.is_valid().to_numpy(zero_copy_only=False)
        if bad.any():
            i = int(np.argmax(bad))
            wanted = "a finite number" if column.high == _LARGEST else f"{column.low:g} to {column.high:g}"
            raise ValueError(f"row {i + 1}: {self.columns[column.i]} is {values[i]:g}, expected {wanted}")
        return values


def sniff(
    content: bytes, *, separator: str | Callable[[str], str] = "\t", columns: list[str] | None = None,
    comment: str | tuple[str, ...] = (), loose: bool = False,
) -> Table:  # fmt: skip
    """Return a delimited text with its columns.

    **Arguments:**

    - `content`: as `tclab._source.opened` gives it; lines end with LF, CR LF or CR.
    - `separator`: between cells, or what finds it in the first line.
    - `columns`: their names, in a file without a header; None takes those of the first line that is neither blank nor
      a comment.
    - `comment`: prefix, or several, of lines before that.
    - `loose`: whether quotes around a cell (RFC 4180) and blanks around a name, those included that do not break or
      have no width, are no part of it, several spaces separate like one, and the first line, which may be a header, is
      read as a row. Else quotes have no meaning, and two spaces have an empty cell between them.

    **Raises:** `ValueError` for a file without such a line, or with a line longer than 1 MiB.
    """
    if b"\n" not in content:  # as old Macs end lines
        content = content.replace(b"\r", b"\n")
    file, first, commented = io.BytesIO(content), "", ""
    while not first.strip(" \t"):
        begin, line = file.tell(), file.readline(_LONGEST_LINE_BYTES)
        if len(line) == _LONGEST_LINE_BYTES:
            raise ValueError(f"has a line longer than {_LONGEST_LINE_BYTES:,} bytes, so it is not a table")
        if not line:
            raise ValueError("holds nothing but blank lines and comments")
        first = line.decode().rstrip("\r\n")
        if first.startswith(comment):
            first, commented = "", first
    sign = separator if isinstance(separator, str) else separator(first)
    rows = content[begin if columns or loose else file.tell() :]
    return Table(columns or cells_of(first.lstrip("#"), sign, loose), sign, first, commented, rows, loose)


def tab_or_comma(first: str) -> str:
    """Return what is between the cells of a line: a tab, or else a comma, or else a semicolon."""
    return next((sign for sign in "\t,;" if sign in first), ",")


def cells_of(line: str, separator: str, loose: bool) -> list[str]:
    """Return the cells of a line, without quotes and blanks around them."""
    if loose and separator == " ":
        line = _single_blanks(line.encode()).decode()
    return [cell.strip(_BLANKS) for cell in next(csv.reader([line], delimiter=separator))]


def _single_blanks(content: bytes) -> bytes:
    """Return lines without the spaces at their ends, and with one for several; those in quoted cells stay."""
    content = re.sub(rb'((?<![^\s])"(?:[^"\n]|"")*"(?=[ \r\n]|\Z))|  +', lambda match: match[1] or b" ", content)
    return re.sub(rb"(?m)^ +| +(?=\r?$)", b"", content)


def plain_name(name: str) -> str:
    """Return a column's name in lower case, without what is in brackets."""
    return " ".join(re.sub(r"\(.*?\)", "", name[:200]).lower().split())  # nothing but brackets would take its time


def quoted(value: object, most: int = 60) -> str:
    """Return a value for a message: in quotes, cut after `most` characters."""
    text = str(value)
    return repr(text if len(text) <= most else text[: most - 1] + "…")
