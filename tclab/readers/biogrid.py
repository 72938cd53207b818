"""BioGRID's interaction tables, tab 2.0 and tab 3.0.

https://wiki.thebiogrid.org/doku.php/biogrid_tab_version_2.0 and `…_3.0`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from tclab.graph import Network
from tclab.readers.edges import UNKNOWN_LIMIT, Lookup, equals, network_of
from tclab.readers.errors import shown
from tclab.readers.genes import Genes
from tclab.readers.source import LIMIT_BYTES, Progress
from tclab.readers.table import NAME, bad_row, batches, header, required

BIOGRID_FILE = re.compile(r"BIOGRID-.+\.tab[23](\.txt)?(\.gz)?")
YEAST = 559292  # NCBI taxon of S. cerevisiae S288C; STRING says 4932

_ENDS = ("Systematic Name Interactor A", "Systematic Name Interactor B")
_SYSTEM = "Experimental System Type"
_ORGANISMS = {  # what tab 2.0 calls the taxon, and tab 3.0
    "A": ("Organism Interactor A", "Organism ID Interactor A"),
    "B": ("Organism Interactor B", "Organism ID Interactor B"),
}


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

    Columns between tabs, found by the names in the header, which begins with `#`. Bait and prey make no
    direction. A pair that several experiments report is one edge.

    **Arguments:**

    - `path`: a `.tab3.txt` file.
    - `genes`: the nodes of the network, looked up by systematic name.
    - `system_type`: `physical` or `genetic`; None takes both, as the network `biogrid`.
    - `organism`: the NCBI taxon that both ends must have; None takes any.
    - `self_loops`: whether a protein that binds itself is kept.
    - `unknown_limit`: the share of rows that may be lost to unknown names.
    - `limit_bytes`: how much the file may unpack to.
    - `progress`: called as the file is read.

    **Raises:** `ReadError` with the line for a wrong number of columns or an unknown experimental system
    type; for a missing column, or too many names that are not in `genes`.
    """
    columns = header(path, separator="\t")
    required(path, columns, (*_ENDS, _SYSTEM), separator="\t")
    taxa = [name for names in _ORGANISMS.values() for name in names if name in columns]
    if organism is not None and len(taxa) != 2:
        required(path, columns, [names[1] for names in _ORGANISMS.values()], separator="\t")
    lookup = Lookup(Genes.of(genes))
    dropped: Counter[str] = Counter()
    rows = 0
    ends: list[list[np.ndarray]] = [[], []]
    for batch in batches(
        path,
        columns,
        dict.fromkeys((*_ENDS, _SYSTEM, *taxa), NAME),
        separator="\t",
        has_header=True,
        limit_bytes=limit_bytes,
        progress=progress,
    ):
        kept = np.ones(batch.num_rows, dtype=bool)
        systems = batch.column(2)
        for system in systems.dictionary.to_pylist():
            if system not in ("physical", "genetic"):
                row = rows + int(np.argmax(equals(systems, system)))
                why = f"{_SYSTEM} is {shown(system)}, expected physical or genetic"
                raise bad_row(path, row, why, has_header=True)
        rows += batch.num_rows
        if system_type is not None:
            is_kind = equals(systems, system_type)
            dropped[f"{_SYSTEM} is not {system_type}"] += int((~is_kind).sum())
            kept &= is_kind
        if organism is not None:
            of_yeast = equals(batch.column(3), str(organism)) & equals(batch.column(4), str(organism))
            dropped[f"organism is not {organism}"] += int((kept & ~of_yeast).sum())
            kept &= of_yeast
        for place in range(2):
            ends[place].append(lookup.places(batch.column(place).filter(kept)))
    return network_of(
        f"biogrid_{system_type}" if system_type else "biogrid",
        np.concatenate(ends[0]),
        np.concatenate(ends[1]),
        lookup,
        path=path,
        directed=False,
        dropped=dropped,
        self_loops=self_loops,
        unknown_limit=unknown_limit,
    )
