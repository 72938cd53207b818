"""Clocks for any training loop: where a step's time goes, which of two is faster, and how far to trust the figures.

It knows nothing of graphs and can be used around any loop. Modules that need torch, pandas or scipy import it when they
use it.
"""

from tclab.timing._advice_rules import advise
from tclab.timing._commands_race import race_commands
from tclab.timing._communication import Communication
from tclab.timing._conditions import conditions
from tclab.timing._environment import environment
from tclab.timing._host_syncs import syncs
from tclab.timing._ledger import Ledger
from tclab.timing._lightning_callback import lightning_callback
from tclab.timing._profile import profile, profile_script
from tclab.timing._race import race, race_cells
from tclab.timing._race_record import read_samples
from tclab.timing._receipt import receipt
from tclab.timing._spike_in import spike_in
from tclab.timing._verdict import verdicts_of

__all__ = [
    "Communication",
    "Ledger",
    "advise",
    "conditions",
    "environment",
    "lightning_callback",
    "profile",
    "profile_script",
    "race",
    "race_cells",
    "race_commands",
    "read_samples",
    "receipt",
    "spike_in",
    "syncs",
    "verdicts_of",
]
__dir__ = __all__.copy  # completion offers these
