"""Steps of a training loop: their times, and which of them are whole."""

import numpy as np
import pandas as pd

from tclab._display import us_text
from tclab.trace._device_work import DeviceWork
from tclab.trace._events import Trace
from tclab.trace._nesting import Intervals, union

EDGE = 0.1  # a first or last step is cut off where this share of a whole one is missing


def step_table(trace: Trace, device: DeviceWork) -> pd.DataFrame:
    """Return one row per `ProfilerStep`: rank, step, start_us, wall_us, the devices' times within it, whole.

    Times are of any device: idle is when none was busy. They are clipped to the step's window, which is the host's
    where the host marks steps; work still queued when the last step ended is then in the breakdown of the whole trace
    only. A step is whole unless the recording began or ended within it. No rows where the trace has no steps.
    """
    steps = trace.steps
    wall = steps.end - steps.start
    table = {"file": trace.path.name, "step": steps.names, "marked_on": steps.marked_on,
             "start_us": trace.us(steps.start), "wall_us": trace.us(wall)}  # fmt: skip
    within = {kind: device.times[kind].covered(steps.start, steps.end)
              for kind in ("busy", "compute", "communication", "copy")}  # fmt: skip
    for kind, ticks in (within | {"idle": wall - within["busy"]}).items():
        table[f"{kind}_us"] = trace.us(ticks) if len(device.rows) else np.full(len(wall), np.nan)
    table["whole"] = ~np.isin(np.arange(len(wall)), list(cut_steps(trace)))
    return trace.ranked(pd.DataFrame(table))


def whole_steps(trace: Trace) -> Intervals:
    """Return the time of the whole steps that the host marks; empty where it marks none."""
    _, start, end, marked_on = trace.steps
    whole = ~np.isin(np.arange(len(start)), list(cut_steps(trace))) & (marked_on == "host")
    return union(start[whole], end[whole])


def cut_steps(trace: Trace) -> dict[int, tuple[float, str]]:
    """Return the first or last step, or both, that is not whole: µs concerned, and a sentence.

    Its mark is too short, or a part of it holds no event.
    """
    names, start, end, marked_on = trace.steps
    if len(names) < 2 or marked_on != "host":
        return {}
    rows = np.flatnonzero(trace.is_op | trace.is_runtime)
    found = []
    for begin, finish in zip(start.tolist(), end.tolist(), strict=True):
        inside = rows[(trace.start[rows] >= begin) & (trace.stop[rows] <= finish)]
        first, last = trace.start[inside].min(initial=finish), trace.stop[inside].max(initial=begin)
        found.append((len(inside), *trace.us(np.array([finish - begin, first - begin, finish - last]))))
    steps = pd.DataFrame(found, columns=["ops", "wall", "head", "tail"])
    cut: dict[int, tuple[float, str]] = {}
    for at, silent, which, side in ((0, "head", "first", "begins"), (len(names) - 1, "tail", "last", "ends")):
        step, usual = steps.iloc[at], steps.drop(index=at).median()
        us, missing = step["wall"], usual["wall"] - step["wall"]
        said = f"is a fragment of {us_text(us)}, a whole one takes {us_text(usual['wall'])}"
        if missing <= EDGE * usual["wall"]:
            us, missing = step[silent], step[silent] - usual[silent]
            said = f"{side} with {us_text(us)} in which no event was recorded"
        if missing > EDGE * usual["wall"] and step["ops"] < (1 - EDGE / 2) * usual["ops"]:
            cut[at] = float(us), f"{names[at]}, the {which} step, {said}"
    return cut
