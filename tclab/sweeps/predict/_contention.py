"""Contention: how much processes slow one another down that make batches and train at the same time."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import median
from typing import Any

import torch

from tclab.training import Batches
from tclab.training._epoch_simulation import ContentionFactors

COLD = 4  # a new process's first batches: it copies each page of its parent's memory that it writes to
_ROUNDS = 2
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
    is assumed to be no faster next to others than alone.

    **Arguments:**

    - `train`: one step, to its end.
    - `seconds`: of each of `2 * workers + 1` settings, in each of two rounds.
    """
    windows: dict[tuple[int, bool], list[tuple[int, int]]] = {}
    steps: dict[int, list[float]] = {}
    with _busy_loaders(data, workers, start_method) as loaders:
        for _ in range(_ROUNDS):
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
