"""Views: B node-deleted copies of one graph, as a model reads them, and `SharedGraph`, a layer of one."""

from tclab.message_passing._delta_view import DeltaView
from tclab.message_passing._edge_list_view import EdgeList, EdgeListView
from tclab.message_passing._layerwise_view import LayerwiseView, layerwise
from tclab.message_passing._shared_graph import SharedGraph
from tclab.message_passing._shared_view import SharedView
from tclab.message_passing._view import NeedsEdgesError, View
from tclab.message_passing.kernels._spmm import spmm

__all__ = [
    "DeltaView",
    "EdgeList",
    "EdgeListView",
    "LayerwiseView",
    "NeedsEdgesError",
    "SharedGraph",
    "SharedView",
    "View",
    "layerwise",
    "spmm",
]
