"""What a point or an epoch will need before it runs: memory, bytes, seconds."""

from tclab.sweeps.predict._cost_model import cells, fit_costs, measure_cells, removed_share

__all__ = ["cells", "fit_costs", "measure_cells", "removed_share"]
__dir__ = __all__.copy  # completion offers these
