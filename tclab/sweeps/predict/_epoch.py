"""An epoch, predicted from a short one with the same workers; the prediction is on disk before the epoch runs."""

from __future__ import annotations

import gc
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from math import sqrt
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch

from tclab._display import Display, Shown, counted, seconds_text
from tclab._io import atomic_write, writing
from tclab.errors import InputError
from tclab.perturbation._deletions import TRAINING_SAMPLES, steps_per_epoch
from tclab.sweeps.config._fields import AtLeast1, checked
from tclab.sweeps.config._point import Point
from tclab.sweeps.config._point_inputs import resolved_alone, screen_of
from tclab.sweeps.execution._measure import Setup, check_equivalence, loader_options, setup
from tclab.sweeps.execution._run import rows_of_task
from tclab.timing import Ledger
from tclab.timing._environment import busy_notes, conditions, contention, environment
from tclab.timing._step_means import Estimate, cycle_of, mean_step
from tclab.training._loading import Batches, Loader


@dataclass(frozen=True)
class Costs:
    """What a short epoch of a point took, with its own workers.

    **Arguments:**

    - `step_seconds`: [steps] of the timed steps: neither the first, for which workers begin, nor the last, for which
      they have nothing left to make.
    - `wait_share`: the share of these that is waiting for a batch; without workers, making one.
    - `around_seconds`: all else of that epoch: its workers' start and end, and its `around_steps` other steps.
    - `cycle`: steps after which the loop does the same again; see `tclab.timing._step_means`.
    """

    step_seconds: Sequence[float]
    wait_share: float
    around_seconds: float
    around_steps: int
    cycle: int = 1


@dataclass(frozen=True)
class Prediction:
    """How long an epoch of some steps will take; `low` to `high` holds nine in ten, as far as measured steps tell."""

    seconds: float
    low: float
    high: float
    steps: int


@dataclass(frozen=True, repr=False)
class Epoch(Shown):
    """An epoch that was predicted and then run.

    **Arguments:**

    - `point`: whose batches and step the epoch ran.
    - `costs`: what it was predicted from.
    - `predicted`: the prediction that was written to disk before the epoch began.
    - `full`: the prediction for all training samples; validation and checkpoints are not in it.
    - `measured_seconds`: from the request for the first batch until the last worker has ended.
    - `written_at`: when the prediction was made; UTC, ISO 8601.
    - `record`: the file with the measurement.
    - `busy_percent`: percentage of the time in which something waited for a processor, where the machine was busy;
      `None` where not, or not known.
    """

    point: Point
    costs: Costs
    predicted: Prediction
    full: Prediction
    measured_seconds: float
    written_at: str
    record: Path
    busy_percent: float | None = None

    @property
    def ratio(self) -> float:
        """Predicted over measured."""
        return self.predicted.seconds / self.measured_seconds

    def _display(self) -> Display:
        point = self.point
        lines = [("measured", seconds_text(self.measured_seconds), "", f"{self.predicted.steps:,}")]
        for name, one in (("predicted", self.predicted), ("a full epoch, predicted", self.full)):
            nine_in_ten = f"{seconds_text(one.low, one.high).split()[0]} to {seconds_text(one.high)}"
            lines.append((name, seconds_text(one.seconds, one.high), nine_in_ten, f"{one.steps:,}"))
        title = f"{point.model} by {point.strategy}, mode {point.mode}, {counted(point.workers, 'worker')}"
        waits = f"{self.costs.wait_share:.0%} of a step is the wait for its batch"
        notes = [f"predicted over measured {self.ratio:.3f}; {waits}", *busy_notes(self.busy_percent)]
        return Display(title, ("epoch", "time", "nine in ten", "steps"), lines, notes)


def predict_epoch(costs: Costs, steps: int) -> Prediction:
    """Predict an epoch: what a short one took around its timed steps, and the mean of these for each further step.

    The interval is Student's, of the mean of the timed steps and of that of the epoch's own. An epoch that has fewer
    steps than the short one had around those that were timed is predicted as long as these.
    """
    mean = mean_step([np.asarray(costs.step_seconds)], costs.cycle)
    further = max(steps - costs.around_steps, 0)
    seconds = costs.around_seconds + further * mean.value
    # of the sum of `further` steps to come, from the error of the mean of those that were timed
    error = None if mean.error is None else mean.error * sqrt(further * (further + len(costs.step_seconds)))
    low, high = Estimate(seconds, error, mean.freedom).interval(0.90) or (seconds, seconds)
    return Prediction(seconds, low, high, steps)


