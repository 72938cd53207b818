"""Analysis of torch.profiler traces: where the time went, in figures that add up.

    report = tclab.trace.analyze("rank0.pt.trace.json.gz")     # or a folder with one file per rank
    print(report)                                              # the findings, in sentences: can it be trusted, first

`report.breakdown`, `.kernels`, `.categories`, `.stages`, `.steps`, `.gaps`, `.syncs`, `.collectives` and a few more are
the tables behind the findings; `.trust` is what speaks against them; `compare(a, b)` compares two runs; `record`
profiles chosen steps of a loop; `tclab.lab.charts` draws them.

How the figures are made. On a host thread every moment belongs to one event, the latest that has begun and not
ended, so self times sum to the thread's wall time and an event is not charged for what runs inside it. A backward pass
that autograd runs on a thread of its own counts on the main thread while this waits for it. On a device, times are
unions of intervals: work on two streams at once counts once; each device has its own. All times are whole nanoseconds,
read from the decimals in the file.

How the tables relate to Holistic Trace Analysis (HTA 0.6.1): `breakdown` is its temporal breakdown, `idle_causes` its
idle time breakdown, and `communication_us` and `exposed_communication_us` its communication-computation overlap. HTA
rounds every event to whole µs, leaves out the last ProfilerStep, counts synchronisation marks as device time, and fails
on a trace without device events; here the whole trace counts, unrounded, kernels, copies and sets alone, and missing
device times are null. Both count communication that overlaps compute as compute.

This package imports of tclab only files that know nothing of graphs, and torch only in `record` and `example`.
"""

from tclab.errors import need

need(__name__, "trace", "pandas", "pyarrow", "msgspec")

from tclab.trace._compare_traces import compare
from tclab.trace._events import TraceError
from tclab.trace._record import example, record
from tclab.trace._report import analyze

__all__ = ["TraceError", "analyze", "compare", "example", "record"]
__dir__ = __all__.copy  # completion offers these
