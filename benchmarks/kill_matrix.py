"""Kill a sweep and its processes at random moments, go on with it, and compare what it kept with what it reported.

`python benchmarks/kill_matrix.py [--kills 300] [--rank-kills 40] [--seed 0]`

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
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections import Counter
from itertools import count
from pathlib import Path
from unittest.mock import patch

os.environ["OMP_NUM_THREADS"] = "1"  # as the sweeps have it: rows are named by the machine, threads included
ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from orphans import MARK, left_behind, marked  # noqa: E402

import tclab  # noqa: E402
from tclab._io import TemporaryFolder  # noqa: E402
from tclab.sweeps.store._row_files import Results  # noqa: E402

SIGNALS = ("SIGTERM", "SIGINT", "SIGKILL", "SIGSTOP")
TARGETS = {"one process": ("parent", "worker", "loader"), "two ranks": ("parent", "torchrun", "rank")}
ORPHAN_SECONDS = 2.0
HANG_SECONDS = 120.0
APART = ("seed", "workers", "store", "strategy")  # what differs between the points of a sweep
SAME = ["stage", "status", "batch_bytes", "edge_bytes"]  # of a row whatever disturbed the run
AS_IT_COMES = ("rank_wait", "overlapped")  # stages that ranks have where one waited for another


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

    tclab.sweep(points(kind), results=folder, retry=True, progress=report)


def same_part(table):
    """Return what rows have in common with an undisturbed run's, whose stages may come in another order."""
    rows = (tuple(row.values()) for row in table.select(SAME).to_pylist() if row["stage"] not in AS_IT_COMES)
    return sorted(set(rows), key=str)


class Sweep:
    """A running sweep: its processes, and what it has reported: each point, its status, whether it was kept already."""

    def __init__(self, kind, folder, temporary, mark):
        self.kind, self.mark, self.lines = kind, mark, []
        environment = {**os.environ, MARK: mark, "TMPDIR": str(temporary), "PYTHONPATH": str(ROOT)}
        command = [sys.executable, __file__, "--sweep", kind, str(folder)]
        self.process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self):
        with self.process.stdout as lines:
            for point, *more in map(json.loads, lines):
                self.lines.append((tuple(point), *more))

    @property
    def alive(self):
        """Whether the sweep's own process runs."""
        return self.process.poll() is None

    def wait_until(self, ready):
        """Wait until something is so or the sweep has ended, and return whether either came to be."""
        until = time.monotonic() + HANG_SECONDS
        while not (found := ready()) and self.alive and time.monotonic() < until:
            time.sleep(0.01)
        return bool(found) or not self.alive

    def pick(self, target, draw):
        """Return a process that is a target now, by its distance from the sweep's own, or None."""
        parents = {}
        for pid in marked(self.mark):
            try:
                parents[pid] = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
        level = [self.process.pid]
        for _ in range(TARGETS[self.kind].index(target)):
            level = [pid for pid, parent in parents.items() if parent in level]
        return draw.choice(sorted(level)) if level else None


