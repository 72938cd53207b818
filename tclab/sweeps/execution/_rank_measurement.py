"""What each process saw of a point's steps, and the rows that are made of it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import zip_longest
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tclab.sweeps.config._point import Point
from tclab.timing import Ledger, steady_state

Timelines = dict[str, dict[str, list[float]]]  # where → stage → seconds in each step that had it


@dataclass(frozen=True)
class RankMeasurement:
    """What one process saw: all that its rows are made of, as JSON can hold it.

    **Arguments:**

    - `timelines`: where → stage → seconds in each step that had it.
    - `exchanged`: columns of `Communication.frame`, and `late` of the class; `None` where nothing was exchanged.
    - `demands`: stage → what it asked of the device.
    - `accounted`: timeline → share of its clock.
    - `first_step_seconds`: the cold start. `peak_bytes`: of memory. `conditions`: before and after.
    - `batch_bytes`, `edge_bytes`: of one batch.
    """

    timelines: Timelines
    exchanged: dict[str, list[Any]] | None
    late: int | None
    demands: dict[str, dict[str, int]]
    accounted: dict[str, float | None]
    first_step_seconds: float
    batch_bytes: int
    edge_bytes: int
    peak_bytes: int | None
    conditions: list[dict[str, Any]]

    def text(self) -> str:
        """Return it as JSON."""
        return json.dumps(asdict(self))

    @staticmethod
    def read(text: str) -> RankMeasurement:
        """Return what `text` wrote."""
        return RankMeasurement(**json.loads(text))


def timelines(ledger: Ledger, cuda: bool, exchanged: dict[str, list[Any]] | None = None) -> Timelines:
    """Return where → stage → seconds; the workers of a loader together, `loading` as `worker` is a place.

    **Arguments:**

    - `exchanged`: on CUDA, what is exposed of the exchanges is taken out of `backward`; on a CPU the ledger has it.
    """
    steps: dict[str, dict[str, dict[int, list[float]]]] = {}
    for timeline, step, stage, seconds in ledger.rows():
        where = "worker" if timeline.startswith("worker") else timeline
        if seconds is None or (cuda and (where, stage) == ("host", "step")):
            continue  # on CUDA the step is the device's
        steps.setdefault(where, {}).setdefault(stage, {}).setdefault(step, []).append(seconds)
    of_the_step = steps.get("device" if cuda else "host", {})
    if exchanged is not None:
        pairs = zip(exchanged["exposed_seconds"], exchanged["exposed_rank_wait_seconds"], strict=True)
        for step, (exposed, waiting) in zip(exchanged["step"], pairs, strict=True):
            if cuda:
                of_the_step["backward"][step][0] -= exposed
                of_the_step.setdefault("communication", {})[step] = [exposed - waiting]
                of_the_step.setdefault("rank_wait", {})[step] = [waiting]
            else:  # the slowest rank waited for nobody, which is no stretch of time that the ledger could hold
                of_the_step.setdefault("rank_wait", {}).setdefault(step, [0.0])
    return {
        where: {stage: [s for step in sorted(by_step) for s in by_step[step]] for stage, by_step in stages.items()}
        for where, stages in steps.items()
    }


def rows_of_ranks(point: Point, every: dict[str, Any], ranks: Sequence[RankMeasurement]) -> list[dict[str, Any]]:
    """Return a point's rows, from what each of its ranks saw.

    A stage's seconds are, step by step, the mean over ranks, so that stages add up to the step. Where there are
    several ranks, each has rows of its own besides: `where` is "rank 0", …, the stages are those of its own step,
    which is called `whole`, and `overlapped`, the exchange that its backward hid.

    **Arguments:**

    - `every`: the columns that all rows have.
    """
    place = "device" if point.device == "cuda" else "host"
    means = _means([measured.timelines for measured in ranks])
    rows = []
    for where, stages in means.items():
        for stage, samples in stages.items():
            row = {**every, **_spread(where, stage, samples)}
            if where == place:
                row |= ranks[0].demands.get(stage, {})
            if stage == "step":
                row |= _of_the_step(point, ranks, samples)
            rows.append(row)
    if len(ranks) > 1:
        for rank, measured in enumerate(ranks):
            rows += [{**every, **row} for row in _of_rank(f"rank {rank}", measured, place)]
    return rows


def cycles(samples: Sequence[float], accumulate: int) -> NDArray[np.float64]:
    """Return a batch's mean seconds over each `accumulate` batches in turn: in them is one step of the optimizer.

    The others exchange, clip and step nothing, so that a median over batches would leave all that out. Fewer
    batches than make one such turn are all taken together.

    **Arguments:**

    - `samples`: [steps] seconds.
    """
    whole = np.asarray(samples, dtype=np.float64)
    number = len(whole) // accumulate * accumulate
    return whole[:number].reshape(-1, accumulate).mean(axis=1) if number else whole.mean(keepdims=True)


def _spread(where: str, stage: str, samples: list[float]) -> dict[str, Any]:
    q1, median, q3 = np.quantile(samples, [0.25, 0.5, 0.75]).tolist()
    return {
        "stage": stage,
        "where": where,
        "n": len(samples),
        "median_seconds": median,
        "q1_seconds": q1,
        "q3_seconds": q3,
        "samples_seconds": samples,
        "status": "ok",
    }


def _means(ranks: Sequence[Timelines]) -> Timelines:
    """Return the mean over ranks of each step's seconds."""
    if len(ranks) == 1:
        return ranks[0]
    means: Timelines = {}
    for where, stages in ranks[0].items():
        for stage in stages:
            each = [measured[where][stage] for measured in ranks if stage in measured.get(where, {})]
            means.setdefault(where, {})[stage] = [
                float(np.mean([seconds for seconds in step if seconds is not None])) for step in zip_longest(*each)
            ]
    return means


