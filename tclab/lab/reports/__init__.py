"""Tables and sentences made from rows, races and graphs."""

from tclab.lab.reports._graphs import network_table, reach_rows
from tclab.lab.reports._tables import race_findings, rows_of_points

__all__ = ["network_table", "race_findings", "reach_rows", "rows_of_points"]
__dir__ = __all__.copy  # completion offers these
