"""Are verdicts right? Attacks on made-up races and folders whose true ratio is known, and races of this machine.

    python benchmarks/verdicts.py [--races 200] [--folders 0]
    python benchmarks/verdicts.py --real --minutes 90

1. Attacks: made-up races of 60 s in which the arms' true ratio is known and noise hits both or each alone: false
   verdicts of equal arms, SAME of unequal ones, real differences that are found, SAME that is reached. It prints the
   table of docs/verdicts.md, on one core some five minutes for 200 races. Of an attack's cells, rounds and noise of a
   block, a row has the worst.
2. `--folders 200`: how often does `tclab.compare` tell folders of equal points apart, and how often are 10 % found?
3. `--real`: races of equal arms, quiet and beside a busy process, and of arms 10 % apart, as many as fit the minutes.
"""

import os
import subprocess
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from cyclopts import run
from scipy.stats import binomtest

from tclab.sweeps._compare import pairs_of_runs
from tclab.timing import race, race_commands, verdicts_of
from tclab.timing._loader_arm import DRAWN
from tclab.timing._race_blocks import orders_of
from tclab.timing._verdict import FASTER, SAME, SLOWER, Pair, sentence_of

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tools"))
import synthetic_machine as noise
from synthetic_machine import GRID_SECONDS

SECONDS = 60.0  # of a made-up race
TURNS = 8
LONGEST = SECONDS / 12  # that noise of one arm may last
Path_ = Callable[[np.random.Generator, float], Any]


def share(found: int, of: int) -> str:
    """Return a share with its 95 % binomial interval (Clopper and Pearson)."""
    low, high = binomtest(found, of).proportion_ci(0.95)
    return f"{100 * found / of:.1f} % [{100 * low:.1f}, {100 * high:.1f}]"


@dataclass(frozen=True)
class Attack:
    """Arms on a machine that disturbs them; the first takes `ratio` times as long as the others."""

    name: str
    own: Path_ | None = None  # of each arm by itself; see `synthetic_machine`
    one: Path_ | None = None  # of the second arm alone
    common: Path_ | None = None  # of all arms
    wave_rounds: float = 0.0  # period of a wave of ±30 % that hits all arms
    ratio: float = 1.0
    arms: int = 2
    processes: int = 1  # that take turns
    luck: float = 0.0  # standard deviation of each process's and arm's own log time
    carry: float = 0.0  # share by which a block is slower that another arm's precedes
    first: float = 0.0  # share by which the first block of a round is slower
    stalls: float = 0.0  # per second, of 10 ms times a Pareto variate of shape 1.5
    cells: tuple[tuple[int, float], ...] = ((320, 0.01), (50, 0.04), (10, 0.01))  # rounds, noise of a block's log time

    def samples(self, seed: int, rounds: int, block_noise: float) -> list[dict[str, Any]]:
        """Return the samples of a race."""
        generator, names, n = np.random.default_rng([seed, rounds]), "abcdef"[: self.arms], 2 * self.arms
        DRAWN.seed(seed)
        turns = [len(part) for part in np.array_split(np.arange(rounds), TURNS)]
        orders = [
            order for turn, length in enumerate(turns) for order in islice(orders_of(names, as_given=not turn), length)
        ]
        arm = np.array([[names.index(name) for name in order] for order in orders]).ravel()
        turn = np.repeat(np.arange(TURNS), turns).repeat(n)
        edges = np.linspace(0, SECONDS / GRID_SECONDS, rounds * n + 1)
        logs = block_noise * generator.standard_normal(len(arm)) + np.where(arm == 0, np.log(self.ratio), 0.0)
        wave = self.wave_rounds and partial(noise.wave, size=0.3, period=self.wave_rounds * SECONDS / rounds)
        paths = [(path, np.ones(len(arm), bool)) for path in (self.common, wave) if path]
        paths += [(self.own, arm == i) for i in range(self.arms) if self.own] + [(self.one, arm == 1)] * bool(self.one)
        for path, hit in paths:
            totals = np.concatenate([[0.0], np.cumsum(np.exp(path(generator, SECONDS)))])
            means = np.diff(np.interp(edges, np.arange(len(totals)), totals)) / np.diff(edges)
            logs += np.where(hit, np.log(means), 0.0)
        hits = generator.poisson(self.stalls * SECONDS / len(arm), len(arm))
        stalled = np.array([0.01 * (1 + generator.pareto(1.5, hit)).sum() for hit in hits])
        logs += np.log1p(stalled * len(arm) / SECONDS)
        logs += np.log1p(self.carry) * np.r_[False, arm[1:] != arm[:-1]]
        logs += np.log1p(self.first) * (np.arange(len(arm)) % n == 0)
        process = turn % self.processes
        logs += generator.normal(0, self.luck, (self.processes, self.arms))[process, arm]
        spent = np.arange(1, rounds + 1).repeat(n) * SECONDS / rounds
        columns = zip(process.tolist(), turn.tolist(), arm, np.exp(logs).tolist(), spent.tolist(), strict=True)
        return [
            {"process": p, "round": i // n, "turn": t, "position": i % n, "arm": names[a], "calls": 1, "period": 1,
             "seconds": s, "spent_seconds": end}
            for i, (p, t, a, s, end) in enumerate(columns)
        ]  # fmt: skip

    def pairs(self, seed: int, rounds: int, block_noise: float) -> list[Pair]:
        """Return the comparisons at the end of a race."""
        return verdicts_of(self.samples(seed, rounds, block_noise))


