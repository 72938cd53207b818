"""What a result shows: text of at most 79 columns in a terminal, a table in a notebook, both from one description."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from itertools import zip_longest
from textwrap import wrap

WIDTH = 79  # columns of a terminal that are used
_NUMBER = re.compile(r"[\d\[<~−+-]")  # how the cell of a number begins
# characters of a cell that stays in one line: a wide table is scrolled, in place of lines that grow tall for a column
# out of sight
_UNBROKEN = 40
# What the mouse does to a table, as attributes: they work in widgets, where scripts do not run, and a page
# that takes them away still shows the table. A head sorts by its column: numbers with their units first, blanks last.
_SORT = """
const head = event.target.closest('th'); if (!head) return;
const place = head.cellIndex, up = head.dataset.up !== '1'; head.dataset.up = up ? '1' : '0';
const units = {ns: 1e-9, µs: 1e-6, ms: 1e-3, kB: 1e3, MB: 1e6, GB: 1e9, TB: 1e12, '%': 1e-2};
const keyed = [...this.tBodies[0].rows].map(row => {
  const text = row.cells[place].innerText.trim();
  const found = /^[\\[<~+× ]*([−-]?[\\d.,]+(?:e[−+-]?\\d+)?)\\s*([^\\s,;]*)/.exec(text);
  const number = found ? parseFloat(found[1].replace(/,/g, '').replace(/−/g, '-')) : NaN;
  return [row, number * (found && units[found[2]] || 1), text];
});
const rank = ([, number, text]) => text === '' ? 2 : isNaN(number) ? 1 : 0;
keyed.sort((a, b) => rank(a) - rank(b) ||
  (up ? 1 : -1) * (rank(a) === 0 ? a[1] - b[1] : a[2].localeCompare(b[2])));
keyed.forEach(([row]) => row.parentNode.append(row));
"""
_COPY = """
const range = document.createRange(), chosen = getSelection();
range.selectNode(this.parentNode.querySelector('table'));
chosen.removeAllRanges(); chosen.addRange(range);
this.value = document.execCommand('copy') ? 'Copied' : 'Not allowed here';
chosen.removeAllRanges();
"""
_DOWNLOAD = """
const quoted = cell => '"' + cell.innerText.trim().replaceAll('"', '""') + '"';
const lines = [...this.parentNode.querySelector('table').rows].map(row => [...row.cells].map(quoted).join(','));
const link = document.createElement('a');
link.href = window.URL.createObjectURL(new Blob([lines.join('\\n') + '\\n'], {type: 'text/csv'}));
link.download = 'table.csv'; link.click();
"""
# a widget, unlike an output, has no style for tables of its own
_STYLE = (
    ".tclab-sorts{line-height:1.5;border-collapse:collapse;font-variant-numeric:tabular-nums}"
    ".tclab-sorts th,.tclab-sorts td{padding:2px 8px;text-align:right}.tclab-sorts th{cursor:pointer}"
)
_BUTTON = "font-size:11px;margin-right:4px;cursor:pointer;color:inherit;background:none;border:1px solid #8a8a8a"


@dataclass(frozen=True)
class Display:
    """A title, a table and sentences below it."""

    title: str = ""
    columns: Sequence[str] = ()  # heads of the table; empty for no table
    lines: Sequence[Sequence[str]] = ()  # [lines][columns] cells as text
    notes: Sequence[str] = ()  # a sentence each

    def text(self, width: int = WIDTH) -> str:
        """Return it as text; a cell that is too wide goes on below."""
        parts = _wrapped(self.title, width) if self.title else []
        parts += self._table_text(width) if self.columns else []
        return "\n".join([*parts, *(line for note in self.notes for line in _wrapped(note, width))])

    def html(self) -> str:
        """Return it as HTML in the colours of the page."""
        table = table_html(self.columns, self.lines) if self.columns else ""
        notes = "".join(f"<li>{escape(note)}</li>" for note in self.notes)
        title = f"<div>{escape(self.title)}</div>" if self.title else ""
        return f"<div>{title}{table}{f'<ul>{notes}</ul>' if notes else ''}</div>"

    def _table_text(self, width: int) -> list[str]:
        rows = [list(self.columns), *map(list, self.lines)]
        places = range(len(self.columns))
        widths = [max(len(row[place]) for row in rows) for place in places]
        words = [max(len(word) for row in rows for word in _words(row[place]) or [""]) for place in places]
        while sum(widths) + 2 * (len(widths) - 1) > width and max(widths) > 1:
            # the widest whose words stay whole; where there is none, the widest
            widths[max(places, key=lambda place: (widths[place] > words[place], widths[place]))] -= 1
        numeric = _numeric(self.columns, self.lines)
        text = []
        for row in rows:
            cells = [_cell_lines(cell, size) for cell, size in zip(row, widths, strict=True)]
            for line in zip_longest(*cells, fillvalue=""):
                aligned = [
                    part.rjust(size) if right else part.ljust(size)
                    for part, size, right in zip(line, widths, numeric, strict=True)
                ]
                text.append("  ".join(aligned).rstrip())
        return text


def _words(cell: str) -> list[str]:
    """Return the words of a cell, which may be parted at blanks and behind underscores."""
    return re.findall(r"[^ _]*_+|[^ _]+", cell)


def _cell_lines(cell: str, width: int) -> list[str]:
    """Return a cell in lines of a width; only a word that is longer is cut."""
    lines = [""]
    for word, blank in re.findall(r"([^ _]*_+|[^ _]+)( *)", cell):
        if len(lines[-1] + word) > width:
            *cut, word = [word[place : place + width] for place in range(0, len(word), width)]
            lines += [*cut, word]
        else:
            lines[-1] += word
        lines[-1] += blank
    return [line.rstrip() for line in lines if line.strip()] or [""]


def _wrapped(sentence: str, width: int) -> list[str]:
    return wrap(sentence, width, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)


def table_html(columns: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """Return a table as HTML: a click on a head sorts it, again the other way; buttons copy it and save it as CSV."""
    heads = ["" if numeric else "text-align:left" for numeric in _numeric(columns, lines)]
    short = [all(len(line[place]) <= _UNBROKEN for line in lines) for place in range(len(columns))]
    cells = [style + ";white-space:nowrap" * one for one, style in zip(short, heads, strict=True)]
    head = "".join(f'<th style="{style}">{escape(name)}</th>' for name, style in zip(columns, heads, strict=True))
    rows = [
        "".join(f'<td style="{style}">{escape(cell)}</td>' for cell, style in zip(line, cells, strict=True))
        for line in lines
    ]
    body = "".join(f"<tr>{row}</tr>" for row in rows)
    buttons = "".join(
        f'<input type="button" value="{name}" style="{_BUTTON}" onclick="{_attribute(code)}">'
        for name, code in (("Copy", _COPY), ("Download", _DOWNLOAD))
    )
    table = f'<table class="tclab-sorts" title="click on a head to sort" onclick="{_attribute(_SORT)}">'
    return (
        f"<div><style>{_STYLE}</style>{table}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{buttons}</div>"
    )


def _attribute(code: str) -> str:
    return escape(" ".join(code.split()))


def _numeric(columns: Sequence[str], lines: Sequence[Sequence[str]]) -> list[bool]:
    """Return for each column whether its cells are numbers."""
    return [bool(lines) and all(_NUMBER.match(line[place] or "0") for line in lines) for place in range(len(columns))]


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


class Sentences(Shown, list[str]):
    """A list of sentences that shows each as a bullet, in lines that break between words."""

    def _display(self) -> Display:
        return Display(notes=self)

    def __str__(self) -> str:
        return "\n".join(line for sentence in self for line in _wrapped(f"• {sentence}", WIDTH))
