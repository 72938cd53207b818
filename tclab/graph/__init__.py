"""What is perturbed: one large graph of typed nodes and named networks."""

from tclab.graph.cell_graph import CellGraph, Metabolism, chosen
from tclab.graph.folder import keep_graph
from tclab.graph.merge import VARIANTS, merged, variant_of
from tclab.graph.network import Network, Rows
from tclab.graph.synthetic import NETWORK_SIZES, synthetic_graph

__all__ = [
    "NETWORK_SIZES",
    "VARIANTS",
    "CellGraph",
    "Metabolism",
    "Network",
    "Rows",
    "chosen",
    "keep_graph",
    "merged",
    "synthetic_graph",
    "variant_of",
]
