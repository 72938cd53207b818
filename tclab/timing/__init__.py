"""Clocks, host syncs, peak memory and the machine; knows nothing of graphs and imports none of tclab's rooms.

Anyone can use it around a training loop of their own; torch is loaded only by what needs it.
"""

from tclab.timing.accounts import STAGES, Making
from tclab.timing.communication import Communication
from tclab.timing.conditions import conditions
from tclab.timing.environment import environment
from tclab.timing.ledger import Ledger
from tclab.timing.lightning_callback import lightning_callback
from tclab.timing.memory import PeakMemory
from tclab.timing.raw_clock import raw_clock_ns
from tclab.timing.spike import SpikeIn, spike_in
from tclab.timing.syncs import Demand, Syncs, syncs

__all__ = [
    "STAGES",
    "Communication",
    "Demand",
    "Ledger",
    "Making",
    "PeakMemory",
    "SpikeIn",
    "Syncs",
    "conditions",
    "environment",
    "lightning_callback",
    "raw_clock_ns",
    "spike_in",
    "syncs",
]
