"""Whether a trace can be believed: what is known to go wrong between a run and its file, with the time it concerns.

The clocks of ranks are compared by the ends of the collectives that they share.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from tclab._display import Display, Shown, counted, us_text
from tclab.trace import _intervals as intervals
from tclab.trace._device_work import DeviceWork, calls_of, device_work, launches
from tclab.trace._events import DEVICE, HOST, RUNTIME_CATEGORIES, Bools, Floats, Ints, Trace, step_windows
from tclab.trace._trace_findings import Finding

LAUNCH = r"Launch(Cooperative)?Kernel|GraphLaunch|^(cuda|hip|cu)Mem(cpy|set)"
MOVES = r"^(cuda|hip|cu)Mem(cpy|set)"
NO_LAUNCH_US = 1.0
"""A copy or set of no bytes returns within this without asking the device; a call that launches takes 3 µs and more."""
HEAD_TIMES, HEAD_US = 5.0, 1000.0  # a first collective so many times as long as those in its place, and so much longer
EDGE = 0.1  # a first or last step is cut off where this share of a whole one is missing
SURE_US = 10.0  # clocks that differ by less are one clock
TOGETHER_US = 1000.0  # ranks leave a collective within this of one another
MIN_COLLECTIVES = 3  # collectives that tell two clocks apart
MOST_CALLS = 2000  # of one rank that are compared with those of another
OPERATORS = {"cpu_op", "operator"} | RUNTIME_CATEGORIES

COLUMNS = ["rank", "file", "pathology", "events", "concerned_us", "start_us", "end_us", "spoils", "what"]


@dataclass(frozen=True, repr=False)
class Trust(Shown):
    """What speaks against the figures of a run's traces; see `tclab.trace.trust`."""

    table: pd.DataFrame
    clocks: pd.DataFrame
    verdict: str

    @property
    def findings(self) -> list[Finding]:
        """The verdict and then a sentence for each row, as `Report.findings` begins."""
        rows = self.table.to_dict("records")
        found = [Finding(self.verdict, "trust", float(len(rows)), "pathologies", "all ranks")]
        return found + [Finding(r["what"], "trust", float(r["concerned_us"]), "us", r["file"]) for r in rows]

    def _display(self) -> Display:
        columns = ("rank", "pathology", "events", "concerns", "spoils")
        lines = [
            (
                "" if pd.isna(row["rank"]) else str(row["rank"]),
                row["pathology"],
                str(row["events"]),
                us_text(row["concerned_us"]),
                row["spoils"],
            )
            for row in self.table.to_dict("records")
        ]
        return Display(self.verdict, columns if lines else (), lines, list(self.table["what"]))


def check_traces(traces: Sequence[Trace], works: Sequence[DeviceWork] | None = None) -> Trust:
    """Return what speaks against the figures of one trace, or of one per rank."""
    works = [device_work(trace) for trace in traces] if works is None else works
    rows: list[dict[str, object]] = []
    for trace, work in zip(traces, works, strict=True):
        for pathology in (_lost_kernels, _early_kernels, _head_collectives, _duplicates, _durations):
            rows += pathology(trace, work)
        rows += _cut_steps(trace)
    clocks = _clocks(traces, works)
    rows += _unaligned(traces, clocks)
    table = pd.DataFrame(rows, columns=COLUMNS).astype({"rank": "Int64"})
    return Trust(table, clocks, _verdict(table, traces, clocks))


def _row(
    trace: Trace,
    pathology: str,
    events: int,
    us: float,
    window: tuple[float, float] | None,
    spoils: str,
    what: str,
) -> dict[str, object]:
    """Return a row of the table: the µs that it concerns, its window in ticks, and a sentence without its end."""
    begin, end = (np.nan, np.nan) if window is None else window
    values = (trace.rank, trace.path.name, pathology, events, float(us), float(trace.us(begin)), float(trace.us(end)))
    return dict(zip(COLUMNS, (*values, spoils, f"{what} ({trace.label})."), strict=True))


