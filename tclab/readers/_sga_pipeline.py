"""The output of the SGA scoring pipeline (github.com/csbio/SGA_Public): its trigenic and its digenic tables.

Kinds of strains: `dma` deletion array, `sn` deletion query, `tsa` and `tsq` temperature-sensitive array and query,
`damp` DAmP allele, `S` suppressor, `tm` double-mutant query, whose alleles are in
`double_mutant_allele_compsition_*.csv` (that spelling; between tabs).
"""

from __future__ import annotations

import re

import numpy as np

from tclab.readers._screen import STRAINS, ScreenReader
from tclab.readers._table import NUMBER, TEXT

TRIGENIC_FILE = re.compile(r"scored_\w*trigenic\w*\.txt(\.gz)?")
DIGENIC_FILE = re.compile(r"scored_\w*digenic\w*\.txt(\.txt)?(\.gz)?")

sga_trigenic = ScreenReader(
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
"""Read the output of `print_trigenic.m`, 6 columns with a header."""

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


sga_digenic = ScreenReader(
    "sga_digenic",
    f"digenic table of the SGA scoring pipeline, {len(_DIGENIC_COLUMNS)} columns without a header",
    "ε, the observed less the expected fitness",
    ("any", "trigenic", "digenic"),
    {name: (TEXT if name in STRAINS else NUMBER, (name,)) for name in _DIGENIC_COLUMNS},
    columns=_DIGENIC_COLUMNS,
    complete=_observed_less_expected,
)
"""Read the output of `compute_sgascore.m`, 12 columns without a header, `NaN` for missing.

The score is not a column of the file; `table.e_score` is the file's own, a colony size.
"""
