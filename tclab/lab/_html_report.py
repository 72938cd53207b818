"""A sweep's rows as one HTML file that needs no network: its answer, charts, tables and the machine."""

from __future__ import annotations

from base64 import b64encode
from html import escape
from pathlib import Path
from typing import Any

from tclab._io import atomic_write, writing
from tclab.errors import InputError
from tclab.lab.charts._sweep_charts import SWEEP_CHARTS
from tclab.lab.reports._findings import findings
from tclab.lab.reports._tables import equivalence, machine, steps
from tclab.sweeps.analysis._advise import advise
from tclab.sweeps.store._row_files import Runs, rows_of
from tclab.sweeps.store._row_frame import frame_html

# Charts are drawn in dark ink, so they keep a light sheet where the page is dark.
_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title><style>
:root {{ color-scheme: light dark; }}
body {{ font: 15px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; overflow-wrap: anywhere; }}
img {{ max-width: 100%; background: #fff; }} div {{ overflow-x: auto; }} table {{ font-size: 13px; }}
</style></head><body><h1>{title}</h1>
{body}
</body></html>
"""


def report(rows: Runs, path: str | Path, *, title: str = "A sweep") -> Path:
    """Write the findings, charts and tables of a sweep's rows into one HTML file, replacing an earlier one.

    Return its path. To keep a whole notebook as HTML, `jupyter nbconvert --to html --no-input` it.

    **Arguments:**

    - `rows`: of a sweep.
    - `path`: ends with `.html`, in a folder that exists. `title`: its heading.

    **Raises:** `InputError` for another ending, a folder that does not exist, or a file that cannot be written.
    """
    rows = rows_of(rows)
    to = Path(path)
    if to.suffix not in (".html", ".htm") or not to.parent.is_dir():
        raise InputError(f"path is {str(path)!r}, expected a file that ends with .html in a folder that exists")
    parts = {"What was found": findings(rows)._repr_html_()}
    if (rows["status"] == "ok").any():
        parts |= {name.capitalize(): _picture(chart(rows)) for name, chart in SWEEP_CHARTS.items()}
    parts["What to change"] = advise(rows)._repr_html_()
    parts |= {
        name: frame_html(table)
        for name, table in (
            ("The equivalence check", equivalence(rows).reset_index()),
            ("Every point", steps(rows)),
            ("Where it was measured", machine(rows).reset_index(names=" ")),
        )
    }
    body = "\n".join(f"<h2>{escape(name)}</h2><div>{shown}</div>" for name, shown in parts.items())
    with writing("path", path):
        atomic_write(to, _PAGE.format(title=escape(title), body=body))
    return to


def _picture(chart: Any) -> str:
    import vl_convert

    png = b64encode(vl_convert.vegalite_to_png(chart.to_json(), scale=1.5)).decode()
    return f'<img alt="" src="data:image/png;base64,{png}">'
