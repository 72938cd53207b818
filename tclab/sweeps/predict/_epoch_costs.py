"""The costs that an epoch is predicted from: stage times without workers, a DataLoader's overheads, contention."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import pairwise
from statistics import fmean, median
from typing import Any

import torch

from tclab.masking import Batch
from tclab.sweeps.execution._setup import Setup
from tclab.sweeps.predict._epoch_simulation import ContentionFactors, LoaderOverheads
from tclab.timing import Ledger
from tclab.timing._ledger_rows import raw_clock_ns
from tclab.training._loading import Batches, Loader
from tclab.training._loops import raw_batch

COLD = 4  # a new process's first batches: it copies each page of its parent's memory that it writes to
_CONTENTION_ROUNDS = 2
_TRIM = 0.1  # of the shortest and longest times: a garbage collection comes once in a window or not at all
_READY_SECONDS = 120.0  # a spawned process imports torch first


def _make(data: Batches, ready: Any, go: Any, stop: Any, answers: Any) -> None:
    """Make batches while `go` is set; at the stop send when each began and ended."""
    torch.set_num_threads(1)  # as in a DataLoader's worker
    made = []
    for number in range(COLD):
        data[number % len(data)]
    ready.set()
    while not stop.is_set():
        if go.wait(0.05):
            loaded = data[number % len(data)]
            made.append((loaded.timing.begin_ns, loaded.timing.end_ns))
            number += 1
    answers.send(made)


class _BusyLoader:
    """A process that makes batches between a start and a stop signal."""

    def __init__(self, context: Any, data: Batches) -> None:
        self.ready, self.go, self._stop = context.Event(), context.Event(), context.Event()
        self._answers, theirs = context.Pipe(duplex=False)
        self._process = context.Process(target=_make, args=(data, self.ready, self.go, self._stop, theirs), daemon=True)
        begin = time.perf_counter()
        self._process.start()
        self.start_seconds = time.perf_counter() - begin
        theirs.close()  # so that its end is noticed

    def made(self) -> list[tuple[int, int]]:
        """Stop it and return when each batch began and ended."""
        self._stop.set()
        made: list[tuple[int, int]] = self._answers.recv()
        return made

    def end(self) -> None:
        self._process.terminate()
        self._process.join()


@contextmanager
def _busy_loaders(data: Batches, number: int, start_method: str | None) -> Iterator[list[_BusyLoader]]:
    context = multiprocessing.get_context(start_method)
    loaders: list[_BusyLoader] = []
    try:
        for _ in range(number):
            loaders.append(_BusyLoader(context, data))
            if not loaders[-1].ready.wait(_READY_SECONDS):
                raise RuntimeError(f"a process was started by {start_method} and made no batch")
        yield loaders
    finally:
        for loader in loaders:
            loader.end()


def measure_contention(
    data: Batches, train: Callable[[], Any], *, workers: int, start_method: str | None, seconds: float
) -> tuple[ContentionFactors, float]:
    """Return how processes slow one another down, and the seconds that starting one takes.

    Up to `workers` processes make batches in rounds, while the training process trains and while it sleeps. A process
    is assumed to be no faster next to others than alone. `seconds` are of each of `2 * workers + 1` settings, in each
    of two rounds; `train` runs one step, to its end.
    """
    windows: dict[tuple[int, bool], list[tuple[int, int]]] = {}
    steps: dict[int, list[float]] = {}
    with _busy_loaders(data, workers, start_method) as loaders:
        for _ in range(_CONTENTION_ROUNDS):
            for busy in range(workers + 1):
                for loader in loaders[:busy]:
                    loader.go.set()
                for training in (False, True) if busy else (True,):
                    begin = time.perf_counter_ns()
                    if training:
                        steps.setdefault(busy, []).extend(_repeated(train, seconds))
                    else:
                        time.sleep(seconds)
                    windows.setdefault((busy, training), []).append((begin, time.perf_counter_ns()))
                for loader in loaders[:busy]:
                    loader.go.clear()
                time.sleep(seconds / 10)  # for the batches that are still under way
        start = median(loader.start_seconds for loader in loaders)
        made = [batch for loader in loaders for batch in loader.made()]
    load = {setting: _mean_within(made, spans) for setting, spans in windows.items() if setting[0]}
    alone, step = load[1, False], _mean(steps[0])
    counts = range(1, workers + 1)
    return ContentionFactors(
        load=tuple(min(1.0, alone / load[busy, False]) for busy in counts),
        load_while_training=tuple(min(1.0, alone / load[busy, True]) for busy in counts),
        step=tuple(min(1.0, step / _mean(steps[busy])) for busy in range(workers + 1)),
    ), start


def _repeated(train: Callable[[], Any], seconds: float) -> list[float]:
    times: list[float] = []
    end = time.perf_counter() + seconds
    while (begin := time.perf_counter()) < end or not times:
        train()
        times.append(time.perf_counter() - begin)
    return times


def _mean_within(made: list[tuple[int, int]], windows: list[tuple[int, int]]) -> float:
    """Return nanoseconds a batch: of those whose middle lies in one of the windows, the mean."""
    found = [end - begin for begin, end in made if any(first <= (begin + end) // 2 <= last for first, last in windows)]
    return _mean(found)


def _mean(times: list[Any]) -> float:
    from scipy.stats import trim_mean  # a second of imports, which every child that runs a point would wait for

    return float(trim_mean(times, _TRIM))


_ROUNDS = 3  # of starting a worker
_BATCHES = (5, 12, 40)  # handed over in a round: at least however large, at least, at most
_ROUND_SECONDS = 0.2
_TAKEN = 3  # of a round's batches are timed as they are received, at least
_ROUND_BYTES = 1 << 30  # in shared memory, where least allows


@dataclass(frozen=True)
class Costs:
    """The measured costs that an epoch is predicted from.

    **Arguments:**

    - `load_seconds`, `step_seconds`: [steps] measured without workers: making a batch, and the rest of its step.
    - `around_seconds`: the loop's time outside its steps, once an epoch.
    - `loader_overheads`, `contention`: of a DataLoader's processes; measured separately, and only if the point has
      workers.
    """

    load_seconds: Sequence[float]
    step_seconds: Sequence[float]
    around_seconds: float = 0.0
    loader_overheads: LoaderOverheads = field(default_factory=LoaderOverheads)
    contention: ContentionFactors | None = None

    @staticmethod
    def from_dict(fields: dict[str, Any]) -> Costs:
        """Return the costs of the fields that `asdict` gives, as they come back from JSON."""
        overheads, contention = LoaderOverheads(**fields["loader_overheads"]), fields["contention"]
        if contention is not None:
            contention = ContentionFactors(**{name: tuple(values) for name, values in contention.items()})
        return Costs(**{**fields, "loader_overheads": overheads, "contention": contention})


def costs_of(setup: Setup) -> Costs:
    """Measure what an epoch of a setup's point is predicted from: `point.steps` steps, after `point.warmup`."""
    point = setup.point
    data = setup.data
    few = _first(data, point.warmup + 1)
    without = replace(setup, loads=Loader(few, workers=0, pin_memory=bool(point.pin_memory)))
    setup.run(without.batches(), steps=point.warmup + 1)
    load, step, around = stage_times(setup, point.steps)
    if not point.workers:
        return Costs(load, step, around)
    mean_load, mean_step = fmean(load), fmean(step)
    contention, start = measure_contention(
        data,
        _training(setup),
        workers=point.workers,
        start_method=point.start_method,
        seconds=max(_ROUND_SECONDS, 5 * mean_load, 5 * mean_step),
    )
    return Costs(load, step, around, _loader_overheads(setup, median(load), mean_step, start), contention)


