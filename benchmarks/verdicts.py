"""Are verdicts right? Attacks on made-up races, folders of rows, and real points whose true ratio is known.

    python benchmarks/verdicts.py [--races 200] [--folders 0] [--pairs 0]

1. Attacks: made-up races in which the arms' true ratio is known and each arm has noise of its own: false verdicts of
   equal arms, SAME of unequal ones, real differences that are found, SAME that is reached. It prints the table of
   docs/verdicts.md, on one core some 25 minutes for 200 races.
2. `--folders 200`: how often does `tclab.compare` tell folders of equal points apart, and how often are 10 % found?
3. `--pairs 40`: real races of a point with itself in fresh processes, a minute each. docs/race_commits.md has some
   of code that is slower.

0 skips a part.
"""

import os
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from cyclopts import run
from scipy.stats import binomtest

from tclab import Point
from tclab.sweeps import race_points
from tclab.sweeps._race_points import PROCESSES
from tclab.sweeps.analysis._compare_runs import pairs_of_runs
from tclab.timing._race import EARLY
from tclab.timing._race_blocks import order_of
from tclab.timing._verdict import FASTER, SAME, SLOWER, UNDECIDED, Pair

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tools"))
import synthetic_machine as noise
from synthetic_machine import GRID_SECONDS, memory_noise, pair_of, switching, wave

ROUNDS = 320  # of a made-up race
Paths = Callable[[np.random.Generator, float], Sequence[Any]]


def share(found: int, of: int) -> str:
    """Return a share with its 95 % binomial interval (Clopper and Pearson)."""
    low, high = binomtest(found, of).proportion_ci(0.95)
    return f"{100 * found / of:.1f} % [{100 * low:.1f}, {100 * high:.1f}]"


