"""Reads anybody's torch.profiler trace and gives an answer that adds up.

    report = tclab.trace.analyze("rank0.pt.trace.json.gz")     # or a folder with one file per rank
    print(report)                                              # what is wrong, in sentences

`report.breakdown`, `.categories`, `.stages`, `.steps`, `.gaps`, `.syncs`, `.copies`, `.memory`,
`.collectives` and a few more are tables behind the sentences; `compare(a, b)` lays two runs side by side;
`record` makes a trace of the right steps of a loop; `lay_spans` adds spans of your own clock to a trace as a
track of its own; `tclab.lab.timeline` draws it all.

How the figures are made. On a host thread every moment belongs to one event, the one begun last and
still running, so self times sum to the thread's wall time and a closure is not charged with what runs inside
it. On a device, times are unions of intervals: two streams at once count once.

How `breakdown` differs from Holistic Trace Analysis (0.6.1, temporal breakdown by default): it rounds every
event to whole µs, leaves out the last ProfilerStep and counts synchronisation marks as device time; ours is
the whole trace, unrounded, of kernels, copies and sets. It fails on a trace without device events; ours gives
null. It takes communication that overlaps compute as compute, which `compute_us` does too;
`communication_us` and `exposed_communication_us` tell the two apart.

This package imports nothing else of tclab and loads torch only inside `record` and `example`.
"""

from tclab.trace.categories import CATEGORIES, RULES, Rule
from tclab.trace.compare import Comparison, compare
from tclab.trace.errors import ScheduleError, TraceError
from tclab.trace.example import example
from tclab.trace.record import Recorder, record
from tclab.trace.report import Report, analyze
from tclab.trace.rows import timeline_rows
from tclab.trace.spans import lay_spans
from tclab.trace.words import Finding

__all__ = [
    "CATEGORIES",
    "RULES",
    "Comparison",
    "Finding",
    "Recorder",
    "Report",
    "Rule",
    "ScheduleError",
    "TraceError",
    "analyze",
    "compare",
    "example",
    "lay_spans",
    "record",
    "timeline_rows",
]
