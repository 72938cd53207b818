"""Where a step's time goes, which of two is faster, and what to believe: clocks for any training loop.

The ledger, races and their verdicts, spike-in, host syncs, peak memory, the machine. It knows nothing of graphs and
imports none of tclab's rooms, so anyone can use it around a loop of their own. What needs torch loads it late.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from tclab.timing.accounts import STAGES, Making
from tclab.timing.communication import Communication
from tclab.timing.conditions import conditions
from tclab.timing.environment import environment
from tclab.timing.errors import TimingError
from tclab.timing.ledger import Ledger
from tclab.timing.lightning_callback import lightning_callback
from tclab.timing.memory import PeakMemory
from tclab.timing.no_ledger import NoLedger
from tclab.timing.raw_clock import raw_clock_ns
from tclab.timing.spike import SpikeIn, spike_in
from tclab.timing.syncs import Demand, Syncs, syncs

if TYPE_CHECKING:
    from tclab.timing.advice import Advice, Suggestion
    from tclab.timing.advising import advise
    from tclab.timing.observer import Receipt, receipt
    from tclab.timing.race_record import samples_of
    from tclab.timing.race_result import Race, Races
    from tclab.timing.racing import race, race_cells
    from tclab.timing.verdict import FASTER, SAME, SLOWER, UNDECIDED, Pair, verdict_of, verdicts_of
    from tclab.timing.warmup import Settled, settled

# races and verdicts need numpy, which is fetched when one of these is first asked for
_LATE = {
    "advice": ("Advice", "Suggestion"),
    "advising": ("advise",),
    "observer": ("Receipt", "receipt"),
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
    "STAGES",
    "UNDECIDED",
    "Advice",
    "Communication",
    "Demand",
    "Ledger",
    "Making",
    "NoLedger",
    "Pair",
    "PeakMemory",
    "Race",
    "Races",
    "Receipt",
    "Settled",
    "SpikeIn",
    "Suggestion",
    "Syncs",
    "TimingError",
    "advise",
    "conditions",
    "environment",
    "lightning_callback",
    "race",
    "race_cells",
    "raw_clock_ns",
    "receipt",
    "samples_of",
    "settled",
    "spike_in",
    "syncs",
    "verdict_of",
    "verdicts_of",
]


def __getattr__(name: str) -> Any:
    for module, names in _LATE.items():
        if name in names:
            return getattr(importlib.import_module(f"tclab.timing.{module}"), name)
    raise AttributeError(f"module 'tclab.timing' has no attribute {name!r}")
