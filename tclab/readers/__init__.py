"""Public files of the yeast cell: a function for each format, and `read_folder` for a folder of them."""

from tclab.errors import need

need(__name__, "readers", "pandas", "pyarrow")

from tclab.readers._bigg_json import bigg_json
from tclab.readers._biogrid import biogrid
from tclab.readers._edge_list import edge_list
from tclab.readers._metabolic_model import metabolism_of
from tclab.readers._old_source import ReadError
from tclab.readers._read_folder import read_folder
from tclab.readers._read_perturbations import read_perturbations
from tclab.readers._sbml import sbml
from tclab.readers._screen_formats import costanzo, kuzmin, kuzmin_fitness, sga_digenic, sga_trigenic
from tclab.readers._sgd_features import sgd_features, sgd_gene_names
from tclab.readers._sgd_regulation import sgd_regulation
from tclab.readers._string_dango import dango_genes, string_dango
from tclab.readers._string_links import string_links
from tclab.readers._tflink import tflink
from tclab.readers._yeast_gem import yeast_gem
from tclab.readers._yeastract import yeastract, yeastract_names

__all__ = [
    "ReadError",
    "bigg_json",
    "biogrid",
    "costanzo",
    "dango_genes",
    "edge_list",
    "kuzmin",
    "kuzmin_fitness",
    "metabolism_of",
    "read_folder",
    "read_perturbations",
    "sbml",
    "sga_digenic",
    "sga_trigenic",
    "sgd_features",
    "sgd_gene_names",
    "sgd_regulation",
    "string_dango",
    "string_links",
    "tflink",
    "yeast_gem",
    "yeastract",
    "yeastract_names",
]
__dir__ = __all__.copy  # completion offers these
