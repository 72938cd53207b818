"""Whether a trace can be believed: what is known to go wrong between a run and its file, with the time it concerns."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

from tclab._display import counted, us_text
from tclab.trace._device_work import DeviceWork, calls_of, launches
from tclab.trace._events import ANNOTATION, OPERATOR_CATEGORIES, TORCH_CATEGORIES, US, Bools, Floats, Trace
from tclab.trace._nesting import union

LAUNCH = r"Launch(Cooperative)?Kernel|GraphLaunch|^(cuda|hip|cu)Mem(cpy|set)"
MOVES = r"^(cuda|hip|cu)Mem(cpy|set)"
NO_LAUNCH_US = 1.0
"""A copy or set of no bytes returns within this without asking the device; a call that launches takes 3 µs and more."""
EDGE = 0.1  # a first or last step is cut off where this share of a whole one is missing
SURE_US = 10.0  # clocks that differ by less are one clock
TOGETHER_US = 1000.0  # ranks leave a collective within this of one another
MIN_COLLECTIVES = 3  # collectives that tell two clocks apart
FEW = 20  # events below which a trace is too short to say what is usual in it


class Doubt(NamedTuple):
    """One thing that speaks against a trace: a row of `Report.trust`."""

    pathology: str
    events: int
    concerned_us: float
    spoils: str  # the tables of `Report` that it spoils
    what: str  # a sentence without its end


def trust_of(traces: Sequence[Trace], works: Sequence[DeviceWork]) -> tuple[pd.DataFrame, str]:
    """Return what speaks against the figures of one trace, or of one per rank: a table, and a sentence of it all.

    The table has one row per pathology and rank: rank, file, pathology, how many events, concerned_us, the tables of
    `Report` that it spoils, and a sentence, what.
    """
    rows: list[tuple[object, ...]] = []
    ahead = [_ahead(traces[0], works[0], trace, work) for trace, work in zip(traces[1:], works[1:], strict=True)]
    for i, (trace, work) in enumerate(zip(traces, works, strict=True)):
        doubts = [doubt for check in _CHECKS for doubt in check(trace, work)]
        doubts += _unaligned(traces[0], ahead[i - 1]) if i else []
        rows += [(trace.rank, trace.path.name, *doubt[:-1], f"{doubt.what} ({trace.label}).") for doubt in doubts]
    table = pd.DataFrame(rows, columns=["rank", "file", *Doubt._fields]).astype({"rank": "Int64"})
    return table, _verdict(table, clocks_compared=all(map(len, ahead)))


def _not_torch(trace: Trace, _: DeviceWork) -> Iterator[Doubt]:
    """Yield a file without a single category of torch's profiler: other programs write the same format."""
    if not trace.is_category(TORCH_CATEGORIES).any():
        us = trace.us(trace.stop.max() - trace.start.min())
        spoils = "breakdown, categories, stages, gaps, syncs, copies"
        what = "No event has a category of torch.profiler: another program wrote it, and host and device are not told"
        yield Doubt("no categories of torch.profiler", len(trace), us, spoils, f"{what} apart")


def _silences(trace: Trace, _: DeviceWork) -> Iterator[Doubt]:
    """Yield times of a second and more, ten times as long as all that is recorded, in which nothing begins or ends.

    There nothing at all is recorded (two windows, or a few events of an earlier run), or one event that outlasts all
    others, as a duration that is wrong does.
    """
    rows = np.flatnonzero(trace.kind != ANNOTATION)
    if len(rows) < FEW:
        return
    moments = np.sort(np.concatenate([trace.start[rows], trace.stop[rows]]))
    length = np.diff(moments)
    recorded = int(length[length < 1e6 * US].sum())
    for at in np.flatnonzero(length > max(1e6 * US, 10 * recorded)).tolist():
        begin, end, us = moments[at], moments[at + 1], trace.us(length[at])
        during = rows[(trace.start[rows] <= begin) & (trace.stop[rows] >= end)]
        before = int((trace.stop[rows] <= begin).sum())
        what = f"Nothing is recorded for {us_text(us)}, between {before} events and {len(rows) - before} later ones"
        if len(during):
            what = f"{trace.name_of(during[0])[:60]} outlasts all other events by {us_text(us)}"
        spoils = "breakdown, categories, stages, gaps, idle_causes"
        yield Doubt("silence", max(len(during), 1), us, spoils, f"{what}: shares and idle time count it")


