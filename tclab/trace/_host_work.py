"""Work of the host's threads: self time by category and stage, and calls that wait for the device."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from tclab.trace._categories import CATEGORIES, OUTSIDE, STAGES, Rule, categories_of, first_rules
from tclab.trace._events import HOST, Bools, Ints, Trace
from tclab.trace._nesting import Intervals, Nesting, nearest, nest, tie_of, union

WAITING_CALL = r"Synchronize|^(cuda|hip)Memcpy(WithStream)?$|^(cuda|hip)Free(Host)?$"
"""Runtime calls that return when the device has caught up; an asynchronous copy may wait too, unrecorded."""
STEP_MARK = "ProfilerStep* (mark of a step: Python between operations)"
"""All steps' marks in `Report.ops`, by torch's name; their self time is Python, and waiting, between operations."""
LIBRARY_CODE = r"^<|^torch[/.]|site-packages|^(threading|runpy|contextlib|functools)\.py|^nn\.Module"
_THREADS = ["rank", "thread", "is_main", "category", "self_us", "share", "events", "unrecorded_us"]
_MARK = {"user_annotation"}
_ENGINE = r"^autograd::engine::"
_TORCHS_MARK = r"^Optimizer\.step|^enumerate\(DataLoader\)"
"""Marks of torch's own, which hold what a closure or a data set does: forward, backward and graphs are stages there."""
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
    main: int | None  # track of the thread that runs the steps

    def op_time(self, windows: Intervals | None = None) -> Ints:
        """Return self times on each event's own thread, [R]; a mark's without the backward pass that runs in it."""
        return np.where(self.on == self.track, self.spent(windows), self.alone.spent(windows))


def nest_host(trace: Trace, rules: tuple[Rule, ...]) -> HostWork:
    """Return all host events, nested, with their categories and stages."""
    rows = np.flatnonzero(trace.kind == HOST)
    track, tie, main = trace.track[rows], tie_of(trace, rows), main_track(trace)
    rule = first_rules(trace, rules)[rows]
    category = categories_of(rule, rules)
    alone = nest(trace.start[rows], trace.duration[rows], track, tie)
    waited_for = _waited_for(trace, rows, alone.parent, np.asarray(category == "backward"), main)
    on = np.where(waited_for, -1 if main is None else main, track)
    nesting = alone if (on == track).all() else nest(trace.start[rows], trace.duration[rows], on, tie)
    names = list(category.categories)
    stages = [*STAGES, *names[len(CATEGORIES) :], OUTSIDE]
    is_stage, is_mark = category.isin(stages), trace.is_category(_MARK)[rows]
    # Within a user's mark, or a node of autograd's graph, only marks and what is surely a stage are stages of their own
    holds = is_mark & ~trace.names_match(_TORCHS_MARK)[rows] | trace.names_match(_ENGINE)[rows]
    held = np.append(nearest(holds & is_stage, nesting.parent), -1)[nesting.parent] >= 0
    sure = is_mark | np.array([rule.sure for rule in rules])[rule]
    around = nearest(is_stage & (sure | ~held), nesting.parent)
    stage = pd.Categorical(np.where(around >= 0, np.asarray(category)[around], OUTSIDE), stages)
    return HostWork(**vars(nesting), rows=rows, track=track, on=on, alone=alone, category=category, stage=stage,
                    main=main)  # fmt: skip


