"""Does tclab find in a Lightning project without marks what py-spy, a clock and cProfile find in it?

    OMP_NUM_THREADS=1 python benchmarks/unmarked.py [--rounds 3]

The project is `tests/unmarked_project.py`. Four lines, each with what tclab says, what the other says, and the bound:
the share of the decoding lines against `py-spy record` of the same run; the seconds in which its validation loader
starts its workers anew against a clock around the same pass; the split of a sample against cProfile's cumulative times
of the same samples; what keeping the workers brings against what the advice predicted, in turn. About three minutes.

A share p of n samples of the stack has a standard error of sqrt(p (1 - p) / n) by chance alone: 14 % of a share of 8 %
at 600 samples, more than the bound. The split of a sample is therefore taken at 1,000 Hz, and its error is printed.
"""

import argparse
import cProfile
import json
import logging
import pstats
import shutil
import subprocess
import sys
import tempfile
import warnings
from math import sqrt
from pathlib import Path
from statistics import median

import torch
from torch.utils.data import DataLoader

from tclab import timing

TESTS = Path(__file__).resolve().parents[1] / "tests"
sys.path.insert(0, str(TESTS))
from unmarked_project import Records, Slow, seconds_to_first_batch, train, write_records  # noqa: E402

SCRIPT = """
import json, sys, warnings
warnings.simplefilter("ignore")
sys.path.insert(0, sys.argv[1])
import torch
torch.set_num_threads(1)
from unmarked_project import train
from tclab import timing
ledger = timing.Ledger(lines=True)
train(sys.argv[2], callbacks=[timing.lightning_callback(ledger)], epochs=2, passes=60)
lines = ledger.lines
print(json.dumps([sum(one.share for one in lines.by_line() if one.function == "Model.decode"), lines.samples,
                  next(one for one in lines.by_line() if one.file).function]))
"""


def say(what: str, ours: float, theirs: float, holds: bool, bound: str) -> None:
    """Print one comparison."""
    print(
        f"{what:34} tclab {ours:7.4f}  other {theirs:7.4f}  {'holds' if holds else 'DOES NOT HOLD'} ({bound})",
        flush=True,
    )


def near(what: str, ours: float, theirs: float, most: float, more: str = "") -> None:
    """Print a comparison by ratio."""
    say(what, ours, theirs, abs(ours / theirs - 1) <= most, f"ratio {ours / theirs:.3f}, within {most:.0%}{more}")


def decoding(records: Path, folder: Path) -> None:
    """Compare the share of the decoding lines with that of py-spy, which watches the same process."""
    spy = shutil.which("py-spy") or str(Path(sys.executable).with_name("py-spy"))
    script, found = folder / "script.py", folder / "stacks.txt"
    script.write_text(SCRIPT)
    command = [spy, "record", "--format", "raw", "--idle", "--threads", "--rate", "100", "--output", str(found), "--"]
    command += [sys.executable, str(script), str(TESTS), str(records)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    if not found.is_file():
        print(f"py-spy cannot attach here: {(done.stderr.strip().splitlines() or [''])[-1]}")
        return
    share, samples, first = json.loads(next(line for line in done.stdout.splitlines() if line.startswith("[")))
    fitting = inside = 0
    for line in found.read_text().splitlines():
        stack, _, number = line.rpartition(" ")
        if "MainThread" in stack and "fit (lightning" in stack:
            fitting += int(number)
            inside += int(number) * ("decode (" in stack and "unmarked_project.py" in stack.rpartition("decode (")[2])
    counted = inside / fitting
    bound = f"{100 * (share - counted):+.1f} points, within 5; {samples} and {fitting} samples; named first: {first}"
    say("decoding lines, share", share, counted, abs(share - counted) <= 0.05, bound)


def restart(records: Path) -> None:
    """Compare the seconds of a loader's second start with a clock around it."""
    loader = DataLoader(Records(records), batch_size=32, num_workers=1, worker_init_fn=Slow(0.6))
    with timing.Ledger(lines=True) as ledger:
        took = [seconds_to_first_batch(ledger, loader) for _ in range(2)]
    (again,) = ledger.loaders.restarts(0)
    near("a loader's start anew, seconds", again.start_seconds, took[1], 0.1)


def split(records: Path) -> None:
    """Compare the parts of a sample's time with cProfile's, which watches the same samples."""
    data = Records(records)
    profile = cProfile.Profile()
    with timing.profile(hertz=1000.0) as seen:
        profile.enable()
        for _ in range(1200):
            for _ in DataLoader(data, batch_size=16, collate_fn=len):
                pass
        profile.disable()
    calls: dict[str, float] = {}
    whole = 0.0
    for (file, _, name), (_, _, _, cumulative, _) in pstats.Stats(profile).stats.items():  # type: ignore[attr-defined]
        if name == "__getitem__" and file.endswith("unmarked_project.py"):
            whole = cumulative
        elif name == "loads" and file.endswith("json/__init__.py"):
            calls["decode"] = cumulative
        elif name == "__init__" and "pydantic" in file:
            calls["validate"] = cumulative
        elif "method" in name and "tensor" in name:
            calls["build"] = cumulative
    parts = seen.samples.parts()
    for part, seconds in calls.items():
        share = parts[part] / sum(parts.values())
        error = sqrt((1 - share) / share / seen.lines.samples)
        near(f"a sample's {part}, share", share, seconds / whole, 0.1, f"; by chance {error:.1%}")


def advice(records: Path, rounds: int) -> None:
    """Compare what keeping the workers brings with what the advice predicted: the share of the run that is saved."""
    predicted, brought = [], []
    train(records, epochs=1, passes=1, start_seconds=0.0)  # what a process does once is no run's
    for _ in range(rounds):
        took = {}
        for persistent in (True, False):
            ledger = timing.Ledger(lines=True)
            train(records, callbacks=[timing.lightning_callback(ledger)], epochs=6, passes=4, start_seconds=0.6,
                  persistent=persistent)  # fmt: skip
            took[persistent] = ledger.epoch.whole_seconds
        one = next(one for one in timing.advise(ledger).suggestions if "persistent_workers" in one.change)
        predicted.append(1 - one.ratio)
        brought.append(1 - took[True] / took[False])
    near("workers kept, share of run saved", median(predicted), median(brought), 0.2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="of runs with workers kept and started anew")
    chosen = parser.parse_args()
    warnings.simplefilter("ignore")  # lightning's own advice on workers
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    print(f"load {timing.conditions()['load']:.2f}, torch {torch.__version__}")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        records = folder / "lmdb"
        write_records(records)
        decoding(records, folder)
        restart(records)
        split(records)
        advice(records, chosen.rounds)


if __name__ == "__main__":
    main()
