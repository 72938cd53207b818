"""Tables and sentences made from rows, races, ledgers, graphs and predictions."""

from tclab.lab.reports._graph_tables import network_table, reach_findings, reach_rows
from tclab.lab.reports._mask_drawings import sharing_table
from tclab.lab.reports._race_tables import race_card, race_findings
from tclab.lab.reports._scaling_tables import (
    epoch_table,
    model_ratios,
    predicted_steps,
    rows_of_points,
    scaling_table,
)
from tclab.lab.reports._tables import errors_and_times

__all__ = [
    "epoch_table",
    "errors_and_times",
    "model_ratios",
    "network_table",
    "predicted_steps",
    "race_card",
    "race_findings",
    "reach_findings",
    "reach_rows",
    "rows_of_points",
    "scaling_table",
    "sharing_table",
]
__dir__ = __all__.copy  # completion offers these
