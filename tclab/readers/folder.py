"""A folder of public files, read into one graph."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from tclab.graph import NETWORK_SIZES, CellGraph, Network
from tclab.readers.errors import bad_file
from tclab.readers.genes import Genes
from tclab.readers.report import FolderReport, Report
from tclab.readers.string_dango import ADJACENCY_FILE, GENES_FILE, dango_genes, string_dango
from tclab.readers.yeastract import NAMES_FILE, TWO_COLUMN_FILE, yeastract, yeastract_names

_CHANNELS = [name.removeprefix("string12_0_") for name in NETWORK_SIZES if name.startswith("string12_0_")]

_GENE_FILES: dict[str, Callable[[Path], Genes]] = {GENES_FILE: dango_genes, NAMES_FILE: yeastract_names}
_NETWORKS_LIKE = "yeast_string_fusion_adjacency.txt or RegulationTwoColumnTable_both.tsv"


def read_folder(path: str | Path) -> CellGraph:
    """Return the graph of all the files in a folder, and in the folders in it, that tclab can read.

    The nodes, of type "gene", are the sorted union of the genes that the folder's gene lists name. The
    networks come regulatory ones first, then STRING's channels in the order of `NETWORK_SIZES`.
    `graph.report` says what became of each file, `graph.networks[name].report` what became of its rows.

    **Raises:** `ReadError` where there is no such folder, nothing in it can be read, or a file in it is bad.
    """
    path = Path(path)
    if not path.is_dir():
        raise bad_file(path, "no such folder" if not path.exists() else "is a file, expected a folder")
    read: dict[str, Report] = {}
    ignored: dict[str, str] = {}
    lists: list[Genes] = []
    tables: list[tuple[Path, Callable[[Path, Genes], Network]]] = []
    for file in _files(path):
        if reader := _GENE_FILES.get(file.name):
            genes = reader(file)
            lists.append(genes)
            if genes.report:
                read[str(file.relative_to(path))] = genes.report
        elif ADJACENCY_FILE.fullmatch(file.name):
            tables.append((file, string_dango))
        elif TWO_COLUMN_FILE.fullmatch(file.name):
            tables.append((file, yeastract))
        else:
            ignored[str(file.relative_to(path))] = "not a format that is known by this name"
    if not lists or not tables:
        what = "network" if lists else "gene list"
        like = _NETWORKS_LIKE if lists else " or ".join(_GENE_FILES)
        raise bad_file(path, f"no {what} in it that tclab can read; expected a file such as {like}")
    all_genes = Genes.union(lists)
    networks: dict[str, Network] = {}
    for file, read_network in tables:
        network = read_network(file, all_genes)
        if network.name in networks:
            ignored[str(file.relative_to(path))] = (
                f"gives the network {network.name} again, after {networks[network.name].report.path}"
            )
            continue
        networks[network.name] = network
        read[str(file.relative_to(path))] = network.report
    return CellGraph(
        {"gene": len(all_genes)},
        {name: networks[name] for name in sorted(networks, key=_place)},
        "gene",
        node_names={"gene": all_genes.names},
        source=path.resolve().name,
        report=FolderReport(str(path), read, ignored),
    )


def _files(path: Path) -> list[Path]:
    found = []
    for folder, folders, files in os.walk(path):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        found += [Path(folder, name) for name in sorted(files) if not name.startswith(".")]
    return found


def _place(name: str) -> tuple[int, int, str]:
    """Return a network's place: regulatory ones first, STRING's channels as in `NETWORK_SIZES`."""
    if not name.startswith("string"):
        return 0, 0, name
    channel = name.rpartition("_")[2]
    return 1, _CHANNELS.index(channel) if channel in _CHANNELS else len(_CHANNELS), name
