"""Whether a trace can be believed: what is known to go wrong between a run and its file, with the time it concerns."""

from collections import Counter
from collections.abc import Iterator
from itertools import permutations
from typing import TypeAlias

import numpy as np
import pandas as pd

from tclab._display import counted, us_text
from tclab.trace._categories import STAGES
from tclab.trace._device_work import DeviceWork, RankWork
from tclab.trace._events import ANNOTATION, SECOND, TORCH_CATEGORIES, US, Bools, Floats, Trace
from tclab.trace._host_work import EDGE, LAUNCH, HostWork, cut_steps
from tclab.trace._nesting import nearest, union

MOVES = r"^(cuda|hip|cu)Mem(cpy|set)"
# A copy or set of no bytes returns within this without asking the device; a call that launches takes 3 µs and more.
NO_LAUNCH_US = 1.0
SURE_US = 10.0  # clocks that differ by less are one clock
TOGETHER_US = 1000.0  # ranks leave a collective within this of one another
MIN_COLLECTIVES = 3  # collectives that tell two clocks apart
FEW = 20  # events below which a trace is too short to say what is usual in it


# One thing that speaks against a trace, a row of `Report.trust`: its pathology, how many events, the µs that it
# concerns, the tables of `Report` that it spoils, and what it is, a sentence without its end.
Doubt: TypeAlias = tuple[str, int, float, str, str]
_COLUMNS = ["rank", "file", "pathology", "events", "concerned_us", "spoils", "what"]


def trust_of(ranks: list[RankWork], calls: pd.DataFrame) -> tuple[pd.DataFrame, str]:
    """Return what speaks against the figures of one trace, or of one per rank: a table, and a sentence of it all.

    The table has one row per pathology and rank: rank, file, pathology, how many events, concerned_us, the tables of
    `Report` that it spoils, and a sentence, what.

    **Arguments:**

    - `calls`: the collectives of all ranks, as `pair_calls` returns them.
    """
    rows: list[tuple[object, ...]] = []
    ahead = [np.empty(0), *(_ahead(ranks[0].trace, rank.trace, calls) for rank in ranks[1:])]
    for rank, us in zip(ranks, ahead, strict=True):
        trace, device, host = rank.trace, rank.device, rank.host
        doubts = [*_not_torch(trace), *_silences(trace), *_overlaps(trace, device), *_lost_kernels(trace, device)]
        doubts += [*_short_replays(trace, device), *_early_kernels(trace, device)]
        doubts += [("steps cut off", 1, cut, "steps, stages", what) for cut, what in cut_steps(trace).values()]
        doubts += [*_overruns(trace, host), *_endless_marks(trace, host), *_unaligned(ranks[0].trace, us)]
        rows += [(trace.rank, trace.path.name, *doubt, f"{what} ({trace.label}).") for *doubt, what in doubts]
    table = pd.DataFrame(rows, columns=_COLUMNS).astype({"rank": "Int64"})
    return table, _verdict(table, clocks_compared=all(map(len, ahead[1:])))


def _not_torch(trace: Trace) -> Iterator[Doubt]:
    """Yield events without a category of torch's profiler: other programs write the same format."""
    rows = np.flatnonzero(~trace.is_category(TORCH_CATEGORIES))
    if len(rows) > 0.01 * len(trace.start):
        us = union(trace.start[rows], trace.stop[rows]).length / US
        some = f"{len(rows)} of {len(trace.start)} events, such as {trace.names_of(rows)[0][:60]}, have no"
        has = "No event has a" if len(rows) == len(trace.start) else some
        what = f"{has} category of torch.profiler: another program wrote it, and host and device are not told apart"
        spoils = "breakdown, categories, stages, kernels, gaps, syncs"
        yield "no categories of torch.profiler", len(rows), us, spoils, what


