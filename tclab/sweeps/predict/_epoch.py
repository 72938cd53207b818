"""An epoch, predicted from stage times, whose prediction is on disk before it runs."""

from __future__ import annotations

import gc
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from math import inf
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch

from tclab._display import Display, Shown, seconds_text
from tclab._io import atomic_write
from tclab.errors import InputError, require
from tclab.perturbation import split
from tclab.perturbation._dataset import TRAINING_SAMPLES, steps_per_epoch
from tclab.sweeps.config._fields import whole_number
from tclab.sweeps.config._point import Point
from tclab.sweeps.execution._measure import may_run
from tclab.sweeps.execution._request import request_of
from tclab.sweeps.execution._setup import Setup, setup
from tclab.sweeps.execution._worker_pool import pool
from tclab.sweeps.predict._epoch_costs import Costs, costs_of, stage_times
from tclab.sweeps.predict._epoch_simulation import simulate
from tclab.timing import conditions, environment
from tclab.timing._environment import busy_notes, busy_percent
from tclab.timing._ledger_rows import raw_clock_ns

LOADER, COMPUTE, BOTH = "loader", "compute", "both"
_RUNS = 100  # simulated epochs behind an interval
_EVENTS = 50_000  # simulated batches in all; an epoch of more goes on at the pace of its beginning
_MOSTLY = 0.75


@dataclass(frozen=True, repr=False)
class Prediction(Shown):
    """How long an epoch will take.

    **Arguments:**

    - `seconds`: the median of many simulated epochs; `low` and `high` hold nine in ten of them.
    - `binds`: the bottleneck. Each side is made 10 % cheaper in simulation; "loader" or "compute" if it gives at
      least 75 % of the combined saving, else "both".
    - `steps`, `workers`, `prefetch_factor`: of that epoch.
    """

    seconds: float
    low: float
    high: float
    binds: str
    steps: int
    workers: int
    prefetch_factor: int | None

    def cells(self, most: float = 0.0) -> tuple[str, str, str, str]:
        """Return time, its range, steps and bottleneck as text.

        **Arguments:**

        - `most`: the largest time beside it, for one unit.
        """
        time, low, high = (seconds_text(one, max(self.high, most)) for one in (self.seconds, self.low, self.high))
        return time, f"{low.split()[0]} to {high}", f"{self.steps:,}", self.binds

    def _display(self) -> Display:
        title = f"An epoch with {self.workers} workers"
        return Display(title, ("time", "nine in ten", "steps", "bound by"), [self.cells()])


