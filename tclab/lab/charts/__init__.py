"""Charts of rows, graphs, traces, races and predictions, of three marks; each function returns one chart."""

from tclab.lab.charts._graph_charts import reach_chart, speed_up
from tclab.lab.charts._mask_pictures import mask_picture
from tclab.lab.charts._result_charts import race_chart, result_chart
from tclab.lab.charts._sweep_charts import stages, throughput
from tclab.lab.charts._trace_charts import trace_timeline

__all__ = [
    "mask_picture", "race_chart", "reach_chart", "result_chart", "speed_up", "stages", "throughput",
    "trace_timeline",
]  # fmt: skip
__dir__ = __all__.copy  # completion offers these