def _silences(trace: Trace) -> Iterator[Doubt]:
    """Yield times of a second and more, ten times as long as all that is recorded, in which nothing begins or ends.

    There nothing at all is recorded (two windows, or a few events of an earlier run), or one event that outlasts all
    others, as a duration that is wrong does.
    """
    rows = np.flatnonzero(trace.kind != ANNOTATION)
    start, stop = trace.start[rows], trace.stop[rows]
    moments = np.sort(np.concatenate([start, stop]))
    length = np.diff(moments)
    recorded = int(length[length < SECOND].sum())
    for i in np.flatnonzero(length > max(SECOND, 10 * recorded)).tolist() if len(rows) >= FEW else []:
        during, before = rows[(start <= moments[i]) & (stop >= moments[i + 1])], int((stop <= moments[i]).sum())
        us = length[i] / US
        what = f"Nothing is recorded for {us_text(us)}, between {before} events and {len(rows) - before} later ones"
        if len(during):
            what = f"{trace.names_of(during)[0][:60]} outlasts all other events by {us_text(us)}"
        spoils = "breakdown, categories, stages, gaps, idle_causes"
        yield "silence", max(len(during), 1), us, spoils, f"{what}: shares and idle time count it"


def _overlaps(trace: Trace, device: DeviceWork) -> Iterator[Doubt]:
    """Yield work that runs into the next on its stream, which runs one after another, or that is there twice."""
    rows = device.rows[np.lexsort((trace.stop[device.rows], trace.start[device.rows], trace.track[device.rows]))]
    first, then = rows[:-1], rows[1:]
    over = trace.stop[first] - trace.start[then]
    columns = (trace.start, trace.duration, trace.name, trace.correlation)
    is_twice = np.all([column[first] == column[then] for column in columns], axis=0) & (trace.correlation[first] > 0)
    bad = (trace.track[first] == trace.track[then]) & ((over > SURE_US * US) | is_twice & (over > 0))
    if bad.any():
        us = union(trace.start[then[bad]], trace.stop[first[bad]]).length / US
        worst = trace.names_of(first[bad])[over[bad].argmax()][:60]
        runs = f"{counted(bad.sum(), 'event runs', 'events run')} into the next on the same stream, for {us_text(us)}"
        why = "a duration is wrong, events are there twice, or a graph's branches share it"
        what = f"{runs}, most {worst}: {why}"
        yield "overlap on a stream", bad.sum(), us, "breakdown, kernels, gaps, idle_causes", what


def _captured(trace: Trace) -> Bools:
    """Return which events lie in the capture of a graph, whose launches run nothing, [N]."""
    opened, closed = (trace.names_match(rf"Stream{edge}Capture").astype(int) for edge in ("Begin", "End"))
    rows = np.lexsort((trace.start, trace.track))
    depth = pd.Series((opened - closed)[rows], index=rows).groupby(trace.track[rows]).cumsum()
    return (depth.sort_index() > 0).to_numpy()


def _lost_kernels(trace: Trace, device: DeviceWork) -> Iterator[Doubt]:
    """Yield launches without kernels; what they concern is the time in which the device must have run them.

    That is from the end of the device work launched before them, or from their own launch where that is later, to the
    start of the device work launched after them.
    """
    is_launch = trace.is_runtime & trace.names_match(LAUNCH) & (trace.correlation > 0)
    is_launch &= ~(trace.names_match(MOVES) & (trace.duration <= NO_LAUNCH_US * US)) & ~_captured(trace)
    if np.isin(trace.correlation[is_launch], trace.correlation[device.rows]).all():
        return
    rows = np.lexsort((trace.start, trace.track))
    rows = rows[is_launch[rows]]
    work = pd.DataFrame({"begin": trace.start, "end": trace.stop, "number": trace.correlation}).iloc[device.rows]
    work = work.groupby("number").agg({"begin": "min", "end": "max"}).reindex(trace.correlation[rows])
    lost = work["end"].isna().to_numpy()
    count = int(lost.sum())
    by_thread = work.groupby(trace.track[rows])
    before, after = by_thread["end"].ffill()[lost], by_thread["begin"].bfill()[lost]
    begin = before.fillna(0).clip(lower=trace.start[rows[lost]]).to_numpy(np.int64)
    end = after.fillna(trace.stop.max()).to_numpy(np.int64)
    us, at_head = union(begin, np.maximum(begin, end)).length / US, before.isna().sum()
    where = f", {at_head} of them at the head of the window, where profilers lose kernels" if at_head else ""
    launches = f"{counted(count, 'launch', 'launches')} of {len(rows)} {'has' if count == 1 else 'have'}"
    what = f"{launches} no work on the device in the trace{where}: what the device did in {us_text(us)} is not known"
    yield "launches without kernels", count, us, "breakdown, kernels, gaps, idle_causes, steps", what


