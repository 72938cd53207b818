"""Work of the host's threads: self time by category and stage, and calls that wait for the device."""

from dataclasses import dataclass

import numpy as np
import pandas as pd

from tclab.trace._categories import CATEGORIES, OUTSIDE, STAGES, Rule, categorise
from tclab.trace._events import HOST, OPERATOR_CATEGORIES, Bools, Ints, Trace
from tclab.trace._nesting import Nesting, nearest, nest, tie_of

WAITING_CALL = r"Synchronize|^(cuda|hip)Memcpy(WithStream)?$|^(cuda|hip)(Malloc|Free)(Host)?$"
"""Runtime calls that return when the device has caught up; an asynchronous copy may wait too, unrecorded."""
STEP_MARK = "ProfilerStep* (mark of a step: Python between operations)"
"""All steps' marks in `Report.ops`, by torch's name; their self time is Python, and waiting, between operations."""
LIBRARY_CODE = r"^<|^torch[/.]|site-packages|^(threading|runpy|contextlib|functools)\.py|^nn\.Module"


@dataclass(frozen=True)
class HostWork(Nesting):
    """The host events of one trace, nested; owners and parents are positions in `rows`."""

    rows: Ints  # [R] all host events, rows of the trace
    track: Ints  # [R] thread, index into the trace's tracks
    category: pd.Categorical  # [R]
    stage: pd.Categorical  # [R] the category of the nearest stage around each event, `OUTSIDE` where there is none
    main: int | None  # track of the thread that runs the steps


def host_work(trace: Trace, rules: tuple[Rule, ...]) -> HostWork:
    """Return self times, categories and stages of all host events."""
    rows = np.flatnonzero(trace.kind == HOST)
    track = trace.track[rows]
    nesting = nest(trace.start[rows], trace.duration[rows], track, tie_of(trace, rows))
    category = categorise(trace, rules)[rows]
    names = list(category.categories)
    stages = [*STAGES, *names[len(CATEGORIES) :], OUTSIDE]
    around = nearest(category.isin(stages), nesting.parent)
    stage = pd.Categorical(np.where(around >= 0, np.asarray(category)[around], OUTSIDE), stages)
    return HostWork(**vars(nesting), rows=rows, track=track, category=category, stage=stage, main=main_track(trace))


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


def thread_table(trace: Trace, host: HostWork, by: str) -> pd.DataFrame:
    """Return one row per thread and `by`: rank, thread, is_main, `by`, self_us, share, events, unrecorded_us.

    A thread's `self_us` sum to its wall time, last end - first start. Time without any recorded event counts as
    `other`, or as outside any stage, and is given in `unrecorded_us`.

    **Arguments:**

    - `by`: "category", or "stage", that around each event: an `aten::` op within a backward is backward.
    """
    of, rest = (host.category, "other") if by == "category" else (host.stage, OUTSIDE)
    times = {"self": host.self_time, "start": trace.start[host.rows], "stop": trace.stop[host.rows]}
    events = pd.DataFrame({"track": host.track, by: of, **times})
    threads = events.groupby("track").agg({"self": "sum", "start": "min", "stop": "max"})
    threads["wall"] = threads["stop"] - threads["start"]
    table = events.groupby(["track", by], observed=False)["self"].agg(["sum", "size"]).reset_index()
    table = table.merge(threads, left_on="track", right_index=True)
    unrecorded = (table["wall"] - table["self"]).where(table[by] == rest, 0)
    self_time = table["sum"] + unrecorded
    columns = {
        "thread": ["{} {}".format(*trace.tracks[track]) for track in table["track"]],
        "is_main": table["track"] == host.main,
        by: table[by].astype(str),
        "self_us": trace.us(self_time),
        "share": self_time / table["wall"].where(table["wall"] > 0),
        "events": table["size"],
        "unrecorded_us": trace.us(unrecorded),
    }
    return trace.ranked(pd.DataFrame(columns))


def main_threads(table: pd.DataFrame, column: str) -> pd.DataFrame:
    """Return the sum of all ranks' main threads: `column`, self_us, share, events, unrecorded_us."""
    main = table[table["is_main"].astype(bool)]
    added = main.groupby(column, sort=False)[["self_us", "events", "unrecorded_us"]].sum().reset_index()
    wall = float(added["self_us"].sum())
    added.insert(2, "share", added["self_us"] / wall if wall else np.nan)
    return added


def op_table(trace: Trace, host: HostWork) -> pd.DataFrame:
    """Return one row per name on all host threads, one of all steps' marks: name, category, calls, self_us, total_us.

    `total_us` adds whole durations, children included, so it is no share of anything.
    """
    sums = {"calls": 1, "self_us": host.self_time, "total_us": trace.duration[host.rows]}
    events = pd.DataFrame({"name": trace.name[host.rows], "category": host.category, **sums})
    table = events.groupby(["name", "category"], observed=True).sum().reset_index()
    names = (trace.names[name] for name in table["name"])
    table["name"] = [STEP_MARK if name.startswith("ProfilerStep") else name for name in names]
    table["category"] = table["category"].astype(str)
    table[["self_us", "total_us"]] = trace.us(table[["self_us", "total_us"]])
    return table


def sync_table(trace: Trace, host: HostWork) -> pd.DataFrame:
    """Return one row per place: rank, call, op, site, stage, calls, wait_us; the longest wait first.

    `op` is the operator around the call, such as `aten::item`, and `site` the nearest Python frame outside libraries,
    where stacks are recorded; both are null where nothing is recorded.
    """
    is_wait = trace.is_runtime & trace.names_match(WAITING_CALL)
    found = np.flatnonzero(is_wait[host.rows])
    is_op = trace.is_category(OPERATOR_CATEGORIES)
    is_site = trace.is_category({"python_function"}) & ~trace.names_match(LIBRARY_CODE)

    def around(wanted: Bools) -> list[str | None]:
        rows = nearest(wanted[host.rows], host.parent)[found]
        return [None if row < 0 else trace.name_of(host.rows[row]) for row in rows.tolist()]

    table = pd.DataFrame(
        {
            "call": [trace.name_of(row) for row in host.rows[found].tolist()],
            "op": around(is_op),
            "site": around(is_site),
            "stage": host.stage[found].astype(str),
            "wait_us": trace.us(trace.duration[host.rows[found]]),
        }
    )
    waits = table.groupby(["call", "op", "site", "stage"], dropna=False, sort=False)["wait_us"]
    table = trace.ranked(waits.agg(calls="size", wait_us="sum").reset_index())
    return table.sort_values("wait_us", ascending=False, ignore_index=True, kind="stable")
