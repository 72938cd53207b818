"""Views: B node-deleted copies of one graph, as a model reads them, and `SharedGraph`, a layer of one."""

from tclab.message_passing._edge_list_view import EdgeList, EdgeListView
from tclab.message_passing._layerwise_view import layerwise
from tclab.message_passing._shared_graph import SharedGraph
from tclab.message_passing._shared_view import SharedView
from tclab.message_passing._view import NeedsEdgesError, View

__all__ = [
    "EdgeList",
    "EdgeListView",
    "NeedsEdgesError",
    "SharedGraph",
    "SharedView",
    "View",
    "layerwise",
]
__dir__ = __all__.copy  # completion offers these
