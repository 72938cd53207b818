"""A simulation of an epoch: PyTorch's DataLoader workers and the process that trains."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from tclab.errors import InputError, check_whole

_DONE = 1e-12  # seconds; less remaining work than this is rounding


@dataclass(frozen=True)
class ContentionFactors:
    """The speed of each process while others run, relative to its speed alone (1.0).

    For more workers than were measured, the total throughput of all of them stays that of the most measured.
    """

    load: tuple[float, ...] = (1.0,)  # of one worker while 1, 2, … workers load and the training process waits
    load_while_training: tuple[float, ...] = (1.0,)  # the same while it trains
    step: tuple[float, ...] = (1.0, 1.0)  # of the training process while 0, 1, 2, … workers load

    @staticmethod
    def of_cores(cores: int, workers: int) -> ContentionFactors:
        """Return the factors of up to so many workers that share cores fairly and are slowed down in no other way."""
        shared = [min(1.0, cores / active) for active in range(1, max(workers, 1) + 2)]
        return ContentionFactors(tuple(shared[:-1]), tuple(shared[1:]), tuple(shared))

    def of_load(self, workers: int, training: bool) -> float:
        """Return the speed of each worker while `workers` of them load, and the training process trains or not."""
        return _factor(self.load_while_training if training else self.load, workers)

    def of_step(self, workers: int) -> float:
        """Return the speed of the training process while `workers` workers load."""
        return _factor(self.step, workers + 1)


def _factor(factors: tuple[float, ...], active: int) -> float:
    return factors[active - 1] if active <= len(factors) else factors[-1] * len(factors) / active


@dataclass(frozen=True)
class LoaderOverheads:
    """The seconds that a DataLoader's worker processes cost in addition to making batches."""

    # worker, per batch: receiving the request and sending the batch; below 0 where it is faster than the main process
    send: float = 0.0
    receive: float = 0.0  # training process, per batch: taking it from the queue, touching its memory and freeing it
    start: float = 0.0  # training process, per worker
    wake: float = 0.0  # worker, once: until its first batch, and what its first ones take longer than later ones
    end: float = 0.0  # training process, once: shutting all workers down


def simulate(
    load: Sequence[float],
    step: Sequence[float],
    *,
    workers: int,
    prefetch_factor: int = 2,
    loader_overheads: LoaderOverheads | None = None,
    contention: ContentionFactors | None = None,
) -> float:
    """Simulate an epoch and return its wall time in seconds, from those of loading and training on each batch.

    The simulation follows PyTorch's `DataLoader`: worker `i % workers` makes batch `i`; the loader keeps at most
    `prefetch_factor * workers` batches requested and not yet taken; the training process takes batches in order.
    Every process advances at a speed that depends on which others are active at that moment. Without workers, the
    training process makes each batch and trains on it in turn.

    **Arguments:**

    - `load`: [steps] seconds that one process alone takes to make each batch.
    - `step`: [steps] seconds that one process alone takes to train on each batch.
    - `workers`: number of worker processes; 0 loads in the training process.
    - `prefetch_factor`: batches that each worker makes ahead.
    - `loader_overheads`: what worker processes cost in addition; nothing by default.
    - `contention`: how processes slow one another down; by default each has a core.

    **Raises:** `InputError` if the lists differ in length, `workers` is negative, or `prefetch_factor` is below 1.
    """
    if len(load) != len(step):
        raise InputError(f"load has {len(load)} batches and step {len(step)}, expected one of each a step")
    check_whole("workers is", workers)
    if not workers:
        return sum(load) + sum(step)
    check_whole("prefetch_factor is", prefetch_factor, least=1)
    overheads = loader_overheads or LoaderOverheads()
    factors = contention or ContentionFactors.of_cores(workers + 1, workers)
    steps, ahead = len(load), prefetch_factor * workers
    now = workers * overheads.start
    batch_of = list(range(workers))  # the batch that each worker makes now or will make next
    remaining: list[float | None] = [None] * workers  # seconds of work; None while the worker waits for a request
    wake = [overheads.wake] * workers
    ready = [False] * steps
    taken = 0
    training: float | None = None  # seconds of work left in the step that runs
    while taken < steps or training is not None:
        if training is None and ready[taken]:
            training = step[taken] + overheads.receive
            taken += 1
        for worker, batch in enumerate(batch_of):
            if remaining[worker] is None and batch < min(taken + ahead, steps):
                remaining[worker] = wake[worker] + max(load[batch] + overheads.send, 0.0)
                wake[worker] = 0.0
        active = sum(work is not None for work in remaining)
        load_speed = factors.of_load(active, training is not None) if active else 1.0
        step_speed = factors.of_step(active)
        passed = min((work / load_speed for work in remaining if work is not None), default=inf)
        if training is not None:
            passed = min(passed, training / step_speed)
            training -= passed * step_speed
            if training <= _DONE:
                training = None
        now += passed
        for worker, work in enumerate(remaining):
            if work is None:
                continue
            remaining[worker] = work - passed * load_speed
            if work - passed * load_speed <= _DONE:
                ready[batch_of[worker]] = True
                batch_of[worker] += workers
                remaining[worker] = None
    return now + overheads.end
