"""Work of the host's threads: self time by category and stage, and calls that wait for the device."""

from dataclasses import dataclass

import numpy as np
import pandas as pd

from tclab.trace._categories import OUTSIDE, STAGES, Rule, categorise, category_names, nearest
from tclab.trace._events import HOST, RUNTIME_CATEGORIES, Ints, StepWindows, Trace, rank_column
from tclab.trace._nesting import Nesting, nest, tie_of


@dataclass(frozen=True)
class HostWork(Nesting):
    """The host events of one trace, nested; owners and parents are positions in `rows`."""

    rows: Ints  # all host events, rows of the trace
    category: Ints  # [rows] index into `names`
    stage: Ints  # [rows] index into `names`; -1 outside any stage
    names: list[str]  # categories
    main: int | None  # track of the thread that runs the steps


def host_work(trace: Trace, rules: tuple[Rule, ...]) -> HostWork:
    """Return self times, categories and stages of all host events."""
    names = category_names(rules)
    rows = np.flatnonzero(trace.kind == HOST)
    nesting = nest(trace.start[rows], trace.duration[rows], trace.track[rows], tie_of(trace, rows))
    category = categorise(trace, rules)[rows]
    is_stage = np.array([name in STAGES or name not in names[:10] for name in names])
    around = nearest(is_stage[category], nesting.parent)
    stage = np.where(around >= 0, category[around], -1)
    main = main_track(trace, rows)
    return HostWork(**vars(nesting), rows=rows, category=category, stage=stage, names=names, main=main)


def main_track(trace: Trace, rows: Ints) -> int | None:
    """Return the thread that runs the steps; None without host events.

    It is the one with a `ProfilerStep` and other events; else the process's first thread (on Linux its id is the
    process's); else the one with the most events, of equals the one that begins first.
    """
    if len(rows) == 0:
        return None
    tracks = trace.track[rows]
    counts = np.bincount(tracks, minlength=len(trace.tracks))
    marks = rows[trace.names_match(r"^ProfilerStep")[rows]]
    stepping = np.intersect1d(np.unique(trace.track[marks]), np.flatnonzero(counts > 1))
    first = np.array([t for t, (pid, tid) in enumerate(trace.tracks) if pid == tid and counts[t]], dtype=int)
    choice = stepping if len(stepping) else first if len(first) else np.unique(tracks)
    choice = choice[counts[choice] == counts[choice].max()]
    begins = [int(trace.start[rows][tracks == track].min()) for track in choice.tolist()]
    return int(choice[int(np.argmin(begins))])


def thread_table(trace: Trace, work: HostWork) -> pd.DataFrame:
    """Return one row per thread and category: rank, thread, is_main, category, self_us, share, events.

    A thread's `self_us` sum to its wall time, last end - first start. Time without any recorded event counts as
    `other` and is given in `unrecorded_us`.
    """
    return _table(trace, work, work.category, work.names, work.names.index("other"), "category")


def stage_table(trace: Trace, work: HostWork) -> pd.DataFrame:
    """Return `thread_table` by the stage around each event: an `aten::` op within a backward is backward."""
    shown = [*STAGES, *work.names[10:], OUTSIDE]
    place = np.array([shown.index(n) if n in shown else len(shown) - 1 for n in work.names] + [len(shown) - 1])
    return _table(trace, work, place[work.stage], shown, len(shown) - 1, "stage")


def _table(trace: Trace, work: HostWork, of: Ints, shown: list[str], rest: int, column: str) -> pd.DataFrame:
    """Return self time per thread and column, [threads × len(shown)] rows; `rest` takes what no event covers."""
    tracks, index = np.unique(trace.track[work.rows], return_inverse=True)
    shape = len(tracks), len(shown)
    keys = index * len(shown) + of
    spent = np.bincount(keys, weights=work.self_time, minlength=shape[0] * shape[1]).reshape(shape)
    events = np.bincount(keys, minlength=shape[0] * shape[1])
    start = trace.start[work.rows]
    stop = start + trace.duration[work.rows]
    wall = (pd.Series(stop).groupby(index).max() - pd.Series(start).groupby(index).min()).to_numpy()
    unrecorded = np.zeros(shape)
    unrecorded[:, rest] = wall - spent.sum(axis=1)
    self_time = spent + unrecorded
    threads = ["{} {}".format(*trace.tracks[track]) for track in tracks.tolist()]
    return pd.DataFrame(
        {
            "rank": rank_column(trace, shape[0] * shape[1]),
            "thread": np.repeat(np.array(threads, dtype=object), shape[1]),
            "is_main": np.repeat(tracks == work.main, shape[1]),
            column: np.tile(np.array(shown, dtype=object), shape[0]),
            "self_us": trace.us(self_time.ravel()),
            "share": (self_time / np.where(wall > 0, wall, np.nan)[:, None]).ravel(),
            "events": events,
            "unrecorded_us": trace.us(unrecorded.ravel()),
        }
    )


