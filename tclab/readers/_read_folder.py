"""The reader of a folder of public files as one graph."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from tclab.errors import InputError, require
from tclab.graph import Network
from tclab.graph._cell_graph import CellGraph
from tclab.readers._bigg_json import BIGG_FILE, bigg_json
from tclab.readers._biogrid import BIOGRID_FILE, biogrid
from tclab.readers._gene_names import Genes
from tclab.readers._metabolic_model import MetabolicModel, metabolism_of
from tclab.readers._old_source import ReadError, bad_file
from tclab.readers._read_report import FolderReport, Report
from tclab.readers._sbml import SBML_FILE, sbml
from tclab.readers._screen_formats import SCREEN_READERS
from tclab.readers._sgd_features import FEATURES_FILE, GENE_NAMES_FILE, sgd_features, sgd_gene_names
from tclab.readers._sgd_regulation import SGD_REGULATION_FILE, sgd_regulation
from tclab.readers._string_dango import ADJACENCY_FILE, GENES_FILE, dango_genes, string_dango
from tclab.readers._string_links import CHANNELS, LINKS_FILE, string_links
from tclab.readers._tflink import TARGETS_FILE, TFLINK_FILE, tflink
from tclab.readers._yeast_gem import TXT_FILE, YML_FILE, yeast_gem
from tclab.readers._yeastract import (
    MATRIX_FILE,
    NAMES_FILE,
    PAIRS_FILE,
    TWO_COLUMN_FILE,
    yeastract,
    yeastract_names,
)

_T = TypeVar("_T")

_GENE_FILES: list[tuple[re.Pattern[str], Callable[[Path], Genes]]] = [
    (re.compile(re.escape(GENES_FILE)), dango_genes),
    (re.compile(re.escape(NAMES_FILE)), yeastract_names),
    (FEATURES_FILE, sgd_features),
    (re.compile(re.escape(GENE_NAMES_FILE)), sgd_gene_names),
]
_NETWORK_FILES: list[tuple[re.Pattern[str], Callable[[Path, Genes], Network | dict[str, Network]]]] = [
    (ADJACENCY_FILE, string_dango),
    (LINKS_FILE, string_links),
    (BIOGRID_FILE, biogrid),
    (TWO_COLUMN_FILE, yeastract),
    (MATRIX_FILE, yeastract),
    (PAIRS_FILE, yeastract),
    (TFLINK_FILE, tflink),
    (SGD_REGULATION_FILE, sgd_regulation),
]
# The first that exists becomes the metabolism: yeast-GEM before BiGG, all digits of the coefficients before five.
_MODEL_FILES: list[tuple[re.Pattern[str], Callable[[Path], MetabolicModel]]] = [
    (YML_FILE, yeast_gem),
    (TXT_FILE, yeast_gem),
    (BIGG_FILE, bigg_json),
    (SBML_FILE, sbml),
]
_NOT_THE_GRAPH = [
    *(
        (screen.files, f"perturbations: read it with tclab.readers.read_perturbations or tclab.readers.{screen.name}")
        for screen in SCREEN_READERS
    ),
    (re.compile(r"YeastTFConsensus\.csv"), "binding motifs of factors, not edges"),
    (TARGETS_FILE, "does not name its factor: read it with tclab.readers.tflink and factor="),
]
# Regulatory, physical, TFLink, STRING: the order of the synthetic graph.
_ORDER = ("yeastract", "sgd_regulation", "biogrid", "tflink", "string")


def read_folder(path: str | Path, *, progress: Callable[[str], None] | None = None) -> CellGraph:
    """Return the graph of all files in a folder and its subfolders that tclab can read.

    The nodes, of type "gene", are the sorted union of the folder's gene lists. The networks are in the order
    regulatory, physical, TFLink, STRING's channels, as in the synthetic graph; one without an edge is left
    out. Of several metabolic models the first of yeast-GEM's `.yml`, its `.txt`, BiGG's JSON and SBML is taken. Formats
    are recognised by the files' names.

    `graph.report` lists the files that were read and ignored, `graph.networks[name].report` the rows that were kept.

    **Arguments:**

    - `path`: the folder.
    - `progress`: called with each file before it is read.

    **Raises:** `ReadError` for a folder that does not exist or has no gene list or network, and for a bad file.
    """
    require("path", path, (str, os.PathLike), "a folder")
    if not str(path):
        raise bad_file("''", "is no path, expected a folder")
    path = Path(path)
    if not os.path.isdir(path):  # which is false for a name that is too long
        raise bad_file(path, "no such folder" if not os.path.exists(path) else "is a file, expected a folder")
    return _Folder(path, progress or (lambda name: None)).graph()


class _Folder:
    def __init__(self, path: Path, progress: Callable[[str], None]):
        self.path, self.progress = path, progress
        self.read: dict[str, Report] = {}
        self.ignored: dict[str, str] = {}
        self.networks: dict[str, Network] = {}
        self.files = {str(file.relative_to(path)): file for file in _files(path)}

    def graph(self) -> CellGraph:
        genes = self._genes()
        for name, function in self._known(_NETWORK_FILES):
            self.progress(name)
            result = function(self.files[name], genes)
            for network in [result] if isinstance(result, Network) else result.values():
                self._take(name, network)
        num_nodes = {"gene": len(genes)}
        node_names = {"gene": genes.names}
        relations = {name: self.networks[name] for name in sorted(self.networks, key=_place)}
        if model := self._model():
            metabolism = metabolism_of(model, genes)
            relations |= {"gpr": metabolism.gpr, "stoichiometry": metabolism.stoichiometry}
            num_nodes |= {"reaction": metabolism.gpr.num_targets, "metabolite": metabolism.stoichiometry.num_targets}
            node_names |= {
                "reaction": metabolism.gpr.report.node_names,
                "metabolite": metabolism.stoichiometry.report.node_names,
            }
        for name, file in self.files.items():
            if name not in self.read:
                known = [why for pattern, why in _NOT_THE_GRAPH if pattern.fullmatch(file.name)]
                self.ignored.setdefault(name, [*known, "not a file name of a known format"][0])
        if not relations:
            like = "yeast_string_fusion_adjacency.txt or RegulationTwoColumnTable_both.tsv"
            raise bad_file(self.path, f"no network in it that tclab can read; expected a file such as {like}")
        ignored = dict(sorted(self.ignored.items()))
        report = FolderReport(str(self.path), self.read, ignored, genes.ambiguous)
        source = self.path.resolve().name
        return CellGraph(num_nodes, relations, "gene", node_names=node_names, source=source, report=report)

    def _known(self, formats: Sequence[tuple[re.Pattern[str], _T]]) -> list[tuple[str, _T]]:
        files = self.files.items()
        return [(name, function) for name, file in files for form, function in formats if form.fullmatch(file.name)]

    def _genes(self) -> Genes:
        lists = []
        for name, function in self._known(_GENE_FILES):
            self.progress(name)
            genes = function(self.files[name])
            lists.append(genes)
            if genes.report:
                self.read[name] = genes.report
        if not lists:
            like = "yeast_string_genes.txt, orftogene.txt, SGD_features.tab or SGDgeneNames.tsv"
            raise bad_file(self.path, f"no gene list in it that tclab can read; expected a file such as {like}")
        return Genes.union(lists)

    def _take(self, name: str, network: Network) -> None:
        if not network.num_edges:
            self.ignored[name] = f"keeps no edge: {network.report}"
        elif network.name in self.networks:
            other = self.networks[network.name].report.path
            self.ignored[name] = f"has the network {network.name}, already read from {other}"
        else:
            self.networks[network.name] = network
            self.read[name] = network.report
            self.ignored.pop(name, None)

    def _model(self) -> MetabolicModel | None:
        taken: MetabolicModel | None = None
        for pattern, function in _MODEL_FILES:
            for name, file in self.files.items():
                if not pattern.fullmatch(file.name):
                    continue
                if taken:
                    self.ignored[name] = f"a second metabolic model, after {taken.path}"
                    continue
                self.progress(name)
                try:
                    taken = function(file)
                except ReadError:
                    raise
                except InputError as error:  # the package that reads it is not installed
                    self.ignored[name] = str(error)
                    continue
                number = len(taken.reactions)
                self.read[name] = Report(str(file), number, number)
        return taken


def _files(path: Path) -> list[Path]:
    listed = []
    for folder, folders, files in os.walk(path):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        listed += [Path(folder, name) for name in sorted(files) if not name.startswith(".")]
    return listed


def _place(name: str) -> tuple[int, list[int], int, str]:
    """Return the sort key of a network: source, then STRING's version and channel."""
    kind = next((place for place, start in enumerate(_ORDER) if name.startswith(start)), len(_ORDER))
    start, _, channel = name.rpartition("_")
    version = [int(part) for part in re.findall(r"\d+", start)] if kind == _ORDER.index("string") else []
    return kind, version, CHANNELS.index(channel) if channel in CHANNELS else len(CHANNELS), name
