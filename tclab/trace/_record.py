"""Recording of chosen steps of a training loop.

torch is imported in `record` and `example` and nowhere else in this package.
"""

import gzip
import os
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import msgspec

from tclab._display import Display, Shown, counted
from tclab._io import atomic_write
from tclab.errors import InputError


class Recorder(Shown):
    """The recorder of a loop, from `record`: call `step()` after each batch.

    Afterwards `path` is the trace file, and `overhead_ratio` the median profiled step over the median unprofiled one of
    the same run; None where fewer than two unprofiled steps ran, the first one not counted.
    """

    def __init__(self, profiler: Any, first: int, active: int, synchronize: Callable[[], object]) -> None:
        self.path: Path | None = None
        self.overhead_ratio: float | None = None
        self.step_ns: list[int] = []  # of each step so far
        self._profiler, self._synchronize = profiler, synchronize
        self._first, self._last = first + 1, first + active
        self._edges = {1, first, self._last}
        self._since = time.perf_counter_ns()

    def step(self) -> None:
        """Mark the end of a batch."""
        # Work still queued when the window opens or closes would be charged to the other side.
        if len(self.step_ns) + 1 in self._edges:
            self._synchronize()
        self.step_ns.append(time.perf_counter_ns() - self._since)
        self._profiler.step()
        self._since = time.perf_counter_ns()

    def _display(self) -> Display:
        window = f"steps {self._first} to {self._last} are recorded"
        notes = ["Call step() after each batch."]
        if self.path is not None:
            notes = [f"tclab.trace.analyze({str(self.path)!r}) says where their time went."]
        return Display(f"{counted(len(self.step_ns), 'step')} so far; {window}", notes=notes)


@contextmanager
def record(
    folder: str | Path,
    *,
    wait: int = 4,
    warmup: int = 1,
    active: int = 3,
    steps: int | None = None,
    stacks: bool = False,
    shapes: bool = False,
    memory: bool = False,
) -> Iterator[Recorder]:
    """Profile `active` steps of a loop after `wait` unprofiled and `warmup` discarded ones.

        with tclab.trace.record("traces", steps=len(loader)) as recorder:
            for batch in loader:
                train(batch)
                recorder.step()

    Writes `folder/rank<r>.pt.trace.json.gz`, under torch.distributed one file per rank. With the length of the run,
    `steps`, a window that the run never reaches is refused before it starts; without it, when the loop ends. A window
    that the end of the loop cuts short is kept, with a warning.

    `overhead_ratio` needs unprofiled steps: `wait` of 3 or more, or steps after the window.

    **Arguments:**

    - `folder`: where the trace is written; created if it does not exist.
    - `wait`: unprofiled steps first.
    - `warmup`: profiled steps that are discarded, since the profiler's first ones are slow.
    - `active`: profiled steps that are kept. torch's profiler holds about 5 kB for each event until they are written.
    - `steps`: how many steps the loop makes, on each rank: `epochs * len(loader)`.
    - `stacks`: record Python stacks, which name the line of a synchronisation.
    - `shapes`: record the shapes of operators' inputs.
    - `memory`: record the allocator.

    **Raises:** `InputError` for a window that the run does not reach.
    """
    import torch
    from torch.profiler import ProfilerActivity, profile, schedule

    first, end = wait + warmup, wait + warmup + active
    window = f"the window of {active} steps begins after wait {wait} + warmup {warmup} = {first}"
    if wait < 0 or warmup < 0 or active < 1:
        raise InputError(f"wait {wait}, warmup {warmup}, active {active}: expected 0, 0 and 1, or more")
    if steps is not None and end > steps:
        raise InputError(f"{window} and needs {end}, but the run makes {steps}")
    folder, rank = Path(folder), _rank()
    folder.mkdir(parents=True, exist_ok=True)
    raw = folder / f".rank{rank}.{os.getpid()}.json"
    on_device = torch.cuda.is_available()
    profiler = profile(
        activities=[ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if on_device else []),
        schedule=schedule(wait=wait, warmup=warmup, active=active, repeat=1),
        on_trace_ready=lambda done: done.export_chrome_trace(str(raw)),
        record_shapes=shapes,
        profile_memory=memory,
        with_stack=stacks,
        acc_events=True,
    )
    try:
        with profiler:
            recorder = Recorder(profiler, first, active, torch.cuda.synchronize if on_device else lambda: None)
            yield recorder
        made = len(recorder.step_ns)
        if made <= first or not raw.exists():
            raise InputError(f"{window}, but the loop made {made}: nothing was recorded")
        if made < end:
            warnings.warn(f"{window}, and the loop made {made}: it holds {made - first}", stacklevel=3)
        told = _overhead(recorder.step_ns, wait, first, active)
        recorder.overhead_ratio = told["overhead_ratio"]
        recorder.path = folder / f"rank{rank}.pt.trace.json.gz"
        text = raw.read_bytes()
        begin = text.index(b"{") + 1
        text = text[:begin] + b'"tclab_record":' + msgspec.json.encode(told) + b"," + text[begin:]
        atomic_write(recorder.path, gzip.compress(text, compresslevel=4))
    finally:
        raw.unlink(missing_ok=True)


def _overhead(step_ns: list[int], wait: int, first: int, active: int) -> dict[str, Any]:
    """Return what profiling made of a step's time; the loop's first step is slow for reasons of its own."""
    profiled, unprofiled = step_ns[first : first + active], step_ns[1:wait] + step_ns[first + active :]
    ratio = median(profiled) / median(unprofiled) if len(unprofiled) >= 2 else None
    return {"unprofiled_steps": len(unprofiled), "overhead_ratio": ratio}


def _rank() -> int:
    """Return the rank: of torch.distributed if initialised, else of the environment, else 0."""
    from torch import distributed

    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank()
    return int(os.environ.get("RANK", 0))


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
