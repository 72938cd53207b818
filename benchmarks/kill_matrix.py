"""Kill a sweep and its processes at random moments, go on with it, and compare what it kept with what it reported.

`python benchmarks/kill_matrix.py [--kills 300] [--seed 0] [--stop-seconds 1] [--long-stops 4] [--processes 2]`

A sweep of small points, one process each or two ranks each, in a notebook's kernel, or as jobs of a Slurm of its own
where there is one, is disturbed until all its points are measured, then the next one begins. Each kill sends a signal
to one process: the sweep's own or the kernel, its worker, a loader worker, torchrun, a rank or a job; SIGTERM, SIGINT,
SIGKILL, or SIGSTOP and SIGCONT some time later, of the first few a minute later. Where it came is read from the stacks
of the processes just before. A fault is a process that lives 2 s longer than its sweep, a row that was reported and is
not kept, more than one row that was not reported, a point measured again though its row was kept, a row unlike an
undisturbed one's, a file that cannot be read, a sweep that ends or hangs because of its child, a status that is no
sentence, and what is left in /dev/shm or, once the sweep is through, of temporary files.
"""

import argparse
import json
import os
import queue
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
from contextlib import nullcontext
from itertools import count
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"  # as the sweeps have it: rows are named by the machine, threads included
ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from orphans import MARK, left_behind, marked  # noqa: E402
from slurm_box import missing, slurm  # noqa: E402

import tclab  # noqa: E402
from tclab.sweeps.store._results import Results  # noqa: E402

SIGNALS = ("SIGTERM", "SIGINT", "SIGKILL", "SIGSTOP")
TARGETS = {
    "one process": ("parent", "worker", "loader"), "two ranks": ("parent", "torchrun", "rank"),
    "notebook": ("kernel", "worker", "loader"), "Slurm jobs": ("submitter", "job", "worker"),
}  # fmt: skip
KINDS = {"rank_kills": "two ranks", "kernel_kills": "notebook", "job_kills": "Slurm jobs"}  # by the option that counts
SWEEPING = ("parent", "kernel", "submitter")  # a sweep ends with them, and with no other
ORPHAN_SECONDS = 2.0
HANG_SECONDS = 120.0
LONG_STOP_SECONDS = 60.0
APART = ("seed", "workers", "store", "strategy")  # what differs between the points of a sweep
SAME = ["stage", "status", "batch_bytes", "edge_bytes"]  # of a row whatever disturbed the run
AS_IT_COMES = ("rank_wait", "overlapped")  # stages that ranks have where one waited for another
# each process of a sweep writes down where it is when it is asked, by a signal that means nothing to submitit
SITE = """
import faulthandler, os, signal
signal.signal(signal.SIGRTMIN, signal.SIG_IGN)  # when faulthandler goes, at a process's end, this is left
place = os.path.join({stacks!r}, str(os.getpid()))
faulthandler.register(signal.SIGRTMIN, file=open(place + ".new", "w"), all_threads=False)
os.rename(place + ".new", place)  # who finds it may ask: the signal would end the process before
"""
# what a line of a stack says of the phase, the innermost first
PHASES = {
    "_edge_masks.py": "store", "_sample_store.py": "store",
    "_equivalence.py": "check", "_cell_graph.py": "graph", "_synthetic_graph.py": "graph", "_results.py": "writing",
    "_io.py": "writing",
}  # fmt: skip


def points(kind):
    """Return the points of a sweep: in the training process, with a loader worker, and with stores on disk."""
    small = {"scale": 0.05, "batch_size": 2, "networks": 2, "steps": 8, "warmup": 2, "device": "cpu"}
    if kind == "two ranks":
        return [tclab.Point(**small, ranks=2, seed=seed) for seed in range(2)]
    loads = [{"workers": 0}, {"workers": 1}, {"workers": 1, "store": "lmdb"}, {"workers": 1, "strategy": "stored_mask"}]
    return [tclab.Point(**{**small, **load}, seed=seed) for seed in range(2) for load in loads]


def apart(point):
    """Return what tells a point from the sweep's others."""
    return tuple(getattr(point, name) for name in APART)


