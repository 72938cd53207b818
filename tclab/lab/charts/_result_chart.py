"""The chart of a result: one function for what other functions of tclab return."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tclab.errors import require
from tclab.lab.charts._advice_chart import advice_chart
from tclab.lab.charts._cost_charts import largest_batches_chart
from tclab.lab.charts._scaling_charts import epoch_chart
from tclab.lab.charts._stage_charts import ledger_chart
from tclab.lab.charts._trace_charts import trace_comparison_chart, trace_memory_owners_chart
from tclab.lab.charts._trust_charts import comparison_chart, spike_chart
from tclab.sweeps.analysis._compare_runs import Comparison
from tclab.sweeps.predict._epoch import Epoch
from tclab.sweeps.predict._fits import LargestBatch
from tclab.timing import Ledger
from tclab.timing._advice import Advice
from tclab.timing._spike_in import SpikeIn
from tclab.trace._compare_traces import Comparison as TraceComparison
from tclab.trace._memory_owners import MemoryOwners

_CHARTS: dict[type, Callable[..., Any]] = {
    Advice: advice_chart,
    Comparison: comparison_chart,
    Epoch: epoch_chart,
    LargestBatch: largest_batches_chart,
    Ledger: ledger_chart,
    MemoryOwners: trace_memory_owners_chart,
    SpikeIn: spike_chart,
    TraceComparison: trace_comparison_chart,
}


def result_chart(result: Any, *, where: str | None = None) -> Any:
    """Return the chart of a result.

    | result of | chart |
    |---|---|
    | `advise`, of `tclab` or `tclab.timing` | each suggestion's ratio to the present step, predicted and measured |
    | `tclab.compare` | the second runs' time over the first's, point by point |
    | `tclab.timing.Ledger` | a bar of stages for each timeline, which add up to the mean step |
    | `tclab.timing.spike_in` | measured over injected delays |
    | `tclab.trace.compare` | two runs by category |
    | `tclab.trace.memory_owners` | what held memory at each device's peak, by line |
    | `tclab.sweeps.run_epoch`, a list of them | predicted over measured seconds of each epoch |
    | `tclab.sweeps.largest_batch`, a list of them | the largest batch of each strategy that ran, and the expected one |

    Intervals are of 95 %; what is undecided is hollow.

    **Arguments:**

    - `result`: of one of these.
    - `where`: the machine, for the title; unless given that of the result, or of its rows, or this one. "cpu" and
      "cuda" are this machine's.

    **Raises:** `InputError` for anything else.
    """
    one = result[0] if isinstance(result, list | tuple) and result else result
    require("result", one, tuple(_CHARTS), "an advice, a comparison, a ledger, spikes, owners of memory, or a list of "
            "epochs or largest batches")  # fmt: skip
    draw = next(draw for kind, draw in _CHARTS.items() if isinstance(one, kind))
    return draw(result, where=where)