def path(kind: Callable[..., Any], **settings: Any) -> Path_:
    return partial(kind, **settings)


MILD = path(noise.memory_noise, deviation=0.02, memory=0.5)
STEPS = ((320, 0.01), (50, 0.05), (10, 0.01))  # of 0.02, 0.3 and 1.5 s
EQUAL = (
    *(Attack(f"one arm ±40 %, redrawn every {every:g} s", one=path(noise.redrawn, size=0.4, every=every), cells=STEPS)
      for every in (LONGEST, 3.7)),
    Attack("each arm AR(1) 30 %, memory 5 s", path(noise.memory_noise, deviation=0.3, memory=LONGEST),
           cells=((320, 0.01), (15, 0.05))),
    Attack("each arm AR(1) 5 %, memory 5 s", path(noise.memory_noise, deviation=0.05, memory=LONGEST),
           cells=((320, 0.1), (50, 0.05), (15, 0.05))),
    *(Attack(f"a wave of ±30 % on both, period of {rounds:g} rounds", wave_rounds=rounds) for rounds in (0.5, 1, 2, 4)),
    Attack("carry-over of 4 %", carry=0.04), Attack("carry-over of 20 %", carry=0.2),
    Attack("the first position 20 % slower", first=0.2),
    Attack("Pareto stalls on both", stalls=1.0),
    Attack("eight rounds, a block's noise 10 %", cells=((8, 0.1),)),
    *(Attack(f"luck of {100 * luck:g} %, {n} processes", processes=n, luck=luck, cells=((320, 0.01),))
      for n, luck in ((4, 0.01), (4, 0.03), (4, 0.05), (8, 0.1))),
    Attack("four arms, each AR(1) 30 %, memory 1.5 s: of any pair", path(noise.memory_noise, deviation=0.3, memory=1.5),
           arms=4, cells=((320, 0.01), (24, 0.04))),
    Attack("mild noise", MILD),
    Attack("states 6 % apart, 1 s each", path(noise.switching, levels=(0.0, 0.06), stay=1.0)),
    # looked at before the procedure was settled
    Attack("sawtooth of 10 %, 2 s", path(noise.sawtooth, size=0.1, period=2.0)),
    Attack("bursts of 50 %, 1 s long, every 5 s", path(noise.bursts, every=5.0, size=0.5)),
    Attack("a random walk of both", common=path(noise.walk, size=0.1)),
    Attack("a square wave of ±30 % on both, period 4.6 s", common=path(noise.square, size=0.3, period=SECONDS / 13)),
)  # fmt: skip
UNSEEN = (  # written when the procedure was settled
    Attack("states of any strength, 3 s each", path(noise.wild_states, size=0.1, stay=3.0)),
    Attack("a chirp of ±30 % on both, period 12 to 1.5 s",
           common=path(noise.chirp, size=0.3, longest=12.0, shortest=1.5)),
    Attack("common steps of clock speed, each arm's own response", path(noise.speeds, size=0.05, every=3.0),
           common=path(noise.speeds, size=0.2, every=3.0)),
    Attack("noise of 3 % whose strength changes", path(noise.volatile, deviation=0.03)),
)  # fmt: skip
APART = tuple(
    Attack(
        f"mild noise, {100 * size:g} % apart{words}", MILD, ratio=1 / (1 + size), processes=n, luck=luck, cells=cells
    )
    for words, n, luck in (("", 1, 0.0), (", 4 processes, luck 0.5 %", 4, 0.005))
    for size, cells in ((0.05, ((320, 0.01), (60, 0.01))), (0.10, ((320, 0.01), (60, 0.04), (10, 0.01))))
)
NEARLY = (  # just beyond the margin: SAME would be wrong
    *(Attack(f"{100 * size:.3g} % apart, {words}", own, ratio=1 + size, processes=n, luck=luck,
             cells=((320, 0.01), (16, 0.01)))
      for size in (0.0202, 0.022)
      for words, own, n, luck in (
          ("noise of 1 %, memory 5 s", path(noise.memory_noise, deviation=0.01, memory=LONGEST), 1, 0.0),
          ("mild noise", MILD, 1, 0.0), ("luck of 1 %, 4 processes", None, 4, 0.01))),
    Attack("2.2 % apart, carry-over of 20 %", ratio=1.022, carry=0.2),
    Attack("2.2 % apart, a wave of ±30 % on both, period of 2 rounds", ratio=1.022, wave_rounds=2),
)  # fmt: skip
ALIKE = (
    Attack("equal, mild noise", MILD, cells=((320, 0.01),)),
    Attack(
        "equal, noise of 1 %, memory 0.5 s", path(noise.memory_noise, deviation=0.01, memory=0.5), cells=((320, 0.01),)
    ),
    Attack("equal, luck of 0.5 %, 4 processes", processes=4, luck=0.005, cells=((320, 0.01),)),
)
LASTING = (  # beyond what is promised
    Attack("one arm ±40 %, redrawn every 7.4 s", one=path(noise.redrawn, size=0.4, every=7.4), cells=STEPS),
    Attack("each arm AR(1) 5 %, memory 240 s", path(noise.memory_noise, deviation=0.05, memory=240.0)),
    Attack("states 6 % apart, 25 s each", path(noise.switching, levels=(0.0, 0.06), stay=25.0)),
)
ROWS = {
    "false": EQUAL,
    "false (not looked at before)": UNSEEN,
    "found": APART,
    "wrongly SAME": NEARLY,
    "SAME": ALIKE,
    "false (not promised)": LASTING,
}
FIRST_SEED = 1000  # below are those that were tuned on


