"""The digenic interaction tables of Costanzo et al., Science 353, aaf1420 (2016), Data File S1.

`SGA_ExE.txt`, `SGA_NxN.txt`, `SGA_ExN_NxE.txt` and `SGA_DAmP.txt`: essential and non-essential genes.
"""

from __future__ import annotations

import re

from tclab.readers._screen import STRAINS, ScreenReader
from tclab.readers._table import NUMBER, TEXT

COSTANZO_FILE = re.compile(r"SGA_(ExE|NxN|ExN_NxE|DAmP)\w*\.txt(\.gz)?", re.I)

costanzo = ScreenReader(
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
"""Read one table, 11 columns.

Whether a strain is a deletion is read from its id (`dma`, `sn`): these tables have allele names without Δ.
"""
