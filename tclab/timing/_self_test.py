"""Self-test of the ledger: known delays that it must recover from a loop, and what timing the loop costs."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import isfinite, sqrt
from statistics import fmean, median, stdev
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

from tclab._display import Display, Shown, seconds_text
from tclab.errors import InputError, check_whole
from tclab.timing._environment import busy_notes, busy_percent, conditions
from tclab.timing._ledger import Ledger, NullLedger

if TYPE_CHECKING:
    from tclab.timing._race import Race

_TOLERANCE = 0.1  # share of a delay by which what is recovered may differ from it
_STANDARD_ERROR = 0.03  # of a delay, at which a trial ends
_DETECTION = 3.3  # standard deviations of the blanks (ICH Q2(R1), section 6.3.1)
_LENGTHS = (0.0, 0.0002, 0.0005, 0.001, 0.002, 0.005)  # seconds


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

    def recovered(self) -> bool:
        """Whether the delay was recovered in its stage, and its length within 10 %."""
        difference = abs(self.recovered_seconds.get(self.stage, 0.0) - self.injected_seconds)
        return self.found_stage == self.stage and difference <= _TOLERANCE * self.injected_seconds


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

    def share(self) -> float:
        """Return the share of the trials with a delay that were recovered in the right stage within 10 %."""
        return fmean(trial.recovered() for trial in self.trials if trial.injected_seconds)

    def responses(self) -> list[Response]:
        """Return slope and detection limit of each stage."""
        from scipy import stats

        responses = []
        for stage in dict.fromkeys(trial.stage for trial in self.trials):
            of_stage = SpikeIn([trial for trial in self.trials if trial.stage == stage])
            injected = [trial.injected_seconds for trial in of_stage.trials]
            recovered = [trial.recovered_seconds.get(stage, 0.0) for trial in of_stage.trials]
            blanks = [seconds for length, seconds in zip(injected, recovered, strict=True) if not length]
            slope = interval = limit = None
            if len(set(injected)) > 1:
                fit = stats.theilslopes(recovered, injected)
                slope, interval = float(fit.slope), (float(fit.low_slope), float(fit.high_slope))
            if slope and len(blanks) > 1:
                limit = _DETECTION * stdev(blanks) / slope
            spiked = len(injected) - len(blanks)
            responses.append(Response(stage, slope, interval, limit, of_stage.share(), spiked))
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


def _error(values: Sequence[float]) -> float:
    """Return the standard error of a median: 1.253 sd / √n for a normal core, with sd from the MAD."""
    middle = median(values)
    return 1.253 * 1.4826 * median(abs(value - middle) for value in values) / sqrt(len(values))


def _pairs(
    loop: Callable[[Ledger], object], stage: str, seconds: float, choices: random.Random
) -> Iterator[dict[str, float]]:
    """Run the loop with a delay in one step of every two; yield for each pair: stage → what the delayed took longer."""
    spiked: list[bool] = []

    def spike(step: int) -> tuple[str, float] | None:
        while len(spiked) <= step + 1:
            first = choices.random() < 0.5
            spiked.extend((first, not first))
        return (stage, seconds) if spiked[step] else None

    with Ledger(spike=spike) as ledger:
        loop(ledger)
    if len(ledger) < 2:
        raise ValueError(f"the loop took {len(ledger)} steps under its ledger, expected at least 2")
    steps: list[dict[str, float]] = [{} for _ in range(len(ledger))]
    for timeline, step, name, took in ledger.rows():
        if timeline == ("device" if ledger.cuda else "host") and name != "step" and took is not None:
            steps[step][name] = took
    for i in range(0, len(steps) - 1, 2):
        delayed, other = (steps[i], steps[i + 1]) if spiked[i] else (steps[i + 1], steps[i])
        yield {name: delayed[name] - other[name] for name in delayed.keys() & other.keys()}


def spike_in(
    loop: Callable[[Ledger], object],
    *,
    stages: Sequence[str],
    seconds: Sequence[float] = _LENGTHS,
    trials: int = 5,
    most_steps: int = 400,
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

    **Raises:** `InputError` without a stage, a trial or a length above 0; `ValueError` if a stage never ran or the loop
    took fewer than two steps.
    """
    if not stages:
        raise InputError(f"stages is {stages!r}, expected at least one, such as 'forward'")
    if not any(seconds) or not all(isfinite(length) and length >= 0 for length in seconds):
        raise InputError(f"seconds is {seconds!r}, expected lengths of delays, one of them above 0")
    check_whole("trials is", trials, least=1)
    plan = [(stage, length) for stage in stages for length in seconds for _ in range(trials)]
    choices = random.Random(0)  # of the order of trials and of the delayed steps
    choices.shuffle(plan)
    results = []
    for stage, length in plan:
        pairs: list[dict[str, float]] = []
        wanted = _STANDARD_ERROR * (length or min(filter(None, seconds)))
        errors: dict[str, float] = {}
        while not pairs or (2 * len(pairs) < most_steps and errors[stage] > wanted):
            pairs += _pairs(loop, stage, length, choices)
            names = dict.fromkeys(name for pair in pairs for name in pair)
            if stage not in names:
                raise ValueError(f"stage {stage!r} never ran; the loop's stages are {', '.join(names)}")
            columns = {name: [pair[name] for pair in pairs if name in pair] for name in names}
            errors = {name: _error(values) for name, values in columns.items()}
        recovered = {name: median(values) for name, values in columns.items()}
        results.append(Trial(stage, length, recovered, errors, len(pairs)))
    return SpikeIn(results, busy_percent(conditions()))


