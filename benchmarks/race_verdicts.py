"""Are the race's verdicts right? Arms whose true ratio is known, made up and real.

    python benchmarks/race_verdicts.py [--attacks 200] [--synthetic 400] [--cells 20] [--cell-seconds 6] [--races 10]
                                       [--pairs 0] [--spiked 0] [--expensive] [--extended 0]

1. Made-up machines with drift, noise with a memory and wild outliers, each drawn anew: the share of false verdicts
   (FASTER or SLOWER) where both arms are the same, and the share of races that find a planted 5 %.
2. This machine, the same call twice: false verdicts of short real cells.
3. This machine, a planted 5 %: the slow arm does 5 % more of the same arithmetic. How often does it find it?
4. Attacks: made-up races in which one arm alone is disturbed: noise with a memory, stretches, drifts, tails, a
   process's luck. False verdicts of equal arms, SAME of unequal ones, and real differences that are found.
5. This machine, the same point twice, in fresh processes: false verdicts. `--pairs 40` takes 40 minutes.
6. This machine, the same point, one of the two with 10 % of its step's time more: how often is it found?
7. `--expensive`: points of full size whose steps take seconds, raced for 150 s, and 20 steps of each taken in turn.

Shares come with their 95 % binomial interval (Clopper and Pearson). 0 skips a part.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
from scipy.stats import binomtest

from tclab import Point
from tclab.sweeps import race_points
from tclab.sweeps.analysis._race_points import PROCESSES, race_arm
from tclab.sweeps.config._point_inputs import resolve
from tclab.timing import race
from tclab.timing._verdict import FASTER, SAME, SLOWER, UNDECIDED
from tclab.timing.races._blocks import order_of
from tclab.timing.races._race_result import Race

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tools"))
from synthetic_machine import (
    GRID_SECONDS,
    SyntheticMachine,
    drift,
    interference,
    memory_noise,
    pair_of,
    regimes,
    slow_tail,
)

STEP_SECONDS = 0.02
ROUNDS = 320  # of a made-up race


def share(found: int, of: int) -> str:
    low, high = binomtest(found, of).proportion_ci(0.95)
    return f"{found} of {of} = {found / of:.1%} [{low:.1%}, {high:.1%}]"


def report(what: str, verdicts: Iterable[str], right: str | None) -> None:
    counts = Counter(verdicts)
    number = counts.total()
    print(f"{what}: {dict(counts)}")
    wrong = sum(counts[v] for v in (FASTER, SLOWER) if v != right)
    print(f"  false verdicts  {share(wrong, number)}")
    if right:
        print(f"  found           {share(counts[right], number)}")


def made_up(number: int, planted: float, budget_seconds: float) -> list[str]:
    found = []
    for seed in range(number):
        machine = SyntheticMachine.of_any_kind(seed)
        arms = {
            "a": machine.arm("a", STEP_SECONDS),
            "b": machine.arm("b", STEP_SECONDS * (1 + planted)),
        }
        result = race(arms, budget_seconds=budget_seconds, clock=machine.clock)
        found.append(result.verdict("a", "b"))
    return found


@dataclass(frozen=True)
class Attack:
    """Two arms on a machine that disturbs each in its own way."""

    name: str
    # the disturbances of the two arms, given a generator and a race's seconds; see `synthetic_machine`
    own: Callable[[np.random.Generator, float], Sequence[Any]] = lambda generator, seconds: (None, None)
    ratio: float = 1.0  # true time of `a` over time of `b`
    processes: int = 1  # that take turns
    luck: float = 0.0  # standard deviation of each process's and arm's own log time
    quiet: bool = False  # whether the machine adds no noise of its own to both arms

    def samples(self, seed: int, seconds: float, looks: int = 4, extended: int = 0) -> list[dict[str, Any]]:
        """Return the samples of a race to the end of its budget, or of the last of as many more budgets."""
        generator = np.random.default_rng([seed, 3])
        seconds *= 1 + extended
        turns = looks * (1 + extended) * self.processes
        rounds = ROUNDS * (1 + extended) // turns * turns
        at = (np.arange(4 * rounds) + 0.5) * seconds / (4 * rounds)
        turn = np.arange(rounds) * turns // rounds
        orders = np.array([[arm == "b" for arm in order_of("ab", number)] for number in range(rounds)]).ravel()
        logs = 0.01 * generator.standard_normal(4 * rounds) * (not self.quiet)
        logs += np.where(orders, 0.0, np.log(self.ratio))
        if not self.quiet:
            logs += memory_noise(generator, seconds, deviation=0.05, memory=0.5)[(at / GRID_SECONDS).astype(int)]
            logs += slow_tail(generator, 4 * rounds * GRID_SECONDS, share=0.02, size=0.2)
        for arm, path in enumerate(self.own(generator, seconds)):
            if path is not None:
                logs += np.where(orders == arm, path[(at / GRID_SECONDS).astype(int)], 0.0)
        lucky = generator.normal(0, self.luck, (self.processes, 2))
        logs += lucky[np.repeat(turn % self.processes, 4), orders.astype(int)]
        block = dict.fromkeys(("cell", "role", "cpu_seconds", "switches"))
        block |= {"kind": "block", "phase": "race", "looks": looks, "calls": 1, "dropped": False}
        seconds_of, ends = np.exp(logs).tolist(), at.tolist()
        return [
            {
                **block,
                "process": int(turn[i // 4] % self.processes),
                "look": int(turn[i // 4] // self.processes) + 1,
                "round": i // 4,
                "position": i % 4,
                "arm": "b" if orders[i] else "a",
                "seconds": seconds_of[i],
                "spent_seconds": ends[i],
            }
            for i in range(4 * rounds)
        ]

    def verdict(self, seed: int, seconds: float, extended: int = 0) -> str:
        """Return the verdict of a race that ends as soon as it has one, and goes on so many times where it has none."""
        samples = self.samples(seed, seconds, extended=extended)
        for look in range(1, 4 * (1 + extended) + 1):
            found = pair_of([s for s in samples if s["look"] <= look]).verdict
            if found != UNDECIDED:
                break
        return found


def _noise(deviation: float, memory: float) -> Callable[[np.random.Generator, float], Sequence[Any]]:
    return lambda generator, seconds: [
        memory_noise(generator, seconds, deviation=deviation, memory=memory) for _ in range(2)
    ]


def _beats(generator: np.random.Generator, seconds: float) -> Sequence[Any]:
    """Return pulses that hit both arms alike, at a period within 3 % of half, one or two rounds' length."""
    period = seconds / ROUNDS * generator.choice([0.5, 1.0, 2.0]) * generator.uniform(0.97, 1.03)
    return [interference(generator, seconds, period=period, share=0.25, size=0.2)] * 2