def _waited_for(trace: Trace, rows: Ints, parent: Ints, is_backward: Bools, main: int | None) -> Bools:
    """Return which host events autograd's own threads ran while the main thread waited for them, [R].

    Such a thread is known by forward-backward links from another one, and without any by its operators: nearly all are
    backward. The main thread waits where no event of its own begins or ends, unless a link, or a mark of a backward
    pass on another thread alone, says that this one called it.
    """
    track, start, stop = trace.track[rows], trace.start[rows], trace.stop[rows]
    waited = np.zeros(len(rows), dtype=bool)
    of_main = track == main
    is_op = trace.is_op[rows]
    edges = np.sort(np.concatenate([start[of_main], stop[of_main]]))
    links = trace.links[trace.links["caller"] != trace.links["track"]].sort_values("at", kind="stable")
    is_root = parent < 0
    threads = [thread for thread in np.unique(track[is_backward & is_op]).tolist() if thread != main]
    is_mark = is_backward & ~is_op & ~np.isin(track, threads)
    called_here, called_elsewhere = (union(start[of], stop[of]) for of in (is_mark & of_main, is_mark & ~of_main))
    for thread in threads:
        roots = np.flatnonzero(is_root & (track == thread))
        ops = roots[is_op[roots]]
        took = stop[ops] - start[ops]
        theirs = links[links["track"] == thread]
        begin, end = start[roots], stop[roots]
        still = np.searchsorted(edges, end, side="left") == np.searchsorted(edges, begin, side="right")
        still &= (begin >= edges[0]) & (end <= edges[-1])
        if len(theirs):
            last = np.searchsorted(theirs["at"].to_numpy(), end, side="right") - 1
            still &= theirs["caller"].to_numpy()[np.maximum(last, 0)] == main
        elif took[is_backward[ops]].sum() < _MOSTLY * took.sum():
            continue
        else:
            still &= (called_here.covered(begin, end) > 0) | (called_elsewhere.covered(begin, end) == 0)
        waited[roots[still]] = True
    return waited[nearest(is_root, parent)]


def main_track(trace: Trace) -> int | None:
    """Return the thread that runs the steps; None without host events.

    It is the one with a `ProfilerStep` and other events; else the process's first thread (on Linux its id is the
    process's); else the one with the most events, of equals the one that begins first.
    """
    rows = np.flatnonzero(trace.kind == HOST)
    if len(rows) == 0:
        return None
    threads = pd.Series(trace.start[rows]).groupby(trace.track[rows]).agg(["size", "min"])
    marked = np.unique(trace.track[rows[trace.names_match(r"^ProfilerStep")[rows]]])
    stepping = threads[threads.index.isin(marked) & (threads["size"] > 1)]
    first = threads[[trace.tracks[track][0] == trace.tracks[track][1] for track in threads.index]]
    choice = stepping if len(stepping) else first if len(first) else threads
    return int(choice.sort_values(["size", "min"], ascending=[False, True], kind="stable").index[0])


def thread_table(trace: Trace, host: HostWork) -> pd.DataFrame:
    """Return one row per thread and category: rank, thread, is_main, category, self_us, share, events, unrecorded_us.

    Each event counts on its own thread. A thread's `self_us` sum to its wall time, last end - first start. Time without
    any recorded event counts as `other`, and is given in `unrecorded_us`.
    """
    parts = []
    for track in np.unique(host.track).tolist():
        mine = host.track == track
        thread = {"thread": "{} {}".format(*trace.tracks[track]), "is_main": track == host.main}
        parts.append(_account(trace, host, mine, host.category, host.alone.spent(), None).assign(**thread))
    table = trace.ranked(pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=_THREADS[1:]))
    return table[_THREADS]


def host_tables(works: list[tuple[Trace, HostWork, Intervals | None]]) -> dict[str, pd.DataFrame]:
    """Return the accounts of all ranks: categories, stages, ops.

    **Arguments:**

    - `works`: of each rank its trace, host work, and the time that counts, None for all.
    """
    return {"categories": _main(works, "category"), "stages": _main(works, "stage"), "ops": _ops(works)}


def _main(works: list[tuple[Trace, HostWork, Intervals | None]], by: str) -> pd.DataFrame:
    """Return the self time of all ranks' main threads: `by`, self_us, share, events, unrecorded_us.

    A backward pass that the main thread waits for counts as its own. Time without any recorded event counts as `other`,
    or as outside any stage.

    **Arguments:**

    - `by`: "category", or "stage", that around each event: an `aten::` op within a backward is backward.
    """
    parts = [
        _account(trace, host, host.on == host.main, getattr(host, by), host.spent(windows), windows)
        for trace, host, windows in works
    ]
    table = pd.concat(parts).groupby("category", sort=False)[["self_us", "events", "unrecorded_us"]].sum().reset_index()
    table.insert(2, "share", table["self_us"] / (table["self_us"].sum() or np.nan))
    return table.rename(columns={"category": by})


