"""Spike-in: a test of the ledger, which must recover delays of known stage and length from a loop."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import isfinite, sqrt
from statistics import median
from typing import TYPE_CHECKING

import numpy as np

from tclab._display import Display, Shown, seconds_text
from tclab.errors import InputError, check_whole
from tclab.timing._conditions import busy_notes, busy_percent, conditions
from tclab.timing._ledger import Ledger

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Trial:
    """One trial: the loop with the same delay in half of its steps.

    **Arguments:**

    - `stage`: the stage that was delayed.
    - `injected_seconds`: length of the delay; 0 in a blank.
    - `recovered_seconds`: stage → the delayed step's time in that stage less the other step's, the median over pairs
      of adjacent steps.
    - `error_seconds`: stage → the standard error of that median.
    - `pairs`: number of pairs of steps.
    """

    stage: str
    injected_seconds: float
    recovered_seconds: dict[str, float]
    error_seconds: dict[str, float]
    pairs: int

    @property
    def found_stage(self) -> str:
        """The stage with the largest certain growth: median less two standard errors."""
        least = {stage: grown - 2 * self.error_seconds[stage] for stage, grown in self.recovered_seconds.items()}
        return max(least, key=lambda stage: least[stage])

    def recovered(self, tolerance: float = 0.1) -> bool:
        """Whether the delay was recovered in its stage, and its length within `tolerance` (a share of it)."""
        difference = abs(self.recovered_seconds.get(self.stage, 0.0) - self.injected_seconds)
        return self.found_stage == self.stage and difference <= tolerance * self.injected_seconds


@dataclass(frozen=True)
class Response:
    """The ledger's response to delays in one stage.

    **Arguments:**

    - `stage`: the stage.
    - `slope`: slope of recovered over injected seconds (Theil-Sen estimator); `None` for a single length.
    - `slope_interval`: its 95 % interval.
    - `detection_limit_seconds`: 3.3 standard deviations of the blanks over the slope (ICH Q2(R1), section 6.3.1);
      `None` with fewer than two blanks.
    - `share`: share of the trials with a delay that were recovered within 10 % in the right stage.
    - `trials`: number of trials with a delay.
    """

    stage: str
    slope: float | None
    slope_interval: tuple[float, float] | None
    detection_limit_seconds: float | None
    share: float
    trials: int


@dataclass(frozen=True, repr=False)
class SpikeIn(Shown):
    """The trials of a spike-in; `responses` summarises them by stage.

    **Arguments:**

    - `trials`: in the order in which they ran.
    - `busy_percent`: pressure on the processors at their end, where the machine was busy; `None` where not, or not
      known.
    """

    trials: list[Trial]
    busy_percent: float | None = None

    def share(self, tolerance: float = 0.1) -> float:
        """Return the share of the trials with a delay that were recovered in the right stage within `tolerance`."""
        spiked = [trial for trial in self.trials if trial.injected_seconds]
        return sum(trial.recovered(tolerance) for trial in spiked) / len(spiked)

    def responses(self) -> list[Response]:
        """Return slope and detection limit of each stage."""
        from scipy import stats

        responses = []
        for stage in dict.fromkeys(trial.stage for trial in self.trials):
            trials = [trial for trial in self.trials if trial.stage == stage]
            injected = [trial.injected_seconds for trial in trials]
            recovered = [trial.recovered_seconds.get(stage, 0.0) for trial in trials]
            slope = interval = limit = None
            if len(set(injected)) > 1:
                fit = stats.theilslopes(recovered, injected)
                slope, interval = float(fit.slope), (float(fit.low_slope), float(fit.high_slope))
            blanks = [r for i, r in zip(injected, recovered, strict=True) if not i]
            if slope and len(blanks) > 1:
                limit = 3.3 * float(np.std(blanks, ddof=1)) / slope
            spiked = [trial for trial in trials if trial.injected_seconds]
            share = sum(trial.recovered() for trial in spiked) / len(spiked)
            responses.append(Response(stage, slope, interval, limit, share, len(spiked)))
        return responses

    def _display(self) -> Display:
        lines = []
        for one in self.responses():
            slope = "" if one.slope is None else f"{one.slope:.3f}"
            ends = "" if one.slope_interval is None else " [{:.3f}, {:.3f}]".format(*one.slope_interval)
            limit = "" if one.detection_limit_seconds is None else seconds_text(one.detection_limit_seconds)
            lines.append((one.stage, slope + ends, limit, f"{one.share:.0%} of {one.trials}"))
        columns = ("stage", "slope [95 % interval]", "detection limit", "recovered")
        return Display(columns=columns, lines=lines, notes=busy_notes(self.busy_percent))

    def frame(self) -> pd.DataFrame:
        """Return one row per trial and stage: the delayed stage, the delay, and the seconds recovered in each stage."""
        import pandas as pd

        rows = [
            (number, trial.stage, trial.injected_seconds, stage, seconds)
            for number, trial in enumerate(self.trials)
            for stage, seconds in trial.recovered_seconds.items()
        ]
        columns = ["trial", "injected_into", "injected_seconds", "stage", "recovered_seconds"]
        return pd.DataFrame(rows, columns=columns)


def _error(values: Sequence[float]) -> float:
    """Return the standard error of a median: 1.253 sd / √n for a normal core, with sd from the MAD."""
    middle = median(values)
    return 1.253 * 1.4826 * median(abs(value - middle) for value in values) / sqrt(len(values))


def _pairs(ledger: Ledger, spiked: Sequence[bool]) -> Iterator[dict[str, float]]:
    """Yield for each pair of adjacent steps: stage → the delayed step's seconds less the other's."""
    timeline = "device" if ledger.cuda else "host"
    frame: dict[int, dict[str, float]] = {}
    for line, step, stage, seconds in ledger.rows():
        if line == timeline and stage != "step" and seconds is not None:
            frame.setdefault(step, {})[stage] = seconds
    for first in range(0, len(ledger) - 1, 2):
        delayed, other = (first, first + 1) if spiked[first] else (first + 1, first)
        stages = frame[delayed].keys() & frame[other].keys()
        yield {stage: frame[delayed][stage] - frame[other][stage] for stage in stages}


def _run(
    loop: Callable[[Ledger], object], stage: str | None, seconds: float, choices: random.Random
) -> list[dict[str, float]]:
    """Run the loop once with a delay in one step of every two, and return each pair's differences by stage."""
    spiked: list[bool] = []

    def spike(step: int) -> tuple[str, float] | None:
        while len(spiked) <= step + 1:
            first = choices.random() < 0.5
            spiked.extend((first, not first))
        return (stage, seconds) if spiked[step] and stage is not None else None

    with Ledger(spike=spike) as ledger:
        loop(ledger)
    if len(ledger) < 2:
        raise ValueError(f"the loop took {len(ledger)} steps under its ledger, expected at least 2")
    return list(_pairs(ledger, spiked))


