"""Recording of chosen steps of a training loop, and spans of another clock added to a trace.

torch is imported in `record` and `example` and nowhere else in this package.
"""

import gzip
import os
import shutil
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import msgspec

from tclab._display import Display, Shown, bytes_text, counted, say
from tclab._io import atomic_write, writing
from tclab._limits import memory_available_bytes
from tclab.trace._read_trace import TraceError, event_slices, head_and_rest

# Measured, torch 2.13, CPU: what torch's profiler holds for an event until the file is written. `analyze` holds 600.
PROFILER_BYTES = 4_600


class ScheduleError(ValueError):
    """A profiling window that the run does not reach, or too large to read back; the message shows the arithmetic."""


@dataclass(frozen=True)
class WindowSize:
    """How large a window will be, from a probe of one step with the same settings.

    - `events`, `bytes`: of the whole window's file, before it is packed. `steps`: that it will have.
    - `memory_bytes`: what torch's profiler will hold meanwhile; `analyze` holds less afterwards.
    - `cold`: the probe was the loop's first step, which does more than the others.
    """

    events: int
    bytes: int
    steps: int
    memory_bytes: int
    cold: bool

    def __str__(self) -> str:
        first = ", by the loop's first step, which does more than others" if self.cold else ""
        return (
            f"the window of {self.steps} steps will be {bytes_text(self.bytes)} and {self.events:,} events, and take "
            f"{bytes_text(self.memory_bytes)} of memory{first}"
        )


class Recorder(Shown):
    """The recorder of a loop, from `record`: call `step()` after each batch.

    Afterwards `path` is the trace file, and `overhead_ratio` the median profiled step over the median unprofiled one of
    the same run; None where fewer than two unprofiled steps ran, the first and the probed one not counted.
    `predicted_size` is how large the window will be, None before the probe and where there is none.
    """

    def __init__(self, profiler: Any, first: int, active: int, synchronize: Any, probe: "_Probe | None" = None) -> None:
        self.path: Path | None = None
        self.overhead_ratio: float | None = None
        self._probe = probe
        if probe is not None and probe.step == 0:
            probe.begin()
        self.steps = 0
        self._profiler, self._first, self._active = profiler, first, active
        self._synchronize = synchronize
        self._step_ns: list[int] = []
        self._since = time.perf_counter_ns()

    def step(self) -> None:
        """Mark the end of a batch."""
        # Work still queued when the window opens or closes would be charged to the other side.
        if self.steps + 1 in (1, self._first, self._first + self._active):
            self._synchronize()
        self._step_ns.append(time.perf_counter_ns() - self._since)
        self.steps += 1
        if self._probe is not None and self.steps == self._probe.step + 1:
            self._synchronize()
            self._probe.end()  # before the window's own profiler may begin: a process has one at a time
        self._profiler.step()
        if self._probe is not None and self.steps == self._probe.step:
            self._synchronize()
            self._probe.begin()
        self._since = time.perf_counter_ns()

    def _display(self) -> Display:
        first, last = self._first + 1, self._first + self._active
        window = f"step {first} is recorded" if first == last else f"steps {first} to {last} are recorded"
        if self.path is None:
            return Display(f"{counted(self.steps, 'step')} so far; {window}", notes=["Call step() after each batch."])
        notes = [f"tclab.trace.analyze({str(self.path)!r}) says where their time went."]
        if self.overhead_ratio is not None:
            notes.insert(0, f"A recorded step took {self.overhead_ratio:.3g} × the time of one that was not.")
        return Display(f"{counted(self.steps, 'step')}, of which {window}", notes=notes)

    @property
    def predicted_size(self) -> WindowSize | None:
        """How large the window will be."""
        return None if self._probe is None else self._probe.found

    def _finish(self, raw: Path, out: Path, wait: int, warmup: int) -> None:
        first, end = self._first, self._first + self._active
        if self.steps < end:
            if self.steps <= first or not raw.exists():
                raise ScheduleError(
                    f"the loop made {self.steps} steps, but the window begins after wait {wait} + warmup "
                    f"{warmup} = {first} steps: nothing was recorded"
                )
            warnings.warn(
                f"the loop made {self.steps} steps, so the window holds {self.steps - first} of {self._active}",
                stacklevel=4,
            )
        probed = None if self._probe is None else self._probe.step
        before = [ns for at, ns in enumerate(self._step_ns[:wait]) if at not in (0, probed)]
        profiled = [ns / 1e3 for ns in self._step_ns[first:end]]
        unprofiled = [ns / 1e3 for ns in before + self._step_ns[end:]]
        if len(unprofiled) >= 2 and profiled:
            self.overhead_ratio = median(profiled) / median(unprofiled)
        size = self.predicted_size
        settings = {
            "wait": wait,
            "warmup": warmup,
            "active": self._active,
            "profiled_step_us": median(profiled) if profiled else None,
            "unprofiled_step_us": median(unprofiled) if unprofiled else None,
            "unprofiled_steps": len(unprofiled),
            "overhead_ratio": self.overhead_ratio,
            "predicted_bytes": None if size is None else size.bytes,
            "predicted_events": None if size is None else size.events,
            "unix_minus_perf_ns": _unix_minus_perf_ns(),
        }
        write_with(raw, out, [], {"tclab_record": settings})
        self.path = out


