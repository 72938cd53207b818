"""Does tclab find in a Lightning project without marks what the project's own clock finds in it?

    OMP_NUM_THREADS=1 python benchmarks/unmarked.py [--rounds 3]

The project is `tests/unmarked_project.py`. Three lines, each with what tclab says, what the clock says, and the bound:
the share of the decoding lines in `timing.profile_script` (py-spy) against a clock around the same calls; the seconds
in which a validation loader starts its workers anew, by `timing.loader_times`, against a clock around the first batch;
what keeping the workers brings against what the advice predicted, in turn. About two minutes.
`worker_against_cprofile.py` has what workers do.
"""

import argparse
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

TESTS = Path(__file__).resolve().parents[1] / "tests"
sys.path.insert(0, str(TESTS))
from unmarked_project import Records, Slow, train, write_records  # noqa: E402

SCRIPT = """
import sys, warnings
from pathlib import Path
from time import perf_counter
warnings.simplefilter("ignore")
sys.path.insert(0, sys.argv[1])
import torch
torch.set_num_threads(1)
from unmarked_project import Model, train
took, decode = [], Model.decode
def timed(self, output):
    begin = perf_counter()
    decoded = decode(self, output)
    took.append(perf_counter() - begin)
    return decoded
Model.decode = timed
train(sys.argv[2], epochs=2, passes=60)
Path(sys.argv[3]).write_text(str(sum(took)))
"""


def say(what: str, ours: float, theirs: float, holds: bool, bound: str) -> None:
    """Print one comparison."""
    kept = "holds" if holds else "DOES NOT HOLD"
    print(f"{what:34} tclab {ours:7.4f}  clock {theirs:7.4f}  {kept} ({bound})", flush=True)


def near(what: str, ours: float, theirs: float, most: float) -> None:
    """Print a comparison by ratio."""
    say(what, ours, theirs, abs(ours / theirs - 1) <= most, f"ratio {ours / theirs:.3f}, within {most:.0%}")


def decoding(records: Path, folder: Path) -> None:
    """Compare the share of the decoding lines with that of a clock around them."""
    script, written = folder / "script.py", folder / "seconds.txt"
    script.write_text(SCRIPT)
    seen = timing.profile_script(script, [str(TESTS), str(records), str(written)])
    share = sum(share for (_, _, function), share in seen.shares().items() if function.endswith("decode"))
    clock = float(written.read_text()) / seen.seconds
    bound = f"{100 * (share - clock):+.1f} points, within 5"
    say("decoding lines, share", share, clock, abs(share - clock) <= 0.05, bound)


def restart(records: Path) -> None:
    """Compare the seconds of a loader's second start with a clock around it."""
    loader = DataLoader(Records(records), batch_size=32, num_workers=1, worker_init_fn=Slow(0.6))
    took = []
    with timing.loader_times() as found:
        for _ in range(2):
            begin, first = perf_counter(), 0.0
            for _ in loader:
                first = first or perf_counter() - begin
            took.append(first)
    (again,) = found.restarts(found.names()[0])
    near("a loader's start anew, seconds", again.start_seconds, took[1], 0.1)


def advice(records: Path, rounds: int) -> None:
    """Compare what keeping the workers brings with what the advice predicted: the share of the run that is saved."""
    predicted, brought = [], []
    train(records, epochs=1, passes=1, start_seconds=0.0)  # what a process does once is no run's
    for _ in range(rounds):
        took = {}
        for persistent in (True, False):
            ledger = timing.Ledger()
            with timing.loader_times() as loaders:
                train(records, callbacks=[timing.lightning_callback(ledger)], epochs=6, passes=4, start_seconds=0.6,
                      persistent=persistent)  # fmt: skip
            took[persistent] = loaders.seconds
        suggestions = timing.advise(ledger, loaders=loaders).suggestions
        predicted.append(1 - next(one.ratio for one in suggestions if "persistent_workers" in one.change))
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
        advice(records, chosen.rounds)


if __name__ == "__main__":
    main()
