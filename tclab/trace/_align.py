"""The clocks of ranks, aligned by the ends of the collectives that they share."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from tclab.trace._device_work import DeviceWork, calls_of
from tclab.trace._events import Floats, Trace, step_windows

TOGETHER_US = 1000.0  # ranks leave a collective within this of one another
MIN_COLLECTIVES = 3  # collectives that tell two clocks apart
MOST_CALLS = 2000  # of one rank that are compared with those of another


@dataclass(frozen=True)
class Clock:
    """How far a rank's clock is ahead of the first rank's, µs, and how far single collectives differ from that."""

    ahead_us: float
    error_us: float
    collectives: int


def aligned_clocks(traces: Sequence[Trace], works: Sequence[DeviceWork]) -> list[Clock | None]:
    """Return each rank's clock against the first one's; None where they share too few collectives."""
    if len(traces) < 2:
        return [Clock(0.0, 0.0, 0) for _ in traces]
    ends = [_ends(trace, work) for trace, work in zip(traces, works, strict=True)]
    clocks: list[Clock | None] = [Clock(0.0, 0.0, len(ends[0]))]
    for trace, mine in zip(traces[1:], ends[1:], strict=True):
        distance = (trace.base_ns - traces[0].base_ns) / 1e3 + (trace.origin_us - traces[0].origin_us)
        clocks.append(_clock(ends[0], mine, distance))
    return clocks


def _ends(trace: Trace, work: DeviceWork) -> pd.DataFrame:
    """Return a rank's collectives: kind, step, index of its kind, and end in µs since the trace's tick 0."""
    calls = calls_of(trace, work).head(MOST_CALLS)
    steps = step_windows(trace)
    place = np.searchsorted(trace.us(steps.start), calls["start_us"], side="right") - 1
    names = np.array([*steps.names, ""], dtype=object)[place]
    return pd.DataFrame(
        {
            "kind": calls["collective"],
            "step": names,
            "index": calls.groupby("collective").cumcount(),
            "end": calls["start_us"] + calls["duration_us"],
        }
    )


def _clock(first: pd.DataFrame, other: pd.DataFrame, distance: float) -> Clock | None:
    """Return the clock of `other` against `first`; None where they share too few collectives."""
    nth = first.merge(other, on=["kind", "index"])
    if len(nth) >= MIN_COLLECTIVES and len(first) == len(other):
        ahead = (nth["end_y"] - nth["end_x"]).to_numpy(dtype=np.float64) + distance
        near = np.abs(ahead - np.median(ahead)) <= TOGETHER_US
        if near.mean() >= 0.9:
            return _of(ahead[near])
    # ranks whose first windows differ, or who are in other groups: the distance at which most ends meet
    pairs = first.merge(other, on="kind")
    if set(first["step"]) & set(other["step"]) - {""}:
        pairs = pairs[pairs["step_x"] == pairs["step_y"]]
    ahead = np.sort((pairs["end_y"] - pairs["end_x"]).to_numpy(dtype=np.float64) + distance)
    if len(ahead) == 0:
        return None
    met = np.searchsorted(ahead, ahead + TOGETHER_US, side="right") - np.arange(len(ahead))
    most = int(met.argmax())
    if met[most] < max(MIN_COLLECTIVES, 0.3 * min(len(first), len(other))):
        return None
    return _of(ahead[most : most + int(met[most])])


def _of(ahead: Floats) -> Clock:
    middle = float(np.median(ahead))
    return Clock(middle, float(np.abs(ahead - middle).max()), len(ahead))
