"""Five wrong figures, reproduced: five mistakes in timing one run, each with the right figure.

A mistake is named by the ratio that it once gave for the slow model over the fast one (or for two strategies): 12.5,
875, 1.6, 19.3 and 51. The mistakes are made again; the ratios are those of this run.
"""

from __future__ import annotations

import io
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import Any, Literal

import numpy as np
import pandas as pd
import torch

from tclab import trace
from tclab._display import Display, Shown
from tclab.errors import InputError, need
from tclab.lab.charts._case_study_charts import draw_wrong_figure_parts, draw_wrong_figures
from tclab.sweeps.config._point import Point
from tclab.sweeps.config._point_inputs import resolve
from tclab.sweeps.execution._run import run
from tclab.sweeps.execution._setup import Setup, setup
from tclab.timing import conditions
from tclab.timing._environment import busy_percent
from tclab.timing._warmup import steady_state
from tclab.trace._report import Report

MIN_STEPS = 12
_PROFILED = 4  # steps of a run that are profiled, its last
_PRIMED = 2  # first steps, until the worker has filled its queue
_SANITY, _READINGS = 2, 3  # readings of the progress bar: before training, and in it, the first step's among them
_SMALL_LAYERS, _SMALL_BATCH = 2, 8 / 28  # of the smaller model and batch that were timed for the 1.6
_LARGE = 1.5  # wrong over right, or right over wrong: less does not explain an answer that was many times off
_FORWARD = ("transfer", "mask", "forward", "loss")


@dataclass(frozen=True)
class Run:
    """One run of a model, timed by every clock at once."""

    name: str  # of the model
    seconds: list[float]  # of each step that was not profiled, the first one included
    begin: int  # the first of them that counts
    # of the progress bar, batches a second: two of the sanity check before training, which is a forward alone, one
    # after the first step, and two later ones
    readings: list[float]
    stages: dict[str, list[float]]  # stage → its seconds in each step that counts; also `step`, the whole
    report: Report = field(repr=False)  # of the trace of its last steps
    cuda: bool  # the steps ran on a device

    def mean(self, *stages: str) -> float:
        """Return the seconds of some stages together, of all steps over their number."""
        return float(np.mean(np.sum([self.stages[stage] for stage in stages], axis=0)))


@dataclass(frozen=True)
class Figure:
    """A wrong figure and the right one.

    **Arguments:**

    - `key`: the ratio that the mistake once gave.
    - `what`: the question.
    - `mistake`: how `wrong` comes about.
    - `why`: why it is wrong, in one line.
    - `wrong`, `right`: ratios.
    - `right_of`: what the right one is a ratio of.
    - `parts`: what the figures are made of, a row each; columns side, bar, part, seconds.
    - `where`: the device, the graph and whether the machine was busy, for the title.
    """

    key: str
    what: str
    mistake: str
    why: str
    wrong: float
    right: float
    right_of: str
    parts: pd.DataFrame = field(repr=False)
    where: str | None = None

    def __str__(self) -> str:
        wrong, right = f"{self.wrong:.2f} × by the {self.mistake}", f"{self.right:.2f} × by the {self.right_of}"
        off = max(self.wrong / self.right, self.right / self.wrong)
        small = "" if off >= _LARGE else f" In this run the mistake changes the ratio by no more than {off:.2f} ×."
        return f"{self.key}: {self.what} {wrong}; {right}. {self.why}{small}"

    def chart(self) -> Any:
        """Return the chart of what both figures are made of: seconds a step, on one scale."""
        title = f"The “{self.key}”: {self.wrong:.3g} × where {self.right:.3g} × is right"
        return draw_wrong_figure_parts(self.parts, title, self.mistake, self.where)


class WrongFigures(Shown, dict[str, Figure]):
    """Key → wrong figure, of the same runs; displayed as a table with a sentence each."""

    def _display(self) -> Display:
        lines = [(key, f"{one.wrong:.2f} ×", f"{one.right:.2f} ×", one.right_of) for key, one in self.items()]
        return Display("", ("once", "wrong", "right", "right is"), lines, [str(one) for one in self.values()])

    def chart(self) -> Any:
        """Return the chart of each wrong figure and the right one, on one logarithmic axis."""
        ratios = [
            {"figure": f"{key}: {one.mistake.partition(',')[0]}", "wrong": one.wrong, "right": one.right}
            for key, one in self.items()
        ]
        return draw_wrong_figures(pd.DataFrame(ratios), next(iter(self.values())).where)