@dataclass(frozen=True, repr=False)
class Epoch(Shown):
    """An epoch that was predicted and then run.

    **Arguments:**

    - `point`: whose batches and step the epoch ran.
    - `costs`: what it was predicted from.
    - `predicted`: the prediction that was written to disk before the epoch began.
    - `full`: the prediction for all training samples, `full_steps` steps, and for what an epoch does besides them.
    - `measured_seconds`: from the request for the first batch until the last worker has ended, by the raw clock.
    - `written_at`, `began_at`: when the prediction was on the disk, and when the epoch began; UTC, ISO 8601.
    - `drift`: seconds of a step without workers after the epoch, divided by those before the prediction. 1.0 on a
      machine that did not change.
    - `load`: the machine's load average over one minute, before the epoch. `record`: the file with the measurement.
    - `busy_percent`: pressure on the processors at the epoch's end, where the machine was busy; `None` where not, or
      not known.
    - `losses`: of the epoch's steps, each the mean of its batch; empty in a mode without a loss.
    - `samples_report`: what was read of the point's file of perturbations; `None` for synthetic samples.
    """

    point: Point
    costs: Costs
    predicted: Prediction
    full: Prediction
    measured_seconds: float
    written_at: str
    began_at: str
    drift: float
    load: float | None
    record: Path
    busy_percent: float | None = None
    losses: tuple[float, ...] = ()
    samples_report: str | None = None

    @property
    def ratio(self) -> float:
        """Predicted over measured."""
        return self.predicted.seconds / self.measured_seconds

    def _display(self) -> Display:
        lines = [
            ("predicted", *self.predicted.cells(self.measured_seconds)),
            (
                "measured",
                seconds_text(self.measured_seconds, max(self.predicted.high, self.measured_seconds)),
                "",
                str(self.predicted.steps),
                "",
            ),
            ("a full epoch, predicted", *self.full.cells()),
        ]
        point = self.point
        title = f"{point.model} by {point.strategy}, mode {point.mode}, {point.workers} workers"
        notes = [f"predicted over measured {self.ratio:.3f}; a step after over before {self.drift:.3f}"]
        notes += [] if self.samples_report is None else [f"samples: {self.samples_report}"]
        if self.losses:
            few = max(1, len(self.losses) // 10)
            first, last = fmean(self.losses[:few]), fmean(self.losses[-few:])
            notes.append(f"mean loss {first:.4g} in the first tenth of the steps, {last:.4g} in the last")
        notes += busy_notes(self.busy_percent)
        return Display(title, ("epoch", "time", "nine in ten", "steps", "bound by"), lines, notes)


def predict_epoch(
    costs: Costs,
    *,
    steps: int,
    workers: int,
    prefetch_factor: int | None = None,
    besides_seconds: float = 0.0,
    seed: int = 0,
) -> Prediction:
    """Predict an epoch: simulate it many times, each with costs drawn anew from those that were measured.

    Each simulated epoch draws which of the measured steps it knows of (the bootstrap), and then a step of those for
    each of its own, so that the interval holds what few measured steps leave open.

    **Arguments:**

    - `costs`: see `costs_of`. Costs without measured contention assume a core for each process.
    - `steps`: of the epoch. `workers`, `prefetch_factor`: the DataLoader's; 2 batches ahead unless given.
    - `besides_seconds`: what the epoch does besides its steps and its loader, as `run_epoch` describes it.

    **Raises:** `InputError` for less than one step, or costs without a step.
    """
    if steps < 1:
        raise InputError(f"steps is {steps}, expected 1 or more")
    if not costs.load_seconds or len(costs.load_seconds) != len(costs.step_seconds):
        raise InputError("costs hold no steps, or not one load for each: measure some first")
    load, step = np.asarray(costs.load_seconds), np.asarray(costs.step_seconds)
    prefetch = (prefetch_factor or 2) if workers else None
    generator = np.random.default_rng(seed)
    few = min(steps, max(_EVENTS // _RUNS, 100 * (workers + 1)))

    def seconds(loads: Sequence[float], trains: Sequence[float]) -> float:
        return costs.around_seconds + simulate(
            loads,
            trains,
            workers=workers,
            prefetch_factor=prefetch or 1,
            loader_overheads=costs.loader_overheads,
            contention=costs.contention,
        )

    runs = []
    for _ in range(_RUNS):
        known = generator.integers(len(load), size=len(load))
        drawn = known[generator.integers(len(known), size=few)]
        runs.append(seconds(load[drawn].tolist(), step[drawn].tolist()))
    found = np.array(runs)
    if few < steps:  # only the first steps were simulated: the rest goes on at the pace of their second half
        mean_load, mean_step = [float(load.mean())] * few, [float(step.mean())] * few
        half = few // 2
        pace = (seconds(mean_load, mean_step) - seconds(mean_load[:half], mean_step[:half])) / (few - half)
        found = found * (1 + (steps - few) * pace / seconds(mean_load, mean_step))
    low, middle, high = np.quantile(found + besides_seconds, [0.05, 0.5, 0.95]).tolist()
    return Prediction(middle, low, high, _binding(load, step, min(few, 200), seconds), steps, workers, prefetch)


def _binding(load: np.ndarray, step: np.ndarray, steps: int, seconds: Any) -> str:
    """Return the bottleneck of an epoch: making batches, training on them, or both."""
    loads, trains = [float(load.mean())] * steps, [float(step.mean())] * steps
    whole = seconds(loads, trains)
    by_load = whole - seconds([0.9 * cost for cost in loads], trains)
    by_step = whole - seconds(loads, [0.9 * cost for cost in trains])
    if by_load >= _MOSTLY * (by_load + by_step):
        return LOADER
    return COMPUTE if by_step >= _MOSTLY * (by_load + by_step) else BOTH


def full_steps(point: Point) -> int:
    """Return the steps of an epoch of all training samples, by a point's batch and ranks.

    Those of the published dataset, or of the point's own file of perturbations: 80 % of it are for training.
    """
    screen = point.screen()
    samples = TRAINING_SAMPLES if screen is None else len(split(len(screen)).train)
    return steps_per_epoch(point.batch_size, point.ranks, samples)


def run_epoch(
    point: Point,
    steps: int,
    record: str | Path,
    *,
    threads: int | None = None,
    besides_seconds: float = 0.0,
    fresh: bool = False,
) -> Epoch:
    """Measure what an epoch's prediction needs, write the prediction to disk, then run the epoch.

    It runs in a child process, after the equivalence check. `point.steps` steps are measured, after `point.warmup`;
    the epoch has `steps`. It begins with its workers' start and ends with their end, also where they are persistent.

    **Arguments:**

    - `point`: what is run. `steps`: of the epoch.
    - `record`: a folder. The complete prediction, with its time, point, costs and machine, is written there before
      the epoch begins; the measurement is written to the same folder afterwards.
    - `threads`: torch's threads in the training process; torch's default unless given.
    - `besides_seconds`: validation, checkpoints, logging and a first step, which this epoch does not have and `full`
      then has; seconds that you measured.
    - `fresh`: start a new process instead of using a warm one.

    **Raises:** `InputError` for a point that has no epoch; `RuntimeError` where it could not be run: its strategy is
    wrong, memory ran out, its process died.
    """
    require("point", point, Point, "a tclab.Point")
    if point.mode == "fixed_batch":
        raise InputError("mode is 'fixed_batch', which loads one batch and has no epoch; expected another")
    for name, value in (("steps", steps), ("threads", 1 if threads is None else threads)):
        whole_number(1)(name, value)
    if not (isinstance(besides_seconds, (int, float)) and 0 <= besides_seconds < inf):
        raise InputError(f"besides_seconds is {besides_seconds!r}, expected seconds, 0 or more")
    if (reason := point.skipped_alone("an epoch")) is not None:
        raise InputError(f"this point has no epoch: {reason}")
    point = point.resolved()
    folder = Path(record).expanduser().resolve()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"record is {str(record)!r}, expected a folder: {error.strerror or error}") from None
    task = f"{__name__}:{predicted_and_measured.__name__}"
    request = request_of(point, task, steps=steps, folder=str(folder), threads=threads, besides_seconds=besides_seconds)
    answer = pool.ask(point, request, fresh=fresh)
    status = answer if isinstance(answer, str) else answer[0]["status"]
    if isinstance(answer, str) or status != "ok":
        raise RuntimeError(f"{point.model} by {point.strategy} with {point.workers} workers: {status}")
    return read_epoch(answer[0]["record"])


def read_epoch(path: str | Path) -> Epoch:
    """Return an epoch from its record, `….measured.json`, and the prediction in the same folder.

    **Raises:** `InputError` if one of the two files is missing or is no such record.
    """
    path = Path(path)
    try:
        after = json.loads(path.read_text())
        before = json.loads(path.with_name(after["prediction"]).read_text())
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path} is no record of an epoch with its prediction in the same folder: {error!r}") from None
    return Epoch(
        point=Point.from_dict(before["point"]),
        costs=Costs.from_dict(before["costs"]),
        predicted=Prediction(**before["predicted"]),
        full=Prediction(**before["full"]),
        measured_seconds=after["measured_seconds"],
        written_at=before["written_at"],
        began_at=after["began_at"],
        drift=after["drift"],
        load=before["conditions"]["load"],
        record=path,
        busy_percent=busy_percent(after.get("conditions")),
        losses=tuple(after.get("losses", ())),  # records of earlier versions have neither
        samples_report=before.get("samples_report"),
    )


# ---- in the child process


def predicted_and_measured(
    point: Point, steps: int, folder: str, threads: int | None, besides_seconds: float
) -> list[dict[str, Any]]:
    """Predict an epoch, write the prediction, run the epoch, write the measurement; return the record's path."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads or before)
    try:
        if not may_run(point):
            return [{"status": "wrong"}]
        with setup(point, steps * point.batch_size) as here:
            return [{"status": "ok", "record": str(_epoch(here, steps, Path(folder), besides_seconds))}]
    finally:
        torch.set_num_threads(before)


def _epoch(here: Setup, steps: int, folder: Path, besides_seconds: float) -> Path:
    point = here.point
    around = conditions()
    gc.collect()
    costs = costs_of(here)
    options: dict[str, Any] = {"workers": point.workers, "prefetch_factor": point.prefetch_factor}
    screen = point.screen()
    full = predict_epoch(costs, steps=full_steps(point), besides_seconds=besides_seconds, **options)
    fields = {
        "point": point.to_dict(),
        "predicted": asdict(predict_epoch(costs, steps=steps, **options)),
        "full": asdict(full),
        "besides_seconds": besides_seconds,
        "costs": asdict(costs),
        "environment": environment(),
        "conditions": around,
        "samples_report": None if screen is None else str(screen.report),
    }
    written = datetime.now(UTC)
    name = f"{written:%Y%m%dT%H%M%S%f}-{point.model}-{point.strategy}-{point.workers}workers"
    prediction = folder / f"{name}.prediction.json"
    atomic_write(prediction, json.dumps({"written_at": written.isoformat(), **fields}, indent=1))
    gc.collect()
    began = datetime.now(UTC)
    begin = raw_clock_ns()
    batches = here.batches()
    losses = here.run(batches, steps=steps)
    del batches  # ends the workers
    seconds = (raw_clock_ns() - begin) / 1e9
    now = conditions()
    load, step, _ = stage_times(here, max(2, point.steps // 2))
    found = {
        "prediction": prediction.name,
        "began_at": began.isoformat(),
        "measured_seconds": seconds,
        "drift": (fmean(load) + fmean(step)) / (fmean(costs.load_seconds) + fmean(costs.step_seconds)),
        "conditions": now,
        "losses": [loss.item() for loss in losses],
    }
    measured = folder / f"{name}.measured.json"
    atomic_write(measured, json.dumps(found, indent=1))
    return measured