def places_of(kind):
    """Return what tells each point of a sweep from the others → its place."""
    return {apart(point): place for place, point in enumerate(points(kind))}


def sweep(kind, folder):
    """Run the sweep itself, with a line of JSON for every point."""

    def report(progress):
        status = progress.rows["status"][0].as_py()
        # a kernel has another stdout for its cells
        print(json.dumps([places[apart(progress.point)], status, progress.kept]), flush=True, file=sys.__stdout__)

    places = places_of(kind)
    jobs = {"executor": "slurm", "poll_seconds": 0.5, "time": 30} if kind == "Slurm jobs" else {}
    tclab.sweep(points(kind), results=folder, retry=True, progress=report, **jobs)


def same_part(table):
    """Return what rows have in common with an undisturbed run's, whose stages may come in another order."""
    rows = (tuple(row.values()) for row in table.select(SAME).to_pylist() if row["stage"] not in AS_IT_COMES)
    return sorted(set(rows), key=str)


def phase_of(stack):
    """Return what a process was doing, by its stack as faulthandler writes it; None where it waits for another."""
    lines = [line.strip() for line in stack.splitlines() if line.strip().startswith("File")]
    for line in lines:
        place = line.split("line ")[1].split(" ")[0]
        file, number = Path(line.split('"')[1]), int(place) if place.isdigit() else 1  # ??? where it is not known
        if file.name in PHASES:
            return PHASES[file.name]
        if file.name == "_measure.py" and line.endswith("in _train_and_time"):
            text = file.read_text().splitlines()[number - 1]
            return "timed steps" if "point.steps, ledger" in text else "warm-up"
        if "importlib" in str(file) or "frozen" in str(file):
            return "starting"
        if file.name == "_child_process.py" and "receive" in line:
            return None
    return "starting" if len(lines) < 3 else "another"


class Sweep:
    """A running sweep: its processes, and what it has reported."""

    def __init__(self, kind, folder, temporary, stacks, mark):
        self.kind, self.mark, self.stacks = kind, mark, stacks
        self.lines = []
        environment = {
            **os.environ, MARK: mark, "TMPDIR": str(temporary), "OMP_NUM_THREADS": "1",
            "PYTHONPATH": os.pathsep.join([str(stacks), str(ROOT)]),
        }  # fmt: skip
        self.errors = tempfile.TemporaryFile()  # noqa: SIM115 (it ends with the sweep)
        self.process = subprocess.Popen(
            self.command(folder), env=environment, stdout=subprocess.PIPE, stderr=self.errors, text=True
        )
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def command(self, folder):
        """Return what starts the process that sweeps."""
        return [sys.executable, __file__, "--sweep", self.kind, str(folder)]

    def _read(self):
        for line in self.process.stdout:
            if line.startswith("["):  # a kernel says more
                self.lines.append(json.loads(line))

    def close(self):
        """Close what the sweep, which has ended, wrote into."""
        self.reader.join()
        self.process.stdout.close()
        self.errors.close()

    @property
    def alive(self):
        """Whether the sweep's own process runs."""
        return self.process.poll() is None

    def wait_until(self, ready, seconds=HANG_SECONDS):
        """Wait until something is so or the sweep has ended, and return whether either came to be."""
        until = time.monotonic() + seconds
        while not (found := ready()) and self.alive and time.monotonic() < until:
            time.sleep(0.01)
        return bool(found) or not self.alive

    def end(self, seconds):
        """Wait until the sweep has ended, and return whether it was through; raise TimeoutExpired after so long."""
        return self.process.wait(seconds) == 0

    def levels(self):
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

    def pick(self, target, draw):
        """Return a process that is a target now, or None."""
        levels = self.levels()
        place = TARGETS[self.kind].index(target)
        return draw.choice(levels[place]) if len(levels) > place else None

    def rest(self, whole):
        """Return its processes that live on 2 s after it has ended, whether it was through or not."""
        return left_behind(self.mark, ORPHAN_SECONDS)

    def phase(self):
        """Return what the sweep is at: its own doing, or else its worker's or first rank's."""
        levels = self.levels()[self.kind == "Slurm jobs" :]  # who submits only waits
        for pid in [level[0] for level in levels[: 3 if self.kind == "two ranks" else 2]]:
            file = self.stacks / str(pid)
            if not file.exists():
                return "starting"
            before = file.stat().st_size
            try:
                os.kill(pid, signal.SIGRTMIN)
            except ProcessLookupError:
                return "ending"
            until = time.monotonic() + 0.1
            while file.stat().st_size == before and time.monotonic() < until:
                time.sleep(0.002)
            time.sleep(0.002)
            phase = phase_of(file.read_text()[before:])
            if phase is not None and not (self.kind == "two ranks" and "_rank" in phase):
                return phase
        return "waiting for a request"


