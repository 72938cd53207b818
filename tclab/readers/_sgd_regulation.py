"""SGD's regulation tables: which gene regulates which, as a locus page or YeastMine exports them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from tclab.graph import Network
from tclab.readers._edge_table import load_network
from tclab.readers._gene_names import UNKNOWN_LIMIT, Genes, Lookup
from tclab.readers._old_source import LIMIT_BYTES
from tclab.readers._table import Table, first_line

SGD_REGULATION_FILE = re.compile(r".*(_|\b)regulation(_annotations)?\.(tsv|txt|tab|csv)(\.gz)?")

_REGULATOR = "Regulator Systematic Name"
_TARGETS = ("Target Systematic Name", "Gene Systematic Name")  # SGD's own pages; YeastMine


def sgd_regulation(
    path: str | Path,
    genes: Genes | Iterable[str],
    *,
    unknown_limit: float = UNKNOWN_LIMIT,
    limit_bytes: int = LIMIT_BYTES,
) -> Network:
    """Return a regulation table as the directed network `sgd_regulation`, regulator → target.

    Columns between tabs, or commas where the header has no tab, found by their names: `Regulator Systematic Name` and
    `Target Systematic Name` (`Gene Systematic Name` in YeastMine). Lines before the header that begin with `!`, as in
    SGD's downloads, are skipped. A pair with several annotations is one edge.

    **Arguments:**

    - `path`: the table.
    - `genes`: the nodes of the network, looked up by systematic name.
    - `unknown_limit`: the share of rows that may be lost to unknown names.
    - `limit_bytes`: how much the file may unpack to.

    **Raises:** `ReadError` with the line for a wrong number of columns; for a missing column, or too many unknown
    names.
    """
    separator = "\t" if "\t" in first_line(path, comment="!", limit_bytes=limit_bytes)[1] else ","
    table = Table(path, separator=separator, comment="!", limit_bytes=limit_bytes)
    target = next((name for name in _TARGETS if name in table.columns), _TARGETS[0])
    return load_network(
        table,
        "sgd_regulation",
        (_REGULATOR, target),
        Lookup(Genes.of(genes)),
        directed=True,
        unknown_limit=unknown_limit,
    )