MILD = _noise(0.02, 0.5)
EQUAL = (
    *(Attack(f"own noise of 5 %, memory {memory:g} s", _noise(0.05, memory)) for memory in (0.5, 3, 15, 60)),
    Attack(f"own noise of 5 %, memory 60 s, {PROCESSES} processes", _noise(0.05, 60), processes=PROCESSES),
    Attack("one arm is 10 % off for a tenth", lambda g, s: (regimes(g, s, share=0.1, size=0.1), None)),
    Attack("the same in 3 stretches", lambda g, s: (regimes(g, s, share=0.1, size=0.1, stretches=3), None)),
    Attack("drifts that differ by arm", lambda g, s: (drift(g, s, size=0.05), drift(g, s, size=0.05))),
    Attack("pulses near the round's length", _beats),
    Attack("a slow tail on one arm", lambda g, s: (slow_tail(g, s, share=0.1, size=0.05), None)),
    *(
        Attack(f"luck of {luck:.1%}, {PROCESSES} processes", processes=PROCESSES, luck=luck)
        for luck in (0.005, 0.01, 0.02)
    ),
    Attack("mild noise", MILD),
)
APART = (
    *(Attack(f"mild noise, {size:.0%} apart", MILD, 1 / (1 + size)) for size in (0.05, 0.10)),
    *(
        Attack(f"mild noise, {size:.0%} apart, {PROCESSES} processes", MILD, 1 / (1 + size), PROCESSES)
        for size in (0.05, 0.10)
    ),
)
NEARLY = (  # just beyond the margin: SAME would be wrong
    Attack("1.2 % apart, mild noise", MILD, 1.012),
    Attack("1.05 % apart, a quiet machine", _noise(0.003, 0.5), 1.0105, quiet=True),
    Attack(f"1.05 % apart, a quiet machine, {PROCESSES} processes", _noise(0.003, 0.5), 1.0105, PROCESSES, quiet=True),
)


