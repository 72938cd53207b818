"""Public files of the yeast cell: a function for each format, and `read_folder` for a folder of them."""

from tclab.readers.bigg_json import bigg_json
from tclab.readers.biogrid import biogrid
from tclab.readers.costanzo import costanzo
from tclab.readers.edge_list import edge_list
from tclab.readers.errors import ReadError
from tclab.readers.folder import read_folder
from tclab.readers.genes import Genes
from tclab.readers.kuzmin import kuzmin, kuzmin_fitness
from tclab.readers.metabolic_model import MetabolicModel, Reaction, metabolism_of
from tclab.readers.report import FolderReport, Report
from tclab.readers.sbml import sbml
from tclab.readers.screen import Screen
from tclab.readers.sga_pipeline import sga_digenic, sga_trigenic
from tclab.readers.sgd_features import sgd_features, sgd_gene_names
from tclab.readers.sgd_regulation import sgd_regulation
from tclab.readers.string_dango import dango_genes, string_dango
from tclab.readers.string_links import string_links
from tclab.readers.tflink import tflink, tflink_targets
from tclab.readers.yeast_gem import yeast_gem_txt, yeast_gem_yml
from tclab.readers.yeastract import yeastract, yeastract_matrix, yeastract_names, yeastract_pairs

__all__ = [
    "FolderReport",
    "Genes",
    "MetabolicModel",
    "Reaction",
    "ReadError",
    "Report",
    "Screen",
    "bigg_json",
    "biogrid",
    "costanzo",
    "dango_genes",
    "edge_list",
    "kuzmin",
    "kuzmin_fitness",
    "metabolism_of",
    "read_folder",
    "sbml",
    "sga_digenic",
    "sga_trigenic",
    "sgd_features",
    "sgd_gene_names",
    "sgd_regulation",
    "string_dango",
    "string_links",
    "tflink",
    "tflink_targets",
    "yeast_gem_txt",
    "yeast_gem_yml",
    "yeastract",
    "yeastract_matrix",
    "yeastract_names",
    "yeastract_pairs",
]
