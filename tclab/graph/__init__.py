"""The graph: `tclab.CellGraph` is nodes by type with named networks, each a `Network`."""

from tclab.graph._network import Network

__all__ = ["Network"]
__dir__ = __all__.copy  # completion offers these