def step_category_table(trace: Trace, work: HostWork, steps: StepWindows) -> pd.DataFrame:
    """Return the main thread's self time per step: rank, step, category, self_us, share of the step's wall time.

    Time without an event within a step is `other`, so each step sums to its wall time.
    """
    columns = ["rank", "step", "category", "self_us", "share"]
    if work.main is None or len(steps.names) == 0:
        return pd.DataFrame(columns=columns)
    mine = np.flatnonzero(trace.track[work.rows[work.owner]] == work.main)
    mine = mine[np.argsort(work.start[mine], kind="stable")]
    begin, end, wide = work.start[mine], work.end[mine], len(work.names)
    category = work.category[work.owner[mine]]
    tables = []
    for name, first, last in zip(steps.names, steps.start.tolist(), steps.end.tolist(), strict=True):
        # stretches of one thread do not overlap, so those within a step are adjacent
        part = slice(np.searchsorted(end, first, side="right"), np.searchsorted(begin, last, side="left"))
        held = np.minimum(end[part], last) - np.maximum(begin[part], first)
        spent = np.bincount(category[part], weights=held, minlength=wide)
        spent[work.names.index("other")] += last - first - spent.sum()
        share = spent / (last - first) if last > first else np.full(wide, np.nan)
        tables.append(
            pd.DataFrame(
                {
                    "rank": rank_column(trace, wide),
                    "step": name,
                    "category": work.names,
                    "self_us": trace.us(spent),
                    "share": share,
                }
            )
        )
    return pd.concat(tables, ignore_index=True)


def main_threads(table: pd.DataFrame, column: str) -> pd.DataFrame:
    """Return the sum of all ranks' main threads: `column`, self_us, share, events, unrecorded_us."""
    main = table[table["is_main"].astype(bool)]
    added = main.groupby(column, sort=False)[["self_us", "events", "unrecorded_us"]].sum().reset_index()
    wall = float(added["self_us"].sum())
    added.insert(2, "share", added["self_us"] / wall if wall else np.nan)
    return added


def op_table(trace: Trace, work: HostWork) -> pd.DataFrame:
    """Return one row per name on all host threads: name, category, calls, self_us, total_us.

    `total_us` adds whole durations, children included, so it is no share of anything.
    """
    pairs, index = np.unique(trace.name[work.rows] * len(work.names) + work.category, return_inverse=True)
    name, category = np.divmod(pairs, len(work.names))
    table = pd.DataFrame(
        {
            "name": [trace.names[i] for i in name.tolist()],
            "category": [work.names[i] for i in category.tolist()],
            "calls": np.bincount(index, minlength=len(pairs)),
            "self_us": trace.us(np.bincount(index, weights=work.self_time, minlength=len(pairs))),
            "total_us": trace.us(np.bincount(index, weights=trace.duration[work.rows], minlength=len(pairs))),
        }
    )
    return table.sort_values(["self_us", "name"], ascending=[False, True], ignore_index=True)


WAITING_CALL = r"Synchronize|^(cuda|hip)Memcpy(WithStream)?$|^(cuda|hip)(Malloc|Free)(Host)?$"
"""Runtime calls that return when the device has caught up; an asynchronous copy may wait too, unrecorded."""
LIBRARY_CODE = r"^<|^torch[/.]|site-packages|^(threading|runpy|contextlib|functools)\.py|^nn\.Module"


def sync_table(trace: Trace, host: HostWork) -> pd.DataFrame:
    """Return one row per place: rank, call, op, site, stage, calls, wait_us; the longest wait first.

    `op` is the operator around the call, such as `aten::item`, and `site` the nearest Python frame outside libraries,
    where stacks are recorded; both are null where nothing is recorded.
    """
    columns = ["call", "op", "site", "stage"]
    runtime = trace.is_category(RUNTIME_CATEGORIES) & trace.names_match(WAITING_CALL)
    found = np.flatnonzero(runtime[host.rows])
    if len(found) == 0:
        return pd.DataFrame(columns=["rank", *columns, "calls", "wait_us"])
    is_op = trace.is_category({"cpu_op", "operator"})[host.rows]
    is_frame = trace.is_category({"python_function"})[host.rows]
    is_own = is_frame & ~trace.names_match(LIBRARY_CODE)[host.rows]
    op, site = nearest(is_op, host.parent)[found], nearest(is_own, host.parent)[found]

    def names(rows: np.typing.NDArray[np.int64]) -> list[str | None]:
        return [None if r < 0 else trace.names[trace.name[host.rows[r]]] for r in rows.tolist()]

    table = pd.DataFrame(
        {
            "call": names(found),
            "op": names(op),
            "site": names(site),
            "stage": [OUTSIDE if s < 0 else host.names[s] for s in host.stage[found].tolist()],
            "wait_us": trace.us(trace.duration[host.rows[found]]),
        }
    )
    grouped = table.groupby(columns, dropna=False, sort=False)["wait_us"].agg(["size", "sum"]).reset_index()
    grouped = grouped.rename(columns={"size": "calls", "sum": "wait_us"})
    grouped.insert(0, "rank", rank_column(trace, len(grouped)))
    return grouped.sort_values("wait_us", ascending=False, ignore_index=True, kind="stable")
