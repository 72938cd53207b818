"""Self-test of the ledger: known delays that it must recover from a loop, and what timing the loop costs."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import inf, sqrt
from statistics import fmean, median
from time import perf_counter_ns
from typing import NamedTuple

from tclab._display import Display, Shown, seconds_text
from tclab.errors import InputError
from tclab.timing._ledger import Ledger

_TOLERANCE = 0.1  # share of a delay by which what is recovered may differ from it
_STANDARD_ERROR = 0.03  # of a delay, at which a trial ends
Loop = Callable[[Ledger], object]  # runs steps under the ledger that it gets
_LENGTHS = (0.0002, 0.0005, 0.001, 0.002, 0.005)  # seconds


class Trial(NamedTuple):
    """One trial: the loop with the same delay in half of its steps.

    **Arguments:**

    - `stage`: the stage that was delayed.
    - `injected_seconds`: length of the delay.
    - `recovered_seconds`: how much longer its stage took in the delayed of two adjacent steps, the median over pairs.
    - `pairs`: number of pairs of steps.
    """

    stage: str
    injected_seconds: float
    recovered_seconds: float
    pairs: int

    def recovered(self) -> bool:
        """Whether the ledger found the delay in its stage, and its length within 10 %."""
        return abs(self.recovered_seconds - self.injected_seconds) <= _TOLERANCE * self.injected_seconds


@dataclass(frozen=True, repr=False)
class SpikeIn(Shown):
    """The trials of a spike-in; `print` it for what was recovered of each delay.

    **Arguments:**

    - `trials`: in the order in which they ran.
    """

    trials: list[Trial]

    def share(self) -> float:
        """Return the share of the trials whose delay was recovered in the right stage within 10 %."""
        return fmean(trial.recovered() for trial in self.trials)

    def _display(self) -> Display:
        lines = []
        for trial in sorted(self.trials, key=lambda trial: (trial.stage, trial.injected_seconds)):
            seconds = [seconds_text(trial.injected_seconds), seconds_text(trial.recovered_seconds)]
            lines.append((trial.stage, *seconds, "yes" if trial.recovered() else "NO"))
        return Display(f"{self.share():.0%} recovered", ("stage", "delay", "measured", "recovered"), lines)


class _DelayedLedger(Ledger):
    """A ledger that spins at the end of a stage, in one step of every two adjacent ones, chosen at random."""

    def __init__(self, stage: str, seconds: float, choices: random.Random) -> None:
        super().__init__()
        self.late: list[int] = []  # of each pair of steps, which one is delayed: 0 or 1
        self._delayed_stage, self._delay_ns, self._choices = stage, int(seconds * 1e9), choices
        self._waited = -1  # last step that was delayed

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        with super().stage(name):
            yield
            self._delay(name)  # last in the stage: what follows runs on cold caches and must not count for it
        if self.in_step and self.current == "other":
            self._delay("other")

    def _delay(self, stage: str) -> None:
        pair, place = divmod(len(self), 2)
        if len(self.late) == pair:
            self.late.append(self._choices.randrange(2))
        if stage != self._delayed_stage or place != self.late[pair] or self._waited == len(self):
            return
        self._waited, until = len(self), perf_counter_ns() + self._delay_ns
        while perf_counter_ns() < until:  # sleeping would overshoot by as much as the delays to be recovered
            pass


def _trial(loop: Loop, stage: str, delay: float, most_steps: int, choices: random.Random) -> Trial:
    """Run a loop until the standard error of what is recovered is 3 % of the delay, or it took `most_steps` steps."""
    grown: list[float] = []
    while not grown or (2 * len(grown) < most_steps and _error(grown) > _STANDARD_ERROR * delay):
        with _DelayedLedger(stage, delay, choices) as ledger:
            loop(ledger)
        own = "device" if ledger.cuda else "host"
        took = {step: s for line, step, name, s in ledger.rows() if (line, name) == (own, stage) and s is not None}
        pairs = [(2 * i + late, 2 * i + 1 - late) for i, late in enumerate(ledger.late)]
        grown += [took[late] - took[other] for late, other in pairs if late in took and other in took]
        if not grown:
            raise InputError(
                f"{stage!r} is in no two steps of the loop, expected a stage such as {[*ledger.seconds()]}"
            )
    return Trial(stage, delay, median(grown), len(grown))


def _error(values: Sequence[float]) -> float:
    """Return the standard error of a median: 1.253 sd / √n for a normal core, with sd from the MAD."""
    middle = median(values)
    return 1.253 * 1.4826 * median(abs(value - middle) for value in values) / sqrt(len(values))


def spike_in(
    loop: Loop, *, stages: Sequence[str], seconds: Sequence[float] = _LENGTHS, most_steps: int = 400
) -> SpikeIn:
    """Run a loop repeatedly with delays of known length in known stages, in random order.

    In each trial, one step of every two adjacent ones, chosen at random, is delayed by spinning on the host. What
    drifts from pair to pair cancels. The delay comes last in its stage, because the work after it runs on cold caches
    and takes some hundredths of the delay longer. On CUDA the device's timeline shows a delay of the host only where
    the device is not behind the host, and in the stage in which the device is then idle.

    **Arguments:**

    - `loop`: takes a ledger and runs some tens of steps under it; the same work each time.
    - `stages`: the stages to delay; `other` is between the first two stages.
    - `seconds`: the lengths of the delays, each a trial of each stage; 3 * (0.001,) is three trials of 1 ms.
    - `most_steps`: largest number of steps of one trial. A trial runs the loop until its standard error is 3 % of the
      delay or it has taken this many.

    **Raises:** `InputError` without a stage or a delay, and for a stage that the loop does not have.
    """
    plan = [(stage, length) for stage in stages for length in seconds]
    if not plan or not all(0 < length < inf for length in seconds):
        raise InputError(f"stages={stages!r}, seconds={seconds!r}; expected a stage and delays above 0, such as 0.001")
    choices = random.Random(0)  # of the order of trials and of the delayed steps
    choices.shuffle(plan)
    return SpikeIn([_trial(loop, stage, length, most_steps, choices) for stage, length in plan])


@dataclass(frozen=True, repr=False)
class Receipt(Shown):
    """The cost of timing a loop with a ledger.

    **Arguments:**

    - `cut_seconds`: the ledger's own work in one step, measured on steps that contain only the same stages.
    - `step_seconds`: the median step, with a ledger.
    """

    cut_seconds: float
    step_seconds: float

    @property
    def share(self) -> float:
        """The ledger's own work, as a share of a step."""
        return self.cut_seconds / self.step_seconds

    def _display(self) -> Display:
        of = f"{self.share:.3%} of {seconds_text(self.step_seconds)}"
        return Display(notes=[f"the ledger's own work is {self.cut_seconds * 1e6:.1f} µs a step, {of}"])


def receipt(loop: Loop) -> Receipt:
    """Return what timing a loop costs: the ledger's own work in a step of the same stages that does nothing else.

    **Arguments:**

    - `loop`: takes a `Ledger` and runs its steps under it.
    """
    ledger, empty = Ledger(), Ledger(cuda=False)
    loop(ledger)
    seconds = ledger.seconds()
    stages = [name for name in seconds if name not in ("data_wait", "other", "step")]
    for _ in empty.steps(range(2000)):
        for name in stages:
            with empty.stage(name):
                pass
    return Receipt(median(empty.seconds()["step"]), median(seconds["step"]))