def attacked(number: int, seconds: float, text: str, extended: int) -> None:
    """Print a line an attack whose name has the text: the share of verdicts that are wrong, or right."""
    length = f"{seconds:g} s" + (f", extended {extended} times" if extended else "")
    for attack, right, what in (
        *((attack, None, "false") for attack in EQUAL),
        *((attack, FASTER, "found") for attack in APART),
        *((attack, SLOWER, "wrongly SAME") for attack in NEARLY),
    ):
        if text not in attack.name:
            continue
        counts = Counter(attack.verdict(seed, seconds, extended) for seed in range(number))
        wrong = sum(counts[v] for v in (FASTER, SLOWER) if v != right)
        hit = {"false": wrong, "found": counts[right], "wrongly SAME": counts[SAME]}[what]
        print(f"{attack.name:<45} {length}: {what} {share(hit, number)}; {dict(counts)}", flush=True)


def busy(rounds: int) -> Callable[[], None]:
    """Return plain arithmetic, some 20 ms of it for 250,000 rounds."""

    def call() -> None:
        total = 0
        for i in range(rounds):
            total += i * i

    return call


def ratios_by_process(result: Race) -> list[float]:
    """Return a's time over b's in each process, the median of its rounds; every other process made b first."""
    frame = result.frame().query("phase == 'race'")
    rounds = frame.pivot_table("seconds", ["process", "round"], "arm")
    ratios: list[float] = (rounds["a"] / rounds["b"]).groupby("process").median().tolist()
    return ratios


def real(number: int, run: Callable[[], Race]) -> list[str]:
    """Run a race of this machine's so many times, print a line for each, and return the verdicts."""
    verdicts = []
    for _ in range(number):
        result = run()
        found = result.pair("a", "b")
        verdicts.append(found.verdict)
        ratio = "no ratio" if found.ratio is None else f"ratio {found.ratio:.4f} {np.round(found.interval or [], 4)}"
        floor = "none" if found.floor is None else f"{found.floor:.2%}"
        load = os.getloadavg()[0]
        own = " ".join(f"{of:.4f}" for of in ratios_by_process(result))
        print(f"    {found.verdict:<10}{ratio} floor {floor} {found.kept} rounds, load {load:.1f}; {own}", flush=True)
    return verdicts


def busy_race(more: float, seconds: float) -> Race:
    rounds = 60_000
    return race({"a": busy(rounds), "b": busy(round(rounds * (1 + more)))}, budget_seconds=seconds)


POINT = Point(scale=0.02, batch_size=4, networks=2, workers=0, device="cpu")


def equal_points(seconds: float) -> Race:
    return race_points({"a": POINT, "b": POINT}, budget_seconds=seconds)


def longer_step(share: str) -> Callable[[], None]:
    """Return a step of `POINT` that computes on for this share of the time that it took."""
    step = race_arm(json.dumps({"modules": [], "point": POINT.to_dict()}))

    def call() -> None:
        begin = perf_counter()
        step()
        now = perf_counter()
        end = now + float(share) * (now - begin)
        while perf_counter() < end:
            pass

    return call


