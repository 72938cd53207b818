"""Clocks, host syncs, peak memory and the machine; knows nothing of graphs and imports none of tclab's rooms.

Anyone can use it around a training loop of their own; torch is loaded only by what needs it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from tclab.timing.clock import StageClock
from tclab.timing.environment import environment
from tclab.timing.errors import TimingError
from tclab.timing.memory import PeakMemory
from tclab.timing.syncs import Syncs, syncs

if TYPE_CHECKING:
    from tclab.timing.race_record import samples_of
    from tclab.timing.race_result import Race, Races
    from tclab.timing.racing import race, race_cells
    from tclab.timing.verdict import FASTER, SAME, SLOWER, UNDECIDED, Pair, verdict_of, verdicts_of
    from tclab.timing.warmup import Settled, settled

# races and verdicts need numpy, which is fetched when one of these is first asked for
_LATE = {
    "race_record": ("samples_of",),
    "race_result": ("Race", "Races"),
    "racing": ("race", "race_cells"),
    "verdict": ("FASTER", "SAME", "SLOWER", "UNDECIDED", "Pair", "verdict_of", "verdicts_of"),
    "warmup": ("Settled", "settled"),
}

__all__ = [
    "FASTER",
    "SAME",
    "SLOWER",
    "UNDECIDED",
    "Pair",
    "PeakMemory",
    "Race",
    "Races",
    "Settled",
    "StageClock",
    "Syncs",
    "TimingError",
    "environment",
    "race",
    "race_cells",
    "samples_of",
    "settled",
    "syncs",
    "verdict_of",
    "verdicts_of",
]


def __getattr__(name: str) -> Any:
    for module, names in _LATE.items():
        if name in names:
            return getattr(importlib.import_module(f"tclab.timing.{module}"), name)
    raise AttributeError(f"module 'tclab.timing' has no attribute {name!r}")