def full_steps(point: Point) -> int:
    """Return the steps of an epoch of all training samples, by a point's batch and ranks.

    Those of the published dataset, or of the point's own file of perturbations: 80 % of it are for training.
    """
    screen = screen_of(point)
    samples = TRAINING_SAMPLES if screen is None else len(screen) - 2 * (len(screen) // 10)
    return steps_per_epoch(point.batch_size, point.ranks, samples)


def run_epoch(point: Point, steps: int, record: str | Path) -> Epoch:
    """Measure what an epoch's prediction needs, write the prediction to disk, then run the epoch.

    It runs in a child process, after the equivalence check. `point.steps` steps of a short epoch are timed, with the
    same workers, after `point.warmup`; the epoch has `steps`. It begins with its workers' start and ends with their
    end, also where they are persistent.

    **Arguments:**

    - `point`: what is run. `steps`: of the epoch.
    - `record`: a folder. The complete prediction, with its time, point, costs and machine, is written there before
      the epoch begins; a second file, with the measurement, afterwards.

    `OMP_NUM_THREADS` of this process is that of the one that trains: on few cores leave some to the workers.

    **Raises:** `InputError` for a point that has no epoch; `RuntimeError` where it could not be run: its strategy is
    wrong, memory ran out, its process died.
    """
    point, steps = resolved_alone(point, "an epoch"), checked("steps", steps, AtLeast1)
    if point.mode == "fixed_batch":
        raise InputError("mode is 'fixed_batch', which loads one batch and has no epoch; expected another")
    folder = Path(record).expanduser().resolve()
    with writing("record", record):
        folder.mkdir(parents=True, exist_ok=True)
    (answer,) = rows_of_task(point, predicted_and_measured, steps=steps, folder=str(folder))
    return read_epoch(Path(answer["record"]))


def read_epoch(path: Path) -> Epoch:
    """Return an epoch from its record, `….measured.json`."""
    found: dict[str, Any] = json.loads(path.read_text())
    found |= {name: Prediction(**found[name]) for name in ("predicted", "full")}
    return Epoch(**{**found, "point": Point(**found["point"]), "costs": Costs(**found["costs"]), "record": path})


# ---- in the child process


def predicted_and_measured(point: Point, steps: int, folder: str) -> list[dict[str, Any]]:
    """Predict an epoch, write the prediction, run the epoch, write the measurement; return the record's path."""
    check_equivalence(point)
    with setup(point, steps * point.batch_size) as here:
        before, costs = conditions(), costs_of(here)
        written = datetime.now(UTC)
        record: dict[str, Any] = {
            "written_at": written.isoformat(),
            "point": point.to_dict(),
            "costs": asdict(costs),
            "predicted": asdict(predict_epoch(costs, steps)),
            "full": asdict(predict_epoch(costs, full_steps(point))),
        }
        name = f"{written:%Y%m%dT%H%M%S%f}-{point.model}-{point.strategy}-{point.workers}workers"
        machine = {"environment": environment(), "conditions": before}
        atomic_write(Path(folder, f"{name}.prediction.json"), json.dumps(record | machine, indent=1))
        record["measured_seconds"] = _seconds(here, steps)
        record["busy_percent"] = contention(before, conditions()).busy_percent
        measured = Path(folder, f"{name}.measured.json")
        atomic_write(measured, json.dumps(record, indent=1))
        return [{"status": "ok", "record": str(measured)}]


def costs_of(here: Setup) -> Costs:
    """Run a short epoch with the point's own workers, `point.steps` of whose steps are timed; return what it took.

    Before these come `point.warmup` steps, and at least as many as the workers have batches ahead, which they make
    while nobody takes any; after these as many again, for which the workers have nothing left to make.
    """
    point, options = here.point, {**loader_options(here.point), "persistent_workers": False}
    warmup = Loader(_first(here.data, point.warmup + 1), workers=0, pin_memory=options["pin_memory"])
    here.run(warmup, steps=point.warmup + 1)  # what is compiled, tuned or allocated once
    ahead = point.workers * point.prefetch_factor
    lead, cycle = max(point.warmup, ahead), cycle_of(1, point.workers, point.accumulate)
    timed = -(-point.steps // cycle) * cycle
    loads = Loader(_first(here.data, lead + timed + ahead), workers=point.workers, **options)
    with Ledger(cuda=point.device == "cuda") as ledger:
        whole = _seconds(replace(here, loads=loads), lead + timed + ahead, ledger)
    times = ledger.seconds("device" if ledger.cuda else "host")
    own = times["step"][lead : lead + timed]
    waits = times.get("data_wait", [0.0] * len(times["step"]))[lead : lead + timed]
    return Costs(own, sum(waits) / sum(own), max(whole - sum(own), 0.0), lead + ahead, cycle)


def _seconds(here: Setup, steps: int, ledger: Ledger | None = None) -> float:
    """Run an epoch; return its seconds from the request for a batch until its workers have ended.

    A GPU has nothing left to do at either end.
    """
    wait = torch.cuda.synchronize if here.point.device == "cuda" else lambda: None
    gc.collect()
    wait()
    begin = perf_counter()
    batches = here.batches()
    here.run(batches, steps=steps, ledger=ledger)
    wait()
    del batches  # ends the workers
    return perf_counter() - begin


def _first(data: Batches, steps: int) -> Batches:
    """Return the first `steps` of the batches, from the start again where there are fewer."""
    order = np.concatenate([data.order[i % len(data) * data.size :][: data.size] for i in range(steps)])
    return Batches(data.strategy, data.samples, data.size, order, micro_batch=data.micro_batch)
