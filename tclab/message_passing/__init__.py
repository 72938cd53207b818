"""Views: B node-deleted copies of one graph, as a model reads them, and `SharedGraph`, a layer of one."""

from tclab.message_passing._shared_graph import SharedGraph
from tclab.message_passing._shared_view import SharedView
from tclab.message_passing._view import View

__all__ = [
    "SharedGraph",
    "SharedView",
    "View",
]
__dir__ = __all__.copy  # completion offers these
