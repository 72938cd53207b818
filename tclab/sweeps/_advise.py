"""Suggestions from a sweep's rows: settings that were run and are faster, changes that the stages suggest."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from tclab._display import bytes_text, counted, first_of
from tclab.errors import InputError, check_known
from tclab.masking._strategy import BASELINES
from tclab.message_passing._view import NEEDS_EDGES
from tclab.models._model_registry import SHIPPED
from tclab.sweeps._compare import OF_THE_PLACE, SETTINGS, pairs_of_runs, undisturbed
from tclab.sweeps._fields import declarations
from tclab.sweeps._point import Point
from tclab.sweeps._race_points import race_points
from tclab.sweeps._row_files import Runs, rows_of
from tclab.sweeps._rows import busy_text, keys_of, of_this_machine, point_of, python_value, where_measured
from tclab.sweeps._run import others_now
from tclab.timing import Ledger, _advice
from tclab.timing import advise as advise_loop
from tclab.timing._advice import Advice, StepTimes, Suggestion, ranked, suggestions_from, upper_bound
from tclab.timing._environment import cores_within
from tclab.timing._verdict import FASTER, MARGIN, ONCE, explain

_FIELDS = declarations(Point)
# what a point is; of these the advised ones are changes worth trying, the rest say what is computed
_DECIDES = tuple(name for name in SETTINGS if name not in _FIELDS or _FIELDS[name].role == "setting")
_RIVALS = ("node_mask", "delta", "gpu_mask", "edge_mask")  # of a strategy measured alone; the first two have no edges
_EDGES = 0.5  # share of a batch's bytes from which its edges are the problem
_ONCE = 0.9  # ratio of single runs below which a change is worth a race; two runs of the same may differ by so much
_WIDE = 10.0  # high end of an interval over its low end, beyond which it predicts nothing of use


def advise(evidence: Ledger | Runs, *, now: str | None = None, margin: float = MARGIN, **options: Any) -> Advice:
    """Return the changes that are worth making, ranked by predicted saving, and the questions that stay open.

    From a sweep's rows: each point that differs from the present one in one setting and is faster by the verdict of
    `tclab.compare`, or, if both ran once, took at most 0.9× the time; and changes that the stages of a step suggest.
    Points that look faster and are not certain are its `unsure`. Rows of another machine, of other code or of another
    number of threads than the present point's are no evidence, and are counted in `missing`. From a ledger around a
    loop of your own: changes that its stages suggest; see `tclab.timing.advise`.
    `advice.measure()` then races points with the present one, in the order of the list, but for those of another
    allocator or device, which cannot share a process with it, and of another batch size, whose steps are other work.

    Where points shared the processors with other processes, or others keep this machine busy now, the advice begins
    with that: its estimates may be those of the other processes.

    **Arguments:**

    - `evidence`: rows, a folder or a file of them; or a `tclab.timing.Ledger`.
    - `now`: the strategy that is run now; unless given, the first of those that others train with that was run, or
      else the slowest. Of its points the one with the most networks and the largest batch, and with as many threads
      as its newest.
    - `margin`: share of the time below which nothing is called better.
    - `options`: for a ledger, `loaders`.

    **Raises:** `InputError` for a strategy that was not measured, with the nearest.
    """
    if isinstance(evidence, Ledger):
        return replace(advise_loop(evidence, margin=margin, **options), busy=others_now())
    if options:
        raise InputError(f"{next(iter(options))} goes with a ledger, and the evidence is rows")
    rows = undisturbed(rows_of(evidence))
    ok = rows[(rows["status"] == "ok") & (rows["mode"] == "step")]
    steps = ok[ok["stage"] == "step"]
    if steps.empty:
        return Advice("from no setting", (), margin=margin, refusal="no setting in mode step was measured")
    base = _base(steps, now)
    row = base.iloc[0]
    here = ok[_same(ok, row, OF_THE_PLACE)]
    near = here[here["stage"] == "step"]
    others = list(_others(near, row))
    measured, unsure = _alternatives(others, base, margin)
    times = step_times(here, row)
    found, missing, refusal = list[Suggestion](), list[str](), times.refusal()
    if not refusal:
        found, missing = suggestions_from(times, margin)
        found += _without_edges(times, row, margin)
    tried = {(name, python_value(other.iloc[0][name])) for name, other in others}
    tried |= {(name, python_value(row[name])) for name in _FIELDS}
    cannot = rows[rows["status"].str.startswith("skipped") & (rows["model"] == row["model"])]
    tried |= {("strategy", str(name)) for name in cannot["strategy"]}
    known = {name for one in measured for name in one.setting}
    untried = [one for one in found if known.isdisjoint(one.setting) and tried.isdisjoint(one.setting.items())]
    found = [*measured, *untried]
    needing = [*cannot[cannot["status"].str.contains(NEEDS_EDGES, regex=False)]["strategy"].unique()]
    rivals = [name for name in _RIVALS[2 if needing else 0 :] if ("strategy", name) not in tried]
    if near["strategy"].nunique() == 1 and row["strategy"] != "indices" and not refusal:
        refusal = f"{row['strategy']} alone was measured; race it against {' and '.join(rivals[:2])}"
    if needing or (row["model"] not in SHIPPED and rivals[:1] == ["node_mask"]):
        missing.append(f"what {first_of(needing or rivals[:1])} would save: not run, and cannot be where {NEEDS_EDGES}")
    with suppress(InputError):  # the rows cannot tell the point, or this process does not know it
        point = point_of({str(name): value for name, value in row.items()})
        found, unsure = ([_with_race(one, point) for one in ones] for ones in (found, unsure))
    if elsewhere := len(steps) - len(near):
        missing.append(
            f"what {counted(elsewhere, 'setting')} of another machine, code or OMP_NUM_THREADS would say here"
        )
    busy = busy_text(near) or (others_now() if of_this_machine(row) else "")
    where = where_measured(base)
    return Advice(times.subject, ranked(found), tuple(missing), where, margin, busy, ranked(unsure), refusal)


def _base(steps: pd.DataFrame, now: str | None) -> pd.DataFrame:
    """Return the rows of the point that is run now, of one machine and code, one for each of its runs."""
    names = [str(name) for name in steps["strategy"].unique()]
    check_known("strategy of these rows", names, *filter(None, [now]))
    slowest = steps.sort_values("mean_seconds").iloc[-1]["strategy"]
    name = now or next((name for name in BASELINES if name in names), slowest)
    own = steps[steps["strategy"] == name]
    newest = dict(keys_of(own.sort_values("measured_at"), ("ranks", "threads")))  # the last of as many ranks
    own = own[[newest[ranks] == threads for ranks, threads in keys_of(own, ("ranks", "threads"))]]
    points = own.groupby([own[name].map(str) for name in (*_DECIDES, *OF_THE_PLACE)], sort=False)
    largest = ["networks", "batch_size"]
    # of several ways to run it the one that most rows are of
    return max((rows for _, rows in points), key=lambda rows: (*rows.iloc[0][largest], len(rows)))


def _same(rows: pd.DataFrame, row: pd.Series, names: tuple[str, ...]) -> list[bool]:
    wanted = tuple(python_value(row[name]) for name in names)
    return [key == wanted for key in keys_of(rows, names)]


def step_times(here: pd.DataFrame, row: pd.Series) -> StepTimes:
    """Return where the time of the steps of one run goes, given the row of its steps."""
    cuda = row["device"] == "cuda"
    run = here[_same(here, row, (*_DECIDES, "seed", "measured_at"))]
    timeline = run[(run["where"] == ("device" if cuda else "host")) & run["samples_seconds"].notna()]
    stages = {str(one["stage"]): np.asarray(one["samples_seconds"], dtype=float) for _, one in timeline.iterrows()}
    whole = stages.pop("step", np.zeros(0))
    cycle = int(python_value(row["cycle_steps"]) or 1)
    made = run[run["where"].isin(["worker", "loading"]) & (run["stage"] == "batch")]
    what = f"{row['model']} with {row['strategy']}, batch {row['batch_size']}, {counted(row['networks'], 'network')}"
    return StepTimes(
        f"from {len(whole)} steps of {what}",
        whole,
        # a stage that is not in every step cannot be compared with its step
        {name: seconds for name, seconds in stages.items() if len(seconds) == len(whole)},
        python_value(row["workers"]),
        python_value(made["mean_seconds"].mean()),
        cores_within(python_value(row["cores"]), python_value(row["cpu_limit_cores"])),
        cycle,
    )


# ---- points that were run in another way


def _others(steps: pd.DataFrame, base: pd.Series) -> Iterator[tuple[str, pd.DataFrame]]:
    """Yield each point that differs from the base in one advised setting alone, with that setting."""
    for _, rows in steps.groupby([steps[name].map(str) for name in _DECIDES], sort=False):
        row = rows.iloc[0]
        differ = [name for name in _DECIDES if python_value(row[name]) != python_value(base[name])]
        if "workers" in differ and 0 in map(python_value, (row["workers"], base["workers"])):
            differ = [name for name in differ if name != "loader"]  # which means little without workers
        wrong = "strategy" in differ and python_value(row["equivalence"]) not in (None, "passed")
        if len(differ) == 1 and differ[0] in _FIELDS and _FIELDS[differ[0]].advised and not wrong:
            yield differ[0], rows


def _alternatives(
    others: list[tuple[str, pd.DataFrame]], base: pd.DataFrame, margin: float
) -> tuple[list[Suggestion], list[Suggestion]]:
    """Return which of `_others` are faster, and those that look so and are not certain."""
    row = base.iloc[0]
    points = [(_change(name, row, rows.iloc[0]), _a_sample(base), _a_sample(rows)) for name, rows in others]
    pairs = pairs_of_runs(points, [("the present setting", "the change")] * len(points), margin=margin)
    found, unsure = list[Suggestion](), list[Suggestion]()
    for pair, (name, rows) in zip(pairs, others, strict=True):
        other = rows.iloc[0]
        if pair.ratio is None or pair.ratio > 1 / (1 + margin):
            continue
        setting = {name: python_value(other[name])}
        one = Suggestion(str(pair.cell), explain(pair), pair.ratio, pair.interval, _advice.MEASURED, setting)
        was, new = python_value(row["batch_bytes"]), python_value(other["batch_bytes"])
        more = f" {_FIELDS[name].caution}"
        if was and new and was != new:
            grows = "grows" if new > was else "shrinks"
            more = f" The batch {grows} from {bytes_text(was)} to {bytes_text(new)}.{more}"
        if pair.interval and pair.interval[1] > _WIDE * pair.interval[0]:
            unsure.append(replace(one, why="the runs differ too much from one another", ratio=None, interval=None))
        elif pair.verdict == FASTER:
            found.append(replace(one, why=f"{explain(pair).capitalize()}.{more}".strip()))
        elif pair.obstacle == ONCE and pair.ratio <= _ONCE:
            why = f"One run cannot show run-to-run variation.{more}".strip()
            found.append(replace(one, why=why, basis=_advice.ONCE_EACH))
        else:
            unsure.append(one)
    return found, unsure


def _a_sample(steps: pd.DataFrame) -> pd.DataFrame:
    """Return rows whose seconds are those of one sample, as batches of other sizes can be compared by it."""
    each = zip(steps["samples_seconds"], steps["batch_size"], strict=True)
    seconds: list[Any] = [None if one is None else np.asarray(one) / size for one, size in each]
    return steps.assign(samples_seconds=seconds)


def _change(name: str, now: pd.Series, other: pd.Series) -> str:
    words = f"{python_value(other[name]) or 'none'} instead of {python_value(now[name]) or 'none'}"
    return words if name == "strategy" else f"{name.replace('_', ' ')} {words}"


# ---- changes that the stages of a step suggest


def _without_edges(times: StepTimes, row: pd.Series, margin: float) -> Iterator[Suggestion]:
    """Suggest `node_mask`, which carries no edge, where edges are most of what travels and a step waits for them."""
    bytes_, edges = python_value(row["batch_bytes"]), python_value(row["edge_bytes"])
    if bytes_ and edges and edges >= _EDGES * bytes_ and row["model"] in SHIPPED:  # a user's model may need edges
        change = f"node_mask instead of {row['strategy']}"
        why = (
            f"edges are {edges:,} of a batch's {bytes_:,} bytes, and loading and transfer take {{}} of a step; "
            "what else it changes is not in this"
        )
        yield from upper_bound(times, change, why, "data_wait", "transfer", margin=margin, strategy="node_mask")


def _with_race(one: Suggestion, point: Point) -> Suggestion:
    """Return a suggestion that knows how it is raced, where it is a setting of a point that can be run beside it."""
    apart = any(name in one.setting for name in ("allocator", "device", "batch_size"))
    with suppress(InputError):
        changed = replace(point, **one.setting)
        if one.setting and not apart and changed.skipped() is None and "lightning" not in (point.loop, changed.loop):
            arms = {"changed": changed, "now": point}
            return replace(one, race=lambda **options: race_points(arms, **options).pair("changed", "now"))
    return one