def spiked_points(seconds: float) -> Race:
    arms = {name: f"race_verdicts:longer_step:{share}" for name, share in (("a", 0.0), ("b", 0.1))}
    path = os.pathsep.join(filter(None, (str(Path(__file__).parent), os.environ.get("PYTHONPATH"))))
    return race(arms, budget_seconds=seconds, processes=PROCESSES, environment={"PYTHONPATH": path})


def expensive(seconds: float, steps: int = 20) -> None:
    """Race DANGO at batch 64 against `delta` at 16, and compare with the median ratio of steps taken in turn."""
    points = {
        "a": Point(model="dango", strategy="indices", batch_size=64, workers=0, device="cpu"),
        "b": Point(strategy="delta", batch_size=16, workers=0, device="cpu"),
    }
    print(race_points(points, budget_seconds=seconds))
    arms = [race_arm(json.dumps({"modules": [], "point": resolve(p).to_dict()})) for p in points.values()]
    ratios = []
    for _ in range(steps):
        times = []
        for step in arms:
            begin = perf_counter()
            step()
            times.append(perf_counter() - begin)
        ratios.append(times[0] / times[1])
    print(f"{steps} steps of each in turn, in one process: a took {median(ratios):.3f} times as long as b")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--synthetic", type=int, default=400, help="made-up cells, for each figure")
    parser.add_argument("--budget", type=float, default=60.0, help="their seconds, of steps of 20 ms")
    parser.add_argument("--cells", type=int, default=20, help="real cells of the same call twice")
    parser.add_argument("--cell-seconds", type=float, default=6.0)
    parser.add_argument("--races", type=int, default=10, help="real races with a planted 5 %%")
    parser.add_argument("--pairs", type=int, default=0, help="real races of a point with itself, in fresh processes")
    parser.add_argument("--spiked", type=int, default=0, help="real races of a point with one that takes 10 %% longer")
    parser.add_argument("--expensive", action="store_true", help="real races of steps that take seconds")
    parser.add_argument("--seconds", type=float, default=60.0, help="of a race of --races, --pairs and --spiked")
    parser.add_argument("--attacks", type=int, default=200, help="made-up races, for each attack")
    parser.add_argument("--attack-seconds", type=float, default=60.0)
    parser.add_argument("--extended", type=int, default=0, help="how often an attacked race goes on where UNDECIDED")
    parser.add_argument("--match", default="", help="only the attacks whose name has this text")
    chosen = parser.parse_args()
    begin = perf_counter()
    if chosen.synthetic:
        for planted, right in ((0.0, None), (0.05, FASTER), (-0.05, SLOWER)):
            what = f"made up, {planted:+.0%}, {chosen.budget:g} s"
            report(what, made_up(chosen.synthetic, planted, chosen.budget), right)
    if chosen.attacks:
        attacked(chosen.attacks, chosen.attack_seconds, chosen.match, chosen.extended)
    if chosen.cells:
        verdicts = real(chosen.cells, partial(busy_race, 0.0, chosen.cell_seconds))
        report(f"this machine, the same call twice, {chosen.cell_seconds:g} s", verdicts, None)
    if chosen.races:
        verdicts = real(chosen.races, partial(busy_race, 0.05, chosen.seconds))
        report(f"this machine, a planted 5 %, {chosen.seconds:g} s", verdicts, FASTER)
    if chosen.pairs:
        verdicts = real(chosen.pairs, partial(equal_points, chosen.seconds))
        report(f"this machine, the same point twice, {PROCESSES} processes, {chosen.seconds:g} s", verdicts, None)
    if chosen.spiked:
        verdicts = real(chosen.spiked, partial(spiked_points, chosen.seconds))
        report(
            f"this machine, 10 % more in one of two points, {PROCESSES} processes, {chosen.seconds:g} s",
            verdicts,
            FASTER,
        )
    if chosen.expensive:
        expensive(150)
    print(f"took {perf_counter() - begin:.0f} s")


if __name__ == "__main__":
    main()