def record_run(point: Point) -> Run:
    """Run a point's steps in this process, with a clock, a progress bar and, for the last steps, the profiler.

    **Raises:** `InputError` for fewer than 12 steps.
    """
    if point.steps < MIN_STEPS:
        raise InputError(f"steps is {point.steps}, expected at least {MIN_STEPS}: five readings and a profiled end")
    need("a loop with a progress bar", "sweep", "tqdm")
    from tqdm import tqdm

    point = resolve(point)
    seconds: list[float] = []
    readings: list[float] = []
    stages: dict[str, list[float]] = {}
    wait = point.steps - _PROFILED - 1
    moments = np.linspace(1, wait, _READINGS).astype(int).tolist()
    with (
        tempfile.TemporaryDirectory(prefix="tclab-") as folder,
        setup(replace(point, workers=1), point.steps * point.batch_size) as here,
    ):
        readings += _sanity_check(here)
        batches = here.batches()

        @contextmanager
        def stage(name: str) -> Iterator[None]:
            begin = perf_counter()
            yield
            _synchronize(point.device)
            stages.setdefault(name, []).append(perf_counter() - begin)

        try:
            with (
                tqdm(total=point.steps, file=io.StringIO(), mininterval=0) as bar,
                trace.record(folder, wait=wait, warmup=1, active=_PROFILED, steps=point.steps) as recorder,
            ):
                for number in range(1, point.steps + 1):
                    begin = perf_counter()
                    with stage("data_wait"):
                        loaded = next(batches)
                    here.step(loaded.batch, stage=stage)
                    seconds.append(perf_counter() - begin)
                    recorder.step()
                    bar.update()
                    if number in moments:
                        state = bar.format_dict
                        readings.append(float(state["rate"] or state["n"] / state["elapsed"]))
        finally:
            del batches  # ends the worker
        assert recorder.path is not None
        report = trace.analyze(recorder.path)
    stages["step"] = seconds
    seconds = seconds[:wait]
    found = steady_state(seconds[_PRIMED:])
    # without a steady part the first few are left out all the same, and the notebook says so
    begin_at = len(seconds) // 4 if found.begin is None else _PRIMED + found.begin
    kept = {name: values[begin_at:wait] for name, values in stages.items()}
    return Run(point.model, seconds, begin_at, readings, kept, report, point.device == "cuda")


def _sanity_check(here: Setup) -> list[float]:
    """Return the readings of two batches that run forward alone, before the first step, as Lightning's check does."""
    readings, batches = [], here.batches()
    try:
        for _ in range(_SANITY):
            batch = here.step.transfer(next(batches).batch)
            begin = perf_counter()
            with torch.no_grad(), here.step.strategy.view(batch) as view:
                here.step.kind.forward(here.step.model, view)
            _synchronize(here.point.device)
            readings.append(1 / (perf_counter() - begin))
    finally:
        del batches  # ends the worker
    return readings


def _synchronize(device: str) -> None:
    if device == "cuda":  # each figure must be wrong for its own reason alone, not for asynchronous kernels
        torch.cuda.synchronize()


def _parts(rows: list[tuple[str, str, str, float]]) -> pd.DataFrame:
    return pd.DataFrame(rows, columns=["side", "bar", "part", "seconds"])


def progress_bar(slow: Run, fast: Run) -> Figure:
    """Return the 12.5: the mean of five readings of a progress bar, those of the sanity check and first step in it."""
    means = {run.name: float(np.mean(run.readings)) for run in (slow, fast)}
    rows = [("wrong: one over the mean reading", name, "a step", 1 / mean) for name, mean in means.items()]
    rows += [("right: the mean step", run.name, "a step", run.mean("step")) for run in (slow, fast)]
    return Figure(
        "12.5",
        f"How many times slower is {slow.name} than {fast.name}?",
        "mean of five progress-bar readings, with the sanity check and the first step in",
        "The sanity check runs batches forward alone, and a mean of rates weighs the fastest moments most; the first "
        "step holds workers starting, memory and caches.",
        means[fast.name] / means[slow.name],
        slow.mean("step") / fast.mean("step"),
        "mean step after warm-up",
        _parts(rows),
    )


