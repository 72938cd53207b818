"""A sweep as one HTML file that needs nothing else: charts as SVG, tables, words, the machine."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from datetime import UTC, datetime
from functools import partial
from html import escape
from pathlib import Path
from typing import Any

import pandas as pd

from tclab.errors import InputError
from tclab.lab.charts import throughput_by_strategy
from tclab.lab.concluding import conclusion
from tclab.lab.live_chart import VIEWS
from tclab.lab.tables import gate, machine, steps
from tclab.lab.words import findings
from tclab.sweeps import advise
from tclab.sweeps.rows import plain
from tclab.timing import Pair

_MOST_LINES = 1000  # of a table
# Charts are drawn in dark ink, so they keep a light sheet of their own where the page is dark.
_STYLE = """
:root { color-scheme: light dark; --ink: #1b1b1b; --page: #ffffff; --line: #d0d0d0; --soft: #f4f4f4; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6e6e6; --page: #16181c; --line: #3c4048; --soft: #22252b; }
}
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--page);
       max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.2rem; margin-top: 2.2rem; }
.lead { font-size: 1.1rem; border-left: 4px solid #009e73; padding-left: .8rem; }
figure { background: #ffffff; border: 1px solid var(--line); border-radius: 6px; padding: .8rem; margin: 1rem 0; }
svg { max-width: 100%; height: auto; overflow: visible; }
svg text { font-family: "Liberation Sans", Arial, Helvetica, sans-serif; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: 13px; font-variant-numeric: tabular-nums; }
th, td { border-bottom: 1px solid var(--line); padding: .25rem .6rem; text-align: right; white-space: nowrap; }
th:first-child, td:first-child, td.text { text-align: left; }
th { background: var(--soft); }
"""


def report(rows: pd.DataFrame, path: str | Path, *, title: str = "A sweep", pairs: Iterable[Pair] = ()) -> Path:
    """Write what a sweep's rows say into one HTML file, in place of an earlier one, and return its path.

    It needs no network and no script, and is read in light and in dark. A table of more than 1,000 points is cut,
    and says so.

    **Arguments:**

    - `rows`: of a sweep.
    - `path`: ends with `.html`, in a folder that exists.
    - `title`: its heading.
    - `pairs`: of a race of these points, for the conclusion.

    **Raises:** `InputError` for another ending, or a folder that does not exist.
    """
    to = Path(path)
    if to.suffix not in (".html", ".htm") or not to.parent.is_dir():
        raise InputError(f"path is {str(path)!r}, expected a file that ends with .html in a folder that exists")
    body = [f"<h1>{escape(title)}</h1>", f"<p>{escape(_when(rows))}</p>"]
    raced = list(pairs)
    body += [f'<p class="lead">{escape(sentence)}</p>' for sentence in conclusion(rows, raced)]
    body += _list("What was found", findings(rows, concluded=True))
    if (rows["status"] == "ok").any():
        views: dict[str, Any] = {**VIEWS, "strategies": partial(throughput_by_strategy, pairs=raced)}
        body += [_figure(name, view(rows), place) for place, (name, view) in enumerate(views.items())]
    advice = advise(rows)
    body += _list("What to change", [str(one) for one in advice.suggestions])
    body += _list("What is not known", advice.missing)
    body += ["<h2>The gate</h2>", _table(gate(rows).reset_index())]
    body += ["<h2>Every point</h2>", _table(steps(rows))]
    body += ["<h2>Where it was measured</h2>", _table(machine(rows).reset_index(names=" "))]
    _write(
        to,
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head>\n<body>\n"
        + "\n".join(body)
        + "\n</body></html>\n",
    )
    return to


def _write(to: Path, text: str) -> None:
    """Write a file whole or not at all: a browser that has the earlier one open never sees half of this."""
    temporary = to.with_name(f".writing-{os.getpid()}-{to.name}")
    try:
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(to)
    finally:
        temporary.unlink(missing_ok=True)


def _when(rows: pd.DataFrame) -> str:
    moments = sorted(str(moment) for moment in rows["measured_at"].dropna().unique())
    points = int((rows["stage"] == "step").sum())
    ran = f", measured {moments[0]} to {moments[-1]}" if moments else ""
    return f"{points} points{ran}; written {datetime.now(UTC).isoformat(timespec='seconds')} by tclab."


def _list(title: str, sentences: Iterable[str]) -> list[str]:
    items = [f"<li>{escape(sentence)}</li>" for sentence in sentences]
    return [f"<h2>{escape(title)}</h2>", "<ul>", *items, "</ul>"] if items else []


def _figure(name: str, chart: Any, place: int) -> str:
    import vl_convert

    svg = vl_convert.vegalite_to_svg(chart.to_json())
    svg = svg[svg.index("<svg") :]
    # pictures in one page share their names: each gets its own
    svg = re.sub(r'\bid="([^"]+)"', rf'id="c{place}-\1"', svg)
    svg = re.sub(r"url\(#([^)]+)\)", rf"url(#c{place}-\1)", svg)
    svg = re.sub(r'href="#([^"]+)"', rf'href="#c{place}-\1"', svg)
    return f'<figure role="img" aria-label="{escape(name)}">{svg}</figure>'


def _table(frame: pd.DataFrame) -> str:
    head = "".join(f"<th>{escape(str(name))}</th>" for name in frame.columns)
    lines = [
        "<tr>" + "".join(_cell(value) for value in row) + "</tr>"
        for row in frame.head(_MOST_LINES).itertuples(index=False)
    ]
    cut = len(frame) - _MOST_LINES
    rest = f"<p>{cut:,} more are in the rows.</p>" if cut > 0 else ""
    return f'<div class="wide"><table><tr>{head}</tr>{"".join(lines)}</table></div>{rest}'


def _cell(value: Any) -> str:
    value = plain(value)
    if value is None:
        return "<td></td>"
    if isinstance(value, str):
        return f'<td class="text">{escape(value)}</td>'
    text = f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else f"{value:.4g}"
    return f"<td>{escape(text)}</td>"
