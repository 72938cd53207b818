"""The rows of a measured point, made from what each process that ran it saw."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from statistics import median
from typing import Any

import numpy as np

from tclab.sweeps._point import Point
from tclab.sweeps._rows import mean_columns
from tclab.timing import Ledger
from tclab.timing._step_means import cycle_of, steady_state, steps_wait

Samples = list[float | None]
Timelines = dict[str, dict[str, Samples]]  # where → stage → seconds in each step, `None` where it did not occur


@dataclass(frozen=True)
class RankMeasurement:
    """What one process saw: all that its rows are made of, as JSON can hold it."""

    timelines: Timelines
    demands: dict[str, dict[str, int]]  # stage → what it asked of the device
    accounted: dict[str, float]  # timeline → share of its clock
    # column → value, of which rows have the worst of all ranks: the cold start, and bytes of a batch, of memory, of
    # the files that are read from; `None` where it is not known, or there are none
    largest: dict[str, float | None]
    conditions: list[dict[str, Any]]  # before and after


def timelines(ledger: Ledger, first: int = 0) -> Timelines:
    """Return where → stage → [steps] seconds, from step `first` on; the workers of a loader together are a place."""
    took: dict[tuple[str, str, int], float] = {}
    ends: dict[str, int] = {}
    for timeline, step, stage, seconds in ledger.rows():
        where = "worker" if timeline.startswith("worker") else timeline
        if seconds is None or (ledger.cuda and (where, stage) == ("host", "step")):
            continue  # on CUDA the step is the device's
        took[where, stage, step] = took.get((where, stage, step), 0.0) + seconds
        ends[where] = max(ends.get(where, 0), step + 1)
    made: Timelines = {}
    for where, stage in dict.fromkeys((where, stage) for where, stage, step in took if step >= first):
        made.setdefault(where, {})[stage] = [took.get((where, stage, step)) for step in range(first, ends[where])]
    return made


def rows_of_ranks(point: Point, every: dict[str, Any], ranks: Sequence[RankMeasurement]) -> list[dict[str, Any]]:
    """Return a point's rows, from what each of its ranks saw.

    A stage's seconds are, step by step, the mean over ranks, so that stages add up to the step. Where there are
    several ranks, each has rows of its own besides: `where` is "rank 0", …, the stages are those of its own step,
    which is called `whole`. `every` has the columns of all rows.
    """
    place = "device" if point.device == "cuda" else "host"
    means = _means([measured.timelines for measured in ranks])
    cycle = cycle_of_point(point, means.get(place, {}))
    rows = []
    for where, stages in means.items():
        for stage, samples in stages.items():
            row = {**every, **_spread(where, stage, samples, cycle)}
            if where == place:
                row |= ranks[0].demands.get(stage, {})
            if stage == "step":
                row |= _step_columns(point, ranks, row)
            rows.append(row)
    for rank, measured in enumerate(ranks if len(ranks) > 1 else ()):
        for stage, samples in measured.timelines[place].items():
            own = _spread(f"rank {rank}", "whole" if stage == "step" else stage, samples, cycle)
            rows.append({**every, **own})
    return rows


def cycle_of_point(point: Point, stages: Mapping[str, Samples]) -> int:
    """Return the cycle of a point's steps: of its workers where steps wait for them, its updates and gathers."""
    whole, waits = (np.asarray(stages.get(name, [0.0]), dtype=np.float64) for name in ("step", "data_wait"))
    workers = point.workers if steps_wait(waits, whole) else 0
    return cycle_of(workers, point.accumulate, point.ddp.get("gather_interval") if "gather" in stages else None)


def _spread(where: str, stage: str, seconds: Samples, cycle: int) -> dict[str, Any]:
    """Return a row's columns on the seconds of one stage.

    The mean is over all counted steps, those without the stage included, so that stages add up to the step; the median
    is of the steps that had it. Nobody knows what a worker did before its first batch: `idle` is of the others.
    """
    samples = [took for took in seconds if took is not None]
    full = samples if stage == "idle" else [took or 0.0 for took in seconds]
    return {
        "stage": stage,
        "where": where,
        "n": len(samples),
        **mean_columns(full, 1 if stage == "idle" else cycle),
        "median_seconds": median(samples),
        "samples_seconds": samples,
        "status": "ok",
    }


def _means(ranks: Sequence[Timelines]) -> Timelines:
    """Return the mean over ranks of each step's seconds."""
    means: Timelines = {}
    for where, stages in ranks[0].items():
        for stage in stages:
            each = [measured[where][stage] for measured in ranks if stage in measured.get(where, {})]
            means.setdefault(where, {})[stage] = [
                float(np.mean(known)) if (known := [seconds for seconds in step if seconds is not None]) else None
                for step in zip_longest(*each)
            ]
    return means


def _step_columns(point: Point, ranks: Sequence[RankMeasurement], step: Mapping[str, Any]) -> dict[str, Any]:
    """Return the columns that are of the whole step: of several ranks the worst."""
    return {
        "samples_per_second": point.batch_size * point.ranks / step["mean_seconds"],
        **{name: _most(measured.largest[name] for measured in ranks) for name in ranks[0].largest},
        **{f"{line}_accounted": _farthest(one.accounted[line] for one in ranks) for line in ranks[0].accounted},
        "steady": steady_state(step["samples_seconds"], step["cycle_steps"]).verdict,
        "conditions": json.dumps(ranks[0].conditions),
    }


def _most(values: Iterable[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)


def _farthest(shares: Iterable[float]) -> float:
    """Return the share that is farthest from 1."""
    return max(shares, key=lambda share: abs(share - 1.0))
