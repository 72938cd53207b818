"""What a person sees: charts, tables, words, and a sweep that runs beside the notebook.

The only room that imports altair and ipywidgets.
"""

from tclab.lab.advice import advice_chart
from tclab.lab.bytes_and_time import bytes_fit, bytes_words, time_against_bytes
from tclab.lab.charts import (
    bytes_per_batch,
    stages,
    throughput_by_batch_size,
    throughput_by_networks,
    throughput_by_strategy,
)
from tclab.lab.comparison import comparison_chart
from tclab.lab.concluding import conclusion
from tclab.lab.cost_charts import (
    break_even_chart,
    break_even_words,
    costs_table,
    held_out_chart,
    largest_batches_chart,
    roofline_chart,
)
from tclab.lab.epoch import epoch_chart, epoch_table, model_ratios
from tclab.lab.front_end import has_front_end
from tclab.lab.habits import cost_of_habits, habit_costs, habit_words
from tclab.lab.html_report import report
from tclab.lab.hypotheses import Hypothesis, ddp_hypothesis, hypotheses
from tclab.lab.inexact import errors_and_times
from tclab.lab.ledger_chart import ledger_chart
from tclab.lab.live import LiveSweep, project_path
from tclab.lab.mask_pictures import Held, held, mask_picture, sharing_table, small_graph
from tclab.lab.own_files import import_file
from tclab.lab.panel import Panel
from tclab.lab.panel_state import PanelState
from tclab.lab.parameters import check_parameters
from tclab.lab.parts import stage_parts
from tclab.lab.published import beside_published, published_figures, ratios_beside_published
from tclab.lab.recordings import Recording, recording
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
from tclab.sweeps.measured_on import this_machine

__all__ = [
    "Held",
    "Hypothesis",
    "LiveSweep",
    "Panel",
    "PanelState",
    "Recording",
    "accumulation",
    "advice_chart",
    "beside_published",
    "break_even_chart",
    "break_even_words",
    "bytes_fit",
    "bytes_per_batch",
    "bytes_words",
    "carry_over_table",
    "check_parameters",
    "comparison_chart",
    "conclusion",
    "cost_of_habits",
    "costs_table",
    "ddp_hypothesis",
    "epoch_chart",
    "epoch_steps",
    "epoch_table",
    "errors_and_times",
    "exchange",
    "exchange_table",
    "findings",
    "gate",
    "habit_costs",
    "habit_words",
    "has_front_end",
    "held",
    "held_out_chart",
    "hypotheses",
    "import_file",
    "largest_batches_chart",
    "ledger_chart",
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
    "recording",
    "report",
    "roofline_chart",
    "rows_of_points",
    "scaling_table",
    "sharing_table",
    "small_graph",
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
    "this_machine",
    "throughput_by_batch_size",
    "throughput_by_networks",
    "throughput_by_strategy",
    "time_against_bytes",
    "winner_map",
]
