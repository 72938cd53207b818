"""Whether a trace can be believed: what is known to go wrong between a run and its file, with the time it concerns.

The clocks of ranks are compared by the ends of the collectives that they share.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import pandas as pd

from tclab._display import counted, us_text
from tclab.trace._device_work import DeviceWork, calls_of, launches
from tclab.trace._events import ANNOTATION, DEVICE, OPERATOR_CATEGORIES, TORCH_CATEGORIES, US, Bools, Floats, Trace
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
MOST_CALLS = 500  # of one rank that are compared with those of another

NO_WINDOW = (np.nan, np.nan)

# A pathology, how many events, the µs that it concerns, its window in ticks, the tables it spoils, and a sentence.
_Found: TypeAlias = tuple[str, int, float, tuple[float, float], str, str]

COLUMNS = ["rank", "file", "pathology", "events", "concerned_us", "start_us", "end_us", "spoils", "what"]


@dataclass(frozen=True)
class Trust:
    """What speaks against the figures of a run's traces.

    - `table`: one row per pathology and rank: rank, file, pathology, how many events, concerned_us, the window from
      start_us to end_us (since the trace's first event), the tables of `Report` that it spoils, and a sentence.
    - `clocks`: one row per rank: how far its clock is ahead of the first one's, and the error of that; null where
      ranks share too few collectives.
    - `verdict`: a sentence.
    """

    table: pd.DataFrame
    clocks: pd.DataFrame
    verdict: str


def trust_of(traces: Sequence[Trace], works: Sequence[DeviceWork]) -> Trust:
    """Return what speaks against the figures of one trace, or of one per rank."""
    clocks = _clocks(traces, works)
    rows: list[tuple[object, ...]] = []
    for trace, work, clock in zip(traces, works, clocks.itertuples(), strict=True):
        found = [*_not_torch(trace), *_silences(trace), *_overlaps(trace, work), *_lost_kernels(trace, work),
                 *_early_kernels(trace, work), *_cut_steps(trace), *_unaligned(traces[0], clock)]  # fmt: skip
        for pathology, events, us, window, spoils, what in found:
            begin, end = (float(trace.us(tick)) for tick in window)
            text = f"{what} ({trace.label})."
            rows.append((trace.rank, trace.path.name, pathology, events, float(us), begin, end, spoils, text))
    table = pd.DataFrame(rows, columns=COLUMNS).astype({"rank": "Int64"})
    return Trust(table, clocks, _verdict(table, traces, clocks))


def _not_torch(trace: Trace) -> Iterator[_Found]:
    """Yield a file without a single category of torch's profiler: other programs write the same format."""
    if trace.is_category(TORCH_CATEGORIES).any():
        return
    us = trace.us(trace.stop.max() - trace.start.min())
    what = "No event has a category of torch.profiler: another program wrote it, and host and device are not told apart"
    spoils = "breakdown, categories, stages, gaps, syncs, copies"
    yield "no categories of torch.profiler", len(trace), us, NO_WINDOW, spoils, what


def _silences(trace: Trace) -> Iterator[_Found]:
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
        yield "silence", max(len(during), 1), us, (begin, end), spoils, f"{what}: shares and idle time count it"


def _overlaps(trace: Trace, work: DeviceWork) -> Iterator[_Found]:
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
    yield "overlap on a stream", count, us, (begin[bad].min(), end[bad].max()), "breakdown, gaps, idle_causes", what


def _captured(trace: Trace) -> Bools:
    """Return which events lie in the capture of a graph, whose launches run nothing."""
    inside = np.zeros(len(trace), dtype=bool)
    ends = np.flatnonzero(trace.names_match(r"StreamEndCapture"))
    for begin in np.flatnonzero(trace.names_match(r"StreamBeginCapture")).tolist():
        same = trace.track == trace.track[begin]
        later = trace.start[ends[same[ends] & (trace.start[ends] > trace.start[begin])]]
        until = later.min() if len(later) else trace.start[begin]
        inside |= same & (trace.start > trace.start[begin]) & (trace.start < until)
    return inside


def _lost_kernels(trace: Trace, work: DeviceWork) -> Iterator[_Found]:
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
    since = by_thread["end"].ffill().fillna(0).clip(lower=trace.start[rows])
    until = by_thread["begin"].bfill().fillna(int(trace.stop.max()))
    begin, finish = since[lost].to_numpy(dtype=np.int64), until[lost].to_numpy(dtype=np.int64)
    concerned = union(begin[finish > begin], finish[finish > begin])
    at_head = int((lost & by_thread["end"].ffill().isna()).sum())
    spoils = "breakdown, gaps, idle_causes, steps" + (", copies" if moves[rows[lost]].any() else "")
    us, count = trace.us(concerned.length), int(lost.sum())
    where = f", {at_head} of them at the head of the window, where profilers lose kernels" if at_head else ""
    what = (
        f"{counted(count, 'launch', 'launches')} of {len(rows)} {'has' if count == 1 else 'have'} no work "
        f"on the device in the trace{where}: what the device did in {us_text(us)} is not known"
    )
    yield ("launches without kernels", count, us, (begin.min(), finish.max()), spoils, what)


def _early_kernels(trace: Trace, work: DeviceWork) -> Iterator[_Found]:
    """Yield work that begins before the call that launched it; where times are whole µs, by more than one."""
    call = launches(trace, work.rows)
    known = (call >= 0) & (trace.correlation[work.rows] > 0)
    lead = trace.us(np.where(known, trace.start[call] - trace.start[work.rows], 0))
    early = lead > (1.0 if (trace.start % US == 0).all() else 0.0)
    if not early.any():
        return
    us, rows = lead[early], work.rows[early]
    window = (trace.start[rows].min(), (trace.start[rows] + us * US).max())
    what = (
        f"{counted(int(early.sum()), 'kernel or copy', 'kernels or copies')} of {int(known.sum())} began before "
        f"the call that launched it, by {us_text(us.sum())} in all and up to {us_text(us.max())}: the clocks of "
        "host and device differ by as much"
    )
    spoils = "gaps, idle_causes, syncs"
    yield ("kernels before their launch", int(early.sum()), us.sum(), window, spoils, what)


def _cut_steps(trace: Trace) -> Iterator[_Found]:
    """Yield a first or last step that is not whole: a mark too short, or a mark with a part that holds no event."""
    names, start, end, marked_on = trace.steps
    if len(names) < 2 or marked_on != "host":
        return
    rows = np.flatnonzero(trace.is_category(OPERATOR_CATEGORIES) | trace.is_runtime)
    found = []
    for begin, finish in zip(start.tolist(), end.tolist(), strict=True):
        inside = rows[(trace.start[rows] >= begin) & (trace.stop[rows] <= finish)]
        first, last = trace.start[inside].min(initial=finish), trace.stop[inside].max(initial=begin)
        found.append((begin, finish, len(inside), *trace.us(np.array([finish - begin, first - begin, finish - last]))))
    steps = pd.DataFrame(found, columns=["start", "end", "ops", "wall", "head", "tail"])
    for at, silent, which, side in ((0, "head", "first", "begins"), (len(names) - 1, "tail", "last", "ends")):
        step, usual = steps.iloc[at], steps.drop(index=at).median()
        if step["ops"] >= (1 - EDGE / 2) * usual["ops"]:
            continue
        us, window = float(step["wall"]), (step["start"], step["end"])
        said = f"is a fragment of {us_text(us)}, a whole one takes {us_text(usual['wall'])}"
        if us >= (1 - EDGE) * usual["wall"]:
            us = float(step[silent])
            if us - usual[silent] < EDGE * usual["wall"]:
                continue
            ticks = us * US
            window = (step["start"], step["start"] + ticks) if at == 0 else (step["end"] - ticks, step["end"])
            said = f"{side} with {us_text(us)} in which no event was recorded"
        what = f"{names[at]}, the {which} step, {said}"
        yield ("steps cut off", 1, us, window, "steps, stages", what)


def _clocks(traces: Sequence[Trace], works: Sequence[DeviceWork]) -> pd.DataFrame:
    """Return how far each rank's clock is ahead of the first one's, and how far single collectives differ from that."""
    ends = [_ends(trace, work) for trace, work in zip(traces, works, strict=True)] if len(traces) > 1 else []
    rows = [(0.0, 0.0, len(ends[0]) if ends else 0)]
    for trace, mine in zip(traces[1:], ends[1:], strict=True):
        distance = (trace.base_ns - traces[0].base_ns) / 1e3 + (trace.origin_us - traces[0].origin_us)
        ahead = _ahead(ends[0], mine, distance)
        middle = float(np.median(ahead)) if len(ahead) else np.nan
        rows.append((middle, float(np.abs(ahead - middle).max()) if len(ahead) else np.nan, len(ahead)))
    clocks = pd.DataFrame(rows, columns=["ahead_us", "error_us", "collectives"])
    clocks.insert(0, "rank", pd.Series([trace.rank for trace in traces], dtype="Int64"))
    return clocks


def _ends(trace: Trace, work: DeviceWork) -> pd.DataFrame:
    """Return a rank's collectives: kind, step, and end in µs since the trace's tick 0."""
    calls = calls_of(trace, work).head(MOST_CALLS)
    step = np.searchsorted(trace.us(trace.steps.start), calls["start_us"], side="right") - 1
    names = np.array([*trace.steps.names, ""], dtype=object)[step]
    return pd.DataFrame({"kind": calls["collective"], "step": names, "end": calls["start_us"] + calls["duration_us"]})


def _ahead(first: pd.DataFrame, other: pd.DataFrame, distance: float) -> Floats:
    """Return by how much `other` is ahead at each collective that it shares with `first`; none where these are few.

    The ranks' first windows may differ, and so may their groups: it is the distance at which most ends meet.
    """
    steps = set(first["step"]) & set(other["step"]) - {""}
    pairs = first.merge(other, on=["kind", "step"] if steps else "kind")
    ahead = np.sort((pairs["end_y"] - pairs["end_x"]).to_numpy(dtype=np.float64) + distance)
    met = np.searchsorted(ahead, ahead + TOGETHER_US, side="right") - np.arange(len(ahead))
    if met.max(initial=0) < max(MIN_COLLECTIVES, 0.3 * min(len(first), len(other))):
        return ahead[:0]
    return ahead[met.argmax() :][: met.max()]


def _unaligned(first: Trace, clock: Any) -> Iterator[_Found]:
    """Yield a clock, a row of `_clocks`, that is ahead of the first one's by more than the error of that."""
    ahead, error, shared = clock.ahead_us, clock.error_us, clock.collectives
    if abs(ahead) > max(error, SURE_US):  # not where it is null
        what = (
            f"The clock is {us_text(abs(ahead))} {'ahead of' if ahead > 0 else 'behind'} that of {first.label}, by the "
            f"ends of {counted(shared, 'collective')}, ± {us_text(error)}"
        )
        yield "unaligned clocks", shared, abs(ahead), NO_WINDOW, "times of this rank beside those of another", what


def _verdict(table: pd.DataFrame, traces: Sequence[Trace], clocks: pd.DataFrame) -> str:
    said = ", and ".join(", ".join(_not_judged(traces, clocks)).rsplit(", ", 1))
    rest = f" {said[0].upper()}{said[1:]}: nothing to judge there." if said else ""
    if len(table) == 0:
        return f"Nothing found that speaks against this trace's figures.{rest}"
    spoilt = ", ".join(dict.fromkeys(", ".join(table["spoils"]).split(", ")))
    worst = table.sort_values("concerned_us", ascending=False).head(4).to_dict("records")
    named = "; ".join(f"{row['pathology']} ({us_text(row['concerned_us'])})" for row in worst)
    count = counted(len(table), "pathology", "pathologies")
    return f"Do not believe these yet: {spoilt}. {count}: {named}{' …' if len(table) > 4 else ''}.{rest}"


def _not_judged(traces: Sequence[Trace], clocks: pd.DataFrame) -> Iterator[str]:
    if not any((trace.kind == DEVICE).any() or trace.is_runtime.any() for trace in traces):
        yield "a CPU trace"
    elif not any((trace.is_runtime & (trace.correlation > 0)).any() for trace in traces):
        yield "no correlation ids between calls and kernels"
    if all(len(trace.steps.names) < 2 for trace in traces):
        yield "fewer than two marked steps"
    if clocks["ahead_us"].isna().any():
        yield "ranks that share fewer than three collectives with the first"
