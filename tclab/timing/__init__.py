"""Clocks for any training loop: where a step's time goes, which of two is faster, and how far to trust the figures.

It knows nothing of graphs and can be used around any loop. Modules that need torch import it when they use it; races
and verdicts, which need numpy, are imported when one of their names is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from tclab.timing._communication import Communication
from tclab.timing._conditions import conditions
from tclab.timing._environment import environment
from tclab.timing._host_syncs import syncs
from tclab.timing._ledger import Ledger
from tclab.timing._lightning_callback import lightning_callback
from tclab.timing._profile import profile, profile_script
from tclab.timing._spike_in import spike_in
from tclab.timing.races._race_record import read_samples

if TYPE_CHECKING:
    from tclab.timing._advice_rules import advise
    from tclab.timing._receipt import receipt
    from tclab.timing._verdict import verdicts_of
    from tclab.timing.races._race import race, race_cells

_LAZY = {
    "advise": "_advice_rules",
    "receipt": "_receipt",
    "verdicts_of": "_verdict",
    "race": "races._race",
    "race_cells": "races._race",
}

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
    "read_samples",
    "receipt",
    "spike_in",
    "syncs",
    "verdicts_of",
]
__dir__ = __all__.copy  # completion offers these


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'tclab.timing' has no attribute {name!r}")
    return getattr(importlib.import_module(f"tclab.timing.{_LAZY[name]}"), name)
