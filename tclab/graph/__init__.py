"""The graph: `CellGraph`, nodes by type with named networks; its variants, degrees and synthetic cells."""

from tclab.graph._cell_graph import CellGraph, keep_graph
from tclab.graph._network import Network
from tclab.graph._synthetic_graph import NETWORK_SIZES
from tclab.graph._variants import merged, variant_of

__all__ = ["NETWORK_SIZES", "CellGraph", "Network", "keep_graph", "merged", "variant_of"]
__dir__ = __all__.copy  # completion offers these
