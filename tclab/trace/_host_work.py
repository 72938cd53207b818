"""Work of the host's threads: self time by category and stage, and calls that wait for the device."""

from dataclasses import dataclass

import numpy as np
import pandas as pd

from tclab.trace._categories import OUTSIDE, STAGES, Rule, categorise, category_names
from tclab.trace._events import HOST, OPERATOR_CATEGORIES, Bools, Ints, Trace
from tclab.trace._nesting import Intervals, Nesting, nearest, nest, tie_of

WAITING_CALL = r"Synchronize|^(cuda|hip)Memcpy(WithStream)?$|^(cuda|hip)(Malloc|Free)(Host)?$"
"""Runtime calls that return when the device has caught up; an asynchronous copy may wait too, unrecorded."""
LIBRARY_CODE = r"^<|^torch[/.]|site-packages|^(threading|runpy|contextlib|functools)\.py|^nn\.Module"


@dataclass(frozen=True)
class HostWork(Nesting):
    """The host events of one trace, nested; owners and parents are positions in `rows`."""

    rows: Ints  # all host events, rows of the trace
    track: Ints  # [rows] thread, index into the trace's tracks
    category: Ints  # [rows] index into `names`
    stage: Ints  # [rows] index into `names`; -1 outside any stage
    names: list[str]  # categories
    main: int | None  # track of the thread that runs the steps


def host_work(trace: Trace, rules: tuple[Rule, ...]) -> HostWork:
    """Return self times, categories and stages of all host events."""
    names = category_names(rules)
    rows = np.flatnonzero(trace.kind == HOST)
    track = trace.track[rows]
    nesting = nest(trace.start[rows], trace.duration[rows], track, tie_of(trace, rows))
    category = categorise(trace, rules)[rows]
    is_stage = np.array([name in STAGES or name not in names[:10] for name in names])
    around = nearest(is_stage[category], nesting.parent)
    stage = np.where(around >= 0, category[around], -1)
    return HostWork(**vars(nesting), rows=rows, track=track, category=category, stage=stage, names=names,
                    main=main_track(trace))  # fmt: skip


def main_track(trace: Trace) -> int | None:
    """Return the thread that runs the steps; None without host events.

    It is the one with a `ProfilerStep` and other events; else the process's first thread (on Linux its id is the
    process's); else the one with the most events, of equals the one that begins first.
    """
    rows = np.flatnonzero(trace.kind == HOST)
    if len(rows) == 0:
        return None
    threads = pd.Series(trace.start[rows]).groupby(trace.track[rows]).agg(["size", "min"])
    stepping = np.unique(trace.track[rows[trace.names_match(r"^ProfilerStep")[rows]]])
    stepping = threads[threads.index.isin(stepping) & (threads["size"] > 1)]
    first = threads[[trace.tracks[track][0] == trace.tracks[track][1] for track in threads.index]]
    choice = stepping if len(stepping) else first if len(first) else threads
    return int(choice.sort_values(["size", "min"], ascending=[False, True], kind="stable").index[0])


def thread_table(trace: Trace, host: HostWork) -> pd.DataFrame:
    """Return one row per thread and category: rank, thread, is_main, category, self_us, share, events.

    A thread's `self_us` sum to its wall time, last end - first start. Time without any recorded event counts as
    `other` and is given in `unrecorded_us`.
    """
    return _table(trace, host, host.category, host.names, host.names.index("other"), "category")


def stage_table(trace: Trace, host: HostWork) -> pd.DataFrame:
    """Return `thread_table` by the stage around each event: an `aten::` op within a backward is backward."""
    shown = [*STAGES, *host.names[10:], OUTSIDE]
    position = np.array([shown.index(n) if n in shown else len(shown) - 1 for n in host.names] + [len(shown) - 1])
    return _table(trace, host, position[host.stage], shown, len(shown) - 1, "stage")