def spike_in(
    loop: Callable[[Ledger], object],
    *,
    stages: Sequence[str],
    seconds: Sequence[float] = (0.0, 0.0002, 0.0005, 0.001, 0.002, 0.005),
    trials: int = 5,
    most_steps: int = 400,
    rank: int | None = None,
    seed: int = 0,
) -> SpikeIn:
    """Run a loop repeatedly with delays of known length in known stages, in random order.

    In each trial, one step of every two adjacent ones, chosen at random, is delayed by spinning on the host, so that
    drifts from pair to pair cancel. The delay comes last in its stage: caches are cold after it, so the following
    work takes longer, by some hundredths of the delay on a busy machine, which is not the delay. On CUDA a delay of
    the host appears on the device's timeline only where the device is not behind the host; it is then recovered in the
    stage in which the device is idle.

    **Arguments:**

    - `loop`: takes a ledger and runs some tens of steps under it; the same work each time.
    - `stages`: the stages to delay; `other` is between the first two stages.
    - `seconds`: the lengths of the delays; 0 is a blank, which the detection limit needs.
    - `trials`: number of trials of each stage and length.
    - `most_steps`: largest number of steps of one trial. A trial runs the loop until its standard error is 3 % of the
      delay (of the shortest delay, for a blank) or it has taken this many.
    - `rank`: delay only this rank of those that torchrun started; every rank by default.
    - `seed`: seed of the order of trials and of the choice of steps.

    **Raises:** `InputError` without a stage, a trial or a length above 0; `ValueError` if a stage never ran or the loop
    took fewer than two steps.
    """
    if not stages:
        raise InputError(f"stages is {stages!r}, expected at least one, such as 'forward'")
    if not any(seconds) or not all(isfinite(length) and length >= 0 for length in seconds):
        raise InputError(f"seconds is {seconds!r}, expected lengths of delays, one of them above 0")
    check_whole("trials is", trials, least=1)
    plan = [(stage, length) for stage in stages for length in seconds for _ in range(trials)]
    choices = random.Random(seed)
    choices.shuffle(plan)
    delay_here = rank is None or rank == int(os.environ.get("RANK", "0"))
    results = []
    for stage, length in plan:
        pairs: list[dict[str, float]] = []
        while True:
            pairs += _run(loop, stage if delay_here else None, length, choices)
            names = dict.fromkeys(name for pair in pairs for name in pair)
            if stage not in names:
                raise ValueError(f"stage {stage!r} never ran; the loop's stages are {', '.join(names)}")
            columns = {name: [pair[name] for pair in pairs if name in pair] for name in names}
            if 2 * len(pairs) >= most_steps or _error(columns[stage]) <= 0.03 * (length or min(filter(None, seconds))):
                break
        recovered = {name: median(values) for name, values in columns.items()}
        errors = {name: _error(values) for name, values in columns.items()}
        results.append(Trial(stage, length, recovered, errors, len(pairs)))
    return SpikeIn(results, busy_percent(conditions()))
