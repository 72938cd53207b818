"""Notebooks' side of tclab: charts, tables, sentences, and a sweep that runs in the background of a notebook.

Charts are `tclab.lab.charts.<name>`.
"""

from tclab.errors import need

need(__name__, "lab", "pandas", "pyarrow", "altair", "ipywidgets")

from tclab.lab import charts
from tclab.lab._notebook import project_path, show_charts
from tclab.lab._panel import LiveSweep, Panel
from tclab.lab._parameters import check_parameters
from tclab.lab.charts._graph_charts import reach_rows
from tclab.lab.reports._cells import equivalence, machine
from tclab.lab.reports._findings import findings
from tclab.sweeps._fingerprint import import_file

__all__ = [
    "LiveSweep", "Panel", "charts", "check_parameters", "equivalence", "findings", "import_file", "machine",
    "project_path", "reach_rows", "show_charts",
]  # fmt: skip
__dir__ = __all__.copy  # completion offers these
