"""Notebooks' side of tclab: charts, tables, sentences, and a sweep that runs in the background of a notebook.

Charts are `tclab.lab.charts.<name>`.
"""

from tclab._lazy import lazy
from tclab.errors import need

need(__name__, "lab", "pandas", "pyarrow", "altair", "ipywidgets")

__getattr__, __dir__, __all__ = lazy(__name__, __file__)  # findings of a command need no widgets
