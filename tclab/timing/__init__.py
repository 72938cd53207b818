"""Clocks for any training loop: where a step's time goes, which of two is faster, and how far to trust the figures.

It knows nothing of graphs and can be used around any loop. A ledger needs Python alone. torch is imported for CUDA,
pandas for a frame and for advice, numpy and scipy for a race, a verdict and advice.
"""

import importlib
from typing import TYPE_CHECKING, Any

from tclab.timing._ledger import Ledger

if TYPE_CHECKING:
    from tclab.timing._advice import advise as advise
    from tclab.timing._commands_race import race_commands as race_commands
    from tclab.timing._communication import Communication as Communication
    from tclab.timing._host_syncs import syncs as syncs
    from tclab.timing._lightning_callback import lightning_callback as lightning_callback
    from tclab.timing._loader_times import loader_times as loader_times
    from tclab.timing._profile import profile as profile
    from tclab.timing._race import race as race
    from tclab.timing._race import race_cells as race_cells
    from tclab.timing._self_test import receipt as receipt
    from tclab.timing._self_test import spike_in as spike_in
    from tclab.timing._verdict import verdicts_of as verdicts_of

# name → its module, which is imported at the name's first use: a loop that only has a ledger loads nothing else
_MODULES = {
    "Communication": "_communication",
    "advise": "_advice",
    "lightning_callback": "_lightning_callback",
    "loader_times": "_loader_times",
    "profile": "_profile",
    "race": "_race",
    "race_cells": "_race",
    "race_commands": "_commands_race",
    "receipt": "_self_test",
    "spike_in": "_self_test",
    "syncs": "_host_syncs",
    "verdicts_of": "_verdict",
}
__all__ = ["Ledger", *_MODULES]
__dir__ = __all__.copy  # completion offers these


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
