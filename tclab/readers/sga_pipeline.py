"""The output of the SGA scoring pipeline (github.com/csbio/SGA_Public): its trigenic and its digenic tables.

Kinds of strains: `dma` deletion array, `sn` deletion query, `tsa` and `tsq` temperature-sensitive array and
query, `damp` DAmP allele, `S` suppressor, `tm` double-mutant query, whose alleles are in
`double_mutant_allele_compsition_*.csv` (spelt so; between tabs).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from tclab.readers.edges import UNKNOWN_LIMIT
from tclab.readers.genes import Genes
from tclab.readers.screen import NEUTRAL, Filters, MutantType, Repeats, Screen, screen_of
from tclab.readers.screen_table import MISSING, STRAINS, Fields, columns_of, screen_columns
from tclab.readers.source import LIMIT_BYTES, Progress
from tclab.readers.table import NUMBER, TEXT, batches, header, required

TRIGENIC_FILE = re.compile(r"scored_\w*trigenic\w*\.txt(\.gz)?")

DIGENIC_FILE = re.compile(r"scored_\w*digenic\w*\.txt(\.txt)?(\.gz)?")

_TRIGENIC: Fields = {
    **STRAINS,
    "score": (NUMBER, ("adjusted genetic interaction score",)),
    "p": (NUMBER, ("p-value",)),
    "fitness": (NUMBER, ("double/triple mutant fitness",)),
    "fitness_sd": (NUMBER, ("double/triple mutant fitness standard deviation",)),
}
_DIGENIC = (  # Column_Key.md of SGA_Public, "Output of compute_sgascore.m"
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


def sga_trigenic(
    path: str | Path,
    genes: Genes | Iterable[str] | None = None,
    *,
    mutant_type: MutantType | None = "trigenic",
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

    - `genes`: the gene list; without it, the genes of the samples, sorted.
    - `mutant_type`, `p_below`, `deletions_only`, `repeats`, `neutral`: see `Filters`.
    - `composition`: the table of double-mutant strains and their alleles, which `deletions_only` asks whether
      a `tm` strain deletes both its genes; a strain that is not in it does not. Without it, every one does.

    **Raises:** `ReadError` with the line for a missing column, a wrong number of columns, a number that is
    none, a strain id that cannot be read, or a p-value outside 0 to 1; for too many unknown genes.
    """
    filters = Filters(mutant_type, p_below, deletions_only, repeats, neutral)
    columns = screen_columns(path, _TRIGENIC, limit_bytes=limit_bytes, progress=progress)
    return screen_of(
        path,
        columns,
        genes,
        filters,
        has_header=True,
        composition=None if composition is None else double_mutants(composition),
        unknown_limit=unknown_limit,
    )


def sga_digenic(
    path: str | Path,
    genes: Genes | Iterable[str] | None = None,
    *,
    mutant_type: MutantType | None = None,
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

    The score is ε, observed less expected fitness, which the file does not hold itself; `table.e_score` is
    its own, a colony size.

    **Arguments:** as `sga_trigenic`.

    **Raises:** as `sga_trigenic`.
    """
    filters = Filters(mutant_type, p_below, deletions_only, repeats, neutral)
    types = {name: TEXT if name in ("query", "array") else NUMBER for name in _DIGENIC}
    parts = batches(
        path,
        _DIGENIC,
        types,
        separator="\t",
        has_header=False,
        missing=MISSING,
        limit_bytes=limit_bytes,
        progress=progress,
    )
    columns = columns_of(list(parts), _DIGENIC)
    columns["score"] = columns["fitness"] - columns["expected_fitness"]
    return screen_of(
        path,
        columns,
        genes,
        filters,
        has_header=False,
        composition=None if composition is None else double_mutants(composition),
        unknown_limit=unknown_limit,
    )


def double_mutants(path: str | Path) -> dict[str, bool]:
    """Return which double-mutant strains, and single-mutant controls, have no allele but deletions.

    **Raises:** `ReadError` with the line for a missing column or a wrong number of columns.
    """
    columns = header(path, separator="\t")
    wanted = ("StrainID1", "StrainID2", "DMstrainID", "SM1strainID", "SM2strainID")
    required(path, columns, wanted, separator="\t")
    deletions: dict[str, bool] = {}
    for batch in batches(path, columns, dict.fromkeys(wanted, TEXT), separator="\t", has_header=True):
        for one, other, both, first, second in zip(*(c.to_pylist() for c in batch.columns), strict=True):
            is_deletion = [bool(re.match(r"(sn|dma)\d*", strain, re.I)) for strain in (one, other)]
            for strain, deletion in (
                (both, all(is_deletion)),
                (first, is_deletion[0]),
                (second, is_deletion[1]),
            ):
                # a strain that stands twice is one of deletions only where every row says so
                deletions[strain] = deletions.get(strain, True) and deletion
    return deletions
