"""Tables and sentences made from rows, races, ledgers, graphs and predictions."""

from tclab.lab.reports._graphs import network_table, overlap_table, reach_findings, reach_rows
from tclab.lab.reports._mask_tensors import sharing_table
from tclab.lab.reports._tables import (
    exchange_table,
    predicted_steps,
    race_findings,
    rows_of_points,
    scaling_table,
)

__all__ = [
    "exchange_table",
    "network_table",
    "overlap_table",
    "predicted_steps",
    "race_findings",
    "reach_findings",
    "reach_rows",
    "rows_of_points",
    "scaling_table",
    "sharing_table",
]
__dir__ = __all__.copy  # completion offers these
