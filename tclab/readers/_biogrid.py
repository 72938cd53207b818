"""BioGRID's interaction tables, tab 2.0 and tab 3.0.

https://wiki.thebiogrid.org/doku.php/biogrid_tab_version_2.0 and `…_3.0`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pyarrow as pa

from tclab.graph import Network
from tclab.readers._edge_table import Filter, equals, load_network
from tclab.readers._gene_names import UNKNOWN_LIMIT, Genes, Lookup
from tclab.readers._old_source import LIMIT_BYTES, Progress, quoted
from tclab.readers._table import Table

BIOGRID_FILE = re.compile(r"BIOGRID-.+\.tab[23](\.txt)?(\.gz)?")
YEAST = 559292  # NCBI taxon of S. cerevisiae S288C; STRING uses 4932

_ENDS = ("Systematic Name Interactor A", "Systematic Name Interactor B")
_SYSTEM = "Experimental System Type"
_SYSTEMS = ("physical", "genetic")
_TAXA = (  # in tab 2.0, and in tab 3.0
    ("Organism Interactor A", "Organism Interactor B"),
    ("Organism ID Interactor A", "Organism ID Interactor B"),
)


def biogrid(
    path: str | Path,
    genes: Genes | Iterable[str],
    *,
    system_type: str | None = "physical",
    organism: int | None = YEAST,
    self_loops: bool = True,
    unknown_limit: float = UNKNOWN_LIMIT,
    limit_bytes: int = LIMIT_BYTES,
    progress: Progress | None = None,
) -> Network:
    """Return a table's interactions as the undirected network `biogrid_<system_type>`.

    Columns between tabs, found by the names in the header, which begins with `#`. Bait and prey give no direction. A
    pair that several experiments report is one edge.

    **Arguments:**

    - `path`: a `.tab3.txt` or `.tab2.txt` file.
    - `genes`: the nodes of the network, looked up by systematic name.
    - `system_type`: `physical` or `genetic`; None takes both, as the network `biogrid`.
    - `organism`: the NCBI taxon that both ends must have; None takes any.
    - `self_loops`: whether a protein that binds itself is kept.
    - `unknown_limit`: the share of rows that may be lost to unknown names.
    - `limit_bytes`: how much the file may unpack to.
    - `progress`: called as the file is read.

    **Raises:** `ReadError` with the line for a wrong number of columns or an unknown experimental system type; for a
    missing column, or too many names that are not in `genes`.
    """
    table = Table(path, limit_bytes=limit_bytes, progress=progress)
    filters = []
    if system_type is not None:
        filters.append(Filter([_SYSTEM], system_type, f"{_SYSTEM} is not {system_type}"))
    if organism is not None:
        taxa = _TAXA[0] if all(name in table.columns for name in _TAXA[0]) else _TAXA[1]
        filters.append(Filter(taxa, str(organism), f"organism is not {organism}"))

    def check(batch: pa.RecordBatch, rows_before: int) -> None:
        systems = batch.column(_SYSTEM)
        for system in systems.dictionary.to_pylist():
            if system not in _SYSTEMS:
                row = rows_before + int(np.argmax(equals(systems, system)))
                raise table.bad_row(row, f"{_SYSTEM} is {quoted(system)}, expected {' or '.join(_SYSTEMS)}")

    return load_network(
        table,
        f"biogrid_{system_type}" if system_type else "biogrid",
        _ENDS,
        Lookup(Genes.of(genes)),
        directed=False,
        filters=filters,
        check=check,
        checked=[_SYSTEM],
        self_loops=self_loops,
        unknown_limit=unknown_limit,
    )
