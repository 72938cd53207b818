"""What the host's threads did: self time by category and by stage, summing to the thread's wall time."""

from dataclasses import dataclass

import numpy as np
import pandas as pd

from tclab.trace.categories import OUTSIDE, STAGES, Rule, categorise, category_names, stage_of
from tclab.trace.device import StepWindows
from tclab.trace.events import HOST, Ints, Trace, rank_column
from tclab.trace.nesting import nest, tie_of


@dataclass(frozen=True)
class HostWork:
    """The host events of one trace, with their owners of time. Rows are rows of the trace."""

    rows: Ints  # all host events
    category: Ints  # [rows] index into `names`
    stage: Ints  # [rows] index into `names`; -1 outside any stage
    self_time: Ints  # [rows] ticks
    parent: Ints  # [rows] position in rows; -1 at the root
    owner: Ints  # [S] position in rows, for each stretch of any thread
    start: Ints  # [S] ticks
    end: Ints  # [S] ticks
    names: list[str]  # categories
    main: int | None  # track of the thread that runs the steps


def host_work(trace: Trace, rules: tuple[Rule, ...]) -> HostWork:
    """Self times, categories and stages of all host events."""
    names = category_names(rules)
    rows = np.flatnonzero(trace.kind == HOST)
    nesting = nest(trace.start[rows], trace.duration[rows], trace.track[rows], tie_of(trace, rows))
    category = categorise(trace, rules)[rows]
    is_stage = np.array([name in STAGES or name not in names[:10] for name in names])
    stage = stage_of(category, nesting.parent, is_stage)
    return HostWork(
        rows,
        category,
        stage,
        nesting.self_time,
        nesting.parent,
        nesting.owner,
        nesting.start,
        nesting.end,
        names,
        main_track(trace, rows),
    )


def main_track(trace: Trace, rows: Ints) -> int | None:
    """The thread that runs the steps; None without host events.

    It is the one with a `ProfilerStep` and other events; else the process's first thread (on Linux its id is
    the process's); else the one with the most events, of equals the one that begins first.
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
    """One row per thread and category: rank, thread, is_main, category, self_us, share, events.

    A thread's `self_us` sum to its wall time, last end - first start. The part of it during which no event at
    all was recorded counts as `other` and is shown in `unrecorded_us`.
    """
    return _table(trace, work, work.category, work.names, work.names.index("other"), "category")


def stage_table(trace: Trace, work: HostWork) -> pd.DataFrame:
    """As `thread_table`, by the stage around each event: an `aten::` op within a backward is backward."""
    shown = [*STAGES, *work.names[10:], OUTSIDE]
    place = np.array([shown.index(n) if n in shown else len(shown) - 1 for n in work.names] + [len(shown) - 1])
    return _table(trace, work, place[work.stage], shown, len(shown) - 1, "stage")


def _table(trace: Trace, work: HostWork, of: Ints, shown: list[str], rest: int, column: str) -> pd.DataFrame:
    """Self time per thread and column, [threads × len(shown)] rows; `rest` takes what no event covers."""
    tracks, index = np.unique(trace.track[work.rows], return_inverse=True)
    shape = len(tracks), len(shown)
    keys = index * len(shown) + of
    spent = np.bincount(keys, weights=work.self_time, minlength=shape[0] * shape[1]).reshape(shape)
    events = np.bincount(keys, minlength=shape[0] * shape[1])
    begin = np.full(len(tracks), np.iinfo(np.int64).max)
    finish = np.zeros(len(tracks), dtype=np.int64)
    start = trace.start[work.rows]
    np.minimum.at(begin, index, start)
    np.maximum.at(finish, index, start + trace.duration[work.rows])
    wall = finish - begin
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
    """The main thread's self time per step: rank, step, category, self_us, share of the step's wall time.

    What no event covers within a step is `other`, so each step sums to its wall time.
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
        # stretches of one thread do not overlap, so those within a step stand next to each other
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
    """The main threads of all ranks added up: `column`, self_us, share, events, unrecorded_us."""
    main = table[table["is_main"].astype(bool)]
    added = main.groupby(column, sort=False)[["self_us", "events", "unrecorded_us"]].sum().reset_index()
    wall = float(added["self_us"].sum())
    added.insert(2, "share", added["self_us"] / wall if wall else np.nan)
    return added


def op_table(trace: Trace, work: HostWork) -> pd.DataFrame:
    """One row per name on all host threads: name, category, calls, self_us, total_us.

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
