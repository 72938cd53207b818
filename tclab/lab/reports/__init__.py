"""Tables made from rows and graphs."""

from tclab.lab.reports._graphs import network_table, reach_rows
from tclab.lab.reports._tables import rows_of_points

__all__ = ["network_table", "reach_rows", "rows_of_points"]
__dir__ = __all__.copy  # completion offers these