def hits(attack: Attack, what: str, races: int, cell: tuple[int, float]) -> int:
    """Return how many of so many races ended so; of false ones any pair counts."""
    told = 0
    for seed in range(races):
        verdicts = {pair.verdict for pair in attack.pairs(FIRST_SEED + seed, *cell)}
        wanted = {FASTER, SLOWER} if what.startswith("false") else {FASTER} if what == "found" else {SAME}
        told += bool(verdicts & wanted)
    return told


def attacked(races: int) -> None:
    """Print a row for each attack: of its cells the worst."""
    print("| attack | verdicts that are | worst of its cells |", "|---|---|---|", sep="\n")
    for what, attacks in ROWS.items():
        worst = min if what in ("found", "SAME") else max
        for attack in attacks:
            found = {cell: hits(attack, what, races, cell) for cell in attack.cells}
            (rounds, block_noise), most = worst(found.items(), key=lambda item: item[1])
            where = f", {rounds} rounds, a block's noise {100 * block_noise:g} %" * (len(found) > 1)
            print(f"| {attack.name}{where} | {what} | {share(most, races)} |", flush=True)


# ---- folders


def side(generator: np.random.Generator, runs: int, luck: float, ratio: float) -> pd.DataFrame:
    """Return the rows of a point's runs, as far as `tclab.compare` reads them; steps within one differ by 1 %."""
    logs = np.log(0.1 * ratio) + luck * generator.standard_normal((runs, 1))
    steps = np.exp(logs + 0.01 * generator.standard_normal((runs, 24)))
    return pd.DataFrame({"status": "ok", "samples_seconds": steps.tolist(), "cycle_steps": 1, "steady": "steady",
                         "contention": None})  # fmt: skip


def folders(generator: np.random.Generator, runs: Sequence[int], lucks: Sequence[float], ratio: float) -> Counter[str]:
    """Return the verdicts on two folders of eight points."""
    made = [
        (str(i), side(generator, runs[0], lucks[0], 1.0), side(generator, runs[1], lucks[1], ratio)) for i in range(8)
    ]
    return Counter(pair.verdict for pair in pairs_of_runs(made, [("first", "second")] * len(made)))


