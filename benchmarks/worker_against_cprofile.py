"""Do `loader_times` and cProfile agree on what a worker of a project that nobody marked does?

    OMP_NUM_THREADS=1 python benchmarks/worker_against_cprofile.py [--passes 20]

The project is `tests/unmarked_project.py`, trained by Lightning with two workers, forked and spawned, that stay or
start anew. Each worker runs cProfile from its start to its end: `fetch` is held against the cumulative time of the
dataset's `__getitem__`, `collate` against that of the collate_fn, within 10 %. The profiler's own work is paid inside
both, some tenths of a microsecond for each Python call.
"""

import argparse
import cProfile
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
from torch.utils.data import DataLoader, default_collate

from tclab import timing

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
from unmarked_project import Model, Records, trainer_of, write_records

BOUND = 0.1


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


def compare(records: Path, passes: int, context: str, persistent: bool) -> bool:
    """Train once, print a line a worker, and return whether all hold."""
    with tempfile.TemporaryDirectory() as name:
        data = Records(records)
        samples = torch.utils.data.RandomSampler(data, num_samples=passes * len(data), replacement=True)
        loader = DataLoader(data, batch_size=8, sampler=samples, num_workers=2, worker_init_fn=Profiled(Path(name)),
                            persistent_workers=persistent, multiprocessing_context=context)  # fmt: skip
        with timing.loader_times() as found:
            trainer_of(epochs=2).fit(Model(), loader)
        del loader
        theirs = by_worker(Path(name))
    holds = True
    for _, worker, batches, samples_, starts, start, fetch, collate, wait in found.rows():
        ratios = [ours / other for ours, other in zip((fetch, collate), theirs[worker], strict=True)]
        holds &= all(abs(ratio - 1) <= BOUND for ratio in ratios)
        print(
            f"{context:6} {'stays' if persistent else 'anew':5} worker {worker}: {batches} batches, {samples_} "
            f"samples, {starts} × {start / starts:.2f} s to start, {wait:.2f} s waited for; fetch {fetch:.3f} s, "
            f"cProfile {theirs[worker][0]:.3f} s, {ratios[0]:.3f}; collate {collate:.3f} s, {theirs[worker][1]:.3f} s, "
            f"{ratios[1]:.3f}",
            flush=True,
        )
    return holds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--passes", type=int, default=20, help="over the records, an epoch")
    chosen = parser.parse_args()
    warnings.simplefilter("ignore")  # lightning's own advice on workers
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    print(f"load {timing.conditions()['load']:.2f}, torch {torch.__version__}")
    with tempfile.TemporaryDirectory() as folder:
        write_records(Path(folder) / "lmdb")
        held = [
            compare(Path(folder) / "lmdb", chosen.passes, *how) for how in product(("fork", "spawn"), (False, True))
        ]
    print("holds" if all(held) else "DOES NOT HOLD", f"(within {BOUND:.0%})")


if __name__ == "__main__":
    main()
