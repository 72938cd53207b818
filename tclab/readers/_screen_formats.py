"""The published formats of genetic interaction screens: Kuzmin et al., Costanzo et al., the SGA scoring pipeline."""

from __future__ import annotations

import re

import numpy as np

from tclab.readers._screen import ALLELES, STRAINS, ScreenReader
from tclab.readers._table import NUMBER, TEXT

_INTERACTION = "adjusted genetic interaction score: τ of three genes, ε of two"

kuzmin = ScreenReader(
    "kuzmin",
    "Kuzmin et al. 2018 Data S1, 2020 Tables S1 and S3",
    re.compile(r"(aao1729|aaz5667)\w*[_-](Data|Table)[_-]?(S1|S3)\w*\.(tsv|txt|xlsx)(\.gz)?", re.I),
    _INTERACTION,
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
"""Read the trigenic tables of Kuzmin et al., 12 columns, as TSV or XLSX.

Science 360, eaao1729 (2018), Data S1; Science 368, eaaz5667 (2020), Tables S1 and S3. A query `A+YDL227C_tm1` or
`YDL227C+A_tm1` deletes A only, as hoΔ is neutral.
"""


def _strain_ids(columns: dict[str, np.ndarray]) -> None:
    """Write strain ids as in the other tables, from the bare `tm1` and the columns of the genes."""
    ids = zip(columns.pop("orf_1"), columns.pop("orf_2"), columns["query"], strict=True)
    columns["query"] = np.array([f"{one}+{other}_{strain}" for one, other, strain in ids], dtype=object)
    columns["p"] = np.full(len(columns["query"]), np.nan)


kuzmin_fitness = ScreenReader(
    "kuzmin_fitness",
    "Kuzmin et al. 2020 Table S5",
    re.compile(r"aaz5667\w*[_-]Table[_-]?S5\w*\.(tsv|txt|xlsx)(\.gz)?", re.I),
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
"""Read the query strains of Table S5 of Kuzmin et al. (2020), as TSV or XLSX.

Strain ids are bare (`tm1`), and genes have columns of their own.
"""

costanzo = ScreenReader(
    "costanzo",
    "Costanzo et al. 2016 Data File S1, SGA_*.txt",
    re.compile(r"SGA_(ExE|NxN|ExN_NxE|DAmP)\w*\.txt(\.gz)?", re.I),
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
"""Read one digenic table of Costanzo et al., Science 353, aaf1420 (2016), Data File S1; 11 columns.

`SGA_ExE.txt`, `SGA_NxN.txt`, `SGA_ExN_NxE.txt` and `SGA_DAmP.txt`: essential and non-essential genes. Whether a strain
is a deletion is read from its id (`dma`, `sn`): these tables have allele names without Δ.
"""

sga_trigenic = ScreenReader(
    "sga_trigenic",
    "trigenic table of the SGA scoring pipeline",
    re.compile(r"scored_\w*trigenic\w*\.txt(\.gz)?"),
    _INTERACTION,
    ("trigenic", "digenic", "any"),
    {
        **STRAINS,
        "score": (NUMBER, ("adjusted genetic interaction score",)),
        "p": (NUMBER, ("p-value",)),
        "fitness": (NUMBER, ("double/triple mutant fitness",)),
        "fitness_sd": (NUMBER, ("double/triple mutant fitness standard deviation",)),
    },
)
"""Read the output of the SGA pipeline's `print_trigenic.m` (github.com/csbio/SGA_Public), 6 columns with a header."""

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
    re.compile(r"scored_\w*digenic\w*\.txt(\.txt)?(\.gz)?"),
    "ε, the observed less the expected fitness",
    ("any", "trigenic", "digenic"),
    {name: (TEXT if name in STRAINS else NUMBER, (name,)) for name in _DIGENIC_COLUMNS},
    columns=_DIGENIC_COLUMNS,
    complete=_observed_less_expected,
)
"""Read the output of the SGA pipeline's `compute_sgascore.m`, 12 columns without a header, `NaN` for missing.

The score is not a column of the file; `table.e_score` is the file's own, a colony size.
"""

# A header that has the columns of several formats belongs to the first of them.
WITH_HEADER = (kuzmin, costanzo, kuzmin_fitness, sga_trigenic)
SCREEN_READERS = (*WITH_HEADER, sga_digenic)
