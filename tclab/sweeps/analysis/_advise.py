"""Suggestions from a sweep's rows: settings that were run and are faster, changes that the stages suggest."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from time import monotonic
from typing import Any

import numpy as np
import pandas as pd

from tclab._display import counted
from tclab.errors import InputError, unknown
from tclab.masking._strategy import BASELINES
from tclab.sweeps.analysis._compare_runs import OF_THE_PLACE, SETTINGS
from tclab.sweeps.analysis._race_points import PROCESSES, race_points
from tclab.sweeps.analysis._run_verdicts import StepRuns, pairs_of_runs, ratio_of_runs, runs_of
from tclab.sweeps.config._fields import declarations
from tclab.sweeps.config._point import Point
from tclab.sweeps.execution._run import run
from tclab.sweeps.store._machine_label import where_measured
from tclab.sweeps.store._row_files import Runs, rows_of
from tclab.sweeps.store._rows import keys_of, point_of, python_value
from tclab.timing import Ledger
from tclab.timing import advise as advise_loop
from tclab.timing._advice import (
    MEASURED,
    Advice,
    StepTimes,
    Suggestion,
    host_sync_text,
    ranked,
    suggestions_from,
    upper_bound,
)
from tclab.timing._environment import cores_within
from tclab.timing._step_means import whole_cycles
from tclab.timing._verdict import MARGIN, Pair
from tclab.timing._warmup import NOT_STEADY

NAMES = ("now", "changed")


def change_trial(now: Point, changed: Point) -> Callable[..., Pair]:
    """Return a function that takes `budget_seconds` and compares a changed point with the present one.

    The two are raced, unless they cannot share a process (another allocator, another device): then they are run in
    turn, each in a fresh process. Where the batch size differs the times are those of a sample. The verdict is about
    the changed one.
    """
    apart = any(getattr(now, name) != getattr(changed, name) for name in ("allocator", "device"))
    return partial(_by_runs if apart else _by_race, now, changed)


def _by_race(
    now: Point, changed: Point, *, budget_seconds: float, processes: int | None = PROCESSES, **options: Any
) -> Pair:
    race = race_points({"changed": changed, "now": now}, budget_seconds=budget_seconds, processes=processes, **options)
    return per_sample(race.pair("changed", "now"), now.batch_size / changed.batch_size)


def _by_runs(now: Point, changed: Point, *, budget_seconds: float, **_: Any) -> Pair:
    """Run both in turn in fresh processes; other options of a race are ignored."""
    begin, rounds = monotonic(), 0
    steps: dict[str, list[pd.DataFrame]] = {name: [] for name in NAMES}
    while rounds < 2 or monotonic() - begin < budget_seconds * rounds / (rounds + 1):
        order = list(zip(NAMES, (now, changed), strict=True))
        for name, point in order if rounds % 2 == 0 else order[::-1]:
            rows = run(point, fresh=True)
            steps[name].append(rows[rows["stage"] == "step"])
        rounds += 1
    sides = [pd.concat(steps[name]) for name in NAMES]
    (pair,) = pairs_of_runs([("", sides[0], sides[1])], NAMES, margin=0.05)
    return per_sample(replace(pair, cell=None), now.batch_size / changed.batch_size)


def per_sample(pair: Pair, factor: float) -> Pair:
    """Return a comparison of steps as one of samples."""
    return pair if factor == 1.0 else pair.rescaled(lambda ratio: factor * ratio, "a sample")


_FIELDS = declarations(Point)
# Fields whose other values in the rows are changes worth trying. The rest say what is computed, or how much of it.
_CHANGES = tuple(name for name, declared in _FIELDS.items() if declared.advised)
_NOT_THE_POINT = tuple(name for name, declared in _FIELDS.items() if declared.role != "setting")
_EDGES = 0.5  # share of a batch's bytes from which its edges are the problem
_ALPHA = 0.05  # of all the settings together: each alternative's interval may miss with a k-th of it
_APART = (
    "how far two runs of one point differ, which the intervals do not allow for: measure() (--measure) races the change"
)


def advise(evidence: Ledger | Runs, *, now: str | None = None, margin: float = MARGIN, **options: Any) -> Advice:
    """Return the changes that are worth making, ranked by predicted saving, and the questions that stay open.

    From a sweep's rows: each point that differs from the present one in one setting and is certainly faster, with the
    measured ratio; and changes that the stages of a step suggest. Rows of another machine or of other code than the
    present point's are no evidence, and are counted in `missing`. With k settings each is judged by an interval of
    level 1 - 0.05 / k (Bonferroni). From a ledger around a loop of your own: changes that its stages suggest; see
    `tclab.timing.advise`. `advice.measure()` then runs the suggested points.

    **Arguments:**

    - `evidence`: rows, a folder or a file of them; or a `tclab.timing.Ledger`.
    - `now`: the strategy that is run now; unless given, the first of `tclab.masking.BASELINES` that was run, or else
      the slowest. Of its points the one with the most networks and the largest batch.
    - `margin`: share of the time below which nothing is called better.
    - `options`: for a ledger, `loaders`, `syncs` and `communication`.

    **Raises:** `InputError` for a strategy that was not measured, with the nearest.
    """
    if isinstance(evidence, Ledger):
        return advise_loop(evidence, margin=margin, **options)
    if options:
        raise InputError(f"{next(iter(options))} goes with a ledger, and the evidence is rows")
    rows = rows_of(evidence)
    ok = rows[(rows["status"] == "ok") & (rows["mode"] == "step")]
    steps = ok[ok["stage"] == "step"]
    if steps.empty:
        return Advice("from no point", (), ("no point in mode step was measured",), margin=margin)
    base = _base(steps, now)
    here = ok[_same(ok, base.iloc[0], OF_THE_PLACE)]
    step_times = _step_times(here, base)
    measured, missing = _alternatives(here[here["stage"] == "step"], base, margin)
    elsewhere = len(steps) - int((here["stage"] == "step").sum())
    if elsewhere:
        missing.append(f"what {counted(elsewhere, 'row')} of another machine, or of other code, would say here")
    found, unknowns = suggestions_from(step_times, margin)
    found += _cheaper(step_times, base, margin)
    settings = {name for one in measured for name in one.setting}
    point: Point | None = None
    with suppress(InputError):  # the rows cannot tell it, or this process does not know it
        point = point_of({str(name): value for name, value in base.iloc[0].items()})
    if point is not None:
        found = _as_settings(found, point)
    found = [*measured, *(one for one in found if not set(one.setting) & settings)]
    found = found if point is None else [_with_race(one, point) for one in found]
    if waits := python_value(base.iloc[0]["host_syncs"]):
        unknowns.append(host_sync_text(int(waits), base.iloc[0]["device"] == "cuda"))
    return Advice(step_times.subject, ranked(found), (*unknowns, *missing), where_measured(base), margin)


def _base(steps: pd.DataFrame, now: str | None) -> pd.DataFrame:
    """Return the rows of the point that is run now, of one machine and code, one for each seed."""
    names = [str(name) for name in steps["strategy"].unique()]
    if now is not None and now not in names:
        raise unknown("strategy of these rows", now, names)
    slowest = steps.sort_values("mean_seconds").iloc[-1]["strategy"]
    name = now or next((name for name in BASELINES if name in names), slowest)
    own = steps[steps["strategy"] == name].sort_values(["networks", "batch_size"])
    own = own[_same(own, own.iloc[-1], ("networks", "network_names", "batch_size", "model"))]
    # of several ways to run it the one that most rows are of, overheads and all
    keys = keys_of(own, (*_DECIDES, *OF_THE_PLACE))
    most = max(keys, key=keys.count)
    return own[[key == most for key in keys]]


_DECIDES = tuple(name for name in SETTINGS if name not in _NOT_THE_POINT)


def _same(rows: pd.DataFrame, row: pd.Series, names: tuple[str, ...]) -> list[bool]:
    wanted = tuple(python_value(row[name]) for name in names)
    return [key == wanted for key in keys_of(rows, names)]


def _step_times(ok: pd.DataFrame, base: pd.DataFrame) -> StepTimes:
    """Return where the time of a point's steps goes, of all its seeds together."""
    first = base.iloc[0]
    cuda = first["device"] == "cuda"
    where = "device" if cuda else "host"
    own = ok[_same(ok, first, _DECIDES)]
    cycle = max(map(int, base["cycle_steps"].dropna()), default=1)
    whole: list[Any] = []
    stages: dict[str, list[Any]] = {}
    for _, of_seed in own.groupby("seed", dropna=False):
        lists = {
            str(row["stage"]): np.asarray(row["samples_seconds"], dtype=float)
            for _, row in of_seed[of_seed["where"] == where].iterrows()
            if row["samples_seconds"] is not None
        }
        steps = lists.pop("step", np.zeros(0))
        kept = whole_cycles(len(steps), cycle)
        whole.append(steps[kept])
        for name, seconds in lists.items():  # a stage that is not in every step cannot be compared with its step
            stages.setdefault(name, []).append((seconds if len(seconds) == len(steps) else np.zeros(len(steps)))[kept])
    together = {name: np.concatenate(found) for name, found in stages.items()}
    every = np.concatenate(whole)
    point = f"{first['model']} with {first['strategy']}, batch {first['batch_size']}"
    made = own[own["where"].isin(["worker", "loading"]) & (own["stage"] == "batch")]
    batch, cpu = (made[name].dropna().astype(float) for name in ("mean_seconds", "cpu_seconds"))
    return StepTimes(
        f"from {len(every)} steps of {point}, {counted(first['networks'], 'network')}",
        every,
        {name: seconds for name, seconds in together.items() if len(seconds) == len(every)},
        None if python_value(first["workers"]) is None else int(first["workers"]),
        None if batch.empty else float(batch.mean()),
        None if cpu.empty else float(cpu.mean()),
        cores_within(python_value(first["cores"]), python_value(first["cpu_limit_cores"])),
        cuda,
        cycle,
    )


