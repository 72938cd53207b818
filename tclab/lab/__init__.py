"""Notebooks' side of tclab: charts, tables, sentences, and a sweep that runs in the background of a notebook.

The only package that imports altair and ipywidgets. Charts are `tclab.lab.charts.<name>`, tables and sentences
`tclab.lab.reports.<name>`.
"""

from tclab.lab import charts, reports
from tclab.lab._html_report import report
from tclab.lab._notebook import has_front_end, import_file, project_path
from tclab.lab._notebook_parameters import check_parameters
from tclab.lab._recordings import Recording, recording
from tclab.lab.panel import LiveSweep, Panel
from tclab.lab.reports import equivalence, findings, machine, steps

__all__ = [
    "LiveSweep",
    "Panel",
    "Recording",
    "charts",
    "check_parameters",
    "equivalence",
    "findings",
    "has_front_end",
    "import_file",
    "machine",
    "project_path",
    "recording",
    "report",
    "reports",
    "steps",
]
