"""TFLink's interaction tables: which transcription factor has which target, from many databases.

https://tflink.net/download: `TFLink_<organism>_interactions_<kind>_simpleFormat_v1.0.tsv`, and the tables of
one factor's targets, `targets_of_<UniProt id>.tsv`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from tclab.graph import Network
from tclab.readers.edges import UNKNOWN_LIMIT, Lookup, equals, network_of
from tclab.readers.errors import bad_file, shown
from tclab.readers.genes import Genes
from tclab.readers.source import LIMIT_BYTES, Progress
from tclab.readers.table import NAME, batches, header, required

TFLINK_FILE = re.compile(r"(TFLink_.*)?simpleFormat.*\.tsv(\.gz)?")
TARGETS_FILE = re.compile(r"targets_of_[A-Z0-9]+.*\.tsv(\.gz)?")


def tflink(
    path: str | Path,
    genes: Genes | Iterable[str],
    *,
    organism: str | None = "Saccharomyces cerevisiae",
    small_scale: bool = False,
    unknown_limit: float = UNKNOWN_LIMIT,
    limit_bytes: int = LIMIT_BYTES,
    progress: Progress | None = None,
) -> Network:
    """Return a simpleFormat table as the directed network `tflink`, factor → target.

    Columns between tabs, found by the names in the header. Genes go by `Name.TF` and `Name.Target`, standard
    names; `-` is a missing one, and a cell with several (`A;B`) means none of them for certain: both are
    unknown.

    **Arguments:**

    - `path`: a simpleFormat table.
    - `genes`: the nodes of the network.
    - `organism`: what the column `Organism` must say; None takes any.
    - `small_scale`: only interactions with `Small-scale.evidence`.
    - `unknown_limit`: the share of rows that may be lost to unknown names.
    - `limit_bytes`: how much the file may unpack to.
    - `progress`: called as the file is read.

    **Raises:** `ReadError` with the line for a wrong number of columns; for a missing column, or too many
    unknown names.
    """
    return _network(
        path,
        Genes.of(genes),
        ("Name.TF", "Name.Target"),
        organism,
        small_scale,
        unknown_limit,
        limit_bytes,
        progress,
    )


def tflink_targets(
    path: str | Path,
    genes: Genes | Iterable[str],
    *,
    factor: str,
    organism: str | None = "Saccharomyces cerevisiae",
    small_scale: bool = False,
    unknown_limit: float = UNKNOWN_LIMIT,
    limit_bytes: int = LIMIT_BYTES,
) -> Network:
    """Return the table of one factor's targets as the directed network `tflink`, factor → target.

    **Arguments:** as `tflink`, and

    - `factor`: the gene of the factor, which stands in the file's name only, as a UniProt id.

    **Raises:** as `tflink`; `ReadError` where `factor` is not in `genes`.
    """
    genes = Genes.of(genes)
    if genes.place(factor) < 0:
        raise bad_file(path, f"factor {shown(factor)} is not in the gene list of {len(genes):,}")
    return _network(
        path, genes, ("Name.Target",), organism, small_scale, unknown_limit, limit_bytes, None, factor=factor
    )


def _network(
    path: str | Path,
    genes: Genes,
    ends: Sequence[str],
    organism: str | None,
    small_scale: bool,
    unknown_limit: float,
    limit_bytes: int,
    progress: Progress | None,
    *,
    factor: str | None = None,
) -> Network:
    columns = header(path, separator="\t")
    read = (*ends, "Organism", "Small-scale.evidence")
    required(path, columns, read, separator="\t")
    lookup = Lookup(genes)
    dropped: Counter[str] = Counter()
    found: list[list[np.ndarray]] = [[], []]
    for batch in batches(
        path,
        columns,
        dict.fromkeys(read, NAME),
        separator="\t",
        has_header=True,
        limit_bytes=limit_bytes,
        progress=progress,
    ):
        kept = np.ones(batch.num_rows, dtype=bool)
        for column, value, why in (
            (batch.column(len(ends)), organism, f"organism is not {organism}"),
            (batch.column(len(ends) + 1), "Yes" if small_scale else None, "no small-scale evidence"),
        ):
            if value is not None:
                matches = equals(column, value)
                dropped[why] += int((kept & ~matches).sum())
                kept &= matches
        places = [lookup.places(batch.column(place).filter(kept)) for place in range(len(ends))]
        if factor is not None:
            places.insert(0, np.full(len(places[0]), lookup.place(factor)))
        for part, place in zip(found, places, strict=True):
            part.append(place)
    return network_of(
        "tflink",
        np.concatenate(found[0]),
        np.concatenate(found[1]),
        lookup,
        path=path,
        directed=True,
        dropped=dropped,
        unknown_limit=unknown_limit,
    )
