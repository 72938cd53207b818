"""Samples a second of `Point(runs=k)`, and of k processes that are started by hand, in turn: their ratio.

    python benchmarks/runs_by_hand.py --runs 1,2,3 --windows 8

Both sides train the same small point on the CPU with as many threads a process, after as many steps to warm up, each
process in a session of its own, to which a Linux with autogroups gives an equal share. What changes on the machine
meanwhile hits both: a window by hand and a run of the point alternate. It prints each side's median, and the geometric
mean of the ratios of neighbours with its 95 % interval, by Student's t of their logarithms.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from statistics import median

import numpy as np
from scipy.stats import sem, t

import tclab
from tclab import Point
from tclab.sweeps.execution._rank_group import threads_of

POINT = Point(scale=0.05, networks=3, batch_size=4, workers=0, steps=24, warmup=4, device="cpu")
SECONDS = 1.2  # of a window by hand
BY_HAND = """
import json, sys, time
from pathlib import Path
import torch
from tclab import Point
from tclab.sweeps.execution._setup import setup

folder = Path(sys.argv[1])
point = Point.from_dict(json.loads(sys.argv[4]))
with setup(point, point.batch_size * 8) as here:
    def one(number):
        here.run([here.data[number % 8]], steps=1)
    for number in range(5):
        one(number)
    for window in range(int(sys.argv[6])):
        (folder / f"ready {window} {sys.argv[2]}").touch()
        while not (folder / f"go {window}").exists():
            time.sleep(0.01)
        for number in range(point.warmup):  # as a point does, after a pause in which others had the caches
            one(number)
        ends, number = [time.perf_counter()], 0
        while ends[-1] - ends[0] < float(sys.argv[5]):
            one(number)
            ends.append(time.perf_counter())
            number += 1
        (folder / f"found {window} {sys.argv[2]}").write_text(json.dumps(ends))
"""


def wait_for(files):
    """Wait until files are there."""
    while not all(file.exists() for file in files):
        time.sleep(0.02)


def window_by_hand(folder, window, runs):
    """Let the processes train for a while, and return samples a second of all of them."""
    wait_for([folder / f"ready {window} {run}" for run in range(runs)])
    (folder / f"go {window}").touch()
    found = [folder / f"found {window} {run}" for run in range(runs)]
    wait_for(found)
    time.sleep(0.1)  # the last one is written
    return sum(POINT.batch_size / np.diff(json.loads(file.read_text())).mean() for file in found)


def compared(runs, windows):
    """Return samples a second by hand and by tclab, [windows] each, in turn."""
    threads = str(threads_of(runs))
    text = json.dumps(POINT.resolved().to_dict())
    by_hand, together = [], []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        started = [
            subprocess.Popen(
                [sys.executable, "-c", BY_HAND, name, str(run), str(runs), text, str(SECONDS), str(windows)],
                env={**os.environ, "OMP_NUM_THREADS": threads},
                start_new_session=True,  # as torchrun starts each rank
            )
            for run in range(runs)
        ]
        try:
            for window in range(windows):
                by_hand.append(window_by_hand(folder, window, runs))
                rows = tclab.run(replace(POINT, runs=runs))
                together.append(rows[rows["stage"] == "step"]["samples_per_second"].item())
        finally:
            for process in started:
                process.kill()
                process.wait()
    return by_hand, together


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--runs", default="1,2,3")
    parser.add_argument("--windows", type=int, default=8)
    given = parser.parse_args()
    for runs in map(int, given.runs.split(",")):
        by_hand, together = compared(runs, given.windows)
        ratios = [ours / theirs for ours, theirs in zip(together, by_hand, strict=True)]
        logs = np.log(ratios)
        low, middle, high = np.exp(logs.mean() + t.ppf([0.025, 0.5, 0.975], len(logs) - 1) * sem(logs)).tolist()
        print(
            f"runs {runs}: by hand {median(by_hand):.0f}, tclab {median(together):.0f} samples/s; "
            f"ratio {middle:.3f} [{low:.3f}, {high:.3f}]",
            flush=True,
        )


if __name__ == "__main__":
    main()
