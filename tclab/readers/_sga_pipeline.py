"""The output of the SGA scoring pipeline (github.com/csbio/SGA_Public): its trigenic and its digenic tables.

Kinds of strains: `dma` deletion array, `sn` deletion query, `tsa` and `tsq` temperature-sensitive array and query,
`damp` DAmP allele, `S` suppressor, `tm` double-mutant query, whose alleles are in
`double_mutant_allele_compsition_*.csv` (that spelling; between tabs).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from tclab.readers._gene_names import UNKNOWN_LIMIT, Genes
from tclab.readers._screen import NEUTRAL, STRAINS, Filters, MutantType, Repeats, Screen, ScreenFormat, load_screen
from tclab.readers._source import LIMIT_BYTES, Progress
from tclab.readers._table import NUMBER, TEXT, Table

TRIGENIC_FILE = re.compile(r"scored_\w*trigenic\w*\.txt(\.gz)?")
DIGENIC_FILE = re.compile(r"scored_\w*digenic\w*\.txt(\.txt)?(\.gz)?")

TRIGENIC = ScreenFormat(
    "sga_trigenic",
    "trigenic table of the SGA scoring pipeline",
    "adjusted genetic interaction score: τ of three genes, ε of two",
    ("trigenic", "digenic", "any"),
    {
        **STRAINS,
        "score": (NUMBER, ("adjusted genetic interaction score",)),
        "p": (NUMBER, ("p-value",)),
        "fitness": (NUMBER, ("double/triple mutant fitness",)),
        "fitness_sd": (NUMBER, ("double/triple mutant fitness standard deviation",)),
    },
)
_DIGENIC_COLUMNS = (  # Column_Key.md of SGA_Public, "Output of compute_sgascore.m"
    "query",
    "array",
    "e_score",
    "e_score_sd",
    "p",
    "query_fitness",
    "query_fitness_sd",
    "array_fitness",
    "array_fitness_sd",
    "expected_fitness",
    "fitness",
    "fitness_sd",
)


def _observed_less_expected(columns: dict[str, np.ndarray]) -> None:
    columns["score"] = columns["fitness"] - columns["expected_fitness"]


DIGENIC = ScreenFormat(
    "sga_digenic",
    f"digenic table of the SGA scoring pipeline, {len(_DIGENIC_COLUMNS)} columns without a header",
    "ε, the observed less the expected fitness",
    ("any", "trigenic", "digenic"),
    {name: (TEXT if name in STRAINS else NUMBER, (name,)) for name in _DIGENIC_COLUMNS},
    columns=_DIGENIC_COLUMNS,
    complete=_observed_less_expected,
)


def sga_trigenic(
    path: str | Path,
    genes: Genes | Iterable[str] | None = None,
    *,
    mutant_type: MutantType = "trigenic",
    p_below: float | None = None,
    deletions_only: bool = False,
    repeats: Repeats = "keep",
    neutral: Sequence[str] = NEUTRAL,
    composition: str | Path | None = None,
    unknown_limit: float = UNKNOWN_LIMIT,
    limit_bytes: int = LIMIT_BYTES,
    progress: Progress | None = None,
) -> Screen:
    """Return the samples of `print_trigenic.m`'s output: 6 columns with a header; the score is τ or ε.

    **Arguments:**

    - `path`: the table.
    - `genes`: the gene list; None takes the genes of the samples, sorted.
    - `mutant_type`, `p_below`, `deletions_only`, `repeats`, `neutral`: see `Filters`.
    - `composition`: the table of double-mutant strains and their alleles, in which `deletions_only` looks up whether a
      `tm` strain deletes both its genes; a strain that is missing there does not. Without a table, every one does.
    - `unknown_limit`: the share of rows that may be lost to unknown genes.
    - `limit_bytes`: how much the file may unpack to.
    - `progress`: called as a text is read.

    **Raises:** `ReadError` with the line for a missing column, a wrong number of columns, an invalid number or strain
    id, or a p-value outside 0 to 1; for too many unknown genes.
    """
    return load_screen(
        path,
        TRIGENIC,
        genes,
        Filters(mutant_type, p_below, deletions_only, repeats, neutral),
        composition=None if composition is None else double_mutants(composition),
        unknown_limit=unknown_limit,
        limit_bytes=limit_bytes,
        progress=progress,
    )


def sga_digenic(
    path: str | Path,
    genes: Genes | Iterable[str] | None = None,
    *,
    mutant_type: MutantType = "any",
    p_below: float | None = None,
    deletions_only: bool = False,
    repeats: Repeats = "keep",
    neutral: Sequence[str] = NEUTRAL,
    composition: str | Path | None = None,
    unknown_limit: float = UNKNOWN_LIMIT,
    limit_bytes: int = LIMIT_BYTES,
    progress: Progress | None = None,
) -> Screen:
    """Return the samples of `compute_sgascore.m`'s output: 12 columns, no header, `NaN` for missing.

    The score is ε, the observed less the expected fitness, which is not a column of the file; `table.e_score` is the
    file's own, a colony size.

    **Arguments:** as `sga_trigenic`.

    **Raises:** as `sga_trigenic`.
    """
    return load_screen(
        path,
        DIGENIC,
        genes,
        Filters(mutant_type, p_below, deletions_only, repeats, neutral),
        composition=None if composition is None else double_mutants(composition),
        unknown_limit=unknown_limit,
        limit_bytes=limit_bytes,
        progress=progress,
    )


def double_mutants(path: str | Path) -> dict[str, bool]:
    """Return which double-mutant strains, and single-mutant controls, have deletion alleles only.

    **Raises:** `ReadError` with the line for a missing column or a wrong number of columns.
    """
    strains = Table(path).rows("StrainID1", "StrainID2", "DMstrainID", "SM1strainID", "SM2strainID")
    deletions: dict[str, bool] = {}
    for one, other, both, first, second in strains:
        is_deletion = [bool(re.match(r"(sn|dma)\d*", strain, re.I)) for strain in (one, other)]
        for strain, deletion in ((both, all(is_deletion)), (first, is_deletion[0]), (second, is_deletion[1])):
            # of a strain that appears twice, every row must have deletions only
            deletions[strain] = deletions.get(strain, True) and deletion
    return deletions
