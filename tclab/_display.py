"""What a person sees: numbers as text, results as text of at most 79 columns or as a table of a notebook, progress.

Nothing here takes pandas, so that `tclab.timing` shows its results with torch and numpy alone.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from inspect import cleandoc
from itertools import zip_longest
from textwrap import wrap

WIDTH = 79  # columns of a terminal that are used
_NUMBER = re.compile(r"[\d\[<~−+-]")  # how the cell of a number begins
_UNBROKEN = 40  # characters of a cell that stays in one line: a wide table is scrolled and keeps its lines low


def bytes_text(number: float) -> str:
    """Return a number of bytes as text, in powers of ten: "1,016 B", "45 kB", "1.15 GB".

    Up to 9,999 bytes every byte is given.
    """
    if abs(number) < 1e4:
        return f"{number:,.0f} B"
    return _scaled(number, (("kB", 1e3), ("MB", 1e6), ("GB", 1e9), ("TB", 1e12)))


def counted(number: int, noun: str, many: str = "") -> str:
    """Return a number with its noun: "1 network", "1,016 networks", or "2 copies" where `many` is given."""
    return f"{number:,} {noun if number == 1 else many or noun + 's'}"


def bullets(docstring: str | None) -> dict[str, str]:
    """Return name → text of each argument that a docstring has a bullet for, in one line."""
    found = re.findall(r"^- `(\w+)`: (.*?)(?=^- `|^$|\Z)", cleandoc(docstring or ""), re.DOTALL | re.MULTILINE)
    return {name: " ".join(text.split()) for name, text in found}


def first_of(names: Sequence[str], most: int = 3) -> str:
    """Return the first names as text: "a, b, c and 2 more"."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def seconds_text(seconds: float, beside: float | None = None) -> str:
    """Return a time as text: "2 ns", "1.27 µs", "84.7 ms", "7.29 s", "4,321 s".

    **Arguments:**

    - `beside`: another time, whose unit is taken, so that figures beside one another share it.
    """
    return _scaled(seconds, (("ns", 1e-9), ("µs", 1e-6), ("ms", 1e-3), ("s", 1.0)), beside) if seconds else "0 s"


def us_text(microseconds: float) -> str:
    """Return a time in microseconds, the unit of a profiler's trace, as `seconds_text` does."""
    return seconds_text(microseconds * 1e-6)


def _scaled(value: float, units: tuple[tuple[str, float], ...], beside: float | None = None) -> str:
    """Return a value in the smallest of some units, from small to large, in which it rounds to less than 1,000.

    With a value `beside` it is the unit in which that one does.
    """
    compared = abs(value if beside is None else beside)
    unit, size = next((one for one in units[:-1] if compared / one[1] < 999.5), units[-1])
    scaled = value / size
    return f"{scaled:.3g} {unit}" if abs(scaled) < 999.5 else f"{scaled:,.0f} {unit}"


@dataclass(frozen=True)
class Display:
    """A title, a table and sentences below it."""

    title: str = ""  # one line or several
    columns: Sequence[str] = ()  # heads of the table; empty for no table
    lines: Sequence[Sequence[str]] = ()  # [lines][columns] cells as text
    notes: Sequence[str] = ()  # a sentence each

    def text(self) -> str:
        """Return it as text; a cell that is too wide goes on below."""
        table = table_text(self.columns, self.lines) if self.columns else []
        notes = [line for note in self.notes for line in _wrapped(note)]
        title = [line for part in self.title.splitlines() for line in _wrapped(part)]
        return "\n".join([*title, *table, *notes])

    def html(self) -> str:
        """Return it as HTML in the colours of the page."""
        title = f"<div>{escape(self.title)}</div>" if self.title else ""
        table = table_html(self.columns, self.lines) if self.columns else ""
        notes = "".join(f"<li>{escape(note)}</li>" for note in self.notes)
        return f"<div>{title}{table}<ul>{notes}</ul></div>" if notes else f"<div>{title}{table}</div>"


def table_text(columns: Sequence[str], lines: Sequence[Sequence[str]]) -> list[str]:
    """Return a table as lines of text; the widest cells go on below where it is too wide for a terminal."""
    rows = [columns, *lines]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    words = [max(len(word) for cell in column for word in cell.split(" ")) for column in zip(*rows, strict=True)]
    while sum(widths) + 2 * (len(widths) - 1) > WIDTH and max(widths) > 1:
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


def _wrapped(sentence: str) -> list[str]:
    return wrap(sentence, WIDTH, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)


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
        return "\n".join(line for sentence in self for line in _wrapped(f"• {sentence}"))


def say(line: object) -> None:
    """Print a line of progress to standard error; in a notebook, where that is red, to the output."""
    in_notebook = type(sys.stderr).__module__.startswith("ipykernel")
    print(line, file=sys.stdout if in_notebook else sys.stderr, flush=True)