# ---- points that were run in another way


def _others(steps: pd.DataFrame, base: pd.Series) -> Iterator[tuple[str, pd.DataFrame]]:
    """Yield each point that differs from the base in one setting alone, with that setting."""
    for _, rows in steps.groupby([steps[name].map(str) for name in _DECIDES], sort=False):
        row = rows.iloc[0]
        differ = [name for name in _DECIDES if python_value(row[name]) != python_value(base[name])]
        if "workers" in differ and 0 in (python_value(row["workers"]), python_value(base["workers"])):
            differ = [name for name in differ if name != "loader"]  # which means little without workers
        if len(differ) == 1 and differ[0] in _CHANGES:
            yield differ[0], rows


def _alternatives(steps: pd.DataFrame, base: pd.DataFrame, margin: float) -> tuple[list[Suggestion], list[str]]:
    first, samples = base.iloc[0], runs_of(base)
    found, close, moving = [], [], []
    others = list(_others(steps, first))
    for name, rows in others:
        row, own = rows.iloc[0], runs_of(rows)
        was, new = python_value(first[name]), python_value(row[name])
        if not own.steps or not samples.steps:
            continue
        if name == "strategy" and python_value(row["equivalence"]) not in (None, "passed"):
            continue
        if name == "overheads" and not set((new or "").split(",")) - {""} < set((was or "").split(",")) - {""}:
            continue  # one more overhead is no advice
        ratio, interval, _ = ratio_of_runs(samples, own, alpha=_ALPHA / len(others))
        a_sample = was / new if name == "batch_size" else 1.0
        ratio, interval = a_sample * ratio, interval and (a_sample * interval[0], a_sample * interval[1])
        change = _change(name, was, new)
        if any((side["steady"] == NOT_STEADY).any() for side in (base, rows)):
            moving.append((ratio, change))
            continue
        if interval is None or interval[1] >= 1 - margin:
            close += [change] if ratio < 1 - margin else []
            continue
        why = " ".join(filter(None, [_evidence(first, row, samples, own), _FIELDS[name].caution]))
        value = tuple(filter(None, (new or "").split(","))) if name == "overheads" else new
        found.append(Suggestion(change, why, ratio, interval, MEASURED, {name: value}))
    words = [_APART] if found else []
    words += [f"whether {_any_of(close)} gains anything: too few steps tell"] if close else []
    if moving:
        ratio, best = min(moving)
        words.append(
            f"whether {_any_of(change for _, change in moving)} gains anything: steps were still changing, so warm up "
            f"longer (warmup); as they are, {best} takes {ratio:.3g} × the time"
        )
    return found, words


