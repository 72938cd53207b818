"""TFLink's interaction tables: which transcription factor has which target, from many databases.

https://tflink.net/download: `TFLink_<organism>_interactions_<kind>_simpleFormat_v1.0.tsv`, and the tables of one
factor's targets, `targets_of_<UniProt id>.tsv`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from tclab.graph import Network
from tclab.readers._edge_table import Filter, load_network
from tclab.readers._gene_names import UNKNOWN_LIMIT, Genes, Lookup
from tclab.readers._old_source import LIMIT_BYTES, Progress, bad_file, quoted
from tclab.readers._table import Table

TFLINK_FILE = re.compile(r"(TFLink_.*)?simpleFormat.*\.tsv(\.gz)?")
TARGETS_FILE = re.compile(r"targets_of_[A-Z0-9]+.*\.tsv(\.gz)?")


def tflink(
    path: str | Path,
    genes: Genes | Iterable[str],
    *,
    organism: str | None = "Saccharomyces cerevisiae",
    small_scale: bool = False,
    factor: str | None = None,
    unknown_limit: float = UNKNOWN_LIMIT,
    limit_bytes: int = LIMIT_BYTES,
    progress: Progress | None = None,
) -> Network:
    """Return a simpleFormat table as the directed network `tflink`, factor → target.

    Columns between tabs, found by the names in the header. Genes have standard names, in `Name.TF` and
    `Name.Target`; `-` is a missing one, and a cell with several (`A;B`) is none of them for certain: both are unknown.

    **Arguments:**

    - `path`: a simpleFormat table, or with `factor` the table of one factor's targets.
    - `genes`: the nodes of the network.
    - `organism`: the value required in the column `Organism`; None takes any.
    - `small_scale`: only interactions with `Small-scale.evidence`.
    - `factor`: the gene of the factor, for a table of its targets: only that file's name says whose they are, as a
      UniProt id.
    - `unknown_limit`: the share of rows that may be lost to unknown names.
    - `limit_bytes`: how much the file may unpack to.
    - `progress`: called as the file is read.

    **Raises:** `ReadError` with the line for a wrong number of columns; for a missing column, too many unknown
    names, or a `factor` that is not in `genes`.
    """
    genes = Genes.of(genes)
    source: str | int = "Name.TF"
    if factor is not None:
        source = genes.place(factor)
        if source < 0:
            raise bad_file(path, f"factor {quoted(factor)} is not in the gene list of {len(genes):,}")
    filters = [] if organism is None else [Filter(["Organism"], organism, f"organism is not {organism}")]
    if small_scale:
        filters.append(Filter(["Small-scale.evidence"], "Yes", "no small-scale evidence"))
    return load_network(
        Table(path, limit_bytes=limit_bytes, progress=progress),
        "tflink",
        (source, "Name.Target"),
        Lookup(genes),
        directed=True,
        filters=filters,
        unknown_limit=unknown_limit,
    )
