"""The reader of a folder of public files as one graph."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tclab._source import guarded
from tclab.errors import require
from tclab.graph import Network
from tclab.graph._cell_graph import CellGraph
from tclab.readers import _networks as networks
from tclab.readers._genes import DANGO_GENES_FILE, Genes, Report, dango_genes, sgd_features, sgd_gene_names
from tclab.readers._table import ReadError
from tclab.readers._yeast_gem import YML_FILE, yeast_gem

_Formats = list[tuple[re.Pattern[str], Callable[..., Any]]]
_GENE_FILES: _Formats = [
    (re.compile(re.escape(DANGO_GENES_FILE)), dango_genes),
    (re.compile(r"SGD_features.*\.tab(\.gz)?"), sgd_features),
    (re.compile(r"SGDgeneNames\.tsv"), sgd_gene_names),
]
# Regulatory, physical, TFLink, STRING: the order of the synthetic graph.
_NETWORK_FILES: _Formats = [
    (re.compile(r".*(_|\b)regulation(_annotations)?\.(tsv|txt|tab|csv)(\.gz)?"), networks.sgd_regulation),
    (re.compile(r"BIOGRID-.+\.tab[23](\.txt)?(\.gz)?"), networks.biogrid),
    (re.compile(r"(TFLink_.*)?simpleFormat.*\.tsv(\.gz)?"), networks.tflink),
    (networks.ADJACENCY_FILE, networks.string_dango),
    (networks.LINKS_FILE, networks.string_links),
]
_SCREENS = (
    r"(?i:(aao1729|aaz5667)\w*[_-](Data|Table)[_-]?(S1|S3)\w*\.(tsv|txt|csv|xlsx)(\.gz)?)"
    r"|(?i:SGA_(ExE|NxN|ExN_NxE|DAmP)\w*\.txt(\.gz)?)|scored_\w*trigenic\w*\.txt(\.gz)?"
)
_NOT_THE_GRAPH = [
    (re.compile(_SCREENS), "perturbations: read it with tclab.readers.read_perturbations"),
    (re.compile(r"RegulationTwoColumnTable_.*|.*yeastract.*"), "read it with tclab.readers.edge_list"),
    (re.compile(r".*\.links\.full\..*"), "STRING's full table; take links.detailed"),
    (YML_FILE, "a second metabolic model"),
]


@dataclass(frozen=True)
class FolderReport:
    """What a reader did with the files of a folder.

    **Arguments:**

    - `path`: the folder.
    - `read`: file → its report, in the order of the file names.
    - `ignored`: file → why it was not read.
    """

    path: str
    read: Mapping[str, Report]
    ignored: Mapping[str, str]

    def __str__(self) -> str:
        counts = f"{self.path}: {len(self.read)} files read, {len(self.ignored)} ignored"
        ignored = (f"{path}: {why}" for path, why in self.ignored.items())
        return "\n  ".join([counts, *map(str, self.read.values()), *ignored])


def read_folder(path: str | Path) -> CellGraph:
    """Return the graph of all files in a folder and its subfolders that tclab can read.

    The nodes, of type "gene", are the sorted union of the folder's gene lists. The networks are in the order
    regulatory, physical, TFLink, STRING's, as in the synthetic graph; one without an edge is left out. Formats are
    recognised by the files' names.

    `graph.report` lists the files that were read and ignored, `graph.networks[name].report` the rows that were kept.

    **Raises:** `ReadError` for a folder that does not exist or has no gene list or network, and for a bad file.
    """
    require("path", path, (str, os.PathLike), "a folder")
    with guarded(path, "a folder of public files", ReadError):
        if not os.path.isdir(path) or not str(path):
            raise ValueError("is a file, expected a folder" if os.path.isfile(path) else "no such folder")
        return _graph(Path(path))


def _graph(path: Path) -> CellGraph:
    files = _files(path)
    lists = {name: function(files[name]) for name, function in _known(files, _GENE_FILES)}
    if not lists:
        like = f"{DANGO_GENES_FILE}, SGD_features.tab or SGDgeneNames.tsv"
        raise ValueError(f"no gene list in it that tclab can read; expected a file such as {like}")
    genes = Genes.union(list(lists.values()))
    read: dict[str, Report] = {name: genes_of.report for name, genes_of in lists.items()}
    ignored: dict[str, str] = {}
    found: dict[str, Network] = {}
    for name, function in _known(files, _NETWORK_FILES):
        try:
            result = function(files[name], genes)
        except networks.NoRowError as error:
            ignored[name] = str(error)
            continue
        for network in result.values() if isinstance(result, dict) else [result]:
            if not network.num_edges:
                ignored[name] = f"keeps no edge: {network.report}"
            elif network.name in found:
                ignored[name] = f"has the network {network.name}, already read from {found[network.name].report.path}"
            else:
                found[network.name] = network
                read[name] = network.report
    num_nodes, node_names = {"gene": len(genes)}, {"gene": genes.names}
    relations = {name: found[name] for name in sorted(found, key=_place)}
    for name, function in _known(files, [(YML_FILE, yeast_gem)])[:1]:  # a second is ignored
        gpr, stoichiometry = function(files[name], genes)
        relations |= {"gpr": gpr, "stoichiometry": stoichiometry}
        num_nodes |= {"reaction": gpr.num_targets, "metabolite": stoichiometry.num_targets}
        node_names |= {"reaction": gpr.report.node_names, "metabolite": stoichiometry.report.node_names}
        read[name] = gpr.report
    if not relations:
        like = "yeast_string_fusion_adjacency.txt or BIOGRID-….tab3.txt"
        raise ValueError(f"no network in it that tclab can read; expected a file such as {like}")
    for name in files.keys() - read.keys() - ignored.keys():
        why = next((why for pattern, why in _NOT_THE_GRAPH if pattern.fullmatch(files[name].name)), None)
        ignored[name] = why or "not a file name of a known format"
    ignored = {name: why for name, why in sorted(ignored.items()) if name not in read}
    report = FolderReport(str(path), dict(sorted(read.items())), ignored)
    return CellGraph(num_nodes, relations, "gene", node_names, source=path.resolve().name, report=report)


def _files(path: Path) -> dict[str, Path]:
    """Return the files in a folder and its subfolders by their path from there; hidden ones are left out."""
    files = {str(file.relative_to(path)): file for file in sorted(path.rglob("*")) if not file.is_dir()}
    return {name: file for name, file in files.items() if not any(part.startswith(".") for part in Path(name).parts)}


def _known(files: Mapping[str, Path], formats: _Formats) -> list[tuple[str, Callable[..., Any]]]:
    """Return the files of some formats and what reads them, in the order of the formats, then of the names."""
    return [(name, read) for form, read in formats for name, file in files.items() if form.fullmatch(file.name)]


def _place(name: str) -> tuple[bool, list[int], int]:
    """Return the sort key of a network: STRING's come last, by version and channel as in the synthetic graph."""
    start, _, channel = name.rpartition("_")
    version = [int(part) for part in re.findall(r"\d+", start)]
    channels = [*networks.CHANNELS, channel]  # others behind those, and all networks that have no channels together
    return name.startswith("string"), version, channels.index(channel)
