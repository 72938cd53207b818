"""The trigenic interaction tables of Kuzmin et al.

Science 360, eaao1729 (2018), Data S1; Science 368, eaaz5667 (2020), Tables S1, S3 and S5; as TSV or XLSX.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from tclab.readers._gene_names import UNKNOWN_LIMIT, Genes
from tclab.readers._screen import (
    ALLELES,
    NEUTRAL,
    STRAINS,
    Filters,
    MutantType,
    Repeats,
    Screen,
    ScreenFormat,
    load_screen,
)
from tclab.readers._source import LIMIT_BYTES, Progress
from tclab.readers._table import NUMBER, TEXT

KUZMIN_FILE = re.compile(r"(aao1729|aaz5667)\w*[_-](Data|Table)[_-]?(S1|S3)\w*\.(tsv|txt|xlsx)(\.gz)?", re.I)
FITNESS_FILE = re.compile(r"aaz5667\w*[_-]Table[_-]?S5\w*\.(tsv|txt|xlsx)(\.gz)?", re.I)

KUZMIN = ScreenFormat(
    "kuzmin",
    "Kuzmin et al. 2018 Data S1, 2020 Tables S1 and S3",
    "adjusted genetic interaction score: τ of three genes, ε of two",
    ("trigenic", "digenic", "any"),
    {
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
    },
)


def kuzmin(
    path: str | Path,
    genes: Genes | Iterable[str] | None = None,
    *,
    mutant_type: MutantType = "trigenic",
    p_below: float | None = None,
    deletions_only: bool = False,
    repeats: Repeats = "keep",
    neutral: Sequence[str] = NEUTRAL,
    unknown_limit: float = UNKNOWN_LIMIT,
    limit_bytes: int = LIMIT_BYTES,
    progress: Progress | None = None,
) -> Screen:
    """Return the samples of Data S1 (2018) or of Table S1 or S3 (2020), 12 columns, found by their names.

    The score is the adjusted one: τ of three genes, ε of two. A query `A+YDL227C_tm1` or `YDL227C+A_tm1` deletes A
    only, as hoΔ is neutral.

    **Arguments:**

    - `path`: the table.
    - `genes`: the gene list; None takes the genes of the samples, sorted.
    - `mutant_type`, `p_below`, `deletions_only`, `repeats`, `neutral`: see `Filters`.
    - `unknown_limit`: the share of rows that may be lost to unknown genes.
    - `limit_bytes`: how much the file may unpack to.
    - `progress`: called as a text is read.

    **Raises:** `ReadError` with the line for a missing column, a wrong number of columns, an invalid number or strain
    id, or a p-value outside 0 to 1; for too many unknown genes.
    """
    filters = Filters(mutant_type, p_below, deletions_only, repeats, neutral)
    return load_screen(
        path, KUZMIN, genes, filters, unknown_limit=unknown_limit, limit_bytes=limit_bytes, progress=progress
    )


def _strain_ids(columns: dict[str, np.ndarray]) -> None:
    """Write strain ids as in the other tables, from the bare `tm1` and the columns of the genes."""
    ids = zip(columns.pop("orf_1"), columns.pop("orf_2"), columns["query"], strict=True)
    columns["query"] = np.array([f"{one}+{other}_{strain}" for one, other, strain in ids], dtype=object)
    columns["p"] = np.full(len(columns["query"]), np.nan)


KUZMIN_FITNESS = ScreenFormat(
    "kuzmin_fitness",
    "Kuzmin et al. 2020 Table S5",
    "fitness of the query strain, about 1 for a healthy one; not an interaction score",
    ("any", "digenic"),
    {
        "query": (TEXT, ("query strain id",)),
        "orf_1": (TEXT, ("orf1",)),
        "orf_2": (TEXT, ("orf2",)),
        "mutant_type": (TEXT, ("mutant type",)),
        "score": (NUMBER, ("fitness",)),
        "fitness_sd": (NUMBER, ("st.dev.",)),
    },
    complete=_strain_ids,
    has_pairs=False,
)


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

    Strain ids are bare (`tm1`) in this table, and genes have columns of their own.

    **Arguments:** as `kuzmin`.

    **Raises:** as `kuzmin`.
    """
    filters = Filters("any", repeats=repeats, neutral=neutral)
    return load_screen(path, KUZMIN_FITNESS, genes, filters, unknown_limit=unknown_limit, limit_bytes=limit_bytes)