def _all_launches(trace: Trace) -> Ints:
    """Return the rows of calls that should have put work on a device, by thread and then by time."""
    calls = trace.is_category(RUNTIME_CATEGORIES) & trace.names_match(LAUNCH) & (trace.correlation > 0)
    calls &= ~(trace.names_match(MOVES) & (trace.us(trace.duration) <= NO_LAUNCH_US))
    rows = np.flatnonzero(calls & ~_captured(trace))
    return rows[np.lexsort((trace.start[rows], trace.track[rows]))]


def _captured(trace: Trace) -> Bools:
    """Return which events lie in the capture of a graph, whose launches run nothing."""
    inside = np.zeros(len(trace), dtype=bool)
    begins = np.flatnonzero(trace.names_match(r"StreamBeginCapture"))
    ends = np.flatnonzero(trace.names_match(r"StreamEndCapture"))
    for begin in begins.tolist():
        track = trace.track[begin]
        later = trace.start[ends[(trace.track[ends] == track) & (trace.start[ends] > trace.start[begin])]]
        until = later.min() if len(later) else trace.start[begin]
        inside |= (trace.track == track) & (trace.start > trace.start[begin]) & (trace.start < until)
    return inside


def _lost_kernels(trace: Trace, work: DeviceWork) -> Iterator[dict[str, object]]:
    """Yield launches without kernels; what they concern is the time in which the device must have run them.

    That is from the end of the device work launched before them, or from their own launch where that is later, to the
    start of the device work launched after them.
    """
    rows = _all_launches(trace)
    if len(rows) == 0:
        return
    on_device = work.rows[trace.correlation[work.rows] > 0]
    kept = np.isin(trace.correlation[rows], trace.correlation[on_device])
    if kept.all():
        return
    stop = trace.start + trace.duration
    whole = int(stop.max())
    spans = pd.DataFrame({"begin": trace.start[on_device], "end": stop[on_device]})
    spans = spans.groupby(trace.correlation[on_device]).agg({"begin": "min", "end": "max"})
    begins, ends = spans.reindex(trace.correlation[rows], fill_value=0).to_numpy().T
    # the first and the last of each run of lost launches in a thread
    other = np.diff(trace.track[rows]) != 0
    start = np.flatnonzero(~kept & np.r_[True, kept[:-1] | other])
    last = np.flatnonzero(~kept & np.r_[kept[1:] | other, True])
    is_first, is_last = np.r_[True, other][start], np.r_[other, True][last]
    since = trace.start[rows[start]]
    begin = np.where(is_first, since, np.maximum(since, ends[start - 1]))
    finish = np.where(is_last, whole, np.r_[begins, 0][last + 1])
    at_head = int((last + 1 - start)[is_first].sum())
    concerned = intervals.union(begin[finish > begin], finish[finish > begin])
    lost = rows[~kept]
    moved = int(trace.names_match(MOVES)[lost].sum())
    spoils = "breakdown, gaps, idle_causes, steps" + (", copies" if moved else "")
    us = trace.us(concerned.length)
    where = f", {at_head} of them at the head of the window, where profilers lose kernels" if at_head else ""
    what = (
        f"{counted(len(lost), 'launch', 'launches')} of {len(rows)} {'has' if len(lost) == 1 else 'have'} no work "
        f"on the device in the trace{where}: what the device did in {us_text(us)} is not known"
    )
    yield _row(trace, "launches without kernels", len(lost), us, (begin.min(), finish.max()), spoils, what)


def _early_kernels(trace: Trace, work: DeviceWork) -> Iterator[dict[str, object]]:
    """Yield work that begins before the call that launched it; where times are whole µs, by more than one."""
    # of several calls with its number the first; that they have it is another pathology
    call = launches(trace, work.rows)
    known = (call >= 0) & (trace.correlation[work.rows] > 0)
    lead = np.where(known, trace.start[call] - trace.start[work.rows], 0)
    resolution = 1.0 if (trace.ts % 1 == 0).all() else 0.0
    early = trace.us(lead) > resolution
    if early.any():
        us, rows = trace.us(lead[early]), work.rows[early]
        window = (trace.start[rows].min(), (trace.start[rows] + lead[early]).max())
        what = (
            f"{counted(int(early.sum()), 'kernel or copy', 'kernels or copies')} of {int(known.sum())} began before "
            f"the call that launched it, by {us_text(us.sum())} in all and up to {us_text(us.max())}: the clocks of "
            "host and device differ by as much"
        )
        spoils = "gaps, idle_causes, syncs"
        yield _row(trace, "kernels before their launch", int(early.sum()), us.sum(), window, spoils, what)