@dataclass(frozen=True, repr=False)
class Receipt(Shown):
    """The cost of timing a loop with a ledger.

    **Arguments:**

    - `ratio`: time of the loop with a ledger over its time without, from a race of the two.
    - `interval`: 95 % interval of `ratio`.
    - `step_seconds`: a step without a ledger; where the race has no time of it, one with it, less `cut_seconds`.
    - `cut_seconds`: the ledger's own work in one step, measured on steps that contain only the same stages.
    - `race`: the race that `ratio` comes from.
    """

    ratio: float | None
    interval: tuple[float, float] | None
    step_seconds: float | None
    cut_seconds: float
    race: Race

    @property
    def share(self) -> float | None:
        """The ledger's own work, as a share of a bare step."""
        return self.cut_seconds / self.step_seconds if self.step_seconds else None

    def _display(self) -> Display:
        own = f"the ledger's own work is {self.cut_seconds * 1e6:.1f} µs a step"
        if self.share is not None and self.step_seconds is not None:
            own += f", {self.share:.3%} of {self.step_seconds * 1e3:.3g} ms"
        compared = "the race had too few rounds"
        if self.ratio is not None and self.interval is not None:
            low, high = self.interval
            compared = f"steps with it take {self.ratio:.4f} × [{low:.4f}, {high:.4f}] the time of bare ones"
        return Display(notes=[f"{own}; {compared}", *busy_notes(self.race.busy_percent)])


def _cut_seconds(stages: list[str]) -> float:
    """Return the median time of an empty step with these stages under a ledger, less that under a `NullLedger`."""

    def took(ledger: Ledger | NullLedger) -> float:
        outer = Ledger(cuda=False)
        for _ in outer.steps(range(20)):
            for _ in ledger.steps(range(100)):
                for name in stages:
                    with ledger.stage(name):
                        pass
        return median(outer.seconds()["other"]) / 100

    return max(0.0, took(Ledger(cuda=False)) - took(NullLedger()))


def receipt(
    loop: Callable[[Any], object], *, budget_seconds: float = 20.0, clock: Callable[[], int] = perf_counter_ns
) -> Receipt:
    """Race a loop under a ledger against the same loop without one.

    **Arguments:**

    - `loop`: takes a `Ledger` or a `NullLedger` and runs its steps under it; the same work each time.
    - `budget_seconds`: wall time for the race. A ledger costs some microseconds a step: where the time of a step varies
      by more, the interval is wide, and `cut_seconds` is the better figure.
    - `clock`: returns nanoseconds; for tests of the race.
    """
    from tclab.timing._race import race

    ledger = Ledger()
    loop(ledger)
    seconds = ledger.seconds()
    cut = _cut_seconds([name for name in seconds if name not in ("data_wait", "other", "step")])
    arms = {"instrumented": lambda: loop(Ledger()), "bare": lambda: loop(NullLedger())}
    result = race(arms, budget_seconds=budget_seconds, clock=clock)
    pair = result.pair("instrumented", "bare")
    bare = max(0.0, fmean(seconds["step"]) - cut) if len(ledger) else None
    if pair.ratio is not None:
        bare = median(s["seconds"] for s in result.samples() if s["arm"] == "bare") / max(1, len(ledger))
    return Receipt(pair.ratio, pair.interval, bare, cut, result)