def _any_of(changes: Iterable[str]) -> str:
    """Return changes with "or" between, those of one setting from one value together: "a, b or c in place of d"."""
    together: dict[tuple[str, str], list[str]] = {}
    for change in changes:
        what, _, was = change.partition(" in place of ")
        together.setdefault((what.rpartition(" ")[0], was), []).append(what)
    return ", or ".join(
        " or ".join(filter(None, [", ".join(what[:-1]), what[-1]])) + (f" in place of {was}" if was else "")
        for (_, was), what in together.items()
    )


def _change(name: str, was: Any, new: Any) -> str:
    if name == "strategy":
        return f"{new} in place of {was}"
    if name == "overheads":
        dropped = [overhead for overhead in (was or "").split(",") if overhead not in (new or "").split(",")]
        return f"without {' and '.join(dropped)}"
    if name == "loader":
        return f"loader {new or 'as it comes'} in place of {was or 'as it comes'}"
    return f"{name.replace('_', ' ')} {new} in place of {was}"


def _evidence(base: pd.Series, row: pd.Series, samples: StepRuns, own: StepRuns) -> str:
    text = f"The rows hold {samples.steps} steps of the one and {own.steps} of the other."
    if pd.notna(base["batch_bytes"]) and pd.notna(row["batch_bytes"]) and base["batch_bytes"] != row["batch_bytes"]:
        text += f" A batch is {row['batch_bytes']:,} bytes, and {base['batch_bytes']:,} now."
    return text


