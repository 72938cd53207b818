"""What a result shows: text of at most 79 columns in a terminal, a table in a notebook, both from one description."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from textwrap import wrap

WIDTH = 79  # columns of a terminal that are used
_NUMBER = re.compile(r"[\d\[<~−+-]")  # how the cell of a number begins


@dataclass(frozen=True)
class Display:
    """A title, a table and sentences below it.

    **Arguments:**

    - `title`: a sentence; empty for none.
    - `columns`: heads of the table, empty for no table. `lines`: [lines][columns] cells as text.
    - `notes`: a sentence each.
    """

    title: str = ""
    columns: Sequence[str] = ()
    lines: Sequence[Sequence[str]] = ()
    notes: Sequence[str] = ()

    def text(self, width: int = WIDTH) -> str:
        """Return it as text; a cell that is too wide goes on below."""
        parts = _wrapped(self.title, width) if self.title else []
        parts += self._table_text(width) if self.columns else []
        return "\n".join([*parts, *(line for note in self.notes for line in _wrapped(note, width))])

    def html(self) -> str:
        """Return it as HTML in the colours of the page."""
        left = ["" if numeric else ' style="text-align:left"' for numeric in self._numeric()]
        head = "".join(f"<th{style}>{escape(name)}</th>" for name, style in zip(self.columns, left, strict=True))
        body = "".join(
            f"<tr>{''.join(f'<td{style}>{escape(cell)}</td>' for cell, style in zip(line, left, strict=True))}</tr>"
            for line in self.lines
        )
        table = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>" if self.columns else ""
        notes = "".join(f"<li>{escape(note)}</li>" for note in self.notes)
        title = f"<div>{escape(self.title)}</div>" if self.title else ""
        return f"<div>{title}{table}{f'<ul>{notes}</ul>' if notes else ''}</div>"

    def _numeric(self) -> list[bool]:
        """Return for each column whether its cells are numbers."""
        return [
            bool(self.lines) and all(_NUMBER.match(line[place] or "0") for line in self.lines)
            for place in range(len(self.columns))
        ]

    def _table_text(self, width: int) -> list[str]:
        rows = [list(self.columns), *map(list, self.lines)]
        widths = [max(len(row[place]) for row in rows) for place in range(len(self.columns))]
        while sum(widths) + 2 * (len(widths) - 1) > width and max(widths) > 1:
            widths[widths.index(max(widths))] -= 1
        numeric = self._numeric()
        text = []
        for row in rows:
            cells = [wrap(cell, size) or [""] for cell, size in zip(row, widths, strict=True)]
            for place in range(max(map(len, cells))):
                line = [cell[place] if place < len(cell) else "" for cell in cells]
                aligned = [
                    part.rjust(size) if right else part.ljust(size)
                    for part, size, right in zip(line, widths, numeric, strict=True)
                ]
                text.append("  ".join(aligned).rstrip())
        return text


def _wrapped(sentence: str, width: int) -> list[str]:
    return wrap(sentence, width, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)


class Shown:
    """A result that shows itself: `print` and `repr` give its text, a notebook a table."""

    @abstractmethod
    def _display(self) -> Display: ...

    def __str__(self) -> str:
        return self._display().text()

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        return self._display().html()
