"""Recording of chosen steps of a training loop.

torch is imported in `record` and `example` and nowhere else in this package.
"""

import gzip
import os
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tclab._io import atomic_write
from tclab.errors import InputError


class Recorder:
    """The recorder of a loop, from `record`: call `step()` after each batch; afterwards `path` is the trace file."""

    def __init__(self, profiler: Any, edges: set[int], synchronize: Callable[[], object]) -> None:
        self.path: Path | None = None
        self.steps = 0  # so far
        self._profiler, self._edges, self._synchronize = profiler, edges, synchronize

    def step(self) -> None:
        """Mark the end of a batch."""
        self.steps += 1
        # Work still queued when the window opens or closes would be charged to the other side.
        if self.steps in self._edges:
            self._synchronize()
        self._profiler.step()


@contextmanager
def record(
    folder: str | Path, *, wait: int = 4, warmup: int = 1, active: int = 3, steps: int | None = None,
    stacks: bool = False, shapes: bool = False,
) -> Iterator[Recorder]:  # fmt: skip
    """Profile `active` steps of a loop after `wait` unprofiled and `warmup` discarded ones.

        with tclab.trace.record("traces", steps=len(loader)) as recorder:
            for batch in loader:
                train(batch)
                recorder.step()

    Writes `folder/rank<r>.pt.trace.json.gz`, under torch.distributed one file per rank. With the length of the run,
    `steps`, a window that the run never reaches is refused before it starts; without it, when the loop ends. A window
    that the end of the loop cuts short is kept, with a warning. Profiled steps are slower than others: what a step
    takes is a ledger's to say.

    **Arguments:**

    - `folder`: where the trace is written; created if it does not exist.
    - `wait`: unprofiled steps first.
    - `warmup`: profiled steps that are discarded, since the profiler's first ones are slow.
    - `active`: profiled steps that are kept. torch's profiler holds about 5 kB for each event until they are written.
    - `steps`: how many steps the loop makes, on each rank: `epochs * len(loader)`.
    - `stacks`: record Python stacks, which name the line of a synchronisation.
    - `shapes`: record the shapes of operators' inputs.

    **Raises:** `InputError` for a window that the run does not reach.
    """
    import torch
    from torch import distributed
    from torch.profiler import ProfilerActivity, profile, schedule

    first, end = wait + warmup, wait + warmup + active
    window = f"the window of {active} steps begins after wait {wait} + warmup {warmup} = {first}"
    if wait < 0 or warmup < 0 or active < 1:
        raise InputError(f"wait {wait}, warmup {warmup}, active {active}: expected 0, 0 and 1, or more")
    if steps is not None and end > steps:
        raise InputError(f"{window} and needs {end}, but the run makes {steps}")
    folder, initialised = Path(folder), distributed.is_available() and distributed.is_initialized()
    rank = distributed.get_rank() if initialised else int(os.environ.get("RANK", 0))
    folder.mkdir(parents=True, exist_ok=True)
    raw = folder / f".rank{rank}.{os.getpid()}.json"
    on_device = torch.cuda.is_available()
    profiler = profile(
        activities=[ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if on_device else []),
        schedule=schedule(wait=wait, warmup=warmup, active=active, repeat=1),
        on_trace_ready=lambda done: done.export_chrome_trace(str(raw)),
        record_shapes=shapes,
        with_stack=stacks,
        acc_events=True,
    )
    try:
        with profiler:
            recorder = Recorder(profiler, {first, end}, torch.cuda.synchronize if on_device else lambda: None)
            yield recorder
        if recorder.steps <= first or not raw.exists():
            raise InputError(f"{window}, but the loop made {recorder.steps}: nothing was recorded")
        if (missing := end - recorder.steps) > 0:
            warnings.warn(f"{window}, and the loop made {end - missing}: it holds {active - missing}", stacklevel=3)
        recorder.path = folder / f"rank{rank}.pt.trace.json.gz"
        atomic_write(recorder.path, gzip.compress(raw.read_bytes(), compresslevel=4))
    finally:
        raw.unlink(missing_ok=True)


def example(width: int = 256) -> Path:
    """Train a small autoencoder with a hidden layer of some width under `record`; return the folder with its trace."""
    import torch
    from torch.profiler import record_function

    folder = Path(tempfile.mkdtemp(prefix="tclab-trace-"))
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = torch.nn.Sequential(torch.nn.Linear(64, width), torch.nn.ReLU(), torch.nn.Linear(width, 64)).to(device)
    optimizer = torch.optim.Adam(model.parameters())
    with record(folder, wait=1, warmup=1, active=4, steps=7, shapes=True) as recorder:
        for _ in range(7):
            with record_function("## data_load ##"):
                batch = torch.randn(512, 64).to(device)
            with record_function("## forward ##"):
                predicted = model(batch)
            # loss, backward and optimizer are stages by the names of their operators
            loss = torch.nn.functional.mse_loss(predicted, batch)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            recorder.step()
    return folder
