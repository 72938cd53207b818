"""How often does `tclab.compare` tell folders of equal points apart, with and without repeats? Made-up rows.

    python benchmarks/folder_verdicts.py [--folders 1000] [--points 8]

Processes differ by 0.5 to 5 %, the steps of one by 1 %. A folder is told apart where any of its points has FASTER or
SLOWER. The later rows are of folders that differ by 10 % in every point: the share of points that are found. Shares
come with their 95 % binomial interval (Clopper and Pearson).
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pandas as pd

from tclab.sweeps.analysis._run_verdicts import pairs_of_runs
from tclab.timing._verdict import FASTER, SLOWER

sys.path.insert(0, str(Path(__file__).resolve().parent))
from race_verdicts import share

STEPS = 24


def side(generator: np.random.Generator, runs: int, luck: float, ratio: float) -> pd.DataFrame:
    """Return the rows of a point's runs, as far as a comparison reads them."""
    logs = np.log(0.1 * ratio) + luck * generator.standard_normal((runs, 1))
    steps = np.exp(logs + 0.01 * generator.standard_normal((runs, STEPS)))
    return pd.DataFrame({"status": "ok", "samples_seconds": steps.tolist(), "cycle_steps": 1, "steady": "steady"})


def verdicts(seed: int, points: int, runs: tuple[int, int], lucks: tuple[float, float], ratio: float) -> Counter[str]:
    """Return how many points of two folders have which verdict."""
    generator = np.random.default_rng([seed, 17])
    made = [
        (str(place), side(generator, runs[0], lucks[0], 1.0), side(generator, runs[1], lucks[1], ratio))
        for place in range(points)
    ]
    return Counter(pair.verdict for pair in pairs_of_runs(made, ("first", "second"), margin=None))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--folders", type=int, default=1000)
    parser.add_argument("--points", type=int, default=8)
    chosen = parser.parse_args()
    for ratio in (1.0, 0.9):
        for runs in ((1, 1), (3, 3), (5, 5), (5, 2), (4, 1)):
            for lucks in ((0.005, 0.005), (0.02, 0.02), (0.05, 0.05), (0.01, 0.05)):
                every = [verdicts(seed, chosen.points, runs, lucks, ratio) for seed in range(chosen.folders)]
                told = sum(bool(one[FASTER] + one[SLOWER]) for one in every)
                found = sum(one[FASTER] for one in every)
                what = f"false {share(told, len(every))}"
                if ratio != 1:
                    what = f"found {share(found, chosen.points * len(every))}"
                words = f"{runs[0]} and {runs[1]} runs, luck {lucks[0]:.1%} and {lucks[1]:.1%}, ratio {ratio:g}"
                print(f"{words}: {what}", flush=True)


if __name__ == "__main__":
    main()
