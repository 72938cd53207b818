"""Public files of the yeast cell: a function for each format, and `read_folder` for a folder of them."""

from tclab.readers.bigg_json import bigg_json
from tclab.readers.biogrid import biogrid
from tclab.readers.edge_list import edge_list
from tclab.readers.errors import ReadError
from tclab.readers.folder import read_folder
from tclab.readers.genes import Genes
from tclab.readers.metabolic_model import MetabolicModel, Reaction, metabolism_of
from tclab.readers.report import FolderReport, Report
from tclab.readers.sbml import sbml
from tclab.readers.sgd_features import sgd_features, sgd_gene_names
from tclab.readers.string_dango import dango_genes, string_dango
from tclab.readers.string_links import string_links
from tclab.readers.yeast_gem import yeast_gem_txt, yeast_gem_yml
from tclab.readers.yeastract import yeastract, yeastract_names

__all__ = [
    "FolderReport",
    "Genes",
    "MetabolicModel",
    "Reaction",
    "ReadError",
    "Report",
    "bigg_json",
    "biogrid",
    "dango_genes",
    "edge_list",
    "metabolism_of",
    "read_folder",
    "sbml",
    "sgd_features",
    "sgd_gene_names",
    "string_dango",
    "string_links",
    "yeast_gem_txt",
    "yeast_gem_yml",
    "yeastract",
    "yeastract_names",
]
