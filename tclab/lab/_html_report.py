"""A sweep's rows as one HTML file that needs no network: charts as SVG, tables, sentences, the machine."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import UTC, datetime
from functools import partial
from html import escape
from pathlib import Path
from typing import Any

import pandas as pd

from tclab._display import table_html
from tclab._io import atomic_write, writing
from tclab.errors import InputError
from tclab.lab.charts._sweep_charts import SWEEP_CHARTS
from tclab.lab.charts._throughput_charts import throughput
from tclab.lab.reports._findings import conclusion, findings
from tclab.lab.reports._tables import equivalence, machine, steps
from tclab.sweeps.analysis._advise import advise
from tclab.sweeps.store._row_files import Runs, rows_of
from tclab.sweeps.store._row_frame import table_cells
from tclab.timing._verdict import Pair

_MOST_ROWS = 1000  # of a table
# Charts are drawn in dark ink, so they keep a light sheet where the page is dark.
_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title><style>
:root {{ color-scheme: light dark; --ink: #1b1b1b; --page: #ffffff; --line: #d0d0d0; --soft: #f4f4f4; }}
@media (prefers-color-scheme: dark) {{
  :root {{ --ink: #e6e6e6; --page: #16181c; --line: #3c4048; --soft: #22252b; }}
}}
body {{ font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--page);
       max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }}
h1 {{ font-size: 1.6rem; }} h2 {{ font-size: 1.2rem; margin-top: 2.2rem; }}
.lead {{ font-size: 1.1rem; border-left: 4px solid #009e73; padding-left: .8rem; }}
figure {{ background: #ffffff; border: 1px solid var(--line); border-radius: 6px; padding: .8rem; margin: 1rem 0; }}
svg {{ max-width: 100%; height: auto; overflow: visible; }}
svg text {{ font-family: "Liberation Sans", Arial, Helvetica, sans-serif; }}
.wide {{ overflow-x: auto; }}
table {{ border-collapse: collapse; font-size: 13px; font-variant-numeric: tabular-nums; }}
th, td {{ border-bottom: 1px solid var(--line); padding: .25rem .6rem; text-align: right; white-space: nowrap; }}
th:first-child, td:first-child {{ text-align: left; }}
th {{ background: var(--soft); }}
</style></head>
<body>
{body}
</body></html>
"""


def report(rows: Runs, path: str | Path, *, title: str = "A sweep", pairs: Iterable[Pair] = ()) -> Path:
    """Write the charts and findings of a sweep's rows into one HTML file, replacing an earlier one; return its path.

    The page needs no network and no script, and has a light and a dark style. A table of more than 1,000 points is
    cut, with a line that says so. To keep a whole notebook as HTML, `jupyter nbconvert --to html` it.

    **Arguments:**

    - `rows`: of a sweep.
    - `path`: ends with `.html`, in a folder that exists.
    - `title`: its heading.
    - `pairs`: of a race of these points, for the conclusion and the first chart.

    **Raises:** `InputError` for another ending, a folder that does not exist, or a file that cannot be written.
    """
    rows = rows_of(rows)
    to = Path(path)
    if to.suffix not in (".html", ".htm") or not to.parent.is_dir():
        raise InputError(f"path is {str(path)!r}, expected a file that ends with .html in a folder that exists")
    raced, advice = list(pairs), advise(rows)
    body = [f"<h1>{escape(title)}</h1>", f"<p>{escape(_when(rows))}</p>"]
    body += [f'<p class="lead">{escape(sentence)}</p>' for sentence in conclusion(rows, raced)]
    body += _list("What was found", findings(rows, concluded=True))
    if (rows["status"] == "ok").any():
        charts: dict[str, Any] = {**SWEEP_CHARTS, "strategies": partial(throughput, pairs=raced)}
        body += [_figure(name, chart(rows), place) for place, (name, chart) in enumerate(charts.items())]
    body += _list("What to change", [str(suggestion) for suggestion in advice.suggestions])
    body += _list("What is not known", advice.missing)
    body += ["<h2>The equivalence check</h2>", _table(equivalence(rows).reset_index())]
    body += ["<h2>Every point</h2>", _table(steps(rows))]
    body += ["<h2>Where it was measured</h2>", _table(machine(rows).reset_index(names=" "))]
    with writing("path", path):
        atomic_write(to, _PAGE.format(title=escape(title), body="\n".join(body)))
    return to


def _when(rows: pd.DataFrame) -> str:
    times = sorted(str(time) for time in rows["measured_at"].dropna().unique())
    points = int((rows["stage"] == "step").sum())
    measured = f", measured {times[0]} to {times[-1]}" if times else ""
    return f"{points} points{measured}; written {datetime.now(UTC).isoformat(timespec='seconds')} by tclab."


def _list(title: str, sentences: Iterable[str]) -> list[str]:
    items = [f"<li>{escape(sentence)}</li>" for sentence in sentences]
    return [f"<h2>{escape(title)}</h2>", "<ul>", *items, "</ul>"] if items else []


def _figure(name: str, chart: Any, place: int) -> str:
    import vl_convert

    svg = vl_convert.vegalite_to_svg(chart.to_json())
    svg = svg[svg.index("<svg") :]
    # charts in one page share their ids: a prefix tells them apart
    svg = re.sub(r'(\bid="|url\(#|href="#)', rf"\1c{place}-", svg)
    return f'<figure role="img" aria-label="{escape(name)}">{svg}</figure>'


def _table(table: pd.DataFrame) -> str:
    text = table_html(list(map(str, table.columns)), table_cells(table.head(_MOST_ROWS)))
    cut = len(table) - _MOST_ROWS
    note = f"<p>{cut:,} more are in the rows.</p>" if cut > 0 else ""
    return f'<div class="wide">{text}</div>{note}'