def stage_times(setup: Setup, steps: int) -> tuple[list[float], list[float], float]:
    """Run some steps without workers: seconds of making each batch, of the rest of its step, and around all."""
    cuda = setup.point.device == "cuda"
    loads = Loader(_first(setup.data, steps), workers=0, pin_memory=bool(setup.point.pin_memory))
    begin = raw_clock_ns()
    with Ledger(cuda=cuda) as ledger:
        setup.run(replace(setup, loads=loads).batches(), steps=steps, ledger=ledger)
    seconds = (raw_clock_ns() - begin) / 1e9
    load = ledger.seconds("loading")["batch"]
    whole = ledger.seconds("device" if cuda else "host")["step"]
    rest = [max(step - made, 0.0) for step, made in zip(whole, load, strict=True)]
    return load, rest, max(seconds - sum(load) - sum(rest), 0.0)


def _first(data: Batches, steps: int) -> Batches:
    """Return the first `steps` of the batches, from the start again where there are fewer."""
    numbers = [number % len(data) for number in range(steps)]
    order = [sample for n in numbers for sample in data.order[n * data.size : (n + 1) * data.size].tolist()]
    return Batches(data.strategy, data.samples, data.size, order, micro_batch=data.micro_batch)


def _training(setup: Setup) -> Any:
    """Return a function that trains on one batch, over and over, to the end of each step."""
    batch = raw_batch(setup.data[0])
    step = setup.step

    def train() -> None:
        if step.mode != "data":
            step(batch)
        else:
            _touch(batch)
        if step.device.type == "cuda":
            torch.cuda.synchronize()

    return train


