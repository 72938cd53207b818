"""Does tclab find in a Lightning project without marks what clocks of its own find in it?

    OMP_NUM_THREADS=1 python benchmarks/unmarked.py [--rounds 3] [--seconds 20]

Three comparisons, each with what tclab says, what the other says, and the bound: the shares of a script's lines by
`tclab profile` against the script's own clock around them (5 points), in its main process and in its workers; the
seconds in which a loader of `tests/unmarked_project.py` starts its workers anew against a clock around the same pass
(10 %); what keeping the workers brings against what the advice predicted, in turn (20 %). About three minutes.

Where more processes compute than there are cores, py-spy waits for a core itself and then meets them waiting: with two
workers and some ten other processes on two cores, waits were seen 4 to 7 points too often in the workers (9 to 16 where
py-spy stops a process to read it, so it does not). The shares of workers need a core each.
"""

import argparse
import json
import logging
import sys
import tempfile
import warnings
from pathlib import Path
from statistics import median
from time import perf_counter

import torch
from torch.utils.data import DataLoader

from tclab import timing
from tclab.timing._profile import MAIN, WORKERS

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
from unmarked_project import Records, Slow, train, write_records

# each function takes what its clock says, for random times: no sampler runs in step with it
SCRIPT = """
import json, random, sys, time
from torch.utils.data import DataLoader

DOCUMENT = json.dumps(list(range(3000)))

def decode(until):
    while time.perf_counter() < until:
        json.loads(DOCUMENT)  # decode

def clocked(took, name, call):
    begin = time.perf_counter()
    call(begin + random.expovariate(1 / {"decode": 0.02, "sleep": 0.01, "spin": 0.005}[name]))
    took[name] += time.perf_counter() - begin

def spin(until):
    while time.perf_counter() < until: pass  # spin

def wait(until):
    time.sleep(max(0.0, until - time.perf_counter()))  # sleep

CALLS = {"decode": decode, "sleep": wait, "spin": spin}

class Data:
    def __len__(self):
        return 2

    def __getitem__(self, index):
        took, begin = dict.fromkeys(CALLS, 0.0), time.perf_counter()
        while time.perf_counter() < begin + float(sys.argv[1]):
            for name in CALLS:
                clocked(took, name, CALLS[name])
        return took

if __name__ == "__main__":
    took = Data()[0]
    loader = DataLoader(Data(), batch_size=1, num_workers=2, collate_fn=lambda found: found[0])
    workers = list(loader)
    json.dump([took, *workers], open(sys.argv[2], "w"))
"""


CLOCKED = {"decode": "decode", "wait": "sleep", "spin": "spin"}  # function of a line → the name of its clock


def say(what: str, ours: float, theirs: float, holds: bool, bound: str) -> None:
    """Print one comparison."""
    told = "holds" if holds else "DOES NOT HOLD"
    print(f"{what:34} tclab {ours:7.4f}  other {theirs:7.4f}  {told} ({bound})", flush=True)


def near(what: str, ours: float, theirs: float, most: float) -> None:
    """Print a comparison by ratio."""
    say(what, ours, theirs, abs(ours / theirs - 1) <= most, f"ratio {ours / theirs:.3f}, within {most:.0%}")


def lines(folder: Path, seconds: float) -> None:
    """Compare the shares of a script's lines with those of its own clocks."""
    script, result = folder / "script.py", folder / "result.json"
    script.write_text(SCRIPT)
    seen = timing.profile_script(script, [str(seconds), str(result)])
    main, *workers = json.loads(result.read_text())
    both = {name: sum(one[name] for one in workers) for name in main}
    for where, took in ((MAIN, main), (WORKERS, both)):
        counted = dict.fromkeys(took, 0)
        for line, n in seen.samples[where].items():
            name = CLOCKED.get(line[2], "")
            if name in counted:
                counted[name] += n
        for name, spent in took.items():
            share, true = counted[name] / sum(counted.values()), spent / sum(took.values())
            bound = f"{100 * (share - true):+.1f} points, within 5; {sum(counted.values())} samples"
            say(f"{where}: {name}, share", share, true, abs(share - true) <= 0.05, bound)


def restart(records: Path) -> None:
    """Compare the seconds of a loader's second start with a clock around it."""
    loader = DataLoader(Records(records), batch_size=32, num_workers=1, worker_init_fn=Slow(0.6))
    took = []
    with timing.loader_times() as found:
        for _ in range(2):
            begin = perf_counter()
            for i, _ in enumerate(loader):
                took += [] if i else [perf_counter() - begin]
    ((again,),) = found.restarts().values()
    near("a loader's start anew, seconds", again.start_seconds, took[1], 0.1)


def advice(records: Path, rounds: int) -> None:
    """Compare what keeping the workers brings with what the advice predicted: the share of the run that is saved."""
    predicted, brought = [], []
    train(records, epochs=1, passes=1, start_seconds=0.0)  # what a process does once is no run's
    for _ in range(rounds):
        took = {}
        for persistent in (True, False):
            ledger = timing.Ledger()
            with timing.loader_times() as found:
                train(records, callbacks=[timing.lightning_callback(ledger)], epochs=6, passes=4, start_seconds=0.6,
                      persistent=persistent)  # fmt: skip
            took[persistent] = found.seconds
        suggestions = timing.advise(ledger, loaders=found).suggestions
        one = next(one for one in suggestions if "persistent_workers" in one.change)
        predicted.append(1 - one.ratio)
        brought.append(1 - took[True] / took[False])
    near("workers kept, share of run saved", median(predicted), median(brought), 0.2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="of runs with workers kept and started anew")
    parser.add_argument("--seconds", type=float, default=20.0, help="of the script whose lines are sampled")
    chosen = parser.parse_args()
    warnings.simplefilter("ignore")  # lightning's own advice on workers
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    print(f"load {timing.conditions()['load']:.2f}, torch {torch.__version__}")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_records(folder / "lmdb")
        lines(folder, chosen.seconds)
        restart(folder / "lmdb")
        advice(folder / "lmdb", chosen.rounds)


if __name__ == "__main__":
    main()
