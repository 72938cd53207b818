"""Epochs predicted from short ones: the formula, its interval, the record of a real one, what is refused."""

import json
from datetime import datetime

import numpy as np
import pytest

from tclab import InputError, Point
from tclab.sweeps import run_epoch
from tclab.sweeps._point_inputs import resolve
from tclab.sweeps.predict import TRAINING_SAMPLES, Costs, full_steps, predict_epoch, read_epoch

# ---- the prediction


def epoch_seconds(load, step, steps, workers, ahead=2):
    """Return how long an epoch of regular batches and steps takes where each process has a core.

    Worker i % workers makes batch i, 0.01 s longer than it takes alone, once it has made its last one and no more than
    `ahead` of its batches are untaken; batches are taken in order, 0.005 s each. Workers take 1 s each to start one
    after the other, 2 s more for a first batch, and 3 s to end.
    """
    if not workers:
        return steps * (load + step)
    made, taken, now = [], [], 1.0 * workers
    for i in range(steps):
        begin = made[i - workers] if i >= workers else 1.0 * workers + 2.0
        if i >= ahead * workers:
            begin = max(begin, taken[i - ahead * workers])
        made.append(begin + load + 0.01)
        taken.append(max(now, made[i]))
        now = taken[i] + step + 0.005
    return now + 3.0


@pytest.mark.parametrize("workers", [0, 1, 3])
@pytest.mark.parametrize(("load", "step"), [(0.3, 0.1), (0.1, 0.3), (0.2, 0.2)])
@pytest.mark.parametrize("steps", [40, 3000])
def test_an_epoch_takes_what_a_short_one_took_and_a_mean_step_for_each_more(load, step, workers, steps):
    """As a simulation of workers says that both run, whatever binds, with the start and end of workers."""

    def seconds(number):
        return epoch_seconds(load, step, number, workers)

    ahead = 2 * workers
    lead, timed = max(2, ahead), 6 * max(workers, 1)
    own = [seconds(lead + i + 1) - seconds(lead + i) for i in range(timed)]  # each step's, as the loop goes on
    around = seconds(lead + timed + ahead) - sum(own)
    found = predict_epoch(Costs(own, 0.5, around, lead + ahead, max(workers, 1)), steps)
    assert found.seconds == pytest.approx(seconds(steps), rel=0.01)
    assert found.low <= found.seconds <= found.high


def test_nine_in_ten_epochs_are_within_the_interval():
    draw = np.random.default_rng(0)
    inside = 0
    for _ in range(400):
        own, epoch = draw.gamma(4.0, 0.25, size=20), draw.gamma(4.0, 0.25, size=60)
        found = predict_epoch(Costs(own.tolist(), 0.0, 2.0, 0), 60)
        inside += found.low <= 2.0 + epoch.sum() <= found.high
    assert 0.86 * 400 < inside < 0.94 * 400


def test_a_prediction_of_few_steps_is_no_less_than_what_comes_around_them():
    assert [predict_epoch(Costs([1.0, 3.0], 0.5, 7.0, 9), steps).seconds for steps in (4, 10)] == [7.0, 9.0]


# ---- a real epoch


def tiny(**fields):
    return Point(**{"scale": 0.02, "batch_size": 2, "networks": 1, "steps": 3, "warmup": 1, "device": "cpu", **fields})


@pytest.mark.parametrize("fields", [
    {"workers": 0},
    pytest.param({"workers": 2, "model": "dango", "strategy": "indices", "store": "json"}, marks=pytest.mark.slow),
    pytest.param({"workers": 1, "loop": "lightning", "mode": "data"}, marks=pytest.mark.slow),
])  # fmt: skip
def test_a_prediction_is_on_the_disk_before_its_epoch_begins(fields, tmp_path):
    epoch = run_epoch(tiny(**fields), 5, tmp_path)
    first, second = sorted(path.name for path in tmp_path.iterdir())  # nothing half-written beside them
    assert (first.partition(".")[2], second.partition(".")[2]) == ("measured.json", "prediction.json")
    written = json.loads((tmp_path / second).read_text())
    began = (tmp_path / first).stat().st_mtime - epoch.measured_seconds
    assert datetime.fromisoformat(written["written_at"]).timestamp() < (tmp_path / second).stat().st_mtime < began
    assert Point(**written["point"]) == resolve(tiny(**fields))
    assert epoch == read_epoch(tmp_path / first)
    assert epoch.full.steps == full_steps(epoch.point) == -(-TRAINING_SAMPLES // 2)
    assert len(epoch.costs.step_seconds) == {0: 3, 1: 3, 2: 4}[fields["workers"]]  # whole rounds of the workers
    assert epoch.costs.around_steps == {0: 1, 1: 4, 2: 8}[fields["workers"]]  # warm-up, and what is made ahead
    assert predict_epoch(epoch.costs, 5) == epoch.predicted  # it follows from what is written beside it, nothing else
    assert f"predicted over measured {epoch.predicted.seconds / epoch.measured_seconds:.3f}" in str(epoch)


@pytest.mark.parametrize(
    ("fields", "steps", "words"),
    [({"mode": "fixed_batch"}, 3, "has no epoch"), ({"ranks": 2}, 3, "2 ranks asked for"), ({}, 0, "steps is 0")],
)
def test_what_has_no_epoch_is_refused_before_anything_runs(fields, steps, words, tmp_path):
    with pytest.raises(InputError, match=words):
        run_epoch(tiny(**fields), steps, tmp_path / "record")
    assert not (tmp_path / "record").exists()