def _touch(batch: Batch) -> None:
    """Read a batch's memory, which maps that of another process."""
    for tensor in batch.storages:
        tensor.reshape(-1)[:: max(1, 4096 // tensor.element_size())].sum()


def _loader_overheads(setup: Setup, load: float, step: float, start: float) -> LoaderOverheads:
    """Return the time that one worker's handing over of batches adds to making them.

    The worker makes all batches while this process sleeps, so that neither waits for the other. A step precedes each
    timed batch, as in an epoch: receiving takes longer when the caches hold a model. The results are medians: rare slow
    steps are in the costs of steps, which are drawn from all measured ones.
    """
    point = setup.point
    first = raw_batch(setup.data[0])
    number = min(max(_ROUND_SECONDS / max(load, 1e-6), _BATCHES[1]), _ROUND_BYTES / max(first.bytes, 1), _BATCHES[2])
    data = _first(setup.data, max(int(number), _BATCHES[0]))
    cold = min(COLD, len(data) // 2)
    train = _training(setup)
    timed = min(len(data) - 1, max(_TAKEN, int(_ROUND_SECONDS / max(step, 1e-6))))
    own = []
    for place in range(min(timed, 10)):
        train()
        own.append(_read_seconds(data, place))
    cycles: list[float] = []
    taking, waking, ending = [], [], []
    for _ in range(_ROUNDS):
        loader = Loader(
            data,
            workers=1,
            pin_memory=bool(point.pin_memory),
            prefetch_factor=len(data),
            start_method=point.start_method,
        )
        begin = time.perf_counter_ns()
        batches = iter(loader)
        making = [next(batches).timing]
        time.sleep(0.05 + 2 * load * len(data))
        for place in range(len(data) - 1):
            if place < timed:
                train()
            asked = time.perf_counter_ns()
            loaded = next(batches)
            _touch(loaded.batch)
            making.append(loaded.timing)
            del loaded
            if place < timed and making[-1].end_ns < asked:  # it lay ready
                taking.append((time.perf_counter_ns() - asked) / 1e9)
        cycles += [(after.begin_ns - before.begin_ns) / 1e9 for before, after in pairwise(making[cold:])]
        waking.append((making[cold].begin_ns - begin) / 1e9)
        asked = time.perf_counter_ns()
        del batches
        ending.append((time.perf_counter_ns() - asked) / 1e9)
    cycle = median(cycles)
    return LoaderOverheads(
        send=cycle - load,
        receive=max(median(taking) - median(own), 0.0) if taking else 0.0,
        start=start,
        wake=max(median(waking) - start - cold * cycle, 0.0),
        end=median(ending),
    )


def _read_seconds(data: Batches, number: int) -> float:
    """Return the seconds of reading and releasing a batch that this process made."""
    loaded = data[number]
    begin = time.perf_counter()
    _touch(loaded.batch)
    del loaded
    return time.perf_counter() - begin
