"""Clocks, host syncs, peak memory and the machine; knows nothing of graphs and imports none of tclab's rooms.

Anyone can use it around a training loop of their own; torch is loaded only by what needs it.
"""

from tclab.timing.clock import StageClock
from tclab.timing.environment import environment
from tclab.timing.memory import PeakMemory
from tclab.timing.syncs import Syncs, syncs

__all__ = ["PeakMemory", "StageClock", "Syncs", "environment", "syncs"]
