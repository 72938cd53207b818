"""Clocks for any training loop: where a step's time goes, which of two is faster, and how far to trust the figures.

It knows nothing of graphs and can be used around any loop. A ledger needs Python alone. torch is imported for CUDA,
pandas for a frame and for advice, numpy and scipy for a race, a verdict and advice.
"""

import importlib
from typing import TYPE_CHECKING, Any

from tclab.timing._communication import Communication
from tclab.timing._host_syncs import syncs
from tclab.timing._ledger import Ledger
from tclab.timing._lightning_callback import lightning_callback
from tclab.timing._loader_times import loader_times
from tclab.timing._profile import profile
from tclab.timing._self_test import receipt, spike_in

if TYPE_CHECKING:
    from tclab.timing._advice import advise as advise
    from tclab.timing._commands_race import race_commands as race_commands
    from tclab.timing._race import race as race
    from tclab.timing._race import race_cells as race_cells
    from tclab.timing._verdict import verdicts_of as verdicts_of

# name → its module, which takes numpy and is imported at the name's first use
_MODULES = {
    "advise": "_advice", "race": "_race", "race_cells": "_race", "race_commands": "_commands_race",
    "verdicts_of": "_verdict",
}  # fmt: skip
__all__ = ["Communication", "Ledger", "lightning_callback", "loader_times", "profile", "receipt", "spike_in", "syncs"]
__all__ += _MODULES
__dir__ = __all__.copy  # completion offers these


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