@dataclass(frozen=True)
class Attack:
    """Two arms on a machine that disturbs each in its own way."""

    name: str
    # the disturbances of the two arms, given a generator and a race's seconds; see `synthetic_machine`
    own: Paths = lambda generator, seconds: (None, None)
    ratio: float = 1.0  # true time of `a` over time of `b`
    processes: int = 1  # that take turns
    luck: float = 0.0  # standard deviation of each process's and arm's own log time
    quiet: bool = False  # whether the machine adds no noise to both arms that lasts, and no outliers
    independent: float = 0.01  # standard deviation of each block's log time

    def samples(self, seed: int, seconds: float) -> list[dict[str, Any]]:
        """Return the samples of a race to the end of its budget."""
        generator = np.random.default_rng([seed, 3])
        turns = 4 * self.processes
        rounds = ROUNDS // turns * turns
        at = (np.arange(4 * rounds) + 0.5) * seconds / (4 * rounds)
        grid = (at / GRID_SECONDS).astype(int)
        turn = np.arange(rounds) * turns // rounds
        second = np.array([[arm == "b" for arm in order_of("ab", i)] for i in range(rounds)]).ravel()
        logs = self.independent * generator.standard_normal(4 * rounds) + np.where(second, 0.0, np.log(self.ratio))
        if not self.quiet:
            logs += memory_noise(generator, seconds, deviation=0.05, memory=0.5)[grid]
            logs += noise.slow_tail(generator, 4 * rounds * GRID_SECONDS, share=0.02, size=0.2)
        for arm, path in enumerate(self.own(generator, seconds)):
            if path is not None:
                logs += np.where(second == arm, path[grid], 0.0)
        lucky = generator.normal(0, self.luck, (self.processes, 2))
        process = np.repeat(turn % self.processes, 4)
        logs += lucky[process, second.astype(int)]
        columns = {"calls": 1, "process": process, "round": np.arange(4 * rounds) // 4}
        columns |= {"position": np.arange(4 * rounds) % 4, "arm": np.where(second, "b", "a")}
        return pd.DataFrame({**columns, "seconds": np.exp(logs), "spent_seconds": at}).to_dict("records")

    def pair(self, seed: int, seconds: float) -> Pair:
        """Return the comparison at the end of a race: at half of its budget if the arms are far apart."""
        samples = self.samples(seed, seconds)
        before = [s for s in samples if s["spent_seconds"] <= seconds / 2]
        if _may_be_far(before):
            pair = pair_of(before)
            low, high = pair.interval or (1.0, 1.0)
            if pair.verdict != UNDECIDED and (high < 1 / EARLY or low > EARLY):
                return pair
        return pair_of(samples)


def _may_be_far(samples: Sequence[dict[str, Any]]) -> bool:
    """Return whether an interval may lie beyond ±30 %, which is costly to compute."""
    medians = [np.median([s["seconds"] for s in samples if s["arm"] == arm]) for arm in "ab"]
    return bool(abs(np.log(medians[0] / medians[1])) > 0.2)


def each(path: Callable[..., Any], **settings: Any) -> Paths:
    """Return the disturbances of two arms, each by itself of one kind."""
    return lambda generator, seconds: [path(generator, seconds, **settings) for _ in range(2)]


def one(path: Callable[..., Any], **settings: Any) -> Paths:
    """Return the disturbances of two arms of which only the first has any."""
    return lambda generator, seconds: (path(generator, seconds, **settings), None)


def _beats(generator: np.random.Generator, seconds: float) -> Sequence[Any]:
    """Return pulses that hit both arms alike, at a period within 3 % of half, one or two rounds' length."""
    period = seconds / ROUNDS * generator.choice([0.5, 1.0, 2.0]) * generator.uniform(0.97, 1.03)
    return [noise.interference(generator, seconds, period=period, share=0.25, size=0.2)] * 2


MILD = each(memory_noise, deviation=0.02, memory=0.5)
SIX_PERCENT, LEVELS = (0.0, 0.06), (0.0, 0.02, 0.05, 0.12)
EQUAL = (  # some were tuned on, with other seeds
    *(
        Attack(f"normal noise of 5 %, memory {memory:g} s", each(memory_noise, deviation=0.05, memory=memory))
        for memory in (0.5, 3, 15, 60, 240)
    ),
    Attack("normal noise of 5 %, memory 60 s, 4 processes", each(memory_noise, deviation=0.05, memory=60), processes=4),
    Attack("normal noise of 5 %, memory 60 s, one arm", one(memory_noise, deviation=0.05, memory=60), quiet=True),
    Attack("one arm is 10 % off for a tenth", one(noise.regimes, share=0.1, size=0.1)),
    Attack("one arm is 10 % off for a tenth, in 3 stretches", one(noise.regimes, share=0.1, size=0.1, stretches=3)),
    Attack("drifts that differ by arm", each(noise.drift, size=0.05)),
    Attack("pulses near the round's length", _beats),
    Attack("a slow tail on one arm", one(noise.slow_tail, share=0.1, size=0.05)),
    *(Attack(f"luck of {100 * luck:g} %, 4 processes", processes=4, luck=luck) for luck in (0.005, 0.01, 0.02)),
    Attack("mild noise", MILD),
    Attack("two states 6 % apart, 25 s each", each(switching, levels=SIX_PERCENT, stay=25), quiet=True),
    Attack("two states 6 % apart, 25 s each, noisy machine", each(switching, levels=SIX_PERCENT, stay=25)),
    Attack("two states 50 % apart, 10 s each", each(switching, levels=(0.0, 0.4), stay=10), quiet=True),
    Attack("waves of 4 %, period 90 s", each(wave, size=0.04, period=90), quiet=True),
    Attack("waves of 4 %, period 90 s, noisy machine", each(wave, size=0.04, period=90)),
    Attack("four states, 10 s each", each(switching, levels=LEVELS, stay=10)),
    Attack("1/f noise of 3 %", each(noise.pink, deviation=0.03)),
)  # fmt: skip
UNSEEN = (  # written when all was settled, and never tuned on
    Attack("heavy bursts, one in 5 s", each(noise.bursts, every=5, size=0.05)),
    Attack("ramps between heights of 4 %, every 8 s", each(noise.ramps, size=0.04, every=8), quiet=True),
    Attack("noise of 3 % whose strength changes", each(noise.volatile, deviation=0.03), quiet=True),
    Attack("throttled by 10 % every 15 s", each(noise.throttled, every=15, size=0.1), quiet=True),
    Attack("noise that grows to 10 %", each(noise.growing, deviation=0.1), quiet=True),
    Attack("wandering pulses of 6 %, period 7 s", each(noise.wandering_pulses, period=7, size=0.06), quiet=True),
    Attack("noise that grows to 10 %, 4 processes", each(noise.growing, deviation=0.1), processes=4),
)
APART = tuple(
    Attack(f"mild noise, {100 * size:g} % apart{words}", MILD, 1 / (1 + size), **how)
    for words, how in (("", {}), (", 4 processes", {"processes": 4}), (", quiet machine", {"quiet": True}))
    for size in (0.05, 0.10)
)
NEARLY = (  # just beyond the margin: SAME would be wrong
    Attack("2.2 % apart, mild noise", MILD, 1.022),
    Attack("2.1 % apart, noise of 0.3 %", each(memory_noise, deviation=0.003, memory=0.5), 1.021, quiet=True),
    Attack("2.2 % apart, normal noise of 2 %, memory 60 s", each(memory_noise, deviation=0.02, memory=60), 1.022),
    Attack("2.2 % apart, waves of 2 %, period 90 s", each(wave, size=0.02, period=90), 1.022),
    Attack("2.2 % apart, two states 2 % apart, 25 s each", each(switching, levels=(0.0, 0.02), stay=25), 1.022),
)
ALIKE = (
    Attack("equal, mild noise", MILD, quiet=True),
    Attack("equal, noise of 1 %, memory 0.5 s", each(memory_noise, deviation=0.01, memory=0.5), quiet=True),
    Attack("1 % apart, noise of 1 %, memory 0.5 s", each(memory_noise, deviation=0.01, memory=0.5), 1.01, quiet=True),
)
LASTING = (  # longer than a part of 60 s, so beyond what is promised there
    Attack("two states 6 % apart, 60 s each", each(switching, levels=SIX_PERCENT, stay=60), quiet=True),
    Attack("waves of 4 %, period 360 s", each(wave, size=0.04, period=360), quiet=True),
    Attack("four states, 30 s each", each(switching, levels=LEVELS, stay=30), quiet=True),
)
ROWS = {
    "false": EQUAL,
    "false (never tuned on)": UNSEEN,
    "found": APART,
    "wrongly SAME": NEARLY,
    "SAME": ALIKE,
    "false (beyond the promise)": LASTING,
}
FIRST_SEED = 1000  # below are those that were tuned on


def counted(attack: Attack, what: str, races: int, seconds: float) -> tuple[int, Counter[str]]:
    """Return how many of so many races ended so, and their verdicts."""
    counts = Counter(attack.pair(FIRST_SEED + seed, seconds).verdict for seed in range(races))
    # an attack whose ratio is above 1 is truly SLOWER
    right = {"false": 0, "found": counts[FASTER], "wrongly SAME": counts[SAME], "SAME": counts[SAME]}
    hit = counts[FASTER] + counts[SLOWER] if what.startswith("false") else right[what]
    return hit, counts


def attacked(races: int) -> None:
    """Print a row for each attack."""
    print("| attack | share of verdicts that are | 60 s | 300 s |", "|---|---|---|---|", sep="\n")
    for what, attacks in ROWS.items():
        for attack in attacks:
            cells = [share(counted(attack, what, races, seconds)[0], races) for seconds in (60.0, 300.0)]
            print(f"| {attack.name} | {what} | {' | '.join(cells)} |", flush=True)


def side(generator: np.random.Generator, runs: int, luck: float, ratio: float) -> pd.DataFrame:
    """Return the rows of a point's runs, as far as `tclab.compare` reads them; steps within one differ by 1 %."""
    logs = np.log(0.1 * ratio) + luck * generator.standard_normal((runs, 1))
    steps = np.exp(logs + 0.01 * generator.standard_normal((runs, 24)))
    return pd.DataFrame({"status": "ok", "samples_seconds": steps.tolist(), "cycle_steps": 1, "steady": "steady",
                         "contention": None})  # fmt: skip


def compared(n: int, points: int = 8) -> None:
    """Print how often folders of equal points are told apart in any point, and how many points 10 % apart are found."""
    print("| runs | processes differ by | false | found |\n|---|---|---|---|")
    for runs in ((1, 1), (3, 3), (5, 5), (5, 2), (4, 1)):
        for lucks in ((0.005, 0.005), (0.02, 0.02), (0.05, 0.05), (0.01, 0.05)):
            told = found = 0
            for seed in range(n):
                generator = np.random.default_rng([seed, 17])
                for ratio in (1.0, 0.9):
                    made = [
                        (str(i), side(generator, runs[0], lucks[0], 1.0), side(generator, runs[1], lucks[1], ratio))
                        for i in range(points)
                    ]
                    counts = Counter(pair.verdict for pair in pairs_of_runs(made, [("first", "second")] * points))
                    told += ratio == 1 and counts[FASTER] + counts[SLOWER] > 0
                    found += counts[FASTER] * (ratio != 1)
            apart = " and ".join(f"{100 * luck:g} %" for luck in dict.fromkeys(lucks))
            print(f"| {runs[0]} and {runs[1]} | {apart} | {share(told, n)} | {share(found, n * points)} |", flush=True)


POINT = Point(scale=0.02, batch_size=4, networks=2, workers=0, device="cpu")


def real(n: int) -> None:
    """Print each of so many real races of a point with itself, and the share of each verdict."""
    counts: Counter[str] = Counter()
    for _ in range(n):
        pair = race_points({"a": POINT, "b": POINT}, budget_seconds=60).pair("a", "b")
        counts[pair.verdict] += 1
        print(f"    {pair}; load {os.getloadavg()[0]:.1f}", flush=True)
    shares = "; ".join(f"{verdict} {share(found, n)}" for verdict, found in counts.items())
    print(f"a point with itself, {PROCESSES} processes, 60 s: {shares}")


def main(*, races: int = 200, folders: int = 0, pairs: int = 0) -> None:
    if races:
        attacked(races)
    if folders:
        compared(folders)
    if pairs:
        real(pairs)


if __name__ == "__main__":
    main.__doc__ = __doc__
    run(main)
