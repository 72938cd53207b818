"""Are the race's verdicts right? Arms whose true ratio is known, made up and real.

    python benchmarks/race_verdicts.py [--synthetic 400] [--cells 20] [--cell-seconds 6] [--races 10] [--seconds 60]

1. Made-up machines with drift, noise with a memory and wild outliers, each drawn anew: the share of false verdicts
   (FASTER or SLOWER) where both arms are the same, and the share of races that find a planted 5 %.
2. This machine, the same call twice: false verdicts of short real cells.
3. This machine, a planted 5 %: the slow arm does 5 % more of the same arithmetic. How often does it find it?
4. Made-up races of several processes, each with a speed of its own: false verdicts again.

Shares come with their 95 % binomial interval (Clopper and Pearson). 0 skips a part.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from scipy.stats import binomtest

from tclab.timing import FASTER, SLOWER, Race, race, verdict_of

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tools"))
from synthetic_machine import SyntheticMachine

STEP_SECONDS = 0.02


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


def of_processes(number: int, processes: int, apart: float) -> list[str]:
    """Race equal arms where, in each process, one happens to be faster by some `apart` (a memory's layout, say)."""
    found = []
    for seed in range(number):
        generator = np.random.default_rng([seed, 2])
        samples: list[dict[str, Any]] = []
        for process in range(processes):
            machine = SyntheticMachine.of_any_kind(1000 * seed + process)
            lucky = float(np.exp(generator.normal(0, apart)))
            arms = {"a": machine.arm("a", STEP_SECONDS), "b": machine.arm("b", STEP_SECONDS * lucky)}
            own = race(arms, budget_seconds=60 / processes, looks=1, clock=machine.clock).samples()
            samples += [{**sample, "process": process} for sample in own]
        found.append(verdict_of(samples, "a", "b").verdict)
    return found


def busy(rounds: int) -> Callable[[], None]:
    """Return plain arithmetic, some 20 ms of it for 250,000 rounds."""

    def call() -> None:
        total = 0
        for i in range(rounds):
            total += i * i

    return call


def real(number: int, seconds: float, planted: float) -> tuple[list[str], list[Race]]:
    races = []
    for _ in range(number):
        rounds = 60_000
        arms = {"a": busy(rounds), "b": busy(round(rounds * (1 + planted)))}
        races.append(race(arms, budget_seconds=seconds))
        found = races[-1].pair("a", "b")
        load = os.getloadavg()[0]
        print(
            f"    {found.verdict:<10}ratio {found.ratio:.4f} {np.round(found.interval or [], 4)} "
            f"floor {found.floor:.2%} {found.kept} rounds, load {load:.1f}",
            flush=True,
        )
    return [r.verdict("a", "b") for r in races], races


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--synthetic", type=int, default=400, help="made-up cells, for each figure")
    parser.add_argument("--budget", type=float, default=60.0, help="their seconds, of steps of 20 ms")
    parser.add_argument("--cells", type=int, default=20, help="real cells of the same call twice")
    parser.add_argument("--cell-seconds", type=float, default=6.0)
    parser.add_argument("--races", type=int, default=10, help="real races with a planted 5 %%")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--processes", type=int, default=0, help="made-up cells of 3 processes")
    chosen = parser.parse_args()
    begin = perf_counter()
    if chosen.synthetic:
        for planted, right in ((0.0, None), (0.05, FASTER), (-0.05, SLOWER)):
            what = f"made up, {planted:+.0%}, {chosen.budget:g} s"
            report(what, made_up(chosen.synthetic, planted, chosen.budget), right)
    if chosen.processes:
        for apart in (0.0, 0.005, 0.02):
            report(f"made up, 3 processes {apart:.1%} apart", of_processes(chosen.processes, 3, apart), None)
    if chosen.cells:
        verdicts, _ = real(chosen.cells, chosen.cell_seconds, 0.0)
        report(f"this machine, the same call twice, {chosen.cell_seconds:g} s", verdicts, None)
    if chosen.races:
        verdicts, _ = real(chosen.races, chosen.seconds, 0.05)
        report(f"this machine, a planted 5 %, {chosen.seconds:g} s", verdicts, FASTER)
    print(f"took {perf_counter() - begin:.0f} s")


if __name__ == "__main__":
    main()
