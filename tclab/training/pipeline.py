"""An epoch without running it: a simulation of PyTorch's DataLoader and the process that trains."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from tclab.errors import InputError

_DONE = 1e-12  # seconds of work left that are rounding alone


@dataclass(frozen=True)
class Speeds:
    """How fast processes work beside one another; 1.0 is one by itself.

    **Arguments:**

    - `load`: of a worker when 1, 2, … of them make a batch and the training process waits.
    - `load_beside`: the same while the training process trains.
    - `step`: of the training process when 0, 1, 2, … workers make a batch.

    For more workers than were measured, all of them together get as much done as the most that were.
    """

    load: tuple[float, ...] = (1.0,)
    load_beside: tuple[float, ...] = (1.0,)
    step: tuple[float, ...] = (1.0, 1.0)

    @staticmethod
    def of_cores(cores: int, workers: int) -> Speeds:
        """Return the speeds where processes share cores fairly and disturb one another in no other way."""
        shared = [min(1.0, cores / active) for active in range(1, max(workers, 1) + 2)]
        return Speeds(tuple(shared[:-1]), tuple(shared[1:]), tuple(shared))

    def of_load(self, workers: int, training: bool) -> float:
        """Return the speed of each of some workers that make a batch."""
        speeds = self.load_beside if training else self.load
        return _nth(speeds, workers, len(speeds))

    def of_step(self, workers: int) -> float:
        """Return the speed of the training process while some workers make a batch."""
        return _nth(self.step, workers + 1, len(self.step))


def _nth(speeds: tuple[float, ...], active: int, known: int) -> float:
    return speeds[active - 1] if active <= known else speeds[-1] * known / active


@dataclass(frozen=True)
class Machinery:
    """What a DataLoader's processes cost beside making batches, in seconds.

    **Arguments:**

    - `send`: a worker's, per batch: to be asked for it, and to put it on its way; negative where a worker makes
      a batch faster than the process that trains does.
    - `receive`: the training process's, per batch: to take it, reach its memory for the first time, let it go.
    - `start`: the training process's, per worker: to start it.
    - `wake`: from a worker's start until it makes its first batch, and what the first ones take longer than others.
    - `end`: the training process's, to end all workers.
    """

    send: float = 0.0
    receive: float = 0.0
    start: float = 0.0
    wake: float = 0.0
    end: float = 0.0


@dataclass(frozen=True)
class Simulated:
    """An epoch that was simulated: its seconds, and those in which the training process waited for a batch."""

    seconds: float
    waiting_seconds: float


def simulate(
    load: Sequence[float],
    step: Sequence[float],
    *,
    workers: int,
    prefetch_factor: int = 2,
    machinery: Machinery | None = None,
    speeds: Speeds | None = None,
) -> Simulated:
    """Return how long an epoch takes whose batches and steps cost so much.

    As PyTorch's `DataLoader` does it: batch `i` is made by worker `i % workers`; batches are asked for as long as
    `prefetch_factor * workers` of them are asked for and not yet taken; they are taken in order. What works
    goes on at a speed that depends on what else works at that moment. Without workers, batches are made and trained
    on in turn.

    **Arguments:**

    - `load`, `step`: [steps] seconds of work to make each batch, and to train on it, by a process alone.
    - `machinery`: nothing unless given. `speeds`: a core for each process unless given.
    - `workers`: processes that make batches, 0 for none. `prefetch_factor`: batches that each makes ahead.

    **Raises:** `InputError` for lists that differ in length, or fewer than 0 workers or 1 batch ahead.
    """
    if len(load) != len(step):
        raise InputError(f"load has {len(load)} batches and step {len(step)}, expected one of each a step")
    if workers < 0:
        raise InputError(f"workers is {workers}, expected 0 or more")
    if not workers:
        return Simulated(sum(load) + sum(step), sum(load))
    if prefetch_factor < 1:
        raise InputError(f"prefetch_factor is {prefetch_factor}, expected 1 or more")
    costs = machinery or Machinery()
    beside = speeds or Speeds.of_cores(workers + 1, workers)
    steps, ahead = len(load), prefetch_factor * workers
    now, waiting = workers * costs.start, 0.0
    making = list(range(workers))  # the batch that each worker is at, or will be
    left: list[float | None] = [None] * workers  # seconds of work; none while it waits to be asked
    wake = [costs.wake] * workers
    made = [False] * steps
    taken = 0
    training: float | None = None
    while taken < steps or training is not None:
        if training is None and made[taken]:
            training = step[taken] + costs.receive
            taken += 1
        for worker, batch in enumerate(making):
            if left[worker] is None and batch < min(taken + ahead, steps):
                left[worker] = wake[worker] + max(load[batch] + costs.send, 0.0)
                wake[worker] = 0.0
        active = sum(work is not None for work in left)
        load_speed = beside.of_load(active, training is not None) if active else 1.0
        step_speed = beside.of_step(active)
        ends = [work / load_speed for work in left if work is not None]
        passed = min(ends, default=inf)
        if training is None:
            waiting += passed
        else:
            passed = min(passed, training / step_speed)
            training -= passed * step_speed
            if training <= _DONE:
                training = None
        now += passed
        for worker, work in enumerate(left):
            if work is None:
                continue
            left[worker] = work - passed * load_speed
            if work - passed * load_speed <= _DONE:
                made[making[worker]] = True
                making[worker] += workers
                left[worker] = None
    return Simulated(now + costs.end, waiting)