class Notebook(Sweep):
    """A sweep in a cell, whose kernel lives on after an interrupt of the cell."""

    def __init__(self, kind, folder, temporary, stacks, mark):
        from jupyter_client import BlockingKernelClient
        from jupyter_client.connect import write_connection_file

        self.connection, _ = write_connection_file(str(stacks / "kernel.json"))
        self.through = None  # whether the cell was, once it has ended
        super().__init__(kind, folder, temporary, stacks, mark)
        self.client = BlockingKernelClient(connection_file=self.connection)
        self.client.load_connection_file()
        self.client.start_channels()
        self.client.wait_for_ready(HANG_SECONDS)
        here = Path(__file__).resolve().parent
        cell = f"import sys; sys.path.insert(0, {str(here)!r}); import kill_matrix; kill_matrix.sweep"
        self.asked = self.client.execute(f"{cell}({kind!r}, {str(folder)!r})")

    def command(self, folder):
        """Return what starts a kernel whose processes write where a shell's would."""
        quiet = "--IPKernelApp.capture_fd_output=False"
        return [sys.executable, "-m", "ipykernel_launcher", "-f", self.connection, quiet]

    @property
    def alive(self):
        """Whether the kernel is, and its cell is not through."""
        while self.through is None and self.client.channels_running:
            try:
                message = self.client.get_shell_msg(timeout=0)
            except queue.Empty:
                break
            if message["parent_header"].get("msg_id") == self.asked:
                self.through = message["content"]["status"] == "ok"
        return self.through is None and self.process.poll() is None

    def end(self, seconds):
        """Wait until the cell has ended, whose kernel stays with an idle worker, or none after an interrupt; end it."""
        if self.process.poll() is None and not self.wait_until(lambda: False, seconds):
            raise subprocess.TimeoutExpired("cell", seconds)
        until = time.monotonic() + ORPHAN_SECONDS
        while self.process.poll() is None and (left := self.levels()[2 if self.through else 1 :]):
            if time.monotonic() > until:
                raise subprocess.TimeoutExpired(f"cell's processes {left}", ORPHAN_SECONDS)
            time.sleep(0.05)
        if self.process.poll() is None:
            self.client.shutdown()
            self.process.wait(seconds)
        return bool(self.through)

    def close(self):
        """Close the channels, too."""
        self.client.stop_channels()
        super().close()


class Jobs(Sweep):
    """A sweep that sends jobs to Slurm, which run on when it is killed, and which the next one picks up."""

    def levels(self):
        """Return the sweep's own process, those of its jobs, and their workers."""
        commands = marked(self.mark)
        python = {pid: command for pid, command in commands.items() if not command.startswith("srun")}
        named = ("submitit.core._submit", "tclab._child_process")
        found = [[self.process.pid], *(sorted(pid for pid in python if name in python[pid]) for name in named)]
        return [level for level in found if level]

    def rest(self, whole):
        """Return what lives on when no job does, where the sweep was through: until then, jobs may."""
        if not whole:
            return {}
        until = time.monotonic() + HANG_SECONDS
        while subprocess.run(["squeue", "-h"], capture_output=True, text=True).stdout and time.monotonic() < until:
            time.sleep(0.2)
        return super().rest(whole)