def _account(
    trace: Trace, host: HostWork, of: Bools, by: "pd.Categorical[Any]", spent: Ints, windows: Intervals | None
) -> pd.DataFrame:
    """Return category, self_us, share, events and unrecorded_us of the host events `of` [R], which are of a thread."""
    names, rows = list(by.categories), host.rows[of]
    took = np.bincount(by.codes[of], spent[of], len(names)).astype(np.int64)
    stop = trace.stop[rows].max(initial=0, keepdims=True)
    start = trace.start[rows].min(initial=int(stop[0]), keepdims=True)
    wall = int((stop - start if windows is None else windows.covered(start, stop))[0])
    unrecorded = np.where(np.array(names) == (OUTSIDE if OUTSIDE in names else "other"), wall - took.sum(), 0)
    events = np.bincount(by.codes[of], minlength=len(names))
    table = pd.DataFrame({"category": names, "self_us": trace.us(took + unrecorded), "events": events})
    return table.assign(share=(took + unrecorded) / (wall or np.nan), unrecorded_us=trace.us(unrecorded))


def _ops(works: list[tuple[Trace, HostWork, Intervals | None]]) -> pd.DataFrame:
    """Return one row per name on all host threads, one of all steps' marks: name, category, calls, self_us, total_us.

    `total_us` adds whole durations, children included, so it is no share of anything. Of the time that counts, where it
    is given, self times and the calls that begin there count.
    """
    parts = []
    for trace, host, windows in works:
        start = trace.start[host.rows]
        sums = {"calls": 1 if windows is None else windows.covered(start, start + 1), "self_us": host.op_time(windows)}
        events = pd.DataFrame({"name": trace.name[host.rows], "category": host.category, **sums})
        table = events.assign(total_us=trace.duration[host.rows]).groupby(["name", "category"], observed=True).sum()
        table = trace.us(table).assign(calls=table["calls"]).reset_index()
        names = (trace.names[name] for name in table["name"])
        table["name"] = [STEP_MARK if name.startswith("ProfilerStep") else name for name in names]
        parts.append(table.astype({"category": str}))
    table = pd.concat(parts).groupby(["name", "category"], sort=False).sum().reset_index()
    return table.sort_values(["self_us", "name"], ascending=[False, True], ignore_index=True)


def sync_table(trace: Trace, host: HostWork, full_queue: Ints) -> pd.DataFrame:
    """Return one row per place: rank, call, op, site, stage, calls, wait_us; the longest wait first.

    `op` is the operator around the call, such as `aten::item`, and `site` the nearest Python frame outside libraries,
    where stacks are recorded; both are null where nothing is recorded.

    **Arguments:**

    - `full_queue`: rows of launches that waited for room in the device's queue.
    """
    is_full = np.isin(host.rows, full_queue)
    found = np.flatnonzero((trace.is_runtime & trace.names_match(WAITING_CALL))[host.rows] | is_full)
    is_site = trace.is_category({"python_function"}) & ~trace.names_match(LIBRARY_CODE)
    calls = zip(trace.names_of(host.rows[found]), is_full[found].tolist(), strict=True)
    table = pd.DataFrame(
        {
            "call": [f"{name} (full queue)" if full else name for name, full in calls],
            "op": trace.names_of(rows_around(host, trace.is_op, found)),
            "site": trace.names_of(rows_around(host, is_site, found)),
            "stage": host.stage[found].astype(str),
            "wait_us": trace.us(trace.duration[host.rows[found]]),
        }
    )
    waits = table.groupby(["call", "op", "site", "stage"], dropna=False, sort=False)["wait_us"]
    table = trace.ranked(waits.agg(calls="size", wait_us="sum").reset_index())
    return table.sort_values("wait_us", ascending=False, ignore_index=True, kind="stable")


def rows_around(host: HostWork, wanted: Bools, of: Ints) -> Ints:
    """Return the nearest of the `wanted` events [N] around host events `of` [K], rows of the trace; -1 without any."""
    return np.append(host.rows, -1)[nearest(wanted[host.rows], host.parent)[of]]
