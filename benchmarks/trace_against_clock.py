"""Agreement of trace and ledger on each stage of the same steps.

    make gpu PARTS=i                    # on CUDA
    make gpu PARTS=i DEVICE=cpu         # on a CPU

tclab's training step runs under a ledger that marks its stages in the trace, in steps that the profiler records. Each
part of the step in the trace (self time within a stage's marks) is compared with the ledger's sum over these steps.
Each part that takes at least a hundredth of the step is to agree within 5 %; the others are shown.
"""

from collections import Counter
from pathlib import Path

import pandas as pd

from tclab import Point, trace
from tclab.sweeps import loop_of
from tclab.timing import Ledger
from tclab.trace._report import Report

PARTS = {
    "data_loading": ("data_wait", "transfer"),
    "graph_processing": ("mask",),
    "model_forward": ("forward",),
    "loss_computation": ("loss",),
    "backward": ("backward",),
    "optimizer": ("clip", "optimizer"),
}
FIRST = 5  # steps before those that both see
ALLOWED = 0.05


def compare(folder: Path, *, steps: int, scale: float, device: str) -> tuple[Report, pd.DataFrame, float]:
    """Return the report of a trace that is written to a folder, and each part of the step in it and in the ledger.

    The last value is the largest difference, as a share, of the parts that take at least a hundredth of the step.
    """
    seconds: Counter[str] = Counter()
    with (
        loop_of(Point(scale=scale, batch_size=4, workers=0, device=device), steps=1) as loop,
        trace.record(folder, wait=FIRST - 2, warmup=2, active=steps, steps=FIRST + steps) as recorder,
    ):
        for i in range(FIRST + steps):
            ledger = Ledger(marks=True)
            loop(ledger)
            recorder.step()
            if i >= FIRST:
                seconds.update({stage: sum(times) for stage, times in ledger.seconds().items()})
    assert recorder.path is not None
    report = trace.analyze(recorder.path)
    account = report.stages.set_index("stage")["self_us"]
    table = pd.DataFrame(
        {
            "ledger_us": {part: sum(seconds[stage] for stage in stages) * 1e6 for part, stages in PARTS.items()},
            "trace_us": account.reindex(PARTS),
        }
    )
    table["difference"] = table["trace_us"] / table["ledger_us"] - 1
    table["us_per_step"] = (table["trace_us"] - table["ledger_us"]) / steps
    large = table[table["ledger_us"] > 0.01 * table["ledger_us"].sum()]
    return report, table, large["difference"].abs().max()
