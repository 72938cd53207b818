"""Public files of the yeast cell: a function for each format, and `read_folder` for a folder of them."""

from tclab.readers.errors import ReadError
from tclab.readers.folder import read_folder
from tclab.readers.genes import Genes
from tclab.readers.report import FolderReport, Report
from tclab.readers.string_dango import dango_genes, string_dango
from tclab.readers.yeastract import yeastract, yeastract_names

__all__ = [
    "FolderReport",
    "Genes",
    "ReadError",
    "Report",
    "dango_genes",
    "read_folder",
    "string_dango",
    "yeastract",
    "yeastract_names",
]
