"""Charts of rows, graphs, traces, races and predictions, in one visual language; each function returns one chart."""

from tclab.lab.charts._advice_chart import advice_chart
from tclab.lab.charts._bytes_charts import bytes_per_batch, time_against_bytes
from tclab.lab.charts._cost_charts import break_even_chart, held_out_chart, largest_batches_chart, roofline_chart
from tclab.lab.charts._graph_charts import degree_chart, overlap_chart, reach_chart, size_chart
from tclab.lab.charts._mask_pictures import mask_picture
from tclab.lab.charts._scaling_charts import (
    accumulation,
    epoch_chart,
    exchange_shares,
    runs_chart,
    speed_up,
    steps_per_epoch_chart,
)
from tclab.lab.charts._stage_charts import ledger_chart, stage_spread, stages
from tclab.lab.charts._throughput_charts import throughput
from tclab.lab.charts._trace_charts import trace_chart, trace_comparison, trace_memory_owners, trace_timeline
from tclab.lab.charts._trust_charts import comparison_chart, race_chart, spike_chart, winner_map

__all__ = [
    "accumulation",
    "advice_chart",
    "break_even_chart",
    "bytes_per_batch",
    "comparison_chart",
    "degree_chart",
    "epoch_chart",
    "exchange_shares",
    "held_out_chart",
    "largest_batches_chart",
    "ledger_chart",
    "mask_picture",
    "overlap_chart",
    "race_chart",
    "reach_chart",
    "roofline_chart",
    "runs_chart",
    "size_chart",
    "speed_up",
    "spike_chart",
    "stage_spread",
    "stages",
    "steps_per_epoch_chart",
    "throughput",
    "time_against_bytes",
    "trace_chart",
    "trace_comparison",
    "trace_memory_owners",
    "trace_timeline",
    "winner_map",
]
__dir__ = __all__.copy  # completion offers these
