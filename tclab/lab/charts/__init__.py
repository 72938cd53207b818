"""Charts of rows, graphs, traces, races and predictions, of three marks; each function returns one chart."""

from tclab.lab.charts._graph_charts import mask_picture, reach_chart
from tclab.lab.charts._result_charts import race_chart, result_chart
from tclab.lab.charts._sweep_charts import speed_up, stages, throughput

__all__ = [
    "mask_picture", "race_chart", "reach_chart", "result_chart", "speed_up", "stages", "throughput",
]  # fmt: skip
__dir__ = __all__.copy  # completion offers these
