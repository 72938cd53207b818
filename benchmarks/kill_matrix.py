"""Kill a sweep and its processes at random moments, go on with it, and compare what it kept with what it reported.

`python benchmarks/kill_matrix.py [--kills 260] [--seed 0]`

A sweep of small points, one process each or two ranks each, is disturbed until all its points are measured, then the
next one begins. Each kill sends a signal to one process: the sweep's own, its worker, a loader worker, torchrun or a
rank; SIGTERM, SIGINT, SIGKILL, or SIGSTOP and SIGCONT a second later. A fault is a process that lives 2 s longer than
its sweep, a row that was reported and is not kept, more than one row that was not reported, a point measured again
though its row was kept, a row unlike an undisturbed one's, a file that cannot be read, a sweep that ends or hangs
because of its child, a status that is no sentence, and what is left beside the rows, in /dev/shm or, once the next
process has made a temporary folder, of temporary files.
"""

import argparse
import json
import os
import random
import re
import signal
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from unittest.mock import patch

import psutil

os.environ["OMP_NUM_THREADS"] = "1"  # as the sweeps have it: rows are named by the machine, threads included
ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from orphans import MARK, left_behind, marked  # noqa: E402

import tclab  # noqa: E402
from tclab._io import TemporaryFolder  # noqa: E402
from tclab.sweeps._rows import Results  # noqa: E402

SIGNALS = ("SIGTERM", "SIGINT", "SIGKILL", "SIGSTOP")
TARGETS = {"one process": ("parent", "worker", "loader"), "two ranks": ("parent", "torchrun", "rank")}
ORPHAN_SECONDS = 2.0
HANG_SECONDS = 600.0  # without a word, on a busy machine, too
APART = ("seed", "workers", "store", "strategy")  # what differs between the points of a sweep
SAME = ["stage", "status", "batch_bytes", "edge_bytes"]  # of a row whatever disturbed the run
AS_IT_COMES = ("rank_wait",)  # stages that ranks have where one waited for another


def points(kind):
    """Return the points of a sweep: in the training process, with a loader worker, and with stores on disk."""
    small = {"scale": 0.05, "batch_size": 2, "networks": 2, "steps": 8, "warmup": 2, "device": "cpu"}
    if kind == "two ranks":
        return [tclab.Point(**small, ranks=2, seed=seed) for seed in range(2)]
    loads = [{"workers": 0}, {"workers": 1}, {"workers": 1, "store": "lmdb"}, {"workers": 1, "strategy": "stored_mask"}]
    return [tclab.Point(**{**small, **load}, seed=seed) for seed in range(2) for load in loads]


def apart(values):
    """Return what tells a point of a sweep from the others, of its fields or of its row."""
    return tuple(values[name] for name in APART)


def sweep(kind, folder):
    """Run the sweep itself, with a line of JSON for every point."""

    def report(progress):
        status = progress.rows["status"][0].as_py()
        print(json.dumps([apart(vars(progress.point)), status, progress.kept]), flush=True)

    # a shell that puts the benchmark in the background has it ignore the interrupt
    signal.signal(signal.SIGINT, signal.default_int_handler)
    tclab.sweep(points(kind), results=folder, retry=True, progress=report)


def same_part(table):
    """Return what rows have in common with an undisturbed run's, whose stages may come in another order."""
    rows = (tuple(row.values()) for row in table.select(SAME).to_pylist() if row["stage"] not in AS_IT_COMES)
    return sorted(set(rows), key=str)


