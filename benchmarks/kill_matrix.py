"""Kill a sweep and its processes at random moments, go on with it, and compare what it kept with what it reported.

`python benchmarks/kill_matrix.py [--kills 300] [--rank-kills 40] [--seed 0] [--stop-seconds 1]`

A sweep of small points, one process each or two ranks each, is disturbed until all its points are measured, then the
next one begins. Each kill sends a signal to one process: the sweep's own, its worker, a loader worker, torchrun or a
rank; SIGTERM, SIGINT, SIGKILL, or SIGSTOP and SIGCONT some time later. A fault is a process that lives 2 s longer than
its sweep, a row that was reported and is not kept, more than one row that was not reported, a point measured again
though its row was kept, a row unlike an undisturbed one's, a file that cannot be read, a sweep that ends or hangs
because of its child, a status that is no sentence, and what is left in /dev/shm or, once the next process has made a
temporary folder, of temporary files.
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
from collections import Counter, defaultdict
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


def places_of(kind):
    """Return what tells each point of a sweep from the others → its place."""
    return {tuple(getattr(point, name) for name in APART): place for place, point in enumerate(points(kind))}


def sweep(kind, folder):
    """Run the sweep itself, with a line of JSON for every point."""
    places = places_of(kind)

    def report(progress):
        place = places[tuple(getattr(progress.point, name) for name in APART)]
        print(json.dumps([place, progress.rows["status"][0].as_py(), progress.kept]), flush=True)

    tclab.sweep(points(kind), results=folder, retry=True, progress=report)


def same_part(table):
    """Return what rows have in common with an undisturbed run's, whose stages may come in another order."""
    rows = (tuple(row.values()) for row in table.select(SAME).to_pylist() if row["stage"] not in AS_IT_COMES)
    return sorted(set(rows), key=str)


class Sweep:
    """A running sweep: its processes, and what it has reported."""

    def __init__(self, kind, folder, temporary, mark):
        self.kind, self.mark, self.lines = kind, mark, []
        environment = {**os.environ, MARK: mark, "TMPDIR": str(temporary), "PYTHONPATH": str(ROOT)}
        self.errors = tempfile.TemporaryFile()  # noqa: SIM115 (it ends with the sweep)
        command = [sys.executable, __file__, "--sweep", kind, str(folder)]
        self.process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=self.errors, text=True)
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self):
        for line in self.process.stdout:
            self.lines.append(json.loads(line))

    def close(self):
        """Close what the sweep, which has ended, wrote into."""
        self.process.wait()
        self.reader.join()
        self.process.stdout.close()
        self.errors.close()

    def said(self):
        """Return the end of what it wrote to its standard error."""
        self.errors.seek(0)
        return self.errors.read().decode(errors="replace")[-500:]

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
        """Return a process that is a target now, or None."""
        levels, place = self._levels(), TARGETS[self.kind].index(target)
        return draw.choice(levels[place]) if len(levels) > place else None

    def _levels(self):
        """Return the processes by their distance from the sweep's own."""
        parents = {}
        for pid in marked(self.mark):
            try:
                parents[pid] = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
        levels = [[self.process.pid]]
        while children := [pid for pid, parent in parents.items() if parent in levels[-1]]:
            levels.append(sorted(children))
        return levels