class Matrix:
    """Kills, one after another, and what they led to."""

    def __init__(self, seed, stop_seconds, long_stops=0):
        self.draw, self.stop_seconds, self.seed = random.Random(seed), stop_seconds, seed
        self.numbers, self.long_stops = count(), long_stops
        self.work = Path(tempfile.mkdtemp(prefix="kill-matrix-"))
        self.stacks = self.work / "stacks"
        self.stacks.mkdir()
        (self.stacks / "sitecustomize.py").write_text(SITE.format(stacks=str(self.stacks)))
        self.right = {}  # kind → place → the columns that a run has whatever disturbs it
        self.kills, self.orphan_seconds = Counter(), 0.0
        self.phases, self.faults = Counter(), defaultdict(list)
        self.sweeps = self.rows = 0
        self.running = None

    def __enter__(self):
        return self

    def __exit__(self, *error):
        if self.running is not None and self.running.process.poll() is None:  # an interrupt of the matrix itself
            self.running.process.kill()
            self.running.process.wait()
            self.running.close()
            left_behind(self.running.mark)
        shutil.rmtree(self.work, ignore_errors=True)

    def fault(self, name, what):
        """Count a fault and say it."""
        self.faults[name].append(what)
        print(f"FAULT {name}: {what}", flush=True)

    def run(self, kind, kills):
        """Disturb sweeps of a kind so many times."""
        left = [(t, s) for t in TARGETS[kind] for s in SIGNALS] * -(-kills // (len(TARGETS[kind]) * len(SIGNALS)))
        self.draw.shuffle(left)
        left = left[:kills]
        self.undisturbed(kind)
        while left:
            self.through_one_sweep(kind, left)
            print(
                f"{kind}: {kills - len(left)} of {kills} kills, {sum(map(len, self.faults.values()))} faults",
                flush=True,
            )

    def start(self, kind, folder, temporary, mark):
        """Start a sweep of a kind."""
        return {"notebook": Notebook, "Slurm jobs": Jobs}.get(kind, Sweep)(kind, folder, temporary, self.stacks, mark)

    def of_slurm(self):
        """Return a new folder for a Slurm of its own."""
        (folder := self.work / "slurm").mkdir()
        return folder

    def undisturbed(self, kind):
        """Run a sweep that nothing disturbs, for its rows."""
        folder, temporary = self.work / "undisturbed" / kind.replace(" ", "_"), self.work / "undisturbed_tmp"
        temporary.mkdir(exist_ok=True)
        self.running = running = self.start(kind, folder, temporary, f"{os.getpid()}-{self.seed}-undisturbed")
        running.end(10 * HANG_SECONDS)
        running.reader.join()
        self.right[kind] = {place: same_part(table) for place, (table, _) in self.kept(kind, folder).items()}
        assert len(self.right[kind]) == len(points(kind)), running.errors.seek(0) or running.errors.read().decode()
        running.close()

    def kept(self, kind, folder):
        """Return place → the rows of each point that is kept whole, and their file's contents."""
        results, found = Results(folder), {}
        files = [path for path in Path(folder).glob("*.parquet") if not path.name.startswith(".")]
        places = places_of(kind)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            for path in files:
                row = (table := results.read_file(path.name)).slice(0, 1).to_pylist()[0]
                found[places[tuple(row[name] for name in APART)]] = (table, path.read_bytes())
        if len(files) != len(found):
            self.fault("double", f"{len(files)} files of {len(found)} points")
        return found

    def through_one_sweep(self, kind, left):
        """Disturb one sweep, and go on with it, until all its points are measured."""
        number = next(self.numbers)
        folder, temporary = self.work / f"rows{number}", self.work / f"tmp{number}"
        temporary.mkdir()
        shm_before, mark = set(os.listdir("/dev/shm")), f"{os.getpid()}-{self.seed}-{number}"
        ok, pids = {}, set()  # place → its file once a good row was reported
        while True:
            self.running = running = self.start(kind, folder, temporary, mark)
            while running.alive and left:
                self.one_kill(running, left, pids)
            try:
                whole = running.end(HANG_SECONDS)
            except subprocess.TimeoutExpired as error:
                self.fault("hang", f"a sweep of {kind} after {running.lines}: {error}")
                whole = running.process.kill()
            begin = time.monotonic()
            orphans = running.rest(whole)
            self.orphan_seconds = max(self.orphan_seconds, time.monotonic() - begin)
            if orphans:
                self.fault("orphan", orphans)
                left_behind(mark, 60.0)
            running.process.wait()
            running.reader.join()
            self.compare(kind, folder, running, ok)
            running.close()
            if whole and len(ok) == len(points(kind)):
                break
        self.sweeps += 1
        self.rows += len(ok)
        if rest := [path.name for path in temporary.iterdir() if not path.name.startswith("torchinductor")]:
            self.fault("temporary files", rest)
        beside = [path.name for path in Path(folder).iterdir() if path.suffix != ".parquet" or path.name[0] == "."]
        if rest := [name for name in beside if (kind, name) != ("Slurm jobs", "slurm")]:
            self.fault("files beside the rows", rest)
        new = set(os.listdir("/dev/shm")) - shm_before
        if rest := [name for name in new if not pids.isdisjoint(map(int, re.findall(r"\d+", name)))]:
            self.fault("/dev/shm", rest)
        shutil.rmtree(folder)
        shutil.rmtree(temporary)

    def one_kill(self, running, left, pids):
        """Send one signal at a random moment, and wait for what a sweep that goes on reports next."""
        target, name = left[-1]
        at = len(running.lines) + self.draw.randrange(3)
        if not running.wait_until(lambda: len(running.lines) >= at):
            return self.fault("hang", f"a sweep waited for {at} points: {running.lines}")
        time.sleep(self.draw.uniform(0, 4.0 if at == 0 else 1.0))
        pid = None
        if not running.wait_until(lambda: running.pick(target, self.draw)) or not running.alive:
            return None
        if (pid := running.pick(target, self.draw)) is None:
            return None
        pids |= set(marked(running.mark)) | {running.process.pid}
        phase = running.phase()
        reported = len(running.lines)
        try:
            os.kill(pid, getattr(signal, name))
            if name == "SIGSTOP":
                time.sleep(LONG_STOP_SECONDS if self.long_stops > 0 else self.stop_seconds)
                self.long_stops -= 1
                os.kill(pid, signal.SIGCONT)
        except ProcessLookupError:
            return None  # it has just ended
        left.pop()
        self.kills[running.kind, target, name] += 1
        self.phases[phase] += 1
        if target in SWEEPING and name != "SIGSTOP":
            try:
                running.end(10)
            except subprocess.TimeoutExpired as error:
                self.fault("hang", f"{name} of the {target} ({phase}): {error}")
                running.process.kill()
        elif not running.wait_until(lambda: len(running.lines) > reported):
            self.fault("hang", f"no point was through {HANG_SECONDS:g} s after {name} of {target} ({phase})")
            running.process.kill()
        elif not running.alive and not running.end(10):
            running.errors.seek(0)
            said = running.errors.read().decode()[-500:]
            self.fault("ended", f"{running.process.returncode} after {name} of {target} ({phase}): {said}")
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
            if status != "ok" and not status.startswith(("failed: killed by SIG", "failed: ")):
                self.fault("status", status)
            if status != "ok" and (len(status) < 15 or "Traceback" in status):
                self.fault("status", status)
            if status == "ok" and place not in kept:
                self.fault("lost", f"point {place} was reported and is not kept")
        good = {place: one for place, one in kept.items() if set(one[0]["status"].to_pylist()) == {"ok"}}
        reported = {place for place, status, _ in running.lines if status == "ok"}
        most = len(good) if kind == "Slurm jobs" else 1  # jobs go on without the sweep that sent them
        if len(unreported := good.keys() - reported - ok.keys()) > most:
            self.fault("lost", f"points {unreported} have rows that nobody reported")
        for place, (table, content) in good.items():
            if (part := same_part(table)) != self.right[kind][place]:
                self.fault("wrong", f"point {place}: {part}")
            ok[place] = content
        return None

    def summary(self):
        """Return the figures, by target and signal, by phase, and by kind of fault."""
        kills = {" · ".join(key): number for key, number in sorted(self.kills.items())}
        names = ("orphan", "lost", "double", "wrong", "unread", "hang", "ended", "status", "temporary files",
                 "files beside the rows", "/dev/shm")  # fmt: skip
        return {
            "kills": sum(self.kills.values()), "sweeps": self.sweeps, "rows": self.rows, "by target": kills,
            "by phase": dict(self.phases.most_common()), "longest orphan seconds": round(self.orphan_seconds, 2),
            "faults": {name: len(self.faults[name]) for name in names},
        }  # fmt: skip


def several(given):
    """Run as many matrices at once, each of its share of the kills and a seed of its own; return their summaries."""
    numbers = {name: getattr(given, name) for name in ("kills", *KINDS, "long_stops")}
    shares = [
        {name: number // given.processes + (place < number % given.processes) for name, number in numbers.items()}
        for place in range(given.processes)
    ]
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder, str(place)) for place in range(given.processes)]
        started = [
            subprocess.Popen([
                sys.executable, __file__, "--processes", "1", "--summary", str(file), "--seed", str(given.seed + place),
                "--stop-seconds", str(given.stop_seconds),
                *(word for name, number in share.items() for word in (f"--{name.replace('_', '-')}", str(number))),
            ], start_new_session=True)  # an interrupt of the terminal's would come twice
            for place, (file, share) in enumerate(zip(files, shares, strict=True))
        ]  # fmt: skip
        try:
            for one in started:
                one.wait()
        except KeyboardInterrupt:
            for one in started:
                one.terminate()
                one.wait()
        return [json.loads(file.read_text()) for file in files]


