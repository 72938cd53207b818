"""Public files of the yeast cell: a function for each format, and `read_folder` for a folder of them."""

from tclab.errors import need

need(__name__, "readers", "pandas", "pyarrow")

from tclab.readers._edge_list import edge_list
from tclab.readers._genes import dango_genes, sgd_features, sgd_gene_names
from tclab.readers._networks import biogrid, sgd_regulation, string_dango, string_links, tflink
from tclab.readers._read_folder import read_folder
from tclab.readers._screens import costanzo, kuzmin, read_perturbations, sga_trigenic
from tclab.readers._table import ReadError
from tclab.readers._yeast_gem import metabolism_of, yeast_gem

__all__ = [
    "ReadError",
    "biogrid",
    "costanzo",
    "dango_genes",
    "edge_list",
    "kuzmin",
    "metabolism_of",
    "read_folder",
    "read_perturbations",
    "sga_trigenic",
    "sgd_features",
    "sgd_gene_names",
    "sgd_regulation",
    "string_dango",
    "string_links",
    "tflink",
    "yeast_gem",
]
__dir__ = __all__.copy  # completion offers these
