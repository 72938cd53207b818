"""What a person sees: charts, tables, words, and a sweep that runs beside the notebook.

The only room that imports altair and ipywidgets.
"""

from tclab.lab.charts import (
    bytes_per_batch,
    stages,
    throughput_by_batch_size,
    throughput_by_networks,
    throughput_by_strategy,
)
from tclab.lab.epoch import epoch_chart, epoch_table, model_ratios
from tclab.lab.live import LiveSweep, has_front_end, project_path
from tclab.lab.tables import gate, machine, steps
from tclab.lab.trust import (
    carry_over_table,
    ledger_table,
    pairs_of,
    race_card,
    race_chart,
    race_words,
    spike_chart,
    spike_table,
    winner_map,
)
from tclab.lab.words import findings

__all__ = [
    "LiveSweep",
    "bytes_per_batch",
    "carry_over_table",
    "epoch_chart",
    "epoch_table",
    "findings",
    "gate",
    "has_front_end",
    "ledger_table",
    "machine",
    "model_ratios",
    "pairs_of",
    "project_path",
    "race_card",
    "race_chart",
    "race_words",
    "spike_chart",
    "spike_table",
    "stages",
    "steps",
    "throughput_by_batch_size",
    "throughput_by_networks",
    "throughput_by_strategy",
    "winner_map",
]