def _head_collectives(trace: Trace, work: DeviceWork) -> Iterator[dict[str, object]]:
    """Yield the first collectives where they took far longer than the later ones in their place of a step.

    Ranks start their profilers at different moments; who starts first waits in its first collective, and the trace
    books it as communication.
    """
    rows = work.rows[work.is_collective]
    if len(rows) < 3:
        return
    steps = step_windows(trace)
    step = np.searchsorted(steps.start, trace.start[rows], side="right") - 1
    calls = pd.DataFrame({"kind": trace.name[rows], "step": step, "us": trace.us(trace.duration[rows])})
    calls["place"] = calls.groupby(["step", "kind"]).cumcount()
    counts = calls.groupby("step").size()
    by = ["kind", "place"] if len(counts) > 1 and counts.nunique() == 1 else ["kind"]
    head, excess = 0, 0.0
    for at in range(len(calls)):
        others = calls.iloc[at + 1 :]
        like = others[(others[by] == calls.loc[at, by]).all(axis=1)]["us"]
        if len(like) == 0:
            break
        usual = float(like.median())
        more = float(calls.loc[at, "us"]) - usual  # type: ignore[arg-type]
        if more < HEAD_US or more < (HEAD_TIMES - 1) * usual:
            break
        head, excess = head + 1, excess + more
    if head:
        last = rows[head - 1]
        window = (trace.start[rows[0]], trace.start[last] + trace.duration[last])
        what = (
            f"The window's first {counted(head, 'collective')} took {us_text(excess)} longer than the later ones in "
            f"their place, of {us_text(trace.us(work.communication.length))} of all: the other ranks' profilers were "
            "starting, it is no communication"
        )
        spoils = "breakdown, collectives, steps"
        yield _row(trace, "head-of-window collectives", head, excess, window, spoils, what)


def _duplicates(trace: Trace, work: DeviceWork) -> Iterator[dict[str, object]]:
    """Yield numbers that several launches have, or several events of a device that no graph launched."""
    calls = np.flatnonzero(trace.is_category(RUNTIME_CATEGORIES) & (trace.correlation > 0))
    calls = calls[np.lexsort((trace.start[calls], trace.correlation[calls]))]
    same = trace.correlation[calls][1:] == trace.correlation[calls][:-1]
    # a call of the driver within one of the runtime is one launch
    apart = trace.start[calls][1:] >= (trace.start + trace.duration)[calls][:-1]
    twice = set(trace.correlation[calls][1:][same & apart].tolist())
    graphs = set(trace.correlation[calls[trace.names_match("GraphLaunch")[calls]]].tolist())
    known = work.rows[trace.correlation[work.rows] > 0]
    numbers, count = np.unique(trace.correlation[known], return_counts=True)
    twice |= set(numbers[count > 1].tolist()) - graphs
    if not twice:
        return
    rows = known[np.isin(trace.correlation[known], list(twice))]
    ambiguous = calls[np.isin(trace.correlation[calls], list(twice))]
    us = trace.us(trace.duration[rows].sum())
    both = np.concatenate([rows, ambiguous])
    window = (trace.start[both].min(), (trace.start + trace.duration)[both].max())
    what = (
        f"{counted(len(twice), 'correlation id')} {'stands' if len(twice) == 1 else 'stand'} for several launches "
        f"or kernels: which call launched {us_text(us)} of device work is not known"
    )
    yield _row(trace, "duplicated correlation ids", len(twice), us, window, "gaps, idle_causes, syncs", what)