class _Probe:
    """A profile of one step, counted from 0, before the window, from which the window's size is predicted."""

    def __init__(
        self, make: Callable[[], Any], file: Path, step: int, active: int, most_bytes: int | None, say: Any
    ) -> None:
        self.step = step
        self.found: WindowSize | None = None
        self._make, self._file, self._active, self._most, self._say = make, file, active, most_bytes, say
        self._profiler: Any = None

    def begin(self) -> None:
        self._profiler = self._make()
        self._profiler.start()

    def end(self) -> None:
        """Foretell the window's size.

        **Raises:** `ScheduleError` for one that could not be read back here.
        """
        self.stop()
        try:
            self._profiler.export_chrome_trace(str(self._file))
            size = self._file.stat().st_size
            with self._file.open("rb") as text:
                events = sum(line.count(b'"ph":') for line in text)
        finally:
            self._file.unlink(missing_ok=True)
        events, size = events * self._active, size * self._active
        self.found = WindowSize(events, size, self._active, events * PROFILER_BYTES, self.step == 0)
        if (reason := self._refusal(self.found)) is not None:
            raise ScheduleError(f"{self.found}{reason}; record fewer steps, or less of each (stacks, shapes, memory)")
        if self._say is not None:
            self._say(self.found)

    def stop(self) -> None:
        """End the probe's profiler, where it runs."""
        if self._profiler is not None and self._profiler.profiler is not None and not self._stopped:
            self._stopped = True
            self._profiler.stop()

    _stopped = False

    def _refusal(self, found: WindowSize) -> str | None:
        if self._most is not None and found.bytes > self._most:
            return f", more than the {bytes_text(self._most)} that most_bytes allows"
        free = shutil.disk_usage(self._file.parent).free
        if found.bytes > free:
            return f", and {bytes_text(free)} are free in {self._file.parent}"
        there = memory_available_bytes()
        if there is not None and found.memory_bytes > there:
            return f", and {bytes_text(there)} are available"
        return None


def planned_steps(
    steps: int | None, samples: int | None, batch_size: int | None, world_size: int, epochs: int
) -> tuple[int, str] | None:
    """Return how many whole steps a run will make, and the arithmetic; None where that is not given."""
    if steps is not None:
        return steps, f"the run makes {steps} steps"
    if samples is None or batch_size is None:
        return None
    per_epoch = samples // (batch_size * world_size)
    sum_ = f"{samples} samples / (batch {batch_size} × {world_size} ranks) = {per_epoch} whole steps an epoch"
    return per_epoch * epochs, f"{sum_}, × {epochs} epochs = {per_epoch * epochs} steps"