class Sweep:
    """A running sweep: its processes, and what it has reported: each point, its status, whether it was kept already."""

    def __init__(self, kind, work, mark):
        self.targets, self.mark, self.file = TARGETS[kind], mark, work / "reported"
        environment = {**os.environ, MARK: mark, "TMPDIR": str(work / "tmp"), "PYTHONPATH": str(ROOT)}
        command = [sys.executable, __file__, "--sweep", kind, str(work / "rows")]
        with self.file.open("w") as file:
            self.process = psutil.Popen(command, env=environment, stdout=file)

    @property
    def lines(self):
        """What was reported so far; a line that is being written is none yet."""
        whole = self.file.read_text().rpartition("\n")[0].splitlines()
        return [(tuple(point), *more) for point, *more in map(json.loads, whole)]

    @property
    def alive(self):
        """Whether the sweep's own process runs."""
        return self.process.poll() is None

    def targets_of(self, target):
        """Return the processes that are a target now, by their distance from the sweep's own."""
        level, ours = [self.process], marked(self.mark)
        for _ in range(self.targets.index(target)):
            with suppress(psutil.NoSuchProcess):
                level = [child for one in level for child in one.children() if child.pid in ours]
        return level


class Matrix:
    """Kills, one after another, and what they led to."""

    def __init__(self, seed):
        self.draw, self.seed = random.Random(seed), seed
        self.right = {}  # point → the columns that a run has whatever disturbs it
        self.kills, self.faults = Counter(), Counter()
        self.sweeps, self.rows, self.orphan_seconds = 0, 0, 0.0

    def fault(self, name, what):
        """Count a fault and say it."""
        self.faults[name] += 1
        print(f"FAULT {name}: {what}", flush=True)

    def run(self, kind, kills):
        """Disturb sweeps of a kind so many times."""
        every = [(target, name) for target in TARGETS[kind] for name in SIGNALS]
        left = every * (kills // len(every)) + self.draw.sample(every, kills % len(every))
        self.draw.shuffle(left)
        self.right = {}
        self.right = {point: same_part(table) for point, (table, _) in self.through_one_sweep(kind, []).items()}
        while left:
            self.through_one_sweep(kind, left)
            print(f"{kind}: {kills - len(left)} of {kills} kills, {self.faults.total()} faults", flush=True)

    def through_one_sweep(self, kind, left):
        """Disturb one sweep, and go on with it, until all its points are measured; return what is kept."""
        self.sweeps += 1
        mark = f"{os.getpid()}-{self.seed}-{self.sweeps}"
        shared, pids = set(os.listdir("/dev/shm")), set()
        ok, kept = {}, {}  # ok: point → its file once a good row was reported
        with tempfile.TemporaryDirectory(prefix="kill-matrix-") as folder:
            work = Path(folder)
            (work / "tmp").mkdir()
            while len(ok) < len(points(kind)):
                running = Sweep(kind, work, mark)
                while running.alive and left:
                    self.one_kill(running, left, pids)
                self.wait(running, lambda: False, "the end of a sweep")
                begin = time.monotonic()
                if orphans := left_behind(mark, ORPHAN_SECONDS):
                    self.fault("orphan", orphans)
                    left_behind(mark, 60.0)
                self.orphan_seconds = max(self.orphan_seconds, time.monotonic() - begin)
                kept = self.kept(work / "rows")
                self.compare(kept, running.lines, ok)
            self.rows += len(ok)
            self.look_for_rest(work, shared, pids)
        return kept

    def wait(self, running, ready, what):
        """Wait until something is so or the sweep has ended; one that reports nothing any more is killed: a fault."""
        reported, until = -1, 0.0
        while running.alive and not ready():
            if len(running.lines) > reported:
                reported, until = len(running.lines), time.monotonic() + HANG_SECONDS
            if time.monotonic() > until:
                self.fault("hang", f"{what} did not come, nothing for {HANG_SECONDS:g} s; reported {running.lines}")
                running.process.kill()
                running.process.wait()
            time.sleep(0.01)

    def one_kill(self, running, left, pids):
        """Send one signal at a random moment, and wait for what a sweep that goes on reports next."""
        target, name = left[-1]
        at = len(running.lines) + self.draw.randrange(3)
        self.wait(running, lambda: len(running.lines) >= at, f"point {at}")
        time.sleep(self.draw.uniform(0, 4.0 if at == 0 else 1.0))
        self.wait(running, lambda: running.targets_of(target), f"a {target}")
        reported = len(running.lines)
        pids |= {*marked(running.mark), running.process.pid}
        try:
            one = self.draw.choice(running.targets_of(target))
            one.send_signal(getattr(signal, name))
            if name == "SIGSTOP":
                time.sleep(1.0)
                one.send_signal(signal.SIGCONT)
        except (IndexError, psutil.NoSuchProcess):
            return  # it has just ended
        left.pop()
        self.kills[f"{target} · {name}"] += 1
        if target == "parent" and name != "SIGSTOP":
            self.wait(running, lambda: False, f"the end after {name}")
            return
        self.wait(running, lambda: len(running.lines) > reported, f"a point after {name} of {target}")
        if not running.alive and running.process.returncode:
            self.fault("ended", f"{running.process.returncode} after {name} of {target}")

    def kept(self, folder):
        """Return the rows of each point that is kept whole, and their file's contents."""
        found, files = {}, [path for path in folder.glob("*.parquet") if not path.name.startswith(".")]
        for path in files:
            table = Results(folder).read(path.name)
            found[apart(table.slice(0, 1).to_pylist()[0])] = (table, path.read_bytes())
        if len(files) != len(found):
            self.fault("double", f"{len(files)} files of {len(found)} points")
        return found

    def compare(self, kept, lines, ok):
        """Compare the files of a sweep that has ended with what it, and the runs before it, reported."""
        for point, status, was_kept in lines:
            if point in ok and not was_kept:
                self.fault("double", f"point {point} was measured again")
            if point in ok and kept.get(point, (None, None))[1] != ok[point]:
                self.fault("lost", f"the row of point {point} is another or gone")
            if status != "ok" and (not status.startswith("failed: ") or len(status) < 15 or "Traceback" in status):
                self.fault("status", status)
            if status == "ok" and point not in kept:
                self.fault("lost", f"point {point} was reported and is not kept")
        good = {point: one for point, one in kept.items() if set(one[0]["status"].to_pylist()) == {"ok"}}
        reported = {point for point, status, _ in lines if status == "ok"}
        if len(unreported := good.keys() - reported - ok.keys()) > 1:
            self.fault("lost", f"points {unreported} have rows that nobody reported")
        for point, (table, content) in good.items():
            if self.right and (part := same_part(table)) != self.right[point]:
                self.fault("wrong", f"point {point}: {part}")
            ok[point] = content

    def look_for_rest(self, work, shared, pids):
        """Find files that a sweep left behind; what torch's compiler keeps is none of them."""
        with patch.object(tempfile, "tempdir", str(work / "tmp")):
            TemporaryFolder().close()  # as the next process does, which removes those whose owner was killed
        new = set(os.listdir("/dev/shm")) - shared
        rest = [str(path) for path in (work / "tmp").iterdir() if not path.name.startswith("torch")]
        rest += [p.name for p in (work / "rows").iterdir() if p.suffix != ".parquet" or p.name[0] == "."]
        rest += [name for name in new if not pids.isdisjoint(map(int, re.findall(r"\d+", name)))]
        if rest:
            self.fault("left", rest)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=260, help="of sweeps of one process; a seventh as many of ranks")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--sweep", nargs=2, metavar=("KIND", "FOLDER"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.sweep:
        sweep(*given.sweep)
        return 0
    matrix = Matrix(given.seed)
    matrix.run("one process", given.kills)
    matrix.run("two ranks", given.kills // 7)
    print(f"{matrix.kills.total()} signals, {matrix.rows} rows in {matrix.sweeps} sweeps; {dict(matrix.kills)}")
    print(f"faults {dict(matrix.faults)}; the longest that a process lived on is {matrix.orphan_seconds:.2f} s")
    return int(bool(matrix.faults))


if __name__ == "__main__":
    sys.exit(main())