def _farthest(shares: Sequence[float | None]) -> float | None:
    """Return the share that is farthest from 1."""
    return max((share for share in shares if share is not None), key=lambda share: abs(share - 1.0), default=None)


def _of_the_step(point: Point, ranks: Sequence[RankMeasurement], samples: list[float]) -> dict[str, Any]:
    """Return the columns that are of the whole step: of several ranks the worst, or the sum of bytes exchanged."""
    workers = [share for measured in ranks for line, share in measured.accounted.items() if line.startswith("worker")]
    peaks = [measured.peak_bytes for measured in ranks if measured.peak_bytes is not None]
    exchanged = ranks[0].exchanged
    return {
        "samples_per_second": point.batch_size * point.ranks / float(np.median(cycles(samples, point.accumulate))),
        "batch_bytes": max(measured.batch_bytes for measured in ranks),
        "edge_bytes": max(measured.edge_bytes for measured in ranks),
        "peak_bytes": max(peaks, default=None),
        "first_step_seconds": max(measured.first_step_seconds for measured in ranks),
        "host_accounted": _farthest([measured.accounted.get("host") for measured in ranks]),
        "device_accounted": _farthest([measured.accounted.get("device") for measured in ranks]),
        "worker_accounted": _farthest(workers),
        "steady": steady_state(samples).verdict,
        "conditions": json.dumps(ranks[0].conditions),
        "gradient_bytes": max(exchanged["bytes"]) if exchanged and exchanged["bytes"] else None,
        "buckets": max(exchanged["buckets"]) if exchanged and exchanged["buckets"] else None,
    }


def _of_rank(where: str, measured: RankMeasurement, place: str) -> list[dict[str, Any]]:
    """Return the rows of one rank's own step."""
    rows = []
    for stage, samples in measured.timelines[place].items():
        row = _spread(where, "whole" if stage == "step" else stage, samples)
        if stage == "step" and measured.exchanged and measured.late is not None:
            row["late_share"] = measured.late / max(sum(measured.exchanged["buckets"]), 1)
        rows.append(row)
    if measured.exchanged and measured.exchanged["overlapped_seconds"]:
        rows.append(_spread(where, "overlapped", measured.exchanged["overlapped_seconds"]))
    return rows
