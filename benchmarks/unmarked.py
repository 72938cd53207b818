"""Does tclab find in code without marks what clocks of its own, and cProfile, find in it?

    OMP_NUM_THREADS=1 python benchmarks/unmarked.py [--seconds 20] [--passes 20]

The shares of a script's lines by `tclab profile` against the script's own clock around them (5 points), in its main
process and in its workers. Where more processes compute than there are cores, py-spy waits for a core itself and then
meets them waiting: with two workers and some ten other processes on two cores, waits were seen 4 to 7 points too often
in the workers (9 to 16 where py-spy stops a process to read it, so it does not). Workers need a core each.

`loader_times` against cProfile, in the workers of `tests/unmarked_project.py`, trained by Lightning with two workers,
forked and spawned, that stay or start anew. Each worker runs cProfile from its start to its end: `fetch` is held
against the cumulative time of the dataset's `__getitem__`, `collate` against that of the collate_fn, within 10 %. The
profiler's own work is paid inside both, some tenths of a microsecond for each Python call.
"""

import argparse
import cProfile
import json
import logging
import os
import pstats
import sys
import tempfile
import warnings
from itertools import product
from multiprocessing import util
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, RandomSampler, default_collate

from tclab import timing
from tclab.timing._profile import MAIN, WORKERS

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
from unmarked_project import Model, Records, trainer_of

# each function takes what its clock says, for random times: no sampler runs in step with it
SCRIPT = """
import json, random, sys, time
from torch.utils.data import DataLoader

DOCUMENT = json.dumps(list(range(3000)))

def decode(until):
    while time.perf_counter() < until:
        json.loads(DOCUMENT)

def wait(until):
    time.sleep(max(0.0, until - time.perf_counter()))

def spin(until):
    while time.perf_counter() < until: pass

CALLS = {decode: 0.02, wait: 0.01, spin: 0.005}

class Data:
    def __len__(self):
        return 2

    def __getitem__(self, index):
        took, end = {call.__name__: 0.0 for call in CALLS}, time.perf_counter() + float(sys.argv[1])
        while time.perf_counter() < end:
            for call, mean in CALLS.items():
                begin = time.perf_counter()
                call(begin + random.expovariate(1 / mean))
                took[call.__name__] += time.perf_counter() - begin
        return took

if __name__ == "__main__":
    took = Data()[0]
    loader = DataLoader(Data(), batch_size=1, num_workers=2, collate_fn=lambda found: found[0])
    json.dump([took, *loader], open(sys.argv[2], "w"))
"""


def lines(folder: Path, seconds: float) -> bool:
    """Compare the shares of a script's lines with those of its own clocks; return whether all hold."""
    script, result = folder / "script.py", folder / "result.json"
    script.write_text(SCRIPT)
    seen = timing.profile(script, [str(seconds), str(result)])
    main, *workers = json.loads(result.read_text())
    both = {name: sum(one[name] for one in workers) for name in main}
    holds = True
    for where, took in ((MAIN, main), (WORKERS, both)):
        counted = {name: sum(n for line, n in seen.samples[where].items() if line[2] == name) for name in took}
        for name, spent in took.items():
            share, true = counted[name] / sum(counted.values()), spent / sum(took.values())
            holds &= abs(share - true) <= 0.05
            print(f"{where:8} {name:7} py-spy {share:.3f}, its clock {true:.3f}: {100 * (share - true):+.1f} points")
    return holds


class Profiled:
    """A `worker_init_fn` that runs cProfile in its worker, and writes what it found when the worker ends."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self, worker: int) -> None:
        """Begin, and see to the end."""
        profiler = cProfile.Profile()

        def write() -> None:
            profiler.disable()
            profiler.dump_stats(self.folder / f"{worker}-{os.getpid()}")

        util.Finalize(None, write, exitpriority=100)
        profiler.enable()


def by_worker(folder: Path) -> dict[int, list[float]]:
    """Return worker → seconds of the dataset and of the collate_fn, by cProfile."""
    found: dict[int, list[float]] = {}
    for path in folder.iterdir():
        seconds = found.setdefault(int(path.name.partition("-")[0]), [0.0, 0.0])
        stats: Any = pstats.Stats(str(path))
        for (file, _, name), (_, _, _, cumulative, callers) in stats.stats.items():
            if name == "__getitem__" and file.endswith("unmarked_project.py"):
                seconds[0] += cumulative
            elif name == default_collate.__name__:
                seconds[1] += sum(of[3] for caller, of in callers.items()) or cumulative
    return found


def against_cprofile(passes: int, context: str, persistent: bool) -> bool:
    """Train once, print a line a worker, and return whether all hold."""
    with tempfile.TemporaryDirectory() as name:
        data = Records()
        sampler = RandomSampler(data, num_samples=passes * len(data), replacement=True)
        loader = DataLoader(data, batch_size=8, sampler=sampler, num_workers=2, worker_init_fn=Profiled(Path(name)),
                            persistent_workers=persistent, multiprocessing_context=context)  # fmt: skip
        with timing.loader_times() as found:
            trainer_of(epochs=2).fit(Model(), loader)
        del loader
        theirs = by_worker(Path(name))
    holds = True
    for row in found.frame().itertuples():
        ours = (row.fetch_seconds, row.collate_seconds)
        ratios = [mine / other for mine, other in zip(ours, theirs[row.worker], strict=True)]
        holds &= all(abs(ratio - 1) <= 0.1 for ratio in ratios)
        how = f"{context:5} {'stays' if persistent else 'anew':5} worker {row.worker}"
        print(
            f"{how}: {row.batches} batches, {row.starts} × {row.start_seconds / row.starts:.2f} s to start; "
            f"fetch {ours[0]:.3f} s, {ratios[0]:.3f} × cProfile's; collate {ours[1]:.3f} s, {ratios[1]:.3f} ×",
            flush=True,
        )
    return holds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seconds", type=float, default=20.0, help="of the script whose lines are sampled")
    parser.add_argument("--passes", type=int, default=20, help="over the project's records, an epoch")
    chosen = parser.parse_args()
    warnings.simplefilter("ignore")  # lightning's own advice on workers
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    print(f"load {timing.conditions()['load']:.2f}, torch {torch.__version__}")
    with tempfile.TemporaryDirectory() as name:
        shares = lines(Path(name), chosen.seconds)
    held = [against_cprofile(chosen.passes, *how) for how in product(("fork", "spawn"), (False, True))]
    print(f"shares within 5 points: {shares}; fetch and collate within 10 %: {all(held)}")


if __name__ == "__main__":
    main()