def _durations(trace: Trace, work: DeviceWork) -> Iterator[dict[str, object]]:
    for on_device, sizes in trace.negative_us.items():
        if sizes:
            where = "device" if on_device else "host"
            spoils = "breakdown, gaps, steps" if on_device else "categories, stages, ops"
            they, them = ("it", "it") if len(sizes) == 1 else ("they", "them")
            what = (
                f"{counted(len(sizes), 'event')} of the {where} ended {us_text(sum(sizes))} before {they} began, "
                f"added up; all figures leave {them} out"
            )
            yield _row(trace, f"negative durations on the {where}", len(sizes), sum(sizes), None, spoils, what)
    zero = work.rows[trace.duration[work.rows] == 0]
    if len(zero):
        usual = pd.Series(trace.us(trace.duration[work.rows])).groupby(trace.name[work.rows])
        median = usual.agg(lambda durations: durations[durations > 0].median())
        us = float(np.nansum(median.loc[trace.name[zero]]))
        window = (trace.start[zero].min(), trace.start[zero].max())
        what = (
            f"{counted(len(zero), 'kernel or copy', 'kernels or copies')} took no time at all; at the median of "
            f"those with the same name {us_text(us)} are missing"
        )
        spoils = "breakdown, gaps, steps"
        yield _row(trace, "zero durations on the device", len(zero), us, window, spoils, what)
    exact = bool((trace.ts % 1 != 0).any())  # where times are whole µs, a short event of the host takes none
    rows = np.flatnonzero((trace.kind == HOST) & (trace.duration == 0) & exact)
    if len(rows):
        us = len(rows) / trace.ticks_per_us
        window = (trace.start[rows].min(), trace.start[rows].max())
        what = f"{counted(len(rows), 'event')} of the host took no time at all, though times have fractions of a µs"
        yield _row(trace, "zero durations on the host", len(rows), us, window, "ops", what)


def _cut_steps(trace: Trace) -> Iterator[dict[str, object]]:
    """Yield a first or last step that is not whole: a mark too short, or a mark with a part that holds no event."""
    names, start, end, marked_on = step_windows(trace)
    if len(names) < 2 or marked_on != "host":
        return
    rows = np.flatnonzero(trace.is_category(OPERATORS) & (trace.kind == HOST))
    first, stop = trace.start[rows], trace.start[rows] + trace.duration[rows]
    ops, head, tail = [], [], []
    for a, b in zip(start.tolist(), end.tolist(), strict=True):
        inside = (first >= a) & (stop <= b)
        ops.append(int(inside.sum()))
        head.append(trace.us(int(first[inside].min()) - a) if inside.any() else trace.us(b - a))
        tail.append(trace.us(b - int(stop[inside].max())) if inside.any() else trace.us(b - a))
    wall = trace.us(end - start)
    for at, silence, side in ((0, head, "begins"), (len(names) - 1, tail, "ends")):
        others = [i for i in range(len(names)) if i != at]
        usual_wall, usual_ops = np.median(wall[others]), np.median([ops[i] for i in others])
        if ops[at] >= (1 - EDGE / 2) * usual_ops:
            continue
        if wall[at] < (1 - EDGE) * usual_wall:
            us, window = float(wall[at]), (float(start[at]), float(end[at]))
            said = f"is a fragment of {us_text(us)}, a whole one takes {us_text(float(usual_wall))}"
        else:
            us = float(silence[at])
            if us - float(np.median([silence[i] for i in others])) < EDGE * usual_wall:
                continue
            silent = us * trace.ticks_per_us
            window = (start[at], start[at] + silent) if at == 0 else (end[at] - silent, end[at])
            said = f"{side} with {us_text(us)} in which no event was recorded"
        what = f"{names[at]}, the {'first' if at == 0 else 'last'} step, {said}"
        yield _row(trace, "steps cut off", 1, us, window, "steps, step_categories, stages", what)


def _clocks(traces: Sequence[Trace], works: Sequence[DeviceWork]) -> pd.DataFrame:
    """Return how far each rank's clock is ahead of the first one's, and how far single collectives differ from that."""
    rows = [(0.0, 0.0, 0)]
    if len(traces) > 1:
        ends = [_ends(trace, work) for trace, work in zip(traces, works, strict=True)]
        rows = [(0.0, 0.0, len(ends[0]))]
        for trace, mine in zip(traces[1:], ends[1:], strict=True):
            distance = (trace.base_ns - traces[0].base_ns) / 1e3 + (trace.origin_us - traces[0].origin_us)
            ahead = _ahead(ends[0], mine, distance)
            middle = float(np.median(ahead)) if len(ahead) else np.nan
            error = float(np.abs(ahead - middle).max()) if len(ahead) else np.nan
            rows.append((middle, error, len(ahead)))
    clocks = pd.DataFrame(rows, columns=["ahead_us", "error_us", "collectives"])
    clocks.insert(0, "rank", pd.Series([trace.rank for trace in traces], dtype="Int64"))
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