def _table(trace: Trace, host: HostWork, of: Ints, shown: list[str], rest: int, column: str) -> pd.DataFrame:
    """Return self time per thread and column, [threads × len(shown)] rows; `rest` takes what no event covers."""
    events = pd.DataFrame({"self": host.self_time, "start": trace.start[host.rows], "stop": trace.stop[host.rows]})
    threads = events.groupby(host.track).agg({"self": "sum", "start": "min", "stop": "max"})
    wall = (threads["stop"] - threads["start"]).to_numpy()
    cells = events["self"].groupby([host.track, of]).agg(["sum", "size"])
    cells = cells.reindex(pd.MultiIndex.from_product([threads.index, range(len(shown))]), fill_value=0)
    unrecorded = np.zeros((len(threads), len(shown)))
    unrecorded[:, rest] = wall - threads["self"]
    self_time = cells["sum"].to_numpy() + unrecorded.ravel()
    labels = ["{} {}".format(*trace.tracks[track]) for track in threads.index]
    table = pd.DataFrame(
        {
            "thread": np.repeat(np.array(labels, dtype=object), len(shown)),
            "is_main": np.repeat(threads.index == host.main, len(shown)),
            column: np.tile(np.array(shown, dtype=object), len(threads)),
            "self_us": trace.us(self_time),
            "share": self_time / np.repeat(np.where(wall > 0, wall, np.nan), len(shown)),
            "events": cells["size"].to_numpy(),
            "unrecorded_us": trace.us(unrecorded.ravel()),
        }
    )
    return trace.ranked(table)


def step_category_table(trace: Trace, host: HostWork) -> pd.DataFrame:
    """Return the main thread's self time per step: rank, step, category, self_us, share of the step's wall time.

    Time without an event within a step is `other`, so each step sums to its wall time.
    """
    steps = trace.steps
    if host.main is None or len(steps.names) == 0:
        return pd.DataFrame(columns=["rank", "step", "category", "self_us", "share"])
    mine = host.track[host.owner] == host.main  # stretches of one thread, in the order of time
    category = host.category[host.owner]
    spent = np.zeros((len(steps.names), len(host.names)))
    for code in range(len(host.names)):
        part = mine & (category == code)
        spent[:, code] = Intervals(host.start[part], host.end[part]).covered(steps.start, steps.end)
    wall = steps.end - steps.start
    spent[:, host.names.index("other")] += wall - spent.sum(axis=1)
    share = spent / np.where(wall > 0, wall, np.nan)[:, None]
    rows = pd.MultiIndex.from_product([steps.names, host.names], names=["step", "category"]).to_frame(index=False)
    return trace.ranked(rows.assign(self_us=trace.us(spent.ravel()), share=share.ravel()))


def main_threads(table: pd.DataFrame, column: str) -> pd.DataFrame:
    """Return the sum of all ranks' main threads: `column`, self_us, share, events, unrecorded_us."""
    main = table[table["is_main"].astype(bool)]
    added = main.groupby(column, sort=False)[["self_us", "events", "unrecorded_us"]].sum().reset_index()
    wall = float(added["self_us"].sum())
    added.insert(2, "share", added["self_us"] / wall if wall else np.nan)
    return added


def op_table(trace: Trace, host: HostWork) -> pd.DataFrame:
    """Return one row per name on all host threads: name, category, calls, self_us, total_us.

    `total_us` adds whole durations, children included, so it is no share of anything.
    """
    events = pd.DataFrame(
        {
            "name": trace.name[host.rows],
            "category": host.category,
            "self_us": host.self_time,
            "total_us": trace.duration[host.rows],
        }
    )
    groups = events.groupby(["name", "category"])
    table = groups.agg(calls=("self_us", "size"), self_us=("self_us", "sum"), total_us=("total_us", "sum"))
    table = trace.us(table).assign(calls=table["calls"]).reset_index()
    table["name"] = [trace.names[name] for name in table["name"]]
    table["category"] = [host.names[category] for category in table["category"]]
    return table.sort_values(["self_us", "name"], ascending=[False, True], ignore_index=True)


def sync_table(trace: Trace, host: HostWork) -> pd.DataFrame:
    """Return one row per place: rank, call, op, site, stage, calls, wait_us; the longest wait first.

    `op` is the operator around the call, such as `aten::item`, and `site` the nearest Python frame outside libraries,
    where stacks are recorded; both are null where nothing is recorded.
    """
    columns = ["call", "op", "site", "stage"]
    is_wait = trace.is_runtime & trace.names_match(WAITING_CALL)
    found = np.flatnonzero(is_wait[host.rows])
    if len(found) == 0:
        return pd.DataFrame(columns=["rank", *columns, "calls", "wait_us"])
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
            "stage": [OUTSIDE if stage < 0 else host.names[stage] for stage in host.stage[found].tolist()],
            "wait_us": trace.us(trace.duration[host.rows[found]]),
        }
    )
    waits = table.groupby(columns, dropna=False, sort=False)["wait_us"]
    table = trace.ranked(waits.agg(calls="size", wait_us="sum").reset_index())
    return table.sort_values("wait_us", ascending=False, ignore_index=True, kind="stable")
