"""SGD's regulation tables: which gene regulates which, as a locus page or YeastMine exports them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from tclab.graph import Network
from tclab.readers.edges import UNKNOWN_LIMIT, Lookup, network_of
from tclab.readers.genes import Genes
from tclab.readers.source import LIMIT_BYTES
from tclab.readers.table import NAME, batches, first_line, header, required

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

    Columns between tabs, or commas where the header has no tab, found by their names: `Regulator Systematic
    Name` and `Target Systematic Name` (`Gene Systematic Name` in YeastMine). Lines before the header that
    begin with `!`, as SGD's downloads do, are passed over. A pair with several annotations is one edge.

    **Raises:** `ReadError` with the line for a wrong number of columns; for a missing column, or too many
    unknown names.
    """
    separator = "\t" if "\t" in first_line(path, comment="!", limit_bytes=limit_bytes)[1] else ","
    columns = header(path, separator=separator, comment="!", limit_bytes=limit_bytes)
    target = next((name for name in _TARGETS if name in columns), _TARGETS[0])
    required(path, columns, (_REGULATOR, target), separator=separator)
    lookup = Lookup(Genes.of(genes))
    ends: list[list[np.ndarray]] = [[], []]
    for batch in batches(
        path,
        columns,
        dict.fromkeys((_REGULATOR, target), NAME),
        separator=separator,
        has_header=True,
        comment="!",
        limit_bytes=limit_bytes,
    ):
        for place in range(2):
            ends[place].append(lookup.places(batch.column(place)))
    return network_of(
        "sgd_regulation",
        np.concatenate(ends[0]),
        np.concatenate(ends[1]),
        lookup,
        path=path,
        directed=True,
        unknown_limit=unknown_limit,
    )