def _overlaps(trace: Trace, work: DeviceWork) -> Iterator[Doubt]:
    """Yield work that runs into the next on its stream, which runs one after another."""
    rows = work.rows[np.lexsort((trace.stop[work.rows], trace.start[work.rows], trace.track[work.rows]))]
    first, then = rows[:-1], rows[1:]
    begin, end = trace.start[then], trace.stop[first]
    bad = (trace.track[first] == trace.track[then]) & (end - begin > SURE_US * US)
    if not bad.any():
        return
    us, count = trace.us(union(begin[bad], end[bad]).length), int(bad.sum())
    worst = first[bad][np.argmax((end - begin)[bad])]
    what = (
        f"{counted(count, 'event runs', 'events run')} into the next on the same stream, for {us_text(us)}, most "
        f"{trace.name_of(worst)[:60]}: a duration is wrong, events are there twice, or a graph's branches share it"
    )
    yield Doubt("overlap on a stream", count, us, "breakdown, gaps, idle_causes", what)


def _captured(trace: Trace) -> Bools:
    """Return which events lie in the capture of a graph, whose launches run nothing, [N]."""
    opened, closed = (trace.names_match(rf"Stream{edge}Capture") for edge in ("Begin", "End"))
    rows = np.lexsort((trace.start, trace.track))
    depth = pd.Series(opened[rows].astype(int) - closed[rows]).groupby(trace.track[rows]).cumsum()
    inside = np.zeros(len(trace), dtype=bool)
    inside[rows] = depth > 0
    return inside


def _lost_kernels(trace: Trace, work: DeviceWork) -> Iterator[Doubt]:
    """Yield launches without kernels; what they concern is the time in which the device must have run them.

    That is from the end of the device work launched before them, or from their own launch where that is later, to the
    start of the device work launched after them.
    """
    moves = trace.names_match(MOVES)
    is_launch = trace.is_runtime & trace.names_match(LAUNCH) & (trace.correlation > 0)
    is_launch &= ~(moves & (trace.us(trace.duration) <= NO_LAUNCH_US)) & ~_captured(trace)
    rows = np.flatnonzero(is_launch)
    rows = rows[np.lexsort((trace.start[rows], trace.track[rows]))]
    on_device = work.rows[trace.correlation[work.rows] > 0]
    lost = ~np.isin(trace.correlation[rows], trace.correlation[on_device])
    if not lost.any():
        return
    spans = pd.DataFrame({"begin": trace.start[on_device], "end": trace.stop[on_device]})
    spans = spans.groupby(trace.correlation[on_device]).agg({"begin": "min", "end": "max"})
    calls = spans.reindex(trace.correlation[rows]).reset_index(drop=True)  # null where lost
    by_thread = calls.groupby(trace.track[rows])
    before, after = by_thread["end"].ffill(), by_thread["begin"].bfill()
    begin = before.fillna(0).clip(lower=trace.start[rows])[lost].to_numpy(dtype=np.int64)
    end = after.fillna(int(trace.stop.max()))[lost].to_numpy(dtype=np.int64)
    us, count = trace.us(union(begin[end > begin], end[end > begin]).length), int(lost.sum())
    at_head = int((lost & before.isna()).sum())
    where = f", {at_head} of them at the head of the window, where profilers lose kernels" if at_head else ""
    what = (
        f"{counted(count, 'launch', 'launches')} of {len(rows)} {'has' if count == 1 else 'have'} no work "
        f"on the device in the trace{where}: what the device did in {us_text(us)} is not known"
    )
    spoils = "breakdown, gaps, idle_causes, steps" + (", copies" if moves[rows[lost]].any() else "")
    yield Doubt("launches without kernels", count, us, spoils, what)


def _early_kernels(trace: Trace, work: DeviceWork) -> Iterator[Doubt]:
    """Yield work that begins before the call that launched it; where times are whole µs, by more than one."""
    call = launches(trace, work.rows)
    known = (call >= 0) & (trace.correlation[work.rows] > 0)
    lead = trace.us(np.where(known, trace.start[call] - trace.start[work.rows], 0))
    us = lead[lead > (1.0 if (trace.start % US == 0).all() else 0.0)]
    if len(us):
        what = (
            f"{counted(len(us), 'kernel or copy', 'kernels or copies')} of {int(known.sum())} began before "
            f"the call that launched it, by {us_text(us.sum())} in all and up to {us_text(us.max())}: the clocks of "
            "host and device differ by as much"
        )
        yield Doubt("kernels before their launch", len(us), us.sum(), "gaps, idle_causes, syncs", what)


