"""The trigenic interaction tables of Kuzmin et al.

Science 360, eaao1729 (2018), Data S1; Science 368, eaaz5667 (2020), Tables S1, S3 and S5; as TSV or XLSX.
"""

from __future__ import annotations

import re

import numpy as np

from tclab.readers._screen import ALLELES, STRAINS, ScreenReader
from tclab.readers._table import NUMBER, TEXT

KUZMIN_FILE = re.compile(r"(aao1729|aaz5667)\w*[_-](Data|Table)[_-]?(S1|S3)\w*\.(tsv|txt|xlsx)(\.gz)?", re.I)
FITNESS_FILE = re.compile(r"aaz5667\w*[_-]Table[_-]?S5\w*\.(tsv|txt|xlsx)(\.gz)?", re.I)

kuzmin = ScreenReader(
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
"""Read Data S1 (2018), or Table S1 or S3 (2020), 12 columns.

A query `A+YDL227C_tm1` or `YDL227C+A_tm1` deletes A only, as hoΔ is neutral.
"""


def _strain_ids(columns: dict[str, np.ndarray]) -> None:
    """Write strain ids as in the other tables, from the bare `tm1` and the columns of the genes."""
    ids = zip(columns.pop("orf_1"), columns.pop("orf_2"), columns["query"], strict=True)
    columns["query"] = np.array([f"{one}+{other}_{strain}" for one, other, strain in ids], dtype=object)
    columns["p"] = np.full(len(columns["query"]), np.nan)


kuzmin_fitness = ScreenReader(
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
"""Read the query strains of Table S5 (2020); strain ids are bare (`tm1`), and genes have columns of their own."""
