"""The digenic interaction tables of Costanzo et al., Science 353, aaf1420 (2016), Data File S1.

`SGA_ExE.txt`, `SGA_NxN.txt`, `SGA_ExN_NxE.txt` and `SGA_DAmP.txt`: essential and non-essential genes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from tclab.readers.edges import UNKNOWN_LIMIT
from tclab.readers.genes import Genes
from tclab.readers.screen import NEUTRAL, Filters, Repeats, Screen, screen_of
from tclab.readers.screen_table import STRAINS, Fields, screen_columns
from tclab.readers.source import LIMIT_BYTES, Progress
from tclab.readers.table import NUMBER, TEXT

COSTANZO_FILE = re.compile(r"SGA_(ExE|NxN|ExN_NxE|DAmP)\w*\.txt(\.gz)?", re.I)

_FIELDS: Fields = {
    **STRAINS,
    "temperature": (TEXT, ("arraytype/temp",)),
    "score": (NUMBER, ("genetic interaction score",)),
    "p": (NUMBER, ("p-value",)),
    "query_fitness": (NUMBER, ("query single mutant fitness", "query smf")),
    "array_fitness": (NUMBER, ("array smf", "array single mutant fitness")),
    "fitness": (NUMBER, ("double mutant fitness",)),
    "fitness_sd": (NUMBER, ("double mutant fitness standard deviation",)),
}


def costanzo(
    path: str | Path,
    genes: Genes | Iterable[str] | None = None,
    *,
    p_below: float | None = None,
    deletions_only: bool = False,
    repeats: Repeats = "keep",
    neutral: Sequence[str] = NEUTRAL,
    unknown_limit: float = UNKNOWN_LIMIT,
    limit_bytes: int = LIMIT_BYTES,
    progress: Progress | None = None,
) -> Screen:
    """Return the samples of one table, 11 columns, found by their names; the score is ε.

    Whether a strain is a deletion is read from its id (`dma`, `sn`), as these tables write alleles without Δ.

    **Arguments:**

    - `genes`: the gene list; without it, the genes of the samples, sorted.
    - `p_below`, `deletions_only`, `repeats`, `neutral`: see `Filters`.

    **Raises:** `ReadError` with the line for a missing column, a wrong number of columns, a number that is
    none, a strain id that cannot be read, or a p-value outside 0 to 1; for too many unknown genes.
    """
    filters = Filters("digenic", p_below, deletions_only, repeats, neutral)
    columns = screen_columns(path, _FIELDS, limit_bytes=limit_bytes, progress=progress)
    return screen_of(path, columns, genes, filters, has_header=True, unknown_limit=unknown_limit)
