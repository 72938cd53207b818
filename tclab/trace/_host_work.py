"""Work of the host's threads: self time by category and stage, steps, and calls that wait for the device."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from tclab._display import us_text
from tclab.trace._categories import CATEGORIES, OUTSIDE, STAGES, Rule, categories_of, first_rules
from tclab.trace._events import HOST, US, Bools, Ints, Trace
from tclab.trace._nesting import Intervals, Nesting, nearest, nest, tie_of, union

# Runtime calls that return when the device has caught up; an asynchronous copy may wait too, unrecorded.
_COPY_CALL = r"cpy([23]D)?(WithStream|(To|From)(Symbol|Array)|DtoH|HtoD)?"
WAITING_CALL = rf"Synchronize|^(cuda|hip|cu)(Mem)?({_COPY_CALL}|Free(Host)?)(_v2)?$|^(ur|pi)(QueueFinish|Events?Wait)"
LAUNCH = r"Launch(Cooperative)?Kernel|GraphLaunch|^(cuda|hip|cu)Mem(cpy|set)|^(ur|pi)Enqueue(Kernel|USM)"
# Launches that have not begun when the next one waits for room: CUDA's queue has 1,024 places.
_FULL_QUEUE = 1000
_FULL_QUEUE_US = 50.0  # a launch into a queue with room takes a tenth of it
# All steps' marks in `Report.ops`, by torch's name; their self time is Python, and waiting, between operations.
STEP_MARK = "ProfilerStep* (mark of a step: Python between operations)"
LIBRARY_CODE = r"^<|^torch[/.\\]|site-packages|^(threading|runpy|contextlib|functools)\.py|^nn\.Module"
EDGE = 0.1  # a first or last step is cut off where this share of a whole one is missing
_ENGINE = r"^autograd::engine::"
# Marks of torch's own, which hold what a closure or a data set does: forward, backward and graphs are stages there.
_TORCHS_MARK = r"^Optimizer\.step|^enumerate\(DataLoader\)"
_MOSTLY = 0.9  # of a thread's operators are backward where it is autograd's


@dataclass(frozen=True)
class HostWork(Nesting):
    """The host events of one trace, nested; owners and parents are positions in `rows`.

    Backward passes on autograd's own threads are nested in the main thread, where this waits for them.
    """

    rows: Ints  # [R] all host events, rows of the trace
    track: Ints  # [R] the thread of each event, index into the trace's tracks
    on: Ints  # [R] the thread on which it counts: the main thread for a backward pass that this waits for
    alone: Nesting  # the same events, each on its own thread
    category: pd.Categorical  # [R]
    stage: pd.Categorical  # [R] the stage around each event, `OUTSIDE` where there is none


def nest_host(trace: Trace, rules: tuple[Rule, ...]) -> HostWork:
    """Return all host events, nested, with their categories and stages."""
    rows = np.flatnonzero(trace.kind == HOST)
    track, tie = trace.track[rows], tie_of(trace, rows)
    rule = first_rules(trace, rules)[rows]
    category = categories_of(rule, rules)
    alone = nest(trace.start[rows], trace.duration[rows], track, tie)
    waited_for = _waited_for(trace, rows, alone.parent, np.asarray(category == "backward"))
    on = np.where(waited_for, trace.main, track)
    nesting = alone if (on == track).all() else nest(trace.start[rows], trace.duration[rows], on, tie)
    stages = [*STAGES, *category.categories[len(CATEGORIES) :], OUTSIDE]
    is_stage, is_mark = category.isin(stages), trace.is_category({"user_annotation"})[rows]
    # Within a user's mark, or a node of autograd's graph, only marks and what is surely a stage are stages of their own
    holds = is_mark & ~trace.names_match(_TORCHS_MARK)[rows] | trace.names_match(_ENGINE)[rows]
    held = np.append(nearest(holds & is_stage, nesting.parent), -1)[nesting.parent] >= 0
    sure = is_mark | np.array([rule.sure for rule in rules])[rule]
    around = nearest(is_stage & (sure | ~held), nesting.parent)
    stage = pd.Categorical(np.where(around >= 0, np.asarray(category)[around], OUTSIDE), stages)
    return HostWork(**vars(nesting), rows=rows, track=track, on=on, alone=alone, category=category, stage=stage)


def _waited_for(trace: Trace, rows: Ints, parent: Ints, is_backward: Bools) -> Bools:
    """Return which host events autograd's own threads ran while the main thread waited for them, [R].

    Such a thread is known by forward-backward links from another one, and without any by its operators: nearly all are
    backward. The main thread waits where no event of its own begins or ends, unless a link, or a mark of a backward
    pass on another thread alone, says that this one called it.
    """
    track, start, stop = trace.track[rows], trace.start[rows], trace.stop[rows]
    of_main, is_op, is_root = track == trace.main, trace.is_op[rows], parent < 0
    threads = sorted({*track[is_backward & is_op].tolist()} - {trace.main})
    is_mark = is_backward & ~is_op & ~np.isin(track, threads)
    called_here, called_elsewhere = (union(start[of], stop[of]) for of in (is_mark & of_main, is_mark & ~of_main))
    edges = np.sort(np.concatenate([start[of_main], stop[of_main]]))
    begun, ended = np.searchsorted(edges, start, side="right"), np.searchsorted(edges, stop, side="left")
    still = (begun == ended) & (begun > 0) & (ended < len(edges))
    links = trace.links[trace.links["caller"] != trace.links["track"]].sort_values("at", kind="stable")
    waited = np.zeros(len(rows), dtype=bool)
    for thread in threads:
        roots = np.flatnonzero(is_root & still & (track == thread))
        ops = is_root & is_op & (track == thread)
        theirs = links[links["track"] == thread]
        if len(theirs):
            last = np.searchsorted(theirs["at"], stop[roots], side="right") - 1
            waited[roots] = theirs["caller"].to_numpy()[np.maximum(last, 0)] == trace.main
        elif (stop - start)[ops & is_backward].sum() >= _MOSTLY * (stop - start)[ops].sum():
            here, elsewhere = (of.covered(start[roots], stop[roots]) > 0 for of in (called_here, called_elsewhere))
            waited[roots] = here | ~elsewhere
    return waited[nearest(is_root, parent)]


def thread_table(trace: Trace, host: HostWork) -> pd.DataFrame:
    """Return one row per thread and category: rank, thread, is_main, category, self_us, share, events, unrecorded_us.

    Each event counts on its own thread. A thread's `self_us` sum to its wall time, last end - first start. Time without
    any recorded event counts as `other`, and is given in `unrecorded_us`.
    """
    tracks, spent = np.unique(host.track).tolist(), host.alone.spent()
    accounts = {track: _account(trace, host, host.track == track, host.category, spent, None) for track in tracks}
    table = pd.concat(accounts or {-1: _account(trace, host, host.rows < 0, host.category, spent, None).head(0)})
    track = table.index.get_level_values(0)
    table.insert(0, "thread", ["{} {}".format(*trace.tracks[i]) for i in track])
    table.insert(1, "is_main", track == trace.main)
    return trace.ranked(table.reset_index(drop=True))


def host_tables(works: list[tuple[Trace, HostWork, Any]]) -> dict[str, pd.DataFrame]:
    """Return the accounts of all ranks: categories, stages, ops.

    **Arguments:**

    - `works`: of each rank its trace, host work, and the time that counts, `Intervals`, None for all.
    """
    return {"categories": _main(works, "category"), "stages": _main(works, "stage"), "ops": _ops(works)}


def _main(works: list[tuple[Trace, HostWork, Intervals | None]], by: str) -> pd.DataFrame:
    """Return the self time of all ranks' main threads: `by`, self_us, share, events, unrecorded_us.

    A backward pass that the main thread waits for counts as its own. Time without any recorded event counts as `other`,
    or as outside any stage.

    **Arguments:**

    - `by`: "category", or "stage", that around each event: an `aten::` op within a backward is backward.
    """
    accounts = [
        _account(trace, host, host.on == trace.main, getattr(host, by), host.spent(windows), windows)
        for trace, host, windows in works
    ]
    first, *others = (account.set_index("category") for account in accounts)
    table = sum(others, first).reset_index()
    table["share"] = table["self_us"] / (table["self_us"].sum() or np.nan)
    return table.rename(columns={"category": by})


def _account(trace: Trace, host: HostWork, of: Bools, by: Any, spent: Ints, windows: Intervals | None) -> pd.DataFrame:
    """Return category, self_us, share, events and unrecorded_us of the host events `of` [R], which are of a thread."""
    rows = host.rows[of]
    stop = trace.stop[rows].max(initial=0, keepdims=True)
    start = trace.start[rows].min(initial=int(stop[0]), keepdims=True)
    wall = int((stop - start if windows is None else windows.covered(start, stop))[0])
    took, unrecorded = np.zeros((2, len(by.categories)), dtype=np.int64)
    np.add.at(took, by.codes[of], spent[of])
    unrecorded[by.categories == (OUTSIDE if OUTSIDE in by.categories else "other")] = wall - took.sum()
    took += unrecorded
    columns = {"category": by.categories, "self_us": took / US, "share": took / (wall or np.nan)}
    events = np.bincount(by.codes[of], minlength=len(took))
    return pd.DataFrame({**columns, "events": events, "unrecorded_us": unrecorded / US})


def _ops(works: list[tuple[Trace, HostWork, Intervals | None]]) -> pd.DataFrame:
    """Return one row per name on all host threads, one of all steps' marks: name, category, calls, self_us, total_us.

    `total_us` adds whole durations, children included, so it is no share of anything. Of the time that counts, where it
    is given, self times and the calls that begin there count. An event's self time is that on its own thread, a mark's
    without the backward pass that runs in it.
    """
    by, parts = ["name", "category"], []
    for trace, host, windows in works:
        start = trace.start[host.rows]
        calls = 1 if windows is None else windows.covered(start, start + 1)
        spent = np.where(host.on == host.track, host.spent(windows), host.alone.spent(windows))
        kinds = host.category.categories
        key, group = np.unique(trace.name[host.rows] * len(kinds) + host.category.codes, return_inverse=True)
        names = [trace.names[name] for name in (key // len(kinds)).tolist()]
        sums = {"calls": np.broadcast_to(calls, spent.shape), "self_us": spent, "total_us": trace.duration[host.rows]}
        ticks = {column: np.bincount(group, each, len(key)) for column, each in sums.items()}
        table = pd.DataFrame({"name": [STEP_MARK if name.startswith("ProfilerStep") else name for name in names]})
        table = table.assign(category=kinds[key % len(kinds)], calls=ticks["calls"].astype(np.int64))
        parts.append(table.assign(self_us=ticks["self_us"] / US, total_us=ticks["total_us"] / US))
    table = pd.concat(parts).groupby(by, sort=False).sum().reset_index()
    return table.sort_values(["self_us", "name"], ascending=[False, True], ignore_index=True)


def sync_table(trace: Trace, host: HostWork) -> pd.DataFrame:
    """Return one row per place: rank, call, op, site, stage, calls, wait_us; the longest wait first.

    `op` is the operator around the call, such as `aten::item`, and `site` the nearest Python frame outside libraries,
    where stacks are recorded; both are null where nothing is recorded.
    """
    waits, is_full = trace.is_runtime & trace.names_match(WAITING_CALL), _waits_for_room(trace)
    calls = np.flatnonzero((waits | is_full)[host.rows])
    rows = host.rows[calls]
    is_site = trace.is_category({"python_function"}) & ~trace.names_match(LIBRARY_CODE)
    places = {
        "call": np.array(trace.names_of(rows), dtype=object) + np.where(is_full[rows], " (full queue)", ""),
        "op": trace.names_of(rows_around(host, trace.is_op, calls)),
        "site": trace.names_of(rows_around(host, is_site, calls)),
        "stage": host.stage[calls].astype(str),
    }
    table = pd.DataFrame(places).assign(us=trace.duration[rows] / US)
    return trace.ranked(longest_first(table, list(places), "wait_us", calls=("us", "size"), wait_us=("us", "sum")))


def _waits_for_room(trace: Trace) -> Bools:
    """Return which events are launches that waited for room in the queue of a device, [N]."""
    launched = trace.launch >= 0
    began, calls = np.sort(trace.start[launched]), np.unique(trace.launch[launched])
    at = trace.start[calls]
    waiting = np.searchsorted(np.sort(at), at, side="left") - np.searchsorted(began, at, side="right")
    waits = np.zeros(len(trace.start), dtype=bool)
    waits[calls] = (waiting >= _FULL_QUEUE) & (trace.duration[calls] >= _FULL_QUEUE_US * US)
    return waits & trace.names_match(LAUNCH)


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
    rows, held = np.flatnonzero(trace.is_op | trace.is_runtime), []
    for start, end in zip(steps["start"], steps["end"], strict=True):
        inside = rows[(trace.start[rows] >= start) & (trace.stop[rows] <= end)]
        head, tail = trace.start[inside].min(initial=end) - start, end - trace.stop[inside].max(initial=start)
        held.append(((end - start) / US, len(inside), head / US, tail / US))
    cut: dict[int, tuple[float, str]] = {}
    for i, silent, which, side in ((0, 2, "first", "begins"), (len(steps) - 1, 3, "last", "ends")):
        step, usual = held[i], np.median(np.delete(held, i, axis=0), axis=0)
        us, missing = step[0], usual[0] - step[0]
        said = f"is a fragment of {us_text(us)}, a whole one takes {us_text(usual[0])}"
        if missing <= EDGE * usual[0]:
            us, missing = step[silent], step[silent] - usual[silent]
            said = f"{side} with {us_text(us)} in which no event was recorded"
        if missing > EDGE * usual[0] and step[1] < (1 - EDGE / 2) * usual[1]:
            cut[i] = float(us), f"{steps['name'][i]}, the {which} step, {said}"
    return cut


def longest_first(table: pd.DataFrame, by: list[str], time: str, **sums: Any) -> pd.DataFrame:
    """Return sums of a table's groups, as `agg` takes them, those of the longest `time` first."""
    keys = {name: pd.factorize(table[name], use_na_sentinel=False) for name in by}
    code = np.zeros(len(table), dtype=np.int64)  # of the group, in the order in which they first occur
    for each, values in keys.values():
        code = pd.factorize(code * len(values) + each)[0]
    first, groups = np.unique(code, return_index=True)[1], table.groupby(code)
    columns: dict[str, Any] = {name: values.take(each[first]).infer_objects() for name, (each, values) in keys.items()}
    columns |= {name: getattr(groups[column], how)() for name, (column, how) in sums.items()}
    return pd.DataFrame(columns).sort_values(time, ascending=False, ignore_index=True, kind="stable")


def rows_around(host: HostWork, wanted: Bools, of: Ints) -> Ints:
    """Return the nearest of the `wanted` events [N] around host events `of` [K], rows of the trace; -1 without any.

    Around no event, -1 in `of`, there is none.
    """
    around = np.append(nearest(wanted[host.rows], host.parent), -1)
    return np.append(host.rows, -1)[around[of]]
