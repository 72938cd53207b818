"""Spike-in: a known delay is put into a loop, and the ledger must give it back, there and of that size."""

from __future__ import annotations

import math
import os
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

from tclab.timing.ledger import Ledger

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Trial:
    """One run of the loop with a delay in half of its steps.

    **Arguments:**

    - `stage`, `injected_seconds`: where the delay was put and how long it was; 0 in a blank.
    - `recovered_seconds`: stage → the median over pairs of neighbouring steps of the delayed step's time on that
      stage less the other's.
    - `error_seconds`: stage → the standard error of that median.
    - `pairs`: how many.
    """

    stage: str
    injected_seconds: float
    recovered_seconds: dict[str, float]
    error_seconds: dict[str, float]
    pairs: int

    @property
    def found_stage(self) -> str:
        """The stage that grew the most for certain: by its median less two standard errors."""
        return max(
            self.recovered_seconds, key=lambda stage: self.recovered_seconds[stage] - 2 * self.error_seconds[stage]
        )

    def recovered(self, tolerance: float = 0.1) -> bool:
        """Whether the delay came back on its stage, and within `tolerance` of its length."""
        apart = abs(self.recovered_seconds.get(self.stage, 0.0) - self.injected_seconds)
        return self.found_stage == self.stage and apart <= tolerance * self.injected_seconds


@dataclass(frozen=True)
class Response:
    """How the ledger answers delays on one stage.

    **Arguments:**

    - `slope`: recovered over injected, by Theil and Sen, with its 95 % interval; `None` for one length alone.
    - `detection_limit_seconds`: 3.3 standard deviations of the blanks over the slope (ICH Q2(R1), section 6.3.1);
      `None` with fewer than two blanks.
    - `share`: of its trials with a delay, those that came back within 10 % on the right stage.
    - `trials`: how many had a delay.
    """

    stage: str
    slope: float | None
    slope_interval: tuple[float, float] | None
    detection_limit_seconds: float | None
    share: float
    trials: int


@dataclass(frozen=True)
class SpikeIn:
    """All trials of a spike-in; `responses` sums them up by stage."""

    trials: list[Trial]

    def share(self, tolerance: float = 0.1) -> float:
        """Return the share of trials with a delay that came back within `tolerance` on the right stage."""
        spiked = [trial for trial in self.trials if trial.injected_seconds]
        return sum(trial.recovered(tolerance) for trial in spiked) / len(spiked)

    def responses(self) -> list[Response]:
        """Return slope and detection limit for each stage."""
        import numpy as np
        from scipy import stats

        found = []
        for stage in dict.fromkeys(trial.stage for trial in self.trials):
            own = [trial for trial in self.trials if trial.stage == stage]
            injected = [trial.injected_seconds for trial in own]
            recovered = [trial.recovered_seconds.get(stage, 0.0) for trial in own]
            slope = interval = limit = None
            if len(set(injected)) > 1:
                fit = stats.theilslopes(recovered, injected)
                slope, interval = float(fit.slope), (float(fit.low_slope), float(fit.high_slope))
            blanks = [r for i, r in zip(injected, recovered, strict=True) if not i]
            if slope and len(blanks) > 1:
                limit = 3.3 * float(np.std(blanks, ddof=1)) / slope
            spiked = [trial for trial in own if trial.injected_seconds]
            share = sum(trial.recovered() for trial in spiked) / len(spiked)
            found.append(Response(stage, slope, interval, limit, share, len(spiked)))
        return found

    def frame(self) -> pd.DataFrame:
        """Return one row per trial and stage: where, how long, and what came back on that stage."""
        import pandas as pd

        return pd.DataFrame(
            [
                {
                    "trial": number,
                    "injected_into": trial.stage,
                    "injected_seconds": trial.injected_seconds,
                    "stage": stage,
                    "recovered_seconds": seconds,
                }
                for number, trial in enumerate(self.trials)
                for stage, seconds in trial.recovered_seconds.items()
            ]
        )


def _error(values: Sequence[float]) -> float:
    """Return the standard error of a median: 1.253 sd / √n for a normal core, whose sd the MAD gives."""
    middle = median(values)
    return 1.253 * 1.4826 * median(abs(value - middle) for value in values) / math.sqrt(len(values))


def _pairs(ledger: Ledger, spiked: Sequence[bool]) -> Iterator[dict[str, float]]:
    """Yield for each pair of neighbouring steps what each stage took more in the delayed one."""
    timeline = "device" if ledger.cuda else "host"
    frame: dict[int, dict[str, float]] = {}
    for line, step, stage, seconds in ledger.rows():
        if line == timeline and stage != "step" and seconds is not None:
            frame.setdefault(step, {})[stage] = seconds
    for first in range(0, len(ledger) - 1, 2):
        with_it, without = (first, first + 1) if spiked[first] else (first + 1, first)
        stages = frame[with_it].keys() & frame[without].keys()
        yield {stage: frame[with_it][stage] - frame[without][stage] for stage in stages}


def _run(
    loop: Callable[[Ledger], object], stage: str | None, seconds: float, lots: random.Random
) -> list[dict[str, float]]:
    """Run the loop once with a delay in one step of every two, and return what each pair shows."""
    spiked: list[bool] = []

    def spike(step: int) -> tuple[str, float] | None:
        while len(spiked) <= step + 1:
            first = lots.random() < 0.5
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
    """Run a loop again and again with delays of known length in known stages, in random order.

    In each trial one step of every two neighbours, by lot, is delayed by spinning on the host, so that whatever
    drifts from pair to pair cancels. The delay is the last thing in its stage: caches are cold after it, so what
    comes next takes longer, by some hundredths of the delay on a busy machine, and that is not the delay. On CUDA a
    delay of the host shows on the device's timeline only where the device is not behind: what is looked at there is
    the stage in which the device stood still.

    **Arguments:**

    - `loop`: takes a ledger and runs some steps under it, a few tens say; the same work each time.
    - `stages`: where delays go; `other` is between the first two stages.
    - `seconds`: how long; 0 is a blank, which the detection limit is made from.
    - `trials`: how many of each.
    - `most_steps`: of one trial. It runs the loop until its standard error is 3 % of the delay (of the shortest
      delay, for a blank), or until it has taken that many.
    - `rank`: delay this rank alone, of those that torchrun started; every rank unless given.
    - `seed`: of the order and the lots.

    **Raises:** `ValueError` where a stage never ran or the loop took fewer than two steps.
    """
    plan = [(stage, length) for stage in stages for length in seconds for _ in range(trials)]
    lots = random.Random(seed)
    lots.shuffle(plan)
    mine = rank is None or rank == int(os.environ.get("RANK", "0"))
    found = []
    for stage, length in plan:
        pairs: list[dict[str, float]] = []
        while True:
            pairs += _run(loop, stage if mine else None, length, lots)
            every = dict.fromkeys(name for pair in pairs for name in pair)
            if stage not in every:
                raise ValueError(f"stage {stage!r} never ran; the loop's stages are {', '.join(every)}")
            columns = {name: [pair[name] for pair in pairs if name in pair] for name in every}
            if 2 * len(pairs) >= most_steps or _error(columns[stage]) <= 0.03 * (
                length or min(filter(None, seconds))
            ):
                break
        found.append(
            Trial(
                stage,
                length,
                {name: median(values) for name, values in columns.items()},
                {name: _error(values) for name, values in columns.items()},
                len(pairs),
            )
        )
    return SpikeIn(found)
