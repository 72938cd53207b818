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
from tclab.lab.epoch import epoch_chart, epoch_table, model_ratios
from tclab.lab.habits import cost_of_habits, habit_costs, habit_words
from tclab.lab.hypotheses import Hypothesis, ddp_hypothesis, hypotheses
from tclab.lab.live import LiveSweep, has_front_end, project_path
from tclab.lab.parts import stage_parts
from tclab.lab.published import beside_published, published_figures, ratios_beside_published
from tclab.lab.scaling import (
    accumulation,
    epoch_steps,
    exchange,
    exchange_table,
    rows_of_points,
    scaling_table,
    speed_up,
    steps_on_paper,
)
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
    "Hypothesis",
    "LiveSweep",
    "accumulation",
    "beside_published",
    "bytes_fit",
    "bytes_per_batch",
    "bytes_words",
    "carry_over_table",
    "cost_of_habits",
    "ddp_hypothesis",
    "epoch_chart",
    "epoch_steps",
    "epoch_table",
    "exchange",
    "exchange_table",
    "findings",
    "gate",
    "habit_costs",
    "habit_words",
    "has_front_end",
    "hypotheses",
    "ledger_table",
    "machine",
    "model_ratios",
    "pairs_of",
    "project_path",
    "published_figures",
    "race_card",
    "race_chart",
    "race_words",
    "ratios_beside_published",
    "rows_of_points",
    "scaling_table",
    "speed_up",
    "spike_chart",
    "spike_table",
    "stage_parts",
    "stage_spread",
    "stages",
    "step_findings",
    "step_stages",
    "steps",
    "steps_on_paper",
    "throughput_by_batch_size",
    "throughput_by_networks",
    "throughput_by_strategy",
    "time_against_bytes",
    "winner_map",
]
