"""Clocks, host syncs, peak memory and the machine; knows nothing of graphs and imports none of tclab's rooms.

Anyone can use it around a training loop of their own; torch is loaded only by what needs it.
"""

from tclab.timing.accounts import STAGES, Making
from tclab.timing.environment import environment
from tclab.timing.ledger import Ledger
from tclab.timing.memory import PeakMemory
from tclab.timing.raw_clock import raw_clock_ns
from tclab.timing.syncs import Syncs, syncs

__all__ = ["STAGES", "Ledger", "Making", "PeakMemory", "Syncs", "environment", "raw_clock_ns", "syncs"]
