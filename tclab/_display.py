"""What a result shows: text of at most 79 columns in a terminal, a table in a notebook, both from one description.

Neither takes pandas, so that `tclab.timing` shows its results with torch and numpy alone.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from itertools import zip_longest
from textwrap import wrap

WIDTH = 79  # columns of a terminal that are used
_NUMBER = re.compile(r"[\d\[<~−+-]")  # how the cell of a number begins
_UNBROKEN = 40  # characters of a cell that stays in one line: a wide table is scrolled and keeps its lines low


@dataclass(frozen=True)
class Display:
    """A title, a table and sentences below it."""

    title: str = ""
    columns: Sequence[str] = ()  # heads of the table; empty for no table
    lines: Sequence[Sequence[str]] = ()  # [lines][columns] cells as text
    notes: Sequence[str] = ()  # a sentence each

    def text(self, width: int = WIDTH) -> str:
        """Return it as text; a cell that is too wide goes on below."""
        table = table_text(self.columns, self.lines, width) if self.columns else []
        notes = [line for note in self.notes for line in _wrapped(note, width)]
        return "\n".join([*_wrapped(self.title, width), *table, *notes])

    def html(self) -> str:
        """Return it as HTML in the colours of the page."""
        title = f"<div>{escape(self.title)}</div>" if self.title else ""
        table = table_html(self.columns, self.lines) if self.columns else ""
        notes = "".join(f"<li>{escape(note)}</li>" for note in self.notes)
        return f"<div>{title}{table}<ul>{notes}</ul></div>" if notes else f"<div>{title}{table}</div>"


def table_text(columns: Sequence[str], lines: Sequence[Sequence[str]], width: int) -> list[str]:
    """Return a table as lines of text; the widest cells go on below where it is wider than `width`."""
    rows = [columns, *lines]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    words = [max(len(word) for cell in column for word in cell.split(" ")) for column in zip(*rows, strict=True)]
    while sum(widths) + 2 * (len(widths) - 1) > width and max(widths) > 1:
        # the widest whose words stay whole; where there is none, the widest
        widths[max(range(len(widths)), key=lambda i: (widths[i] > words[i], widths[i]))] -= 1
    adjust = [str.rjust if numeric else str.ljust for numeric in _numeric(columns, lines)]
    text = []
    for row in rows:
        cells = [wrap(cell, size, break_on_hyphens=False) for cell, size in zip(row, widths, strict=True)]
        for parts in zip_longest(*cells, fillvalue=""):
            aligned = [adjust(part, size) for adjust, part, size in zip(adjust, parts, widths, strict=True)]
            text.append("  ".join(aligned).rstrip())
    return text


def table_html(columns: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """Return a table as HTML, with its style in its cells: a widget, unlike an output, has none for tables."""
    sides = ["right" if numeric else "left" for numeric in _numeric(columns, lines)]

    def row(tag: str, cells: Sequence[str]) -> str:
        text = ""
        for side, cell in zip(sides, cells, strict=True):
            space = "nowrap" if len(cell) <= _UNBROKEN else "normal"
            style = f"padding:2px 8px;text-align:{side};white-space:{space}"
            text += f'<{tag} style="{style}">{escape(cell)}</{tag}>'
        return f"<tr>{text}</tr>"

    body = "".join(row("td", line) for line in lines)
    style = "border-collapse:collapse;font-variant-numeric:tabular-nums"
    return f'<table style="{style}"><thead>{row("th", columns)}</thead><tbody>{body}</tbody></table>'


def _numeric(columns: Sequence[str], lines: Sequence[Sequence[str]]) -> list[bool]:
    """Return for each column whether its cells are numbers."""
    return [bool(lines) and all(_NUMBER.match(line[i] or "0") for line in lines) for i in range(len(columns))]


def _wrapped(sentence: str, width: int) -> list[str]:
    return wrap(sentence, width, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)


class Shown:
    """A result that shows itself: `print` and `repr` give its text, a notebook a table."""

    def _display(self) -> Display:
        raise NotImplementedError

    def __str__(self) -> str:
        return self._display().text()

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        return self._display().html()


class Sentences(Shown, list[str]):
    """A list of sentences that shows each as a bullet, in lines that break between words."""

    def _display(self) -> Display:
        return Display(notes=self)

    def __str__(self) -> str:
        return "\n".join(line for sentence in self for line in _wrapped(f"• {sentence}", WIDTH))
