"""Charts of rows, graphs, traces, races and predictions, in one visual language; each function returns one chart."""

from tclab.lab.charts._bytes_charts import bytes_per_batch, time_against_bytes
from tclab.lab.charts._cost_charts import break_even_chart, held_out_chart, roofline_chart
from tclab.lab.charts._graph_charts import graph_chart, reach_chart
from tclab.lab.charts._mask_pictures import mask_picture
from tclab.lab.charts._result_chart import result_chart
from tclab.lab.charts._scaling_charts import scaling_chart, speed_up, steps_per_epoch_chart
from tclab.lab.charts._stage_charts import stage_spread, stages
from tclab.lab.charts._throughput_charts import throughput
from tclab.lab.charts._trace_charts import trace_chart, trace_timeline
from tclab.lab.charts._trust_charts import race_chart, winner_map

__all__ = [
    "break_even_chart",
    "bytes_per_batch",
    "graph_chart",
    "held_out_chart",
    "mask_picture",
    "race_chart",
    "reach_chart",
    "result_chart",
    "roofline_chart",
    "scaling_chart",
    "speed_up",
    "stage_spread",
    "stages",
    "steps_per_epoch_chart",
    "throughput",
    "time_against_bytes",
    "trace_chart",
    "trace_timeline",
    "winner_map",
]
__dir__ = __all__.copy  # completion offers these
