"""Record the right steps of a training loop; torch is loaded here and nowhere else."""

import os
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from tclab.trace.errors import ScheduleError
from tclab.trace.spans import write_with


class Recorder:
    """What `record` gives to the loop: call `step()` after each batch.

    Afterwards `path` is the trace file, and `overhead_ratio` the median profiled step over the median
    unprofiled one of the same run; null where fewer than two unprofiled steps ran, the first not counted.
    """

    def __init__(self, profiler: Any, first: int, active: int, synchronize: Any) -> None:
        self.path: Path | None = None
        self.steps = 0
        self._profiler, self._first, self._active = profiler, first, active
        self._synchronize = synchronize
        self._step_ns: list[int] = []
        self._since = time.perf_counter_ns()

    def step(self) -> None:
        """Say that a batch is done."""
        # Work still queued when the window opens or closes would be charged to the other side.
        if self.steps + 1 in (1, self._first, self._first + self._active):
            self._synchronize()
        self._step_ns.append(time.perf_counter_ns() - self._since)
        self._profiler.step()
        self.steps += 1
        self._since = time.perf_counter_ns()

    @property
    def profiled_us(self) -> list[float]:
        """Durations of the steps in the window, µs."""
        return [ns / 1e3 for ns in self._step_ns[self._first : self._first + self._active]]

    def unprofiled_us(self, warmup: int) -> list[float]:
        """Durations of the steps before the warm-up, the first not counted, and after the window, µs."""
        before = self._step_ns[1 : self._first - warmup]
        return [ns / 1e3 for ns in before + self._step_ns[self._first + self._active :]]

    overhead_ratio: float | None = None


def planned_steps(
    steps: int | None, samples: int | None, batch_size: int | None, world_size: int, epochs: int
) -> tuple[int, str] | None:
    """How many whole steps a run will make, and the arithmetic; None where that was not said."""
    if steps is not None:
        return steps, f"the run makes {steps} steps"
    if samples is None or batch_size is None:
        return None
    per_epoch = samples // (batch_size * world_size)
    sum_ = f"{samples} samples / (batch {batch_size} × {world_size} ranks) = {per_epoch} whole steps an epoch"
    return per_epoch * epochs, f"{sum_}, × {epochs} epochs = {per_epoch * epochs} steps"


def check_schedule(wait: int, warmup: int, active: int, plan: tuple[int, str] | None) -> None:
    """Raise `ScheduleError` when the window is empty or ends after the run's last step."""
    if wait < 0 or warmup < 0 or active < 1:
        raise ScheduleError(
            f"wait {wait}, warmup {warmup}, active {active}: "
            "expected wait and warmup of 0 or more and active of 1 or more"
        )
    if plan is None:
        return
    steps, arithmetic = plan
    first, end = wait + warmup, wait + warmup + active
    if end > steps:
        outcome = "is never reached" if first >= steps else f"is cut short after {steps - first} of {active}"
        raise ScheduleError(
            f"the window of {active} steps begins after wait {wait} + warmup {warmup} = {first} steps and "
            f"needs {end}, but {arithmetic}: it {outcome}; "
            f"the largest wait that fits is {max(steps - warmup - active, 0)}"
            + ("" if steps >= warmup + active else f" with active {max(steps - warmup, 0)}")
        )


@contextmanager
def record(
    folder: str | Path,
    *,
    wait: int = 3,
    warmup: int = 1,
    active: int = 3,
    steps: int | None = None,
    samples: int | None = None,
    batch_size: int | None = None,
    epochs: int = 1,
    stacks: bool = False,
    shapes: bool = False,
    memory: bool = False,
) -> Iterator[Recorder]:
    """Profile `active` steps of a loop after `wait` unprofiled and `warmup` discarded ones.

        with tclab.trace.record("traces", steps=len(loader)) as recorder:
            for batch in loader:
                train(batch)
                recorder.step()

    Writes `folder/rank<r>.pt.trace.json.gz`, under torch.distributed one file per rank. Say how long the run
    is, by `steps` or by `samples` and the `batch_size` of one rank, and a window that the run never reaches
    is refused with `ScheduleError` before it starts; else it is raised when the loop ends without the window.
    A window that the end of the loop cuts short is kept, with a warning.

    `overhead_ratio` needs unprofiled steps: `wait` of 3 or more, or steps after the window.
    """
    import torch
    from torch.profiler import ProfilerActivity, profile, schedule

    rank, world_size = _rank_and_world()
    check_schedule(wait, warmup, active, planned_steps(steps, samples, batch_size, world_size, epochs))
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    out = folder / f"rank{rank}.pt.trace.json.gz"
    raw = folder / f".rank{rank}.{os.getpid()}.json"
    on_device = torch.cuda.is_available()
    activities = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if on_device else [])
    profiler = profile(
        activities=activities,
        schedule=schedule(wait=wait, warmup=warmup, active=active, repeat=1),
        on_trace_ready=lambda done: done.export_chrome_trace(str(raw)),
        record_shapes=shapes,
        profile_memory=memory,
        with_stack=stacks,
        acc_events=True,
    )
    try:
        with profiler:
            recorder = Recorder(
                profiler, wait + warmup, active, torch.cuda.synchronize if on_device else lambda: None
            )
            yield recorder
        _finish(recorder, raw, out, wait, warmup, active)
    finally:
        raw.unlink(missing_ok=True)


def _finish(recorder: Recorder, raw: Path, out: Path, wait: int, warmup: int, active: int) -> None:
    first = wait + warmup
    if recorder.steps < first + active:
        if recorder.steps <= first or not raw.exists():
            raise ScheduleError(
                f"the loop made {recorder.steps} steps, but the window begins after wait {wait} + warmup "
                f"{warmup} = {first} steps: nothing was recorded"
            )
        warnings.warn(
            f"the loop made {recorder.steps} steps, so the window holds {recorder.steps - first} of {active}",
            stacklevel=4,
        )
    profiled, unprofiled = recorder.profiled_us, recorder.unprofiled_us(warmup)
    if len(unprofiled) >= 2 and profiled:
        recorder.overhead_ratio = median(profiled) / median(unprofiled)
    said = {
        "wait": wait,
        "warmup": warmup,
        "active": active,
        "profiled_step_us": median(profiled) if profiled else None,
        "unprofiled_step_us": median(unprofiled) if unprofiled else None,
        "unprofiled_steps": len(unprofiled),
        "overhead_ratio": recorder.overhead_ratio,
        "unix_minus_perf_ns": _unix_minus_perf_ns(),
    }
    write_with(raw, out, [], {"tclab_record": said})
    recorder.path = out


def _unix_minus_perf_ns() -> int:
    """The distance of the two clocks, from the closest of several readings."""
    readings = []
    for _ in range(32):
        before = time.perf_counter_ns()
        unix = time.time_ns()
        after = time.perf_counter_ns()
        readings.append((after - before, unix - (before + after) // 2))
    return min(readings)[1]


def _rank_and_world() -> tuple[int, int]:
    """From torch.distributed where it is initialised, else from the launcher's environment, else one rank."""
    from torch import distributed

    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    return int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
