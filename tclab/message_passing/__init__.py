"""What a model sees: B node-deleted copies of one graph, as a view."""

from tclab.message_passing.delta import DeltaView
from tclab.message_passing.edge_list import EdgeList, EdgeListView, wild_type_by_edges
from tclab.message_passing.shared import SharedView, wild_type_by_sharing
from tclab.message_passing.shared_graph import SharedGraph
from tclab.message_passing.spmm import spmm
from tclab.message_passing.view import NeedsEdgesError, View

__all__ = [
    "DeltaView",
    "EdgeList",
    "EdgeListView",
    "NeedsEdgesError",
    "SharedGraph",
    "SharedView",
    "View",
    "spmm",
    "wild_type_by_edges",
    "wild_type_by_sharing",
]