def _early_kernels(trace: Trace, device: DeviceWork) -> Iterator[Doubt]:
    """Yield work that begins before the call that launched it; where times are whole µs, by more than one."""
    rows = device.rows[trace.launch[device.rows] >= 0]
    lead = (trace.start[trace.launch[rows]] - trace.start[rows]) / US
    us = lead[lead > (1.0 if (trace.start % US == 0).all() else 0.0)]
    if len(us):
        began = f"{counted(len(us), 'kernel or copy', 'kernels or copies')} of {len(rows)} began before the call that"
        early = f"launched it, by {us_text(us.sum())} in all and up to {us_text(us.max())}"
        what = f"{began} {early}: the clocks of host and device differ by as much"
        yield "kernels before their launch", len(us), us.sum(), "gaps, idle_causes, syncs", what


def _endless_marks(trace: Trace, host: HostWork) -> Iterator[Doubt]:
    """Yield marks of a stage that take no time: kineto writes one so that had not ended with the recording."""
    is_mark = trace.is_category({"user_annotation"})[host.rows] & host.category.isin(STAGES)
    rows = host.rows[is_mark & (trace.duration[host.rows] == 0)]
    if len(rows) and (trace.start % US).any():  # in whole µs a short one takes none, too
        us = (trace.stop.max() - trace.start[rows].min()) / US
        marks = f"{counted(len(rows), 'mark')} of a stage, such as {trace.names_of(rows)[0][:60]}, took no time"
        yield "marks without an end", len(rows), us, "stages", f"{marks}: an end was lost, with what it held"


def _short_replays(trace: Trace, device: DeviceWork) -> Iterator[Doubt]:
    """Yield graph launches some of whose kernels are missing: as many launches or more have these and others."""
    launch = trace.launch[device.rows]
    rows = device.rows[(launch >= 0) & trace.names_match("GraphLaunch")[launch]]
    kernels = pd.DataFrame({"name": trace.name[rows], "took": trace.duration[rows], "launch": trace.launch[rows]})
    replays = kernels.sort_values("name").groupby("launch").agg({"name": tuple, "took": "sum"})
    often = Counter(replays["name"])
    whole = {few: most for few, most in permutations(list(often)[:FEW], 2)
             if Counter(few) < Counter(most) and often[few] <= often[most]}  # fmt: skip
    less = replays[replays["name"].isin(whole.keys())]
    if len(less):
        usual = replays.groupby("name")["took"].median().to_dict()
        us = (less["name"].map(whole).map(usual) - less["took"]).sum() / US
        lack = f"{counted(len(less), 'launch', 'launches')} of a graph {'lacks' if len(less) == 1 else 'lack'}"
        what = f"{lack} kernels of {us_text(us)} that its other launches have: these are unreliable"
        yield "graph launches without some kernels", len(less), us, "breakdown, kernels, gaps, idle_causes", what