# ---- changes that the stages of a step suggest


def _cheaper(step_times: StepTimes, base: pd.DataFrame, margin: float) -> Iterator[Suggestion]:
    """Suggest what makes loading cheaper, where a step waits for it.

    `node_mask`, which carries no edge, where edges are most of what travels; samples that were packed once, in place of
    JSON.
    """
    row = base.iloc[0]
    if step_times.refusal():
        return
    bytes_, edges = python_value(row["batch_bytes"]), python_value(row["edge_bytes"])
    if bytes_ and edges and edges >= _EDGES * bytes_:
        change = f"node_mask in place of {row['strategy']}"
        why = (
            f"edges are {edges:,} of a batch's {bytes_:,} bytes, and loading and transfer take {{}} of a step; "
            "what else it changes is not in this"
        )
        yield from upper_bound(step_times, change, why, "data_wait", "transfer", margin=margin, strategy="node_mask")
    if python_value(row["store"]) == "json":
        change = "store lmdb in place of json: records packed once"
        why = "each sample is decoded from JSON and validated, and a step waits for its batch for {}"
        yield from upper_bound(step_times, change, why, "data_wait", margin=margin, store="lmdb")


def _beside(point: Point, setting: Mapping[str, Any]) -> dict[str, Any]:
    """Return a setting with the options that the point has beside one that it changes."""
    return {
        name: {**getattr(point, name), **value} if isinstance(value, Mapping) else value
        for name, value in setting.items()
    }


def _as_settings(found: list[Suggestion], point: Point) -> list[Suggestion]:
    """Return suggestions without the settings that the point has already."""
    kept = []
    for one in found:
        one = replace(one, setting=_beside(point, one.setting))
        has = bool(one.setting) and all(getattr(point, name) == value for name, value in one.setting.items())
        if has and "optimizer" in one.setting:  # fused already: there is another way
            kept.append(replace(one, change="several batches to one step of the optimizer (accumulate)", setting={}))
        elif not has:
            kept.append(one)
    return kept


def _with_race(one: Suggestion, point: Point) -> Suggestion:
    """Return a suggestion that knows how it is measured, where it is a setting of a point that can be run."""
    with suppress(InputError):
        changed = replace(point, **one.setting)
        if one.setting and changed.skipped() is None:
            return replace(one, race=change_trial(point, changed))
    return one
