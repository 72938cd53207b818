"""Steps of a training loop: their times, and which of them are whole."""

import numpy as np
import pandas as pd

from tclab._display import us_text
from tclab.trace._device_work import DeviceWork
from tclab.trace._events import US, Trace
from tclab.trace._nesting import Intervals, union

EDGE = 0.1  # a first or last step is cut off where this share of a whole one is missing


def step_table(trace: Trace, device: DeviceWork) -> pd.DataFrame:
    """Return one row per `ProfilerStep`: rank, step, start_us, wall_us, the devices' times within it, whole.

    Times are of any device: idle is when none was busy. They are clipped to the step's window, which is the host's
    where the host marks steps; work still queued when the last step ended is then in the breakdown of the whole trace
    only. A step is whole unless the recording began or ended within it. No rows where the trace has no steps.
    """
    start, end = trace.steps["start"].to_numpy(), trace.steps["end"].to_numpy()
    times = {"start_us": start / US, "wall_us": (end - start) / US}
    marks = {"step": trace.steps["name"], "marked_on": trace.steps["marked_on"]}
    table = pd.DataFrame({"file": trace.path.name, **marks, **times})
    kinds = ("busy", "compute", "communication", "copy")
    within = {kind: device.times[kind].covered(start, end) for kind in kinds}
    for kind, ticks in (within | {"idle": end - start - within["busy"]}).items():
        table[f"{kind}_us"] = ticks / US if len(device.rows) else np.nan
    table["whole"] = ~table.index.isin(cut_steps(trace))
    return trace.ranked(table)


def whole_steps(trace: Trace) -> Intervals:
    """Return the time of the whole steps that the host marks; empty where it marks none."""
    whole = trace.steps.drop(index=[*cut_steps(trace)]).query("marked_on == 'host'")
    return union(whole["start"].to_numpy(), whole["end"].to_numpy())


def cut_steps(trace: Trace) -> dict[int, tuple[float, str]]:
    """Return the first or last step, or both, that is not whole: µs concerned, and a sentence.

    Its mark is too short, or a part of it holds no event.
    """
    steps = trace.steps
    if len(steps) < 2 or steps["marked_on"][0] != "host":
        return {}
    rows = np.flatnonzero(trace.is_op | trace.is_runtime)
    steps = steps.assign(wall=(steps["end"] - steps["start"]) / US)
    for i, start, end in trace.steps[["start", "end"]].itertuples(name=None):
        inside = rows[(trace.start[rows] >= start) & (trace.stop[rows] <= end)]
        steps.loc[i, "ops"] = len(inside)
        steps.loc[i, "head"] = (trace.start[inside].min(initial=end) - start) / US
        steps.loc[i, "tail"] = (end - trace.stop[inside].max(initial=start)) / US
    cut: dict[int, tuple[float, str]] = {}
    for i, silent, which, side in ((0, "head", "first", "begins"), (len(steps) - 1, "tail", "last", "ends")):
        step, usual = steps.iloc[i], steps.drop(index=i).median(numeric_only=True)
        us, missing = step["wall"], usual["wall"] - step["wall"]
        said = f"is a fragment of {us_text(us)}, a whole one takes {us_text(usual['wall'])}"
        if missing <= EDGE * usual["wall"]:
            us, missing = step[silent], step[silent] - usual[silent]
            said = f"{side} with {us_text(us)} in which no event was recorded"
        if missing > EDGE * usual["wall"] and step["ops"] < (1 - EDGE / 2) * usual["ops"]:
            cut[i] = float(us), f"{step['name']}, the {which} step, {said}"
    return cut