def _overruns(trace: Trace, host: HostWork) -> Iterator[Doubt]:
    """Yield calls that end after the call around them, or any event that ends after the recording: an end was lost.

    Ends that differ by less than 10 µs are noise of the clocks, and so is a call that begins as its neighbour ends.
    """
    is_call = ~trace.is_category({"user_annotation"})[host.rows]
    caller = np.append(nearest(is_call, host.alone.parent), -1)[host.alone.parent]
    until, rows = trace.stop[host.rows[caller]], host.rows
    late = is_call & (caller >= 0) & (trace.stop[rows] - until > SURE_US * US) & (until - trace.start[rows] > US)
    spans = np.flatnonzero(trace.is_category({"trace"}))
    closes = trace.stop[spans].max(initial=0)
    after = trace.stop > closes + max(SURE_US * US, EDGE * trace.duration[spans].max(initial=0))
    outside = np.flatnonzero(after & (trace.kind != ANNOTATION) & (len(spans) > 0))
    found = {"the call around it": (rows[late], until[late]),
             "the recording": (outside, np.maximum(trace.start[outside], closes))}  # fmt: skip
    for end, (events, ends) in found.items():
        if len(events) == 0:
            continue
        extra = union(ends, trace.stop[events])
        us, main = extra.length / US, host.on == trace.main
        stages = pd.Series(host.spent(extra)[main]).groupby(np.asarray(host.stage)[main]).sum()
        gained = f": {stages.idxmax()} may be {us_text(stages.max() / US)} too large" if stages.any() else ""
        longest = trace.names_of(events)[np.argmax(trace.stop[events] - ends)][:60]
        ended = f"{counted(len(events), 'event ends', 'events end')} after {end}, by {us_text(us)}, most {longest}"
        spoils = "categories, stages, ops, steps"
        yield "events that end too late", len(events), us, spoils, f"{ended}; an end was lost{gained}"


def _ahead(first: Trace, other: Trace, calls: pd.DataFrame) -> Floats:
    """Return by how many µs the clock of `other` is ahead at each collective that is surely one with `first`'s, sorted.

    What counts is the distance at which most ends meet; ranks need not leave a broadcast together. None where these are
    few.
    """
    sure = calls[calls["paired"].notna() & (calls["kind"] != "broadcast")]
    mine, theirs = (sure[sure["rank"] == trace.rank] for trace in (first, other))
    ends = mine.merge(theirs, on=["collective", "number"])
    ahead = np.sort(((ends["end_y"] - ends["end_x"]) / US).to_numpy(dtype=np.float64))
    met = np.searchsorted(ahead, ahead + TOGETHER_US, side="right") - np.arange(len(ahead))
    most = met.max(initial=0)
    together = ahead[met.argmax() :][:most] if most else ahead
    return together if most >= max(MIN_COLLECTIVES, 0.3 * len(ahead)) else ahead[:0]


def _unaligned(first: Trace, ahead: Floats) -> Iterator[Doubt]:
    """Yield a clock that is ahead of the first rank's, by more than its distance varies between collectives."""
    us = float(np.median(ahead)) if len(ahead) else 0.0
    error = float(np.abs(ahead - us).max(initial=0))
    if abs(us) > max(error, SURE_US):
        side = f"{us_text(abs(us))} {'ahead of' if us > 0 else 'behind'} that of {first.label}"
        what = f"The clock is {side}, by the ends of {counted(len(ahead), 'collective')}, ± {us_text(error)}"
        yield "unaligned clocks", len(ahead), abs(us), "times of this rank beside those of another", what


def _verdict(table: pd.DataFrame, *, clocks_compared: bool) -> str:
    rest = "" if clocks_compared else " Ranks share fewer than three collectives: their clocks are not compared."
    if len(table) == 0:
        return f"No defect was found in this trace.{rest}"
    spoilt = ", ".join(dict.fromkeys(", ".join(table["spoils"]).split(", ")))
    worst = table.sort_values("concerned_us", ascending=False).head(4).to_dict("records")
    named = "; ".join(f"{row['pathology']} ({us_text(row['concerned_us'])})" for row in worst) + " …" * (len(table) > 4)
    return f"Do not believe these yet: {spoilt}. {counted(len(table), 'pathology', 'pathologies')}: {named}.{rest}"
