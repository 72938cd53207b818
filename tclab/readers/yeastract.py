"""YEASTRACT's regulation tables: which transcription factor regulates which gene.

The "Regulation Matrix" page of yeastract.com exports `RegulationTwoColumnTable_<kind>.tsv`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from tclab.graph import Network
from tclab.readers.edges import UNKNOWN_LIMIT, Lookup, network_of
from tclab.readers.errors import bad_file, shown
from tclab.readers.genes import Genes
from tclab.readers.report import Report
from tclab.readers.source import LIMIT_BYTES
from tclab.readers.table import NAME, TEXT, batches, header

NAMES_FILE = "orftogene.txt"
TWO_COLUMN_FILE = re.compile(r"RegulationTwoColumnTable_(?P<kind>\w+)\.tsv(\.gz)?")

_COLUMNS = ("TF", "target")


def yeastract_names(path: str | Path) -> Genes:
    """Return the genes of `orftogene.txt`: header `Name`, `ORF`, tab between.

    A name that stands with two ORFs is ambiguous, and so unknown to whoever looks it up.

    **Raises:** `ReadError` with the line where the header or a row is not that.
    """
    found = header(path, separator="\t")
    if found != ["Name", "ORF"]:
        raise bad_file(path, f"the header is {shown(found)}, expected Name and ORF, tab between", line=1)
    owners: dict[str, set[str]] = {}
    rows = 0
    for batch in batches(path, found, {"Name": TEXT, "ORF": TEXT}, separator="\t", has_header=True):
        rows += batch.num_rows
        for name, orf in zip(*(batch.column(place).to_pylist() for place in range(2)), strict=True):
            owners.setdefault(name, set()).add(orf)
    standard = {name: tuple(sorted(orfs)) for name, orfs in owners.items()}
    names = tuple(sorted({orf for orfs in standard.values() for orf in orfs}))
    return Genes(names, standard, report=Report(str(path), rows, rows))


def yeastract(
    path: str | Path,
    genes: Genes | Iterable[str] | None = None,
    *,
    names: Genes | None = None,
    unknown_limit: float = UNKNOWN_LIMIT,
    limit_bytes: int = LIMIT_BYTES,
) -> Network:
    """Return `RegulationTwoColumnTable_<kind>.tsv[.gz]` as the directed network `yeastract_<kind>`.

    Two columns between semicolons, no header: transcription factor, target, by standard name. A factor that
    regulates its own gene is a self-loop, kept and counted.

    **Arguments:**

    - `genes`: the nodes of the network; without it, those of `names`.
    - `names`: which gene a name means; without it, `orftogene.txt` beside the file, where there is one. What
      it does not know is looked up in `genes`.
    - `unknown_limit`: the share of rows that may be lost to unknown names.

    **Raises:** `ReadError` with the line for a wrong number of columns; for too many unknown names.
    """
    path = Path(path)
    beside = path.with_name(NAMES_FILE)
    if names is None and beside.exists():
        names = yeastract_names(beside)
    if genes is None and names is None:
        raise bad_file(path, f"names its genes by standard name; expected {NAMES_FILE} beside it, or genes")
    lookup = Lookup(names if genes is None else Genes.of(genes), first=names)  # type: ignore[arg-type]
    sources, targets = [], []
    for batch in batches(
        path,
        _COLUMNS,
        dict.fromkeys(_COLUMNS, NAME),
        separator=";",
        has_header=False,
        limit_bytes=limit_bytes,
    ):
        sources.append(lookup.places(batch.column(0)))
        targets.append(lookup.places(batch.column(1)))
    named = TWO_COLUMN_FILE.fullmatch(path.name)
    return network_of(
        f"yeastract_{named['kind'] if named else path.name.split('.')[0]}",
        np.concatenate(sources),
        np.concatenate(targets),
        lookup,
        path=path,
        directed=True,
        unknown_limit=unknown_limit,
    )
