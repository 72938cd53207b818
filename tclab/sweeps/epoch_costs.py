"""What an epoch is predicted from: stage times without workers, and what a DataLoader's processes cost."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise
from statistics import fmean, median
from typing import Any

import torch

from tclab.masking import Batch
from tclab.sweeps.neighbours import COLD, speeds_of
from tclab.sweeps.rig import Rig
from tclab.timing import Ledger, raw_clock_ns
from tclab.training import Batches, Machinery, Speeds, loader
from tclab.training.loops import raw
from tclab.training.step import WITHOUT_MODEL

_ROUNDS = 3  # of starting a worker
_BATCHES = (5, 12, 40)  # handed over in a round: at least however large, at least, at most
_ROUND_SECONDS = 0.2
_ROUND_BYTES = 1 << 30  # in shared memory, where least allows


@dataclass(frozen=True)
class Costs:
    """What an epoch is predicted from.

    **Arguments:**

    - `load_seconds`, `step_seconds`: [steps] measured without workers: making a batch, and the rest of its step.
    - `around_seconds`: what the loop takes around its steps, once.
    - `machinery`, `speeds`: of a DataLoader's processes; measured apart, and only where the point has workers.
    """

    load_seconds: Sequence[float]
    step_seconds: Sequence[float]
    around_seconds: float = 0.0
    machinery: Machinery = field(default_factory=Machinery)
    speeds: Speeds | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return every field as JSON can hold it."""
        return asdict(self)

    @staticmethod
    def from_dict(fields: dict[str, Any]) -> Costs:
        """Return the costs of `to_dict`'s fields, as they come back from JSON."""
        speeds = fields["speeds"]
        return Costs(
            fields["load_seconds"],
            fields["step_seconds"],
            fields["around_seconds"],
            Machinery(**fields["machinery"]),
            None if speeds is None else Speeds(**{name: tuple(values) for name, values in speeds.items()}),
        )


def costs_of(rig: Rig) -> Costs:
    """Measure what an epoch of a rig's point is predicted from: `point.steps` steps, after `point.warmup`."""
    point = rig.point
    data = rig.data
    few = _first(data, point.warmup + 1)
    without = replace(rig, loads=loader(few, workers=0, pin_memory=bool(point.pin_memory)))
    rig.run(without.batches(), steps=point.warmup + 1)
    load, step, around = stage_times(rig, point.steps)
    if not point.workers:
        return Costs(load, step, around)
    mean_load, mean_step = fmean(load), fmean(step)
    speeds, start = speeds_of(
        data,
        _training(rig),
        workers=point.workers,
        start_method=point.start_method,
        seconds=max(_ROUND_SECONDS, 5 * mean_load, 5 * mean_step),
    )
    return Costs(load, step, around, _machinery(rig, median(load), start), speeds)


def stage_times(rig: Rig, steps: int) -> tuple[list[float], list[float], float]:
    """Run some steps without workers: seconds of making each batch, of the rest of its step, and around all."""
    cuda = rig.point.device == "cuda"
    loads = loader(_first(rig.data, steps), workers=0, pin_memory=bool(rig.point.pin_memory))
    begin = raw_clock_ns()
    with Ledger(cuda=cuda) as ledger:
        rig.run(replace(rig, loads=loads).batches(), steps=steps, ledger=ledger)
    seconds = (raw_clock_ns() - begin) / 1e9
    load = ledger.seconds("loading")["batch"]
    whole = ledger.seconds("device" if cuda else "host")["step"]
    rest = [max(step - made, 0.0) for step, made in zip(whole, load, strict=True)]
    return load, rest, max(seconds - sum(load) - sum(rest), 0.0)


def _first(data: Batches, steps: int) -> Batches:
    """Return so many of the batches, the first ones again where there are fewer."""
    numbers = [number % len(data) for number in range(steps)]
    order = [sample for n in numbers for sample in data.order[n * data.size : (n + 1) * data.size].tolist()]
    return Batches(data.strategy, data.samples, data.size, order, micro_batch=data.micro_batch)


def _training(rig: Rig) -> Any:
    """Return a function that trains on one batch, over and over, to the end of each step."""
    batch = raw(rig.data[0])
    step = rig.step

    def train() -> None:
        if step.mode not in WITHOUT_MODEL:
            step(batch)
        else:
            _touch(batch)
        if step.device.type == "cuda":
            torch.cuda.synchronize()

    return train


def _touch(batch: Batch) -> None:
    """Read a batch's memory, which maps that of another process."""
    for tensor in batch.held:
        tensor.reshape(-1)[:: max(1, 4096 // tensor.element_size())].sum()


def _machinery(rig: Rig, load: float, start: float) -> Machinery:
    """Hand batches over from one worker, with no step beside it: what it takes more than making them.

    The worker makes all of them ahead while this process sleeps, so neither waits for the other. Middle values are
    taken: what now and then takes longer is in the costs of steps, which are drawn from all that were measured.
    """
    point = rig.point
    first = raw(rig.data[0])
    number = min(
        max(_ROUND_SECONDS / max(load, 1e-6), _BATCHES[1]), _ROUND_BYTES / max(first.bytes, 1), _BATCHES[2]
    )
    data = _first(rig.data, max(int(number), _BATCHES[0]))
    cold = min(COLD, len(data) // 2)
    own = [_own(data, i) for i in range(min(len(data), 10))]
    cycles: list[float] = []
    taking, waking, ending = [], [], []
    for _ in range(_ROUNDS):
        ahead = loader(
            data,
            workers=1,
            pin_memory=bool(point.pin_memory),
            prefetch_factor=len(data),
            start_method=point.start_method,
        )
        begin = time.perf_counter_ns()
        batches = iter(ahead)
        making = [next(batches).making]
        time.sleep(0.05 + 2 * load * len(data))
        for _ in range(len(data) - 1):
            asked = time.perf_counter_ns()
            loaded = next(batches)
            _touch(loaded.batch)
            making.append(loaded.making)
            del loaded
            if making[-1].end_ns < asked:  # it lay ready
                taking.append((time.perf_counter_ns() - asked) / 1e9)
        cycles += [(after.begin_ns - before.begin_ns) / 1e9 for before, after in pairwise(making[cold:])]
        waking.append((making[cold].begin_ns - begin) / 1e9)
        asked = time.perf_counter_ns()
        del batches
        ending.append((time.perf_counter_ns() - asked) / 1e9)
    cycle = median(cycles)
    return Machinery(
        send=cycle - load,
        receive=max(median(taking) - median(own), 0.0) if taking else 0.0,
        start=start,
        wake=max(median(waking) - start - cold * cycle, 0.0),
        end=median(ending),
    )


def _own(data: Batches, number: int) -> float:
    """Return what reading a batch's memory and letting it go takes where it was made in this process."""
    loaded = data[number]
    begin = time.perf_counter()
    _touch(loaded.batch)
    del loaded
    return time.perf_counter() - begin