def _cut_steps(trace: Trace, _: DeviceWork) -> Iterator[Doubt]:
    """Yield a first or last step that is not whole: a mark too short, or a mark with a part that holds no event."""
    names, start, end, marked_on = trace.steps
    if len(names) < 2 or marked_on != "host":
        return
    rows = np.flatnonzero(trace.is_category(OPERATOR_CATEGORIES) | trace.is_runtime)
    found = []
    for begin, finish in zip(start.tolist(), end.tolist(), strict=True):
        inside = rows[(trace.start[rows] >= begin) & (trace.stop[rows] <= finish)]
        first, last = trace.start[inside].min(initial=finish), trace.stop[inside].max(initial=begin)
        found.append((len(inside), *trace.us(np.array([finish - begin, first - begin, finish - last]))))
    steps = pd.DataFrame(found, columns=["ops", "wall", "head", "tail"])
    for at, silent, which, side in ((0, "head", "first", "begins"), (len(names) - 1, "tail", "last", "ends")):
        step, usual = steps.iloc[at], steps.drop(index=at).median()
        us, missing = step["wall"], usual["wall"] - step["wall"]
        said = f"is a fragment of {us_text(us)}, a whole one takes {us_text(usual['wall'])}"
        if missing <= EDGE * usual["wall"]:
            us, missing = step[silent], step[silent] - usual[silent]
            said = f"{side} with {us_text(us)} in which no event was recorded"
        if missing > EDGE * usual["wall"] and step["ops"] < (1 - EDGE / 2) * usual["ops"]:
            yield Doubt("steps cut off", 1, float(us), "steps, stages", f"{names[at]}, the {which} step, {said}")


_CHECKS = (_not_torch, _silences, _overlaps, _lost_kernels, _early_kernels, _cut_steps)


def _ahead(first: Trace, its_work: DeviceWork, other: Trace, work: DeviceWork) -> Floats:
    """Return by how many µs the clock of `other` is ahead at each collective that it shares with `first`, sorted.

    The n-th call of a kind is the same collective on both, but for those that a group alone makes: what counts is the
    distance at which most ends meet. None where these are few.
    """
    pairs = calls_of(first, its_work).merge(calls_of(other, work), on=["collective", "index"])
    ends = [pairs[f"start_us{side}"] + pairs[f"duration_us{side}"] for side in ("_x", "_y")]
    ahead = np.sort((ends[1] - ends[0]).to_numpy(dtype=np.float64) + (other.clock_us - first.clock_us))
    met = np.searchsorted(ahead, ahead + TOGETHER_US, side="right") - np.arange(len(ahead))
    if met.max(initial=0) < max(MIN_COLLECTIVES, 0.3 * len(ahead)):
        return ahead[:0]
    return ahead[met.argmax() :][: met.max()]


def _unaligned(first: Trace, ahead: Floats) -> Iterator[Doubt]:
    """Yield a clock that is ahead of the first rank's, by more than its distance varies between collectives."""
    if len(ahead) == 0:
        return
    us = float(np.median(ahead))
    error = float(np.abs(ahead - us).max())
    if abs(us) > max(error, SURE_US):
        what = (
            f"The clock is {us_text(abs(us))} {'ahead of' if us > 0 else 'behind'} that of {first.label}, by the "
            f"ends of {counted(len(ahead), 'collective')}, ± {us_text(error)}"
        )
        yield Doubt("unaligned clocks", len(ahead), abs(us), "times of this rank beside those of another", what)


def _verdict(table: pd.DataFrame, *, clocks_compared: bool) -> str:
    rest = "" if clocks_compared else " Ranks share fewer than three collectives: their clocks are not compared."
    if len(table) == 0:
        return f"Nothing found that speaks against this trace's figures.{rest}"
    spoilt = ", ".join(dict.fromkeys(", ".join(table["spoils"]).split(", ")))
    worst = table.sort_values("concerned_us", ascending=False).head(4).to_dict("records")
    named = "; ".join(f"{row['pathology']} ({us_text(row['concerned_us'])})" for row in worst)
    count = counted(len(table), "pathology", "pathologies")
    return f"Do not believe these yet: {spoilt}. {count}: {named}{' …' if len(table) > 4 else ''}.{rest}"
