"""A Lightning project and a bare loop with no mark in them: lines, loaders, samples, parts of the epoch."""

import importlib
import json
from multiprocessing import active_children
from statistics import median
from time import monotonic_ns, perf_counter, sleep

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

pytest.importorskip("lightning.pytorch", reason="lightning is an extra: pip install 'tclab[lightning]'")
pytest.importorskip("lmdb", reason="lmdb is in the extra data")
pytest.importorskip("pydantic", reason="pydantic is in the extra dev")

from lightning.pytorch.loggers import CSVLogger
from unmarked_project import Model, Records, seconds_to_first_batch, train, write_records

from tclab import timing
from tclab.timing import _loader_watch

pytestmark = [pytest.mark.clock, pytest.mark.filterwarnings("ignore")]  # lightning's own advice on workers


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    folder = tmp_path_factory.mktemp("records") / "lmdb"
    write_records(folder)
    return folder


def of_function(lines, function):
    return sum(one.share for one in lines.by_line() if one.function == function)


def test_a_trainer_that_knows_nothing_of_it_is_told_line_by_line(records):
    ledger = timing.Ledger(lines=True)
    begin = perf_counter()
    train(records, callbacks=[timing.lightning_callback(ledger)], epochs=2, passes=12)
    wall = perf_counter() - begin
    lines = ledger.lines
    first = next(one for one in lines.by_line() if one.file and one.stage == "forward")
    assert first.function == "Model.decode"
    assert first.loops >= 1
    assert {one.waits for one in lines.times if one.text == "total += value.item()"} == {8 * 400}
    assert "in a loop" in str(ledger)
    assert len(ledger) == 191  # two epochs of 96 steps; the waits of one were counted
    assert ledger.adds_up(), ledger.accounted
    parts = ledger.epoch
    assert sum(ledger.seconds()["step"]) < parts.whole_seconds <= wall
    assert parts.times["validation"] == 2
    validating, training = ledger.loaders.passes[1], ledger.loaders.passes[0]
    assert (validating.workers, validating.training, training.training) == (1, False, True)
    (again,) = ledger.loaders.restarts(validating.loader)
    assert again.ready_seconds > 0.2  # what a worker does before its first sample
    said = " ".join(str(ledger.loaders).split())
    assert "started 1 worker anew 1 time, " in said
    assert "persistent_workers=True keeps it" in said
    assert parts.predict(96, loader_start=1) > again.start_seconds / 2
    assert sum(ledger.samples.samples.values()) == 2 * (12 * 64 + 64)
    assert {one.where for one in lines.times} >= {"main"}


def test_a_trainer_that_fails_leaves_nothing_behind(records):
    class Failing(Model):
        def training_step(self, batch, index):
            raise ValueError("no")

    before = (DataLoader.__iter__, torch.utils.data._utils.fetch._MapDatasetFetcher.fetch)
    ledger = timing.Ledger(lines=True)
    with pytest.raises(ValueError, match="no"):
        train(records, callbacks=[timing.lightning_callback(ledger)], model=Failing(), workers=1)
    assert (DataLoader.__iter__, torch.utils.data._utils.fetch._MapDatasetFetcher.fetch) == before
    with timing.profile():  # nothing samples any more
        pass


class Sleepy(Dataset):
    def __len__(self):
        return 12

    def __getitem__(self, index):
        sleep(0.01)
        return json.loads("[" + ",".join(["1.5"] * 100_000) + "]")[:2]


def ready(worker):
    sleep(0.3)


def test_a_bare_loops_loader_that_starts_anew_is_found_with_its_seconds_and_its_workers():
    loader = DataLoader(Sleepy(), batch_size=3, num_workers=2, worker_init_fn=ready)
    with timing.Ledger(lines=True) as ledger:
        took = [seconds_to_first_batch(ledger, loader) for _ in range(2)]
    assert loader.worker_init_fn is ready
    (again,) = ledger.loaders.restarts(0)
    assert 0.3 < again.start_seconds <= took[1]
    assert again.end_seconds > 0
    samples = ledger.samples
    assert set(samples.samples) == {"worker 0", "worker 1"}
    assert sum(samples.samples.values()) == 24
    parts = samples.parts()
    assert parts["own code"] > 0.003
    assert parts["decode"] > 0
    assert parts["read"] == parts["validate"] == 0
    assert sum(parts.values()) == pytest.approx(sum(t.end_ns - t.begin_ns for t in ledger.batch_timings) / 24e9)
    in_workers = [one for one in ledger.lines.times if one.where.startswith("worker")]
    assert any(one.text == "sleep(0.01)" and one.stage == "own code" for one in in_workers)
    assert ledger.workers == 2
    assert 0.6 < ledger.epoch.seconds["loader start"] <= sum(took)
    assert "starts" in str(ledger.loaders)
    assert "decode" in str(samples)
    assert "loader start" in str(ledger.epoch)


def test_a_loader_that_starts_anew_is_advised_to_keep_its_workers_and_that_is_tried():
    loader = DataLoader(range(4), batch_size=2, num_workers=1, worker_init_fn=ready)
    with timing.Ledger(lines=True) as ledger:
        for _ in range(2):
            for _ in ledger.steps(loader):
                pass
    advice = timing.advise(ledger)
    one = next(one for one in advice.suggestions if "persistent_workers=True" in one.change)
    (again,) = ledger.loaders.restarts(0)
    assert one.ratio == pytest.approx(1 - again.seconds_saved_if_persistent / ledger.epoch.whole_seconds)
    assert 0.3 < again.seconds_saved_if_persistent <= again.start_seconds + again.end_seconds
    assert "× the time of the run" in one.sentence
    before = active_children()
    done = one.measure(budget_seconds=0.5).measured
    assert (done.a, done.b) == ("changed", "now")
    assert set(active_children()) <= set(before)
    del loader, advice, one
    assert ledger.loader(0) is None
    assert next(one for one in timing.advise(ledger).suggestions if "persistent" in one.change).race is None