def check_schedule(wait: int, warmup: int, active: int, plan: tuple[int, str] | None) -> None:
    """Check the window.

    **Raises:** `ScheduleError` where it is empty or ends after the run's last step.
    """
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
    wait: int = 4,
    warmup: int = 1,
    active: int = 3,
    steps: int | None = None,
    samples: int | None = None,
    batch_size: int | None = None,
    epochs: int = 1,
    stacks: bool = False,
    shapes: bool = False,
    memory: bool = False,
    most_bytes: int | None = None,
    announce: Callable[[WindowSize], None] | None = say,
) -> Iterator[Recorder]:
    """Profile `active` steps of a loop after `wait` unprofiled and `warmup` discarded ones.

        with tclab.trace.record("traces", steps=len(loader)) as recorder:
            for batch in loader:
                train(batch)
                recorder.step()

    Writes `folder/rank<r>.pt.trace.json.gz`, under torch.distributed one file per rank. With the length of the run, by
    `steps` or by `samples` and `batch_size`, a window that the run never reaches is refused before it starts; without
    it, when the loop ends. A window that the end of the loop cuts short is kept, with a warning.

    Before the window begins, the loop's second step is profiled by itself (its first where `wait` is 1): how many bytes
    and events the window will be is said then, and one that could not be read back, for lack of disk or memory, is
    refused. The probe is a session of the profiler: on CUDA each later one may lose its first kernels, which
    `trace.trust` counts.

    `overhead_ratio` needs unprofiled steps: `wait` of 4 or more, or steps after the window.

    **Arguments:**

    - `folder`: where the trace is written; created if it does not exist.
    - `wait`: unprofiled steps first.
    - `warmup`: profiled steps that are discarded, since the profiler's first ones are slow.
    - `active`: profiled steps that are kept.
    - `steps`: how many steps the loop makes.
    - `samples`, `batch_size`, `epochs`: how many samples an epoch has, the batch size of one rank, and how many epochs
      the loop runs, in place of `steps`.
    - `stacks`: record Python stacks, which name the line of a synchronisation.
    - `shapes`: record the shapes of operators' inputs.
    - `memory`: record the allocator.
    - `most_bytes`: refuse a window whose file would be larger, before it is packed.
    - `announce`: called with the predicted size of the window, a `WindowSize`; prints a line unless given.
      None probes nothing, nor does a `wait` of 0.

    **Raises:** `ScheduleError` for a window that the run does not reach; from `step()`, for one that will be too large.
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
    how: dict[str, Any] = {
        "activities": activities,
        "record_shapes": shapes,
        "profile_memory": memory,
        "with_stack": stacks,
        "acc_events": True,
    }
    profiler = profile(
        schedule=schedule(wait=wait, warmup=warmup, active=active, repeat=1),
        on_trace_ready=lambda done: done.export_chrome_trace(str(raw)),
        **how,
    )
    probe = None
    if wait and announce is not None:
        file = raw.with_suffix(".probe")
        probe = _Probe(lambda: profile(**how), file, min(wait - 1, 1), active, most_bytes, announce)
    try:
        with profiler:
            synchronize = torch.cuda.synchronize if on_device else lambda: None
            recorder = Recorder(profiler, wait + warmup, active, synchronize, probe)
            yield recorder
        recorder._finish(raw, out, wait, warmup)
    finally:
        if probe is not None:
            probe.stop()
        raw.unlink(missing_ok=True)


def _unix_minus_perf_ns() -> int:
    """Return the difference of the two clocks, from the closest of several readings."""
    readings = []
    for _ in range(32):
        before = time.perf_counter_ns()
        unix = time.time_ns()
        after = time.perf_counter_ns()
        readings.append((after - before, unix - (before + after) // 2))
    return min(readings)[1]


def _rank_and_world() -> tuple[int, int]:
    """Return rank and world size: of torch.distributed if initialised, else of the environment, else one rank."""
    from torch import distributed

    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    return int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))


def lay_spans(
    trace: str | Path,
    spans: Iterable[tuple[str, int, int]],
    out: str | Path,
    *,
    track: str = "ledger",
    unix_minus_clock_ns: int | None = None,
) -> Path:
    """Write a copy of a trace (gzip) with spans as a separate track, and return its path.

    The track is in timelines and in no sum. Spans before or after the whole trace are left out.

    **Arguments:**

    - `trace`: the trace file.
    - `spans`: (name, start_ns, end_ns) of `time.perf_counter_ns`, or of another clock.
    - `out`: the file to write.
    - `track`: its name.
    - `unix_minus_clock_ns`: `time.time_ns()` less the spans' clock at one moment; None where the spans are of
      `time.perf_counter_ns` and `record` made the trace on the same machine since its last boot, since `record` stores
      the difference.

    **Raises:** `TraceError` for a file that is no trace, or an unknown difference of clocks; `ValueError` for a span
    that ends before it starts.
    """
    trace, out = Path(trace), Path(out)
    head: dict[str, Any] = {}
    begin, finish = float("inf"), float("-inf")
    for events in event_slices(trace, head):  # the base of the file's time follows the last event
        for event in events:
            if event.ph == "X" and isinstance(event.ts, (int, float)) and isinstance(event.dur, (int, float)):
                begin, finish = min(begin, event.ts), max(finish, event.ts + event.dur)
    distance = unix_minus_clock_ns
    if distance is None:
        made_by = head.get("tclab_record")
        distance = made_by.get("unix_minus_perf_ns") if isinstance(made_by, dict) else None
    if not isinstance(distance, int):
        raise TraceError(
            f"{trace}: was not made by `record`, so the difference of its clock and the spans' is not known; "
            "give unix_minus_clock_ns = time.time_ns() - <the spans' clock>, taken at one moment"
        )
    base_ns = head.get("baseTimeNanoseconds") or 0
    laid: list[dict[str, Any]] = [
        {"ph": "M", "name": "process_name", "pid": track, "tid": track, "ts": 0, "args": {"name": track}}
    ]
    for name, start_ns, end_ns in spans:
        if end_ns < start_ns:
            raise ValueError(f"span {name!r} ends at {end_ns} ns, before its start at {start_ns} ns")
        ts, dur = (start_ns + distance - base_ns) / 1e3, (end_ns - start_ns) / 1e3
        if begin < ts + dur and ts < finish:
            place = {"pid": track, "tid": track}
            laid.append({"ph": "X", "cat": "ledger", "name": name, **place, "ts": ts, "dur": dur})
    with writing("out", out):
        out.parent.mkdir(parents=True, exist_ok=True)
        write_with(trace, out, laid, {})
    return out


def write_with(trace: Path, out: Path, events: list[dict[str, Any]], head: dict[str, Any]) -> None:
    """Copy a trace to `out` (gzip), with events added in front and keys added next to `traceEvents`.

    The text is copied unchanged, so nothing of the trace is lost.
    """
    pieces = head_and_rest(trace)
    before = next(pieces)
    added = b",".join(map(msgspec.json.encode, events))
    if head and before.lstrip().startswith(b"{"):
        keys = msgspec.json.encode(head).strip()[1:-1]
        before = before.replace(b"{", b"{" + keys + b",", 1)

    def write(path: Path) -> None:
        with gzip.open(path, "wb", compresslevel=4) as file:
            file.write(before + added)
            for number, piece in enumerate(pieces):
                if number == 0 and added and not piece.lstrip().startswith(b"]"):
                    file.write(b",")
                file.write(piece)

    atomic_write(out, write)


def example(folder: str | Path | None = None, *, width: int = 256, steps: int = 12) -> Path:
    """Train a small perceptron under `record` and return the folder with its trace.

    **Arguments:**

    - `folder`: created if it does not exist; None creates a temporary folder, which stays.
    - `width`: of the hidden layer.
    - `steps`: of the loop; 12 or more hold the whole window.
    """
    import torch
    from torch.profiler import record_function

    folder = Path(folder or tempfile.mkdtemp(prefix="tclab-trace-"))
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = torch.nn.Sequential(torch.nn.Linear(64, width), torch.nn.ReLU(), torch.nn.Linear(width, 1)).to(device)
    optimizer = torch.optim.Adam(model.parameters())
    features, targets = torch.randn(2048, 64), torch.randn(2048, 1)
    with record(folder, wait=5, warmup=2, active=4, steps=steps, memory=True, shapes=True) as recorder:
        for _ in range(steps):
            with record_function("## data_load ##"):
                rows = torch.randperm(len(features))[:512]
                batch, wanted = features[rows].to(device), targets[rows].to(device)
            with record_function("## forward ##"):
                predicted = model(batch)
            with record_function("## loss ##"):
                loss = torch.nn.functional.mse_loss(predicted, wanted)
            with record_function("## backward ##"):
                torch.autograd.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            # torch warns of what is freed within the window and was made before it
            del rows, batch, wanted, predicted, loss
            recorder.step()
    return folder
