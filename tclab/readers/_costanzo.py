"""The digenic interaction tables of Costanzo et al., Science 353, aaf1420 (2016), Data File S1.

`SGA_ExE.txt`, `SGA_NxN.txt`, `SGA_ExN_NxE.txt` and `SGA_DAmP.txt`: essential and non-essential genes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from tclab.readers._gene_names import UNKNOWN_LIMIT, Genes
from tclab.readers._screen import NEUTRAL, STRAINS, Filters, Repeats, Screen, ScreenFormat, load_screen
from tclab.readers._source import LIMIT_BYTES, Progress
from tclab.readers._table import NUMBER, TEXT

COSTANZO_FILE = re.compile(r"SGA_(ExE|NxN|ExN_NxE|DAmP)\w*\.txt(\.gz)?", re.I)

COSTANZO = ScreenFormat(
    "costanzo",
    "Costanzo et al. 2016 Data File S1, SGA_*.txt",
    "genetic interaction score ε",
    ("digenic",),
    {
        **STRAINS,
        "temperature": (TEXT, ("arraytype/temp",)),
        "score": (NUMBER, ("genetic interaction score",)),
        "p": (NUMBER, ("p-value",)),
        "query_fitness": (NUMBER, ("query single mutant fitness", "query smf")),
        "array_fitness": (NUMBER, ("array smf", "array single mutant fitness")),
        "fitness": (NUMBER, ("double mutant fitness",)),
        "fitness_sd": (NUMBER, ("double mutant fitness standard deviation",)),
    },
)


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

    Whether a strain is a deletion is read from its id (`dma`, `sn`): these tables have allele names without Δ.

    **Arguments:**

    - `path`: the table.
    - `genes`: the gene list; None takes the genes of the samples, sorted.
    - `p_below`, `deletions_only`, `repeats`, `neutral`: see `Filters`.
    - `unknown_limit`: the share of rows that may be lost to unknown genes.
    - `limit_bytes`: how much the file may unpack to.
    - `progress`: called as a text is read.

    **Raises:** `ReadError` with the line for a missing column, a wrong number of columns, an invalid number or strain
    id, or a p-value outside 0 to 1; for too many unknown genes.
    """
    filters = Filters("digenic", p_below, deletions_only, repeats, neutral)
    return load_screen(
        path, COSTANZO, genes, filters, unknown_limit=unknown_limit, limit_bytes=limit_bytes, progress=progress
    )