DATASET = """
from time import perf_counter


class Spinning:
    def __len__(self):
        return 8

    def __getitem__(self, index):
        until = perf_counter() + 0.05
        while perf_counter() < until:
            pass
        return index
"""


@pytest.mark.slow
@pytest.mark.parametrize("context", ["spawn", "forkserver"])
def test_workers_that_import_everything_anew_are_sampled(context, tmp_path, monkeypatch):
    (tmp_path / f"spinning_{context}.py").write_text(DATASET)
    monkeypatch.syspath_prepend(tmp_path)
    data = importlib.import_module(f"spinning_{context}").Spinning()
    with timing.Ledger(lines=True) as ledger:
        for _ in ledger.steps(DataLoader(data, batch_size=2, num_workers=1, multiprocessing_context=context)):
            pass
    (found,) = ledger.loaders.passes
    assert 0 < found.ready_seconds <= found.start_seconds + found.wait_seconds
    assert ledger.samples.samples == {"worker 0": 8}
    assert ledger.samples.parts()["own code"] > 0.025
    in_worker = next(one for one in ledger.lines.times if one.where == "worker 0")
    assert (in_worker.function, in_worker.stage) == ("Spinning.__getitem__", "own code")


def test_loaders_that_are_made_for_each_pass_are_one_that_starts_anew(monkeypatch):
    # a clock that the steps do not add up to, as a pause on a busy machine makes it: starts have a clock of their own
    monkeypatch.setattr(importlib.import_module("tclab.timing._ledger"), "raw_clock_ns", lambda: 3 * monotonic_ns())
    with timing.Ledger(lines=True) as ledger:
        for _ in range(3):
            for _ in ledger.steps(DataLoader(range(4), batch_size=2, num_workers=1, worker_init_fn=ready)):
                pass
        kept = DataLoader(range(4), batch_size=2)
        for _ in range(2):
            for _ in ledger.steps(kept):
                pass
    assert [(one.loader, one.objects) for one in ledger.loaders.passes] == [(0, 1), (0, 2), (0, 3), (1, 1), (1, 1)]
    assert len(ledger.loaders.restarts(0)) == 2
    advice = timing.advise(ledger)
    (one,) = advice.suggestions
    assert one.change.startswith("one DataLoader for all passes, with persistent_workers=True")
    assert "does not add up" in advice.missing[0]


def test_logging_and_the_first_step_are_parts_of_the_epoch(monkeypatch):
    monkeypatch.setattr(_loader_watch, "TemporaryFolder", None)  # which takes long, and has no use without workers
    with timing.Ledger(lines=True) as ledger:
        for number in ledger.steps(range(12)):
            with ledger.stage("forward"):
                sleep(0.1 if not number else 0.002)
            if number % 4 == 1:
                with ledger.stage("log"):
                    sleep(0.01)
    parts, stages = ledger.epoch, ledger.seconds()
    assert parts.times == {"logging": 3, "first step": 1}
    assert parts.seconds["logging"] == pytest.approx(sum(stages["log"]))
    without_waits = [step - wait for step, wait in zip(stages["step"], stages["data_wait"], strict=True)]
    assert parts.seconds["first step"] == pytest.approx(without_waits[0] - median(without_waits[1:]))
    assert parts.whole_seconds > sum(stages["step"])
    assert parts.predict(1000, logging=250) - parts.predict(1000) == pytest.approx(250 * sum(stages["log"]) / 3)


def test_a_trainers_logger_is_a_stage_of_its_steps_and_a_part_of_its_epoch(records, tmp_path):
    class Logger(CSVLogger):
        def log_metrics(self, *args, **options):
            sleep(0.01)

    class Logged(Model):
        def training_step(self, batch, index):
            loss = self.layer(batch[0]).square().mean()
            self.log("loss", loss)
            return loss

        def validation_step(self, batch, index):
            self.log("val", self.layer(batch[0]).mean())

    ledger = timing.Ledger(lines=True)
    logger = Logger(tmp_path)
    train(records, callbacks=[timing.lightning_callback(ledger)], epochs=1, passes=2, model=Logged(), workers=0,
          logger=logger, log_every_n_steps=4)  # fmt: skip
    assert sum(seconds >= 0.01 for seconds in ledger.seconds()["log"]) >= 3  # of 16 steps, one is not timed
    assert ledger.epoch.seconds["logging"] >= 0.04  # and that of validation


def test_a_sample_is_split_by_the_libraries_that_its_lines_call(records):
    data = Records(records)
    with timing.profile(hertz=200.0) as seen:
        for _ in range(6):
            for _ in DataLoader(data, batch_size=16):
                pass
    parts = seen.samples.parts()
    assert parts["own code"] < 0.35 * sum(parts.values())
    assert parts["decode"] + parts["validate"] + parts["build"] > 0.4 * sum(parts.values())
    assert seen.samples.samples == {"main": 6 * 64}