class Matrix:
    """Kills, one after another, and what they led to."""

    def __init__(self, seed, stop_seconds):
        self.draw, self.seed, self.stop_seconds = random.Random(seed), seed, stop_seconds
        self.work = Path(tempfile.mkdtemp(prefix="kill-matrix-"))
        self.right = {}  # kind → place → the columns that a run has whatever disturbs it
        self.kills, self.faults = Counter(), defaultdict(list)
        self.numbers, self.rows, self.orphan_seconds = count(), 0, 0.0
        self.running = None

    def __enter__(self):
        return self

    def __exit__(self, *error):
        if self.running is not None and self.running.alive:  # an interrupt of the matrix itself
            self.running.process.kill()
            self.running.close()
            left_behind(self.running.mark)
        shutil.rmtree(self.work, ignore_errors=True)

    def fault(self, name, what):
        """Count a fault and say it."""
        self.faults[name].append(what)
        print(f"FAULT {name}: {what}", flush=True)

    def run(self, kind, kills):
        """Disturb sweeps of a kind so many times."""
        every = [(target, name) for target in TARGETS[kind] for name in SIGNALS]
        left = every * (kills // len(every)) + self.draw.sample(every, kills % len(every))
        self.draw.shuffle(left)
        self.undisturbed(kind)
        while left:
            self.through_one_sweep(kind, left)
            faults = sum(map(len, self.faults.values()))
            print(f"{kind}: {kills - len(left)} of {kills} kills, {faults} faults", flush=True)

    def _folder(self, name):
        (folder := self.work / name).mkdir()
        return folder

    def undisturbed(self, kind):
        """Run a sweep that nothing disturbs, for its rows."""
        folder, temporary = self.work / "undisturbed" / kind, self._folder("undisturbed_tmp" + kind[:3])
        self.running = running = Sweep(kind, folder, temporary, f"{os.getpid()}-{self.seed}-undisturbed")
        assert running.process.wait(10 * HANG_SECONDS) == 0, running.said()
        self.right[kind] = {place: same_part(table) for place, (table, _) in self.kept(kind, folder).items()}
        running.close()

    def kept(self, kind, folder):
        """Return place → the rows of each point that is kept whole, and their file's contents."""
        results, found, places = Results(folder), {}, places_of(kind)
        files = [path for path in Path(folder).glob("*.parquet") if not path.name.startswith(".")]
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            for path in files:
                table = results.read(path.name)
                row = table.slice(0, 1).to_pylist()[0]
                found[places[tuple(row[name] for name in APART)]] = (table, path.read_bytes())
        if len(files) != len(found):
            self.fault("double", f"{len(files)} files of {len(found)} points")
        return found

    def through_one_sweep(self, kind, left):
        """Disturb one sweep, and go on with it, until all its points are measured."""
        number = next(self.numbers)
        folder, temporary = self.work / f"rows{number}", self._folder(f"tmp{number}")
        shared, mark = set(os.listdir("/dev/shm")), f"{os.getpid()}-{self.seed}-{number}"
        ok, pids = {}, set()  # ok: place → its file once a good row was reported
        while len(ok) < len(points(kind)):
            self.running = running = Sweep(kind, folder, temporary, mark)
            while running.alive and left:
                self.one_kill(running, left, pids)
            try:
                running.process.wait(HANG_SECONDS)
            except subprocess.TimeoutExpired:
                self.fault("hang", f"a sweep of {kind} after {running.lines}")
                running.process.kill()
            begin = time.monotonic()
            if orphans := left_behind(mark, ORPHAN_SECONDS):
                self.fault("orphan", orphans)
                left_behind(mark, 60.0)
            self.orphan_seconds = max(self.orphan_seconds, time.monotonic() - begin)
            running.reader.join()
            self.compare(kind, folder, running, ok)
            running.close()
        self.rows += len(ok)
        with patch.object(tempfile, "tempdir", str(temporary)):
            TemporaryFolder().close()  # as the next process does, which removes those whose owner was killed
        rest = [path for path in temporary.rglob("*") if not path.relative_to(temporary).parts[0].startswith("torch")]
        temporaries = [str(path.relative_to(temporary)) for path in rest]
        beside = [path.name for path in folder.iterdir() if path.suffix != ".parquet" or path.name[0] == "."]
        new = set(os.listdir("/dev/shm")) - shared
        ours = [name for name in new if not pids.isdisjoint(map(int, re.findall(r"\d+", name)))]
        for where, rest in (("temporary files", temporaries), ("files beside the rows", beside), ("/dev/shm", ours)):
            if rest:
                self.fault(where, rest)
        shutil.rmtree(folder)
        shutil.rmtree(temporary)

    def one_kill(self, running, left, pids):
        """Send one signal at a random moment, and wait for what a sweep that goes on reports next."""
        target, name = left[-1]
        at = len(running.lines) + self.draw.randrange(3)
        if not running.wait_until(lambda: len(running.lines) >= at):
            return self.fault("hang", f"a sweep waited for {at} points: {running.lines}")
        time.sleep(self.draw.uniform(0, 4.0 if at == 0 else 1.0))
        running.wait_until(lambda: running.pick(target, self.draw))
        pid = running.pick(target, self.draw)
        if pid is None or not running.alive:
            return None
        pids |= set(marked(running.mark)) | {running.process.pid}
        reported = len(running.lines)
        try:
            os.kill(pid, getattr(signal, name))
            if name == "SIGSTOP":
                time.sleep(self.stop_seconds)
                os.kill(pid, signal.SIGCONT)
        except ProcessLookupError:
            return None  # it has just ended
        left.pop()
        self.kills[f"{running.kind} · {target} · {name}"] += 1
        if target == "parent" and name != "SIGSTOP":
            try:
                running.process.wait(10)
            except subprocess.TimeoutExpired:
                self.fault("hang", f"{name} of the {target}")
                running.process.kill()
        elif not running.wait_until(lambda: len(running.lines) > reported):
            self.fault("hang", f"no point was through {HANG_SECONDS:g} s after {name} of {target}")
            running.process.kill()
        elif not running.alive and running.process.returncode:
            self.fault("ended", f"{running.process.returncode} after {name} of {target}: {running.said()}")
        return None

    def compare(self, kind, folder, running, ok):
        """Compare the files of a sweep that has ended with what it, and the runs before it, reported."""
        try:
            kept = self.kept(kind, folder)
        except Exception as error:
            return self.fault("unread", repr(error))
        for place, status, was_kept in running.lines:
            if place in ok and not was_kept:
                self.fault("double", f"point {place} was measured again")
            if place in ok and kept.get(place, (None, None))[1] != ok[place]:
                self.fault("lost", f"the row of point {place} is another or gone")
            if status != "ok" and (not status.startswith("failed: ") or len(status) < 15 or "Traceback" in status):
                self.fault("status", status)
            if status == "ok" and place not in kept:
                self.fault("lost", f"point {place} was reported and is not kept")
        good = {place: one for place, one in kept.items() if set(one[0]["status"].to_pylist()) == {"ok"}}
        reported = {place for place, status, _ in running.lines if status == "ok"}
        if len(unreported := good.keys() - reported - ok.keys()) > 1:
            self.fault("lost", f"points {unreported} have rows that nobody reported")
        for place, (table, content) in good.items():
            if (part := same_part(table)) != self.right[kind][place]:
                self.fault("wrong", f"point {place}: {part}")
            ok[place] = content
        return None

    def summary(self):
        """Return the figures, by target and signal, and by kind of fault."""
        names = ("orphan", "lost", "double", "wrong", "unread", "hang", "ended", "status", "temporary files",
                 "files beside the rows", "/dev/shm")  # fmt: skip
        return {
            "kills": sum(self.kills.values()), "sweeps": next(self.numbers), "rows": self.rows,
            "by target": dict(sorted(self.kills.items())), "longest orphan seconds": round(self.orphan_seconds, 2),
            "faults": {name: len(self.faults[name]) for name in names},
        }  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=300, help="in all")
    parser.add_argument("--rank-kills", type=int, default=40, help="of them, of sweeps of two ranks")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--stop-seconds", type=float, default=1.0)
    parser.add_argument("--sweep", nargs=2, metavar=("KIND", "FOLDER"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.sweep:
        # a shell that puts the benchmark in the background has it ignore the interrupt
        signal.signal(signal.SIGINT, signal.default_int_handler)
        sweep(*given.sweep)
        return 0
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # the figures so far are printed
    kills = {"one process": given.kills - given.rank_kills, "two ranks": given.rank_kills}
    begin = time.monotonic()
    with Matrix(given.seed, given.stop_seconds) as matrix:
        try:
            for kind, number in kills.items():
                if number > 0:
                    matrix.run(kind, number)
        except KeyboardInterrupt:
            print("interrupted", flush=True)
        found = matrix.summary()
    print(json.dumps({**found, "minutes": round((time.monotonic() - begin) / 60, 1)}, indent=1))
    return int(any(found["faults"].values()))


if __name__ == "__main__":
    sys.exit(main())