def compared(n: int) -> None:
    """Print how often folders of equal points are told apart in any point, and how many points 10 % apart are found."""
    print("| runs | processes differ by | false | found |\n|---|---|---|---|")
    for runs in ((1, 1), (4, 1), (3, 3), (5, 5), (5, 2)):
        for lucks in ((0.005, 0.005), (0.02, 0.02), (0.05, 0.05), (0.01, 0.05)):
            told = found = 0
            for seed in range(n):
                generator = np.random.default_rng([seed, 17])
                equal, apart = (folders(generator, runs, lucks, ratio) for ratio in (1.0, 0.9))
                told += equal[FASTER] + equal[SLOWER] > 0
                found += apart[FASTER]
            differ = " and ".join(f"{100 * luck:g} %" for luck in dict.fromkeys(lucks))
            print(f"| {runs[0]} and {runs[1]} | {differ} | {share(told, n)} | {share(found, 8 * n)} |", flush=True)


# ---- this machine

BUSY = """
import random, time
while True:
    end = time.time() + random.expovariate(1)
    while time.time() < end:
        pass
    time.sleep(random.expovariate(1))
"""


def _work(units: int) -> Callable[[], None]:
    """Return a function whose time is proportional to `units`."""
    x = np.random.default_rng(0).random((96, 96))

    def call() -> None:
        for _ in range(units):
            x @ x

    return call


def _strategies(seconds: float) -> Pair:
    from tclab import Point
    from tclab.sweeps import race_points

    point = Point(scale=0.02, batch_size=4, networks=2, workers=0, device="cpu")
    return race_points({"a": point, "b": point}, budget_seconds=seconds).pair("a", "b")


def _loaders(seconds: float) -> Pair:
    from torch.utils.data import DataLoader

    data = np.random.default_rng(0).random((64, 4096))
    loaders = {name: DataLoader(data, batch_size=8, num_workers=1) for name in "ab"}
    arms = {name: (loader, lambda batch: batch.sum()) for name, loader in loaders.items()}
    return race(arms, budget_seconds=seconds).pair("a", "b")


def _commits(seconds: float) -> Pair:
    command = [sys.executable, "-c", "sum(i * i for i in range(300_000))"]
    return race_commands(command, base=".", head=".", budget_seconds=seconds).pair("head", "base")


def _functions(units: int, seconds: float) -> Pair:
    return race({"a": _work(200), "b": _work(units)}, budget_seconds=seconds).pair("a", "b")


REAL: dict[str, Callable[[float], Pair]] = {
    "strategies": _strategies, "loaders": _loaders, "commits": _commits, "functions": partial(_functions, 200),
    "10 % apart": partial(_functions, 220),
}  # fmt: skip


def _plan() -> Iterator[tuple[str, Callable[[float], Pair], bool]]:
    """Yield kinds of races in turn; every fourth round of them beside a busy process."""
    for i in cycle(range(4)):
        for kind, raced in REAL.items():
            if i < 3 or kind != "10 % apart":
                yield kind, raced, i == 3


def race_here(minutes: float, seconds: float) -> None:
    """Print each real race, and for each kind the share of each verdict."""
    end, counts = time.monotonic() + 60 * minutes, Counter[tuple[str, str]]()
    for kind, raced, busy in _plan():
        if time.monotonic() > end:
            break
        beside = subprocess.Popen([sys.executable, "-c", BUSY]) if busy else None
        try:
            pair = raced(seconds)
        finally:
            if beside is not None:
                beside.kill()
                beside.wait()
        words = f"{kind}{', busy' * busy}"
        counts[words, pair.verdict] += 1
        print(f"    {words}: {sentence_of(pair)}; load {os.getloadavg()[0]:.1f}", flush=True)
    for words in dict.fromkeys(words for words, _ in counts):
        n = sum(found for (name, _), found in counts.items() if name == words)
        shares = [f"{verdict} {share(found, n)}" for (name, verdict), found in counts.items() if name == words]
        print(f"{words}: {n} races of {seconds:g} s: {'; '.join(shares)}")


def main(
    *, races: int = 200, folders: int = 0, real: bool = False, minutes: float = 60.0, seconds: float = 30.0
) -> None:  # fmt: skip
    if real:
        warnings.filterwarnings("ignore", message="head and base run the same command")
        race_here(minutes, seconds)
        return
    if races:
        attacked(races)
    if folders:
        compared(folders)


if __name__ == "__main__":
    main.__doc__ = __doc__
    run(main)
