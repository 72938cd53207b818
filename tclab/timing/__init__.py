"""Clocks for any training loop: where a step's time goes, which of two is faster, and how far to trust the figures.

It knows nothing of graphs and can be used around any loop. A ledger needs Python alone. torch is imported for CUDA,
pandas for a frame and for advice, numpy and scipy for a race, a verdict and advice.
"""

from tclab._lazy import lazy
from tclab.timing._ledger import Ledger as Ledger

# each is imported at its first use: a loop that only has a ledger loads nothing else
_NAMES = {
    "Communication": "tclab.timing._communication:Communication",
    "advise": "tclab.timing._advice:advise",
    "lightning_callback": "tclab.timing._lightning_callback:lightning_callback",
    "loader_times": "tclab.timing._loader_times:loader_times",
    "profile": "tclab.timing._profile:profile",
    "race": "tclab.timing._race:race",
    "race_cells": "tclab.timing._race:race_cells",
    "race_commands": "tclab.timing._commands_race:race_commands",
    "receipt": "tclab.timing._self_test:receipt",
    "spike_in": "tclab.timing._self_test:spike_in",
    "syncs": "tclab.timing._host_syncs:syncs",
    "verdicts_of": "tclab.timing._verdict:verdicts_of",
    "Ledger": "tclab.timing._ledger:Ledger",
}
__getattr__, __dir__, __all__ = lazy(__name__, _NAMES)
