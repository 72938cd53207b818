"""The trigenic interaction tables of Kuzmin et al.

Science 360, eaao1729 (2018), Data S1; Science 368, eaaz5667 (2020), Tables S1, S3 and S5; as TSV or XLSX.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from tclab.readers.edges import UNKNOWN_LIMIT
from tclab.readers.genes import Genes
from tclab.readers.screen import NEUTRAL, Filters, MutantType, Repeats, Screen, screen_of
from tclab.readers.screen_table import ALLELES, STRAINS, Fields, screen_columns
from tclab.readers.source import LIMIT_BYTES, Progress
from tclab.readers.table import NUMBER, TEXT

KUZMIN_FILE = re.compile(r"(aao1729|aaz5667)\w*[_-](Data|Table)[_-]?(S1|S3)\w*\.(tsv|txt|xlsx)(\.gz)?", re.I)

FITNESS_FILE = re.compile(r"aaz5667\w*[_-]Table[_-]?S5\w*\.(tsv|txt|xlsx)(\.gz)?", re.I)

_FIELDS: Fields = {
    **STRAINS,
    **ALLELES,
    "mutant_type": (TEXT, ("combined mutant type",)),
    "raw_score": (NUMBER, ("raw genetic interaction score",)),
    "score": (NUMBER, ("adjusted genetic interaction score",)),
    "p": (NUMBER, ("p-value",)),
    "query_fitness": (NUMBER, ("query single/double mutant fitness",)),
    "array_fitness": (NUMBER, ("array single mutant fitness",)),
    "fitness": (NUMBER, ("double/triple mutant fitness", "combined mutant fitness")),
    "fitness_sd": (
        NUMBER,
        ("double/triple mutant fitness standard deviation", "combined mutant fitness standard deviation"),
    ),
}


def kuzmin(
    path: str | Path,
    genes: Genes | Iterable[str] | None = None,
    *,
    mutant_type: MutantType | None = "trigenic",
    p_below: float | None = None,
    deletions_only: bool = False,
    repeats: Repeats = "keep",
    neutral: Sequence[str] = NEUTRAL,
    unknown_limit: float = UNKNOWN_LIMIT,
    limit_bytes: int = LIMIT_BYTES,
    progress: Progress | None = None,
) -> Screen:
    """Return the samples of Data S1 (2018) or of Table S1 or S3 (2020), 12 columns, found by their names.

    The score is the adjusted one: τ of three genes, ε of two. A query `A+YDL227C_tm1` or `YDL227C+A_tm1`
    deletes A only, as hoΔ is neutral.

    **Arguments:**

    - `genes`: the gene list; without it, the genes of the samples, sorted.
    - `mutant_type`, `p_below`, `deletions_only`, `repeats`, `neutral`: see `Filters`.

    **Raises:** `ReadError` with the line for a missing column, a wrong number of columns, a number that is
    none, a strain id that cannot be read, or a p-value outside 0 to 1; for too many unknown genes.
    """
    filters = Filters(mutant_type, p_below, deletions_only, repeats, neutral)
    columns = screen_columns(path, _FIELDS, limit_bytes=limit_bytes, progress=progress)
    return screen_of(path, columns, genes, filters, has_header=True, unknown_limit=unknown_limit)


_FITNESS_FIELDS: Fields = {
    "query": (TEXT, ("query strain id",)),
    "orf_1": (TEXT, ("orf1",)),
    "orf_2": (TEXT, ("orf2",)),
    "mutant_type": (TEXT, ("mutant type",)),
    "score": (NUMBER, ("fitness",)),
    "fitness_sd": (NUMBER, ("st.dev.",)),
}


def kuzmin_fitness(
    path: str | Path,
    genes: Genes | Iterable[str] | None = None,
    *,
    repeats: Repeats = "keep",
    neutral: Sequence[str] = NEUTRAL,
    unknown_limit: float = UNKNOWN_LIMIT,
    limit_bytes: int = LIMIT_BYTES,
) -> Screen:
    """Return the query strains of Table S5 (2020) with their fitness as the score; `NaN` is dropped.

    Strains go by the bare `tm1` there, and their genes by columns of their own.

    **Raises:** as `kuzmin`.
    """
    columns = screen_columns(path, _FITNESS_FIELDS, limit_bytes=limit_bytes)
    one, other = columns.pop("orf_1"), columns.pop("orf_2")
    ids = columns.pop("query")
    # as the other tables write them, so that strains are read in one place; the array deletes nothing
    columns["query"] = np.array([f"{a}+{b}_{c}" for a, b, c in zip(one, other, ids, strict=True)], dtype=object)
    columns["array"] = np.full(len(ids), f"{neutral[0]}_dma0", dtype=object)
    columns["p"] = np.full(len(ids), np.nan)
    filters = Filters(None, None, False, repeats, neutral)
    return screen_of(path, columns, genes, filters, has_header=True, unknown_limit=unknown_limit)
