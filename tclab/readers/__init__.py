"""Public files of the yeast cell: a function for each format, and `read_folder` for a folder of them."""

from tclab.readers.biogrid import biogrid
from tclab.readers.edge_list import edge_list
from tclab.readers.errors import ReadError
from tclab.readers.folder import read_folder
from tclab.readers.genes import Genes
from tclab.readers.report import FolderReport, Report
from tclab.readers.sgd_features import sgd_features, sgd_gene_names
from tclab.readers.string_dango import dango_genes, string_dango
from tclab.readers.string_links import string_links
from tclab.readers.yeastract import yeastract, yeastract_names

__all__ = [
    "FolderReport",
    "Genes",
    "ReadError",
    "Report",
    "biogrid",
    "dango_genes",
    "edge_list",
    "read_folder",
    "sgd_features",
    "sgd_gene_names",
    "string_dango",
    "string_links",
    "yeastract",
    "yeastract_names",
]