def nested_events(slow: Run, fast: Run) -> Figure:
    """Return the 875: all durations of two traces added, each again in every event around it, of unequal windows.

    The slow model's trace held several steps and was compared with one step of the fast one's.
    """
    sums, walls, rows = [], [], []
    for run_, steps in ((slow, 1), (fast, _PROFILED)):  # what the sums were divided by
        ops, self_times = run_.report.ops, run_.report.categories
        sums.append(float(ops["total_us"].sum()) / steps / 1e6)
        walls.append(float(self_times["self_us"].sum()) / _PROFILED / 1e6)
        side = f"wrong: durations added, {_PROFILED} steps and 1"
        for category, total in ops.groupby("category")["total_us"].sum().items():
            rows.append((side, run_.name, str(category), float(total) / steps / 1e6))
        for category, self_us in zip(self_times["category"], self_times["self_us"], strict=True):
            rows.append(("right: self time of a step", run_.name, str(category), float(self_us) / _PROFILED / 1e6))
    nested = [sums[0] / walls[0] / _PROFILED, sums[1] / walls[1]]
    return Figure(
        "875",
        f"How many times slower is {slow.name} than {fast.name}?",
        f"sum of the durations of nested trace events, of {_PROFILED} steps and of 1",
        "A step holds a forward that holds an operation that holds another: each moment is counted once for every "
        f"event around it, here {nested[0]:.1f} and {nested[1]:.1f} times, which cancels in a ratio where both are "
        f"alike. That one trace held {_PROFILED} steps and the other 1 does not.",
        sums[0] / sums[1],
        walls[0] / walls[1],
        "main thread's self time in a step, which adds up to its wall time",
        _parts(rows),
    )


def another_configuration(small_slow: Run, small_fast: Run, slow: Run, fast: Run) -> Figure:
    """Return the 1.6: a smaller model and batch without its loader, and times of host and device added.

    **Arguments:**

    - `small_slow`, `small_fast`: runs of what was timed.
    - `slow`, `fast`: runs of what is trained.
    """
    sums, rows = [], []
    for run_ in (small_slow, small_fast):
        parts = {"host": run_.mean(*_FORWARD, "backward", "optimizer")}
        if run_.cuda:
            parts["device"] = float(run_.report.breakdown["busy_us"].sum()) / _PROFILED / 1e6
        sums.append(sum(parts.values()))
        rows += [("wrong: a small model's kept batch", run_.name, part, took) for part, took in parts.items()]
    side = "right: what is trained, by the wall clock"
    rows += [(side, run_.name, "host", run_.mean("step")) for run_ in (slow, fast)]
    added = "Once, times of CPU and GPU that work at once were added, too; there is no GPU here."
    if small_slow.cuda:
        added = "The times of host and device are added, too, though both work at once."
    return Figure(
        "1.6",
        f"How many times slower is {slow.name} than {fast.name}?",
        f"step of a model of {_SMALL_LAYERS} layers on a small batch that is there already",
        f"Another depth, another batch and no loader are another question. {added}",
        sums[0] / sums[1],
        slow.mean("step") / fast.mean("step"),
        "wall clock of the training that was asked about",
        _parts(rows),
    )


def no_backward(slow: Run, fast: Run) -> Figure:
    """Return the 19.3: data and model without a backward, taken for a training step."""
    every = ("data_wait", *_FORWARD, "backward", "optimizer")
    rows = []
    for run_ in (slow, fast):
        for name in every:
            seconds = run_.mean(name)
            if name not in ("backward", "optimizer"):
                rows.append(("wrong: up to the loss", run_.name, name, seconds))
            rows.append(("right: the whole step", run_.name, name, seconds))
    return Figure(
        "19.3",
        f"How many times slower is {slow.name} than {fast.name}?",
        'mode "model", which never ran a backward',
        "A step that stops at the loss leaves out the backward and the optimizer: "
        f"{1 - slow.mean('data_wait', *_FORWARD) / slow.mean('step'):.0%} of {slow.name}'s step and "
        f"{1 - fast.mean('data_wait', *_FORWARD) / fast.mean('step'):.0%} of {fast.name}'s.",
        slow.mean("data_wait", *_FORWARD) / fast.mean("data_wait", *_FORWARD),
        slow.mean("step") / fast.mean("step"),
        "whole training step",
        _parts(rows),
    )


