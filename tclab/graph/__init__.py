"""The graph: `CellGraph`, nodes by type with named networks; its variants, degrees and synthetic cells."""

from tclab.graph._cell_graph import CellGraph, keep_graph
from tclab.graph._network import Network

__all__ = [
    "CellGraph",
    "Network",
    "keep_graph",
]
__dir__ = __all__.copy  # completion offers these