def together(summaries):
    """Return the figures of several matrices as those of one."""
    counted = {key: sum((Counter(one[key]) for one in summaries), Counter()) for key in ("by target", "by phase")}
    return {
        **{key: sum(one[key] for one in summaries) for key in ("kills", "sweeps", "rows")}, **counted,
        **{key: max(one[key] for one in summaries) for key in ("longest orphan seconds", "seconds")},
        "faults": {name: sum(one["faults"][name] for one in summaries) for name in summaries[0]["faults"]},
    }  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=300)
    for name, kind in KINDS.items():
        words = f"of them, of the kind {kind}; an eighth{' where there is Slurm' if name == 'job_kills' else ''}"
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=None, help=words)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--stop-seconds", type=float, default=1.0)
    parser.add_argument("--long-stops", type=int, default=4, help="of the stops, those of a minute")
    parser.add_argument("--processes", type=int, default=2, help="matrices at once")
    parser.add_argument("--summary", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--sweep", nargs=2, metavar=("KIND", "FOLDER"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.sweep:
        # a shell that puts the benchmark in the background has it ignore the interrupt
        signal.signal(signal.SIGINT, signal.default_int_handler)
        sweep(*given.sweep)
        return 0
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # the figures so far are printed
    for name in KINDS:
        if getattr(given, name) is None:
            setattr(given, name, 0 if name == "job_kills" and missing() else given.kills // 8)
    found = together(several(given)) if given.processes > 1 else one_matrix(given)
    if given.summary:
        given.summary.write_text(json.dumps(found))
    else:
        print(json.dumps(found, indent=1))
        faults = ", ".join(f"{number} {name}" for name, number in found["faults"].items())
        targets = ", ".join(dict.fromkeys(target.rpartition(" · ")[0] for target in found["by target"]))
        print(f"| `kill_matrix.py`, {found['seconds'] / 60:.0f} minutes: {targets}, "
              f"by SIGINT, SIGTERM, SIGKILL and SIGSTOP | "
              f"{found['kills']} signals, {found['rows']} rows in {found['sweeps']} whole sweeps | {faults}; "
              f"the longest lived {found['longest orphan seconds']} s |")  # fmt: skip
    return int(any(found["faults"].values()))


def one_matrix(given):
    """Run a matrix, and return its figures, also of one that is interrupted."""
    begin = time.monotonic()
    with Matrix(given.seed, given.stop_seconds, given.long_stops) as matrix:
        try:
            kills = {kind: getattr(given, name) for name, kind in KINDS.items()}
            for kind, number in {"one process": given.kills - sum(kills.values()), **kills}.items():
                with slurm(matrix.of_slurm()) if kind == "Slurm jobs" and number else nullcontext():
                    if number:
                        matrix.run(kind, number)
        except KeyboardInterrupt:
            print("interrupted", flush=True)
        return {**matrix.summary(), "seconds": round(time.monotonic() - begin)}


if __name__ == "__main__":
    sys.exit(main())