def page_faults(point: Point) -> Figure:
    """Return the 51: two strategies under an allocator that gives pages back, as if that were their group speed.

    Each is run under each allocator, in child processes.

    **Raises:** `InputError` for a point that could not be measured, with its status.
    """
    slow, fast = "edge_mask", "node_mask"
    seconds: dict[tuple[str, str], float] = {}
    for allocator in ("default", "keep_pages"):
        for name in (slow, fast):
            rows = run(replace(point, strategy=name, allocator=allocator))
            step = rows[rows["stage"] == "step"].iloc[0]
            if step["status"] != "ok":
                raise InputError(f"{name} under the allocator {allocator!r} was not measured: {step['status']}")
            seconds[allocator, name] = float(step["mean_seconds"])
    sides = {"default": "wrong alone: pages given back", "keep_pages": "with it: pages kept"}
    ratios = {a: seconds[a, slow] / seconds[a, fast] for a in sides}
    return Figure(
        "51",
        f"How many times slower is {slow} than {fast}?",
        "step under an allocator that gives its pages back",
        "glibc gives the pages of large tensors back and faults them in again, which costs most where tensors are "
        "largest; a GPU's caching allocator keeps them. Both ratios are true; give both.",
        ratios["default"],
        ratios["keep_pages"],
        "same step under an allocator that keeps them",
        _parts([(sides[a], name, "a step", took) for (a, name), took in seconds.items()]),
    )


def wrong_figures(
    *,
    scale: float = 0.03,
    batch_size: int = 4,
    networks: int = 3,
    steps: int = 30,
    seed: int = 0,
    gpus: int | str = 0,
) -> WrongFigures:
    """Run HeteroCell and DANGO once each and return the five wrong figures with the right ones, by their keys.

    HeteroCell runs with `subgraph`, whose workers have work; the allocators are tried on two other strategies. The
    result shows itself as a table with a sentence for each; its `chart()` is of all figures, `["875"].chart()` of one.

    **Arguments:**

    - `scale`, `networks`: of the synthetic graph; DANGO reads its own six networks.
    - `batch_size`, `steps`, `seed`: of both runs, the first step included.
    - `gpus`: 0 for the CPU, 1 or "auto" for a GPU where there is one.

    **Raises:** `InputError` that names the value and what was expected.
    """
    device: Literal["auto", "cpu"] = "auto" if gpus == "auto" or int(gpus) else "cpu"
    common = Point(scale=scale, batch_size=batch_size, steps=steps, seed=seed, device=device)
    points = (
        replace(common, model="hetero_cell", strategy="subgraph", loss=None, networks=networks),
        replace(common, model="dango", strategy="indices", loss=None),
    )
    slow, fast = map(record_run, points)
    # a tensor must be large for its pages to be given back, so this one has more samples, and few steps
    large = replace(
        common, model="hetero_cell", loss=None, networks=networks, batch_size=4 * batch_size, steps=4, warmup=1
    )
    few = max(1, round(_SMALL_BATCH * batch_size))
    small_slow = record_run(replace(points[0], batch_size=few, layers=_SMALL_LAYERS))
    small_fast = record_run(replace(points[1], batch_size=few))
    figures = [
        progress_bar(slow, fast),
        nested_events(slow, fast),
        another_configuration(small_slow, small_fast, slow, fast),
        no_backward(slow, fast),
        page_faults(large),
    ]
    busy = busy_percent(conditions()) is not None
    where = f"{resolve(points[0]).device}, synthetic, scale {scale:g}{' · busy' * busy}"
    return WrongFigures({figure.key: replace(figure, where=where) for figure in figures})
