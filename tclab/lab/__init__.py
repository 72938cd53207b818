"""What a person sees: charts, tables, words, and a sweep that runs beside the notebook.

The only room that imports altair and ipywidgets.
"""

from tclab.lab.bytes_and_time import bytes_fit, bytes_words, time_against_bytes
from tclab.lab.charts import (
    bytes_per_batch,
    stages,
    throughput_by_batch_size,
    throughput_by_networks,
    throughput_by_strategy,
)
from tclab.lab.cost_charts import (
    break_even_chart,
    costs_table,
    held_out_chart,
    largest_batches_chart,
    roofline_chart,
)
from tclab.lab.epoch import epoch_chart, epoch_table, model_ratios
from tclab.lab.habits import cost_of_habits, habit_costs, habit_words
from tclab.lab.hypotheses import Hypothesis, hypotheses
from tclab.lab.live import LiveSweep, has_front_end, project_path
from tclab.lab.mask_pictures import Held, held, mask_picture, sharing_table, small_graph
from tclab.lab.parts import stage_parts
from tclab.lab.published import beside_published, published_figures, ratios_beside_published
from tclab.lab.stage_bars import stage_spread, step_stages
from tclab.lab.step_words import step_findings
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
    "Held",
    "Hypothesis",
    "LiveSweep",
    "beside_published",
    "break_even_chart",
    "bytes_fit",
    "bytes_per_batch",
    "bytes_words",
    "carry_over_table",
    "cost_of_habits",
    "costs_table",
    "epoch_chart",
    "epoch_table",
    "findings",
    "gate",
    "habit_costs",
    "habit_words",
    "has_front_end",
    "held",
    "held_out_chart",
    "hypotheses",
    "largest_batches_chart",
    "ledger_table",
    "machine",
    "mask_picture",
    "model_ratios",
    "pairs_of",
    "project_path",
    "published_figures",
    "race_card",
    "race_chart",
    "race_words",
    "ratios_beside_published",
    "roofline_chart",
    "sharing_table",
    "small_graph",
    "spike_chart",
    "spike_table",
    "stage_parts",
    "stage_spread",
    "stages",
    "step_findings",
    "step_stages",
    "steps",
    "throughput_by_batch_size",
    "throughput_by_networks",
    "throughput_by_strategy",
    "time_against_bytes",
    "winner_map",
]