def _ahead(first: pd.DataFrame, other: pd.DataFrame, distance: float) -> Floats:
    """Return by how much `other` is ahead at each collective that it shares with `first`; none where these are few."""
    nth = first.merge(other, on=["kind", "index"])
    if len(nth) >= MIN_COLLECTIVES and len(first) == len(other):
        ahead = (nth["end_y"] - nth["end_x"]).to_numpy(dtype=np.float64) + distance
        near = np.abs(ahead - np.median(ahead)) <= TOGETHER_US
        if near.mean() >= 0.9:
            return ahead[near]
    # ranks whose first windows differ, or who are in other groups: the distance at which most ends meet
    pairs = first.merge(other, on="kind")
    if set(first["step"]) & set(other["step"]) - {""}:
        pairs = pairs[pairs["step_x"] == pairs["step_y"]]
    ahead = np.sort((pairs["end_y"] - pairs["end_x"]).to_numpy(dtype=np.float64) + distance)
    if len(ahead) == 0:
        return ahead
    met = np.searchsorted(ahead, ahead + TOGETHER_US, side="right") - np.arange(len(ahead))
    most = int(met.argmax())
    if met[most] < max(MIN_COLLECTIVES, 0.3 * min(len(first), len(other))):
        return ahead[:0]
    return ahead[most : most + int(met[most])]


def _unaligned(traces: Sequence[Trace], clocks: pd.DataFrame) -> Iterator[dict[str, object]]:
    for trace, clock in zip(traces, clocks.to_dict("records"), strict=True):
        ahead, error, shared = clock["ahead_us"], clock["error_us"], clock["collectives"]
        if not abs(ahead) > max(error, SURE_US):  # nor where it is not known
            continue
        side = "ahead of" if ahead > 0 else "behind"
        what = (
            f"The clock is {us_text(abs(ahead))} {side} that of {traces[0].label}, by the ends of "
            f"{counted(shared, 'collective')}, ± {us_text(error)}"
        )
        spoils = "times of this rank beside those of another"
        yield _row(trace, "unaligned clocks", shared, abs(ahead), None, spoils, what)


def _verdict(table: pd.DataFrame, traces: Sequence[Trace], clocks: pd.DataFrame) -> str:
    unknown = _not_judged(traces, clocks)
    said = ", ".join(unknown[:-1]) + f"{', and ' if unknown[1:] else ''}{unknown[-1]}" if unknown else ""
    rest = f" {said[0].upper()}{said[1:]}: nothing to judge there." if said else ""
    if len(table) == 0:
        return f"Nothing found that speaks against this trace's figures.{rest}"
    spoilt = list(dict.fromkeys(name for names in table["spoils"] for name in names.split(", ")))
    worst = table.sort_values("concerned_us", ascending=False)
    named = "; ".join(
        f"{row['pathology']} ({us_text(row['concerned_us'])})" for row in worst.head(4).to_dict("records")
    )
    return (
        f"Do not believe these yet: {', '.join(spoilt)}. "
        f"{counted(len(table), 'pathology', 'pathologies')}: {named}{' …' if len(table) > 4 else ''}.{rest}"
    )


def _not_judged(traces: Sequence[Trace], clocks: pd.DataFrame) -> list[str]:
    found = []
    if not any((trace.kind == DEVICE).any() or trace.is_category(RUNTIME_CATEGORIES).any() for trace in traces):
        found.append("a CPU trace")
    elif not any((trace.is_category(RUNTIME_CATEGORIES) & (trace.correlation > 0)).any() for trace in traces):
        found.append("no correlation ids between calls and kernels")
    if all(len(step_windows(trace).names) < 2 for trace in traces):
        found.append("fewer than two marked steps")
    if clocks["ahead_us"].isna().any():
        found.append("ranks that share fewer than three collectives with the first")
    return found
