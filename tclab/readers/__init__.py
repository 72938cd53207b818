"""Public files of the yeast cell: a function for each format, and `read_folder` for a folder of them."""

from tclab.errors import need

need(__name__, "readers", "pandas", "pyarrow")

from tclab.readers._edge_list import edge_list
from tclab.readers._genes import dango_genes, sgd_features, sgd_gene_names
from tclab.readers._networks import biogrid, sgd_regulation, string_dango, string_links, tflink
from tclab.readers._read_folder import read_folder
from tclab.readers._screens import read_perturbations
from tclab.readers._table import ReadError
from tclab.readers._yeast_gem import yeast_gem

__all__ = [
    "ReadError", "biogrid", "dango_genes", "edge_list", "read_folder", "read_perturbations", "sgd_features",
    "sgd_gene_names", "sgd_regulation", "string_dango", "string_links", "tflink", "yeast_gem",
]  # fmt: skip
__dir__ = __all__.copy  # completion offers these