class Matrix:
    """Kills, one after another, and what they led to."""

    def __init__(self, seed, work):
        self.draw, self.seed, self.work = random.Random(seed), seed, Path(work)
        self.right = {}  # point → the columns that a run has whatever disturbs it
        self.kills, self.faults = Counter(), Counter()
        self.numbers, self.rows, self.orphan_seconds = count(), 0, 0.0

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

    def kept(self, folder):
        """Return the rows of each point that is kept whole, and their file's contents."""
        found, files = {}, [path for path in folder.glob("*.parquet") if not path.name.startswith(".")]
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            for path in files:
                table = Results(folder).read(path.name)
                found[apart(table.slice(0, 1).to_pylist()[0])] = (table, path.read_bytes())
        if len(files) != len(found):
            self.fault("double", f"{len(files)} files of {len(found)} points")
        return found

    def through_one_sweep(self, kind, left):
        """Disturb one sweep, and go on with it, until all its points are measured; return what is kept."""
        number = next(self.numbers)
        folder, temporary, mark = self.work / f"rows{number}", self.work / f"tmp{number}", f"{os.getpid()}-{number}"
        temporary.mkdir()
        shared, pids = set(os.listdir("/dev/shm")), set()
        ok, kept = {}, {}  # ok: point → its file once a good row was reported
        while len(ok) < len(points(kind)):
            running = Sweep(kind, folder, temporary, f"{mark}-{self.seed}")
            while running.alive and left:
                self.one_kill(running, left, pids)
            try:
                running.process.wait(HANG_SECONDS)
            except subprocess.TimeoutExpired:
                self.fault("hang", f"a sweep of {kind} after {running.lines}")
                running.process.kill()
            begin = time.monotonic()
            if orphans := left_behind(running.mark, ORPHAN_SECONDS):
                self.fault("orphan", orphans)
                left_behind(running.mark, 60.0)
            self.orphan_seconds = max(self.orphan_seconds, time.monotonic() - begin)
            running.reader.join()
            kept = self.kept(folder)
            self.compare(kept, running, ok)
        self.rows += len(ok)
        self.look_for_rest(folder, temporary, shared, pids)
        shutil.rmtree(folder)
        shutil.rmtree(temporary)
        return kept

    def look_for_rest(self, folder, temporary, shared, pids):
        """Find files that a sweep left behind; what torch's compiler keeps is none of them."""
        with patch.object(tempfile, "tempdir", str(temporary)):
            TemporaryFolder().close()  # as the next process does, which removes those whose owner was killed
        files = [path.relative_to(temporary) for path in temporary.rglob("*")]
        new = set(os.listdir("/dev/shm")) - shared
        rest = {
            "temporary files": [str(path) for path in files if not path.parts[0].startswith("torch")],
            "files beside the rows": [p.name for p in folder.iterdir() if p.suffix != ".parquet" or p.name[0] == "."],
            "/dev/shm": [name for name in new if not pids.isdisjoint(map(int, re.findall(r"\d+", name)))],
        }
        for where, names in rest.items():
            if names:
                self.fault(where, names)

    def one_kill(self, running, left, pids):
        """Send one signal at a random moment, and wait for what a sweep that goes on reports next."""
        target, name = left[-1]
        at = len(running.lines) + self.draw.randrange(3)
        if not running.wait_until(lambda: len(running.lines) >= at):
            self.fault("hang", f"a sweep waited for {at} points: {running.lines}")
            running.process.kill()
        time.sleep(self.draw.uniform(0, 4.0 if at == 0 else 1.0))
        running.wait_until(lambda: running.pick(target, self.draw))
        pid, reported = running.pick(target, self.draw), len(running.lines)
        if pid is None or not running.alive:
            return
        pids |= {*marked(running.mark), running.process.pid}
        try:
            os.kill(pid, getattr(signal, name))
            if name == "SIGSTOP":
                time.sleep(1.0)
                os.kill(pid, signal.SIGCONT)
        except ProcessLookupError:
            return  # it has just ended
        left.pop()
        self.kills[f"{running.kind} · {target} · {name}"] += 1
        ends = target == "parent" and name != "SIGSTOP"
        if not running.wait_until(lambda: not ends and len(running.lines) > reported):
            self.fault("hang", f"nothing came for {HANG_SECONDS:g} s after {name} of {target}")
            running.process.kill()
        elif not ends and not running.alive and running.process.returncode:
            self.fault("ended", f"{running.process.returncode} after {name} of {target}")

    def compare(self, kept, running, ok):
        """Compare the files of a sweep that has ended with what it, and the runs before it, reported."""
        for point, status, was_kept in running.lines:
            if point in ok and not was_kept:
                self.fault("double", f"point {point} was measured again")
            if point in ok and kept.get(point, (None, None))[1] != ok[point]:
                self.fault("lost", f"the row of point {point} is another or gone")
            if status != "ok" and (not status.startswith("failed: ") or len(status) < 15 or "Traceback" in status):
                self.fault("status", status)
            if status == "ok" and point not in kept:
                self.fault("lost", f"point {point} was reported and is not kept")
        good = {point: one for point, one in kept.items() if set(one[0]["status"].to_pylist()) == {"ok"}}
        reported = {point for point, status, _ in running.lines if status == "ok"}
        if len(unreported := good.keys() - reported - ok.keys()) > 1:
            self.fault("lost", f"points {unreported} have rows that nobody reported")
        for point, (table, content) in good.items():
            if self.right and (part := same_part(table)) != self.right[point]:
                self.fault("wrong", f"point {point}: {part}")
            ok[point] = content


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=300, help="in all")
    parser.add_argument("--rank-kills", type=int, default=40, help="of them, of sweeps of two ranks")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--sweep", nargs=2, metavar=("KIND", "FOLDER"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.sweep:
        # a shell that puts the benchmark in the background has it ignore the interrupt
        signal.signal(signal.SIGINT, signal.default_int_handler)
        sweep(*given.sweep)
        return 0
    begin = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="kill-matrix-") as work:
        matrix = Matrix(given.seed, work)
        for kind, kills in (("one process", given.kills - given.rank_kills), ("two ranks", given.rank_kills)):
            if kills > 0:
                matrix.run(kind, kills)
    found = {"kills": matrix.kills.total(), "by target": dict(sorted(matrix.kills.items())), "rows": matrix.rows}
    found |= {"longest orphan seconds": round(matrix.orphan_seconds, 2), "faults": dict(matrix.faults)}
    print(json.dumps({**found, "minutes": round((time.monotonic() - begin) / 60, 1)}, indent=1))
    return int(bool(matrix.faults))


if __name__ == "__main__":
    sys.exit(main())
