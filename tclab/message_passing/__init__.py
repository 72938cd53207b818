"""Views, which are B node-deleted copies of one graph, and PyG's convolutions over a `tclab.SharedGraph`."""

from tclab.message_passing._changed_rows import ChangedRows
from tclab.message_passing._shared_convs import (
    SharedGATv2Conv,
    SharedGCNConv,
    SharedGINConv,
    SharedHeteroConv,
    SharedSAGEConv,
    to_grid,
    to_rows,
)
from tclab.message_passing._view import SharedView, View

__all__ = [
    "ChangedRows", "SharedGATv2Conv", "SharedGCNConv", "SharedGINConv", "SharedHeteroConv", "SharedSAGEConv",
    "SharedView", "View", "to_grid", "to_rows",
]  # fmt: skip
__dir__ = __all__.copy  # completion offers these
