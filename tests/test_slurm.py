"""Slurm: what is sent and what is made of its answers, by commands that pretend to be its; then a real one.

The real one has two nodes on this machine: an array, jobs cancelled and killed, ranks on both nodes.
"""

import os
import re
import shlex
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest
from slurm_box import missing, output, wait_for
from slurm_box import slurm as real_slurm

import tclab
from tclab import InputError, Point
from tclab.lab import LiveSweep
from tclab.sweeps import _slurm as slurm
from tclab.sweeps._rows import Results, not_measured

submitit = pytest.importorskip("submitit", reason="submitit is not installed here: pip install 'tclab[slurm]'")

_COMMANDS = {
    "sbatch": 'for last; do true; done\n[ "$last" = --version ] && exit 0\nenv > given\n'
    '[ -e refuse ] && { cat refuse >&2; exit 1; }\n'
    # of an array at most `limit` tasks, of all jobs at most `room`
    'k=$(sed -n "s/#SBATCH --array=0-\\([0-9]*\\).*/\\1/p" "$last")\nk=$((${k:-0} + 1))\n'
    '[ -e limit ] && [ $k -gt $(cat limit) ] && { echo "sbatch: error: Invalid job array specification" >&2; exit 1; }'
    "\n"
    '[ -e room ] && { [ $k -gt $(cat room) ] && { echo "sbatch: error: QOSMaxSubmitJobPerUserLimit" >&2; exit 1; }\n'
    "echo $(($(cat room) - k)) > room; }\n"
    "echo >> sent\nn=$(wc -l < sent)\n"
    'cp "$last" "script-$n"\n[ -e words ] && sed "s/N/$n/" words || echo "Submitted batch job $n"',
    "squeue": 'env | grep -q ^SQUEUE_ && { echo "9_9 None"; exit 0; }\n'
    "[ -e down ] && { echo 'squeue: error: Unable to contact controller' >&2; exit 1; }\ncat queue",
    "srun": "exit 0",
}  # fmt: skip


class Closed(Exception):
    """The notebook was closed."""


class Closes(threading.Event):
    """A sweep's stop in a notebook that is closed as soon as the sweep waits."""

    def wait(self, timeout=None):
        raise Closed


class Fake:
    """Slurm's commands in a folder: a queue that the test writes, jobs that the test runs."""

    def __init__(self, folder):
        self.folder, self.results = folder, folder / "rows"
        self.queue()

    def queue(self, **states):
        """Let squeue show jobs of the states that it is asked for, j1_0="RUNNING"."""
        lines = [f"{name[1:]}\n" for name, state in states.items() if state in slurm._LIVE.split(",")]
        (self.folder / "queue").write_text("".join(lines))

    def lines(self, name):
        path = self.folder / name
        return path.read_text().splitlines() if path.exists() else []

    @property
    def sent(self):
        """How many arrays were submitted."""
        return len(self.lines("sent"))

    def run(self, number):
        """Do what a job would do, in this process."""
        path = self.results / "slurm" / "logs" / f"{number}_submitted.pkl"
        assert submitit.core.utils.DelayedSubmission.load(path).result() is None

    def sweep(self, points, **options):
        return tclab.sweep(points, **{"slurm": {}, "results": self.results, "progress": None, **options})

    def send(self, points, **options):
        with pytest.raises(Closed):
            self.sweep(points, stop=Closes(), **options)

    def statuses(self, points, **options):
        return self.sweep(points, **options)["status"].tolist()


@pytest.fixture
def fake(tmp_path, monkeypatch):
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, text in _COMMANDS.items():
        (programs / name).write_text(f"#!/bin/sh\ncd '{tmp_path}'\n{text}\n")
        (programs / name).chmod(0o755)
    for name in [n for n in os.environ if n.startswith(("SBATCH_", "SLURM_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(slurm, "_ASK_SECONDS", 0.01)
    monkeypatch.setattr(slurm.signal, "signal", lambda *_: None)  # which a job sets for its process
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(slurm, "point_rows", lambda point, **_: not_measured(point, "ok"))
    return Fake(tmp_path)


def points(number):
    return [Point(scale=0.02, batch_size=i + 1, device="cpu") for i in range(number)]


def test_bad_options_are_named_before_anything_is_sent(fake):
    for options, words in (
        ({"slurm": {"partitoin": "gpu"}}, "unknown option of Slurm 'partitoin'; did you mean 'partition'"),
        ({"slurm": "nodes:2"}, "unknown option of Slurm 'nodes'"),
        ({"slurm": {"time": "long"}}, "time is 'long', expected a whole number"),
        ({"slurm": 4}, "slurm is 4, expected sbatch's options by name"),
        ({"budget_seconds": 5}, "budget_seconds and repeats are not for a sweep on Slurm"),
    ):
        with pytest.raises(InputError, match=words):
            fake.sweep(points(1), **options)
    assert fake.sent == 0


def test_what_is_missing_or_refused_is_said(fake, monkeypatch):
    def refused(words):
        with pytest.raises(InputError, match=words):
            fake.sweep(points(1), slurm="partition:smal")

    (fake.folder / "refuse").write_text("sbatch: error: invalid partition specified: smal\n")
    refused("invalid partition specified: smal")
    (fake.folder / "down").write_text("")
    refused("did not answer: squeue: error: Unable to contact controller")
    monkeypatch.setenv("PATH", str(fake.folder))
    refused("there is no sbatch on this machine")
    monkeypatch.setitem(sys.modules, "submitit", None)
    refused(r"needs submitit: in tclab's folder, pip install '\.\[slurm\]'")


@pytest.mark.parametrize("variable", ["SQUEUE_PARTITION", "SQUEUE_FORMAT", "SQUEUE_STATES"])
def test_what_a_user_wants_to_see_of_squeue_hides_no_job(fake, monkeypatch, variable):
    monkeypatch.setenv(variable, "gpu")
    fake.send(points(2))
    fake.queue(j1_0="RUNNING", j1_1="PENDING")
    fake.send(points(2))
    assert fake.sent == 1


class RunsAll(threading.Event):
    """A sweep's stop; while the sweep waits, the jobs that it sent run, and the site then takes `room` more."""

    def __init__(self, fake, room):
        self.fake, self.room, self.ran, self.at_once = fake, room, [], []
        super().__init__()

    def wait(self, timeout=None):
        sent = {path.name.removesuffix("_submitted.pkl") for path in self.fake.results.rglob("*_submitted.pkl")}
        self.at_once.append(len(sent - {*self.ran}))
        for job in sorted(sent - {*self.ran}):
            self.fake.run(job)
            self.ran.append(job)
        (self.fake.folder / "room").write_text(str(self.room))
        return False


@pytest.mark.parametrize(
    ("limits", "at_once"),
    [
        ({"limit": 3}, [7]),
        ({"limit": 1}, [7]),
        ({"room": 3}, [3, 3, 1]),
        ({"limit": 2, "room": 5}, [5, 2]),
        ({"room": 1}, [1] * 7),
    ],
)
def test_more_points_than_a_site_takes_at_once_are_sent_in_parts_each_once(fake, monkeypatch, limits, at_once):
    measured = []
    monkeypatch.setattr(
        slurm, "point_rows", lambda point, **_: measured.append(point.batch_size) or not_measured(point, "ok")
    )
    for name, most in limits.items():
        (fake.folder / name).write_text(str(most))
    stop = RunsAll(fake, limits.get("room", 100))
    assert fake.statuses(points(7), stop=stop) == ["ok"] * 7
    assert (sorted(measured), stop.at_once) == ([*range(1, 8)], at_once)


@pytest.mark.parametrize("limits", [{"room": 0}, {"limit": 0}])
def test_a_site_that_takes_no_job_is_said_in_its_words_and_a_closed_notebook_goes_on_where_it_was(fake, limits):
    for name, most in limits.items():
        (fake.folder / name).write_text(str(most))
    with pytest.raises(InputError, match=r"refused 1 job: .*(QOSMaxSubmitJobPerUserLimit|Invalid job array spec)"):
        fake.sweep(points(7))
    (fake.folder / "limit").unlink(missing_ok=True)
    (fake.folder / "room").write_text("3")
    fake.send(points(7))
    fake.queue(j1_0="RUNNING", j1_1="PENDING", j1_2="PENDING")
    fake.send(points(7))
    assert fake.sent == 1
    (fake.folder / "room").write_text("1")
    assert fake.statuses(points(7), stop=RunsAll(fake, 9)) == ["ok"] * 7


@pytest.mark.parametrize(
    "words", ["N", "N;nautilus", "Submitted batch job N on cluster nautilus", "sbatch: no partition specified, m100\nN"]
)
def test_the_number_of_a_job_is_found_in_what_sbatch_says(fake, words):
    (fake.folder / "words").write_text(f"{words}\n")
    fake.send(points(2))
    fake.queue(j1_0="RUNNING", j1_1="PENDING")
    fake.send(points(2))
    assert fake.sent == 1


def test_a_limit_that_keeps_jobs_waiting_for_ever_is_named(fake):
    fake.send(points(2), slurm="time:90")
    held = "launch failed requeued held", "JobHeldAdmin", "JobHoldMaxRequeue", "DependencyNeverSatisfied"
    for reason in ("PartitionTimeLimit", "QOSMaxWallDurationPerJobLimit", "PartitionNodeLimit", *held):
        (fake.folder / "queue").write_text(f"1_0 {reason}\n1_1 {reason}\n")
        with pytest.warns(UserWarning, match=f"does not start job 1_0 because of {reason}; it was sent with time:90"):
            fake.send(points(2), slurm="time:90")
    (fake.folder / "queue").write_text("1_0 Priority\n1_1 Resources\n")
    fake.send(points(2), slurm="time:90")  # without a warning


def test_options_reach_sbatch_and_what_the_notebook_s_own_job_was_given_does_not(fake, monkeypatch):
    monkeypatch.setenv("SLURM_MEM_PER_CPU", "100")
    monkeypatch.setenv("SBATCH_QOS", "high")
    fake.send(points(2), slurm="gpus_per_node:a100:2,account:0042,array_parallelism:1,cpus_per_task:8")
    script = "\n".join(fake.lines("script-1"))
    for flag in ("gpus-per-node=a100:2", "time=60", "account=0042", "array=0-1%1", "signal=USR2@15"):
        assert f"#SBATCH --{flag}\n" in script
    assert "--cpus-per-task=8" in script.splitlines()[-1]
    assert f"PYTHONPATH={shlex.quote(str(Path(tclab.__file__).parents[1]))}" in script
    assert "SBATCH_QOS=high" in fake.lines("given")
    assert not [line for line in fake.lines("given") if line.startswith("SLURM_MEM")]


def test_what_is_queued_or_kept_is_not_sent_again_and_what_is_gone_is(fake):
    wanted = points(3)
    fake.send(wanted)
    for state in ("PENDING", "RUNNING", "COMPLETING", "REQUEUED", "SUSPENDED"):
        fake.queue(j1_0=state, j1_1=state, j1_2=state)
        fake.send(wanted)
    assert fake.sent == 1
    fake.queue(j1_0="RUNNING", j1_1="CANCELLED")
    fake.run("1_2")
    fake.send(wanted)  # one array of one point
    assert (fake.sent, "array" in "".join(fake.lines("script-2"))) == (2, False)
    fake.run("1_0"), fake.run("2")
    assert fake.statuses(wanted) == ["ok"] * 3
    assert fake.sent == 2


def test_rows_of_another_partition_do_not_stand_in(fake, monkeypatch):
    fake.send(points(1), slurm={"partition": "debug"})
    fake.run("1")
    assert fake.statuses(points(1), slurm="partition:debug,time:5,account:me") == ["ok"]
    assert fake.sent == 1
    fake.send(points(1), slurm="partition:small")
    monkeypatch.setenv("SBATCH_CONSTRAINT", "a100")
    fake.send(points(1), slurm="partition:debug")
    assert fake.sent == 3


def test_what_failed_is_kept_until_retry_and_a_requeued_job_measures_nothing_twice(fake, monkeypatch):
    monkeypatch.setattr(slurm, "point_rows", lambda point, **_: not_measured(point, "oom"))
    wanted = points(1)
    fake.send(wanted)
    fake.run("1")
    assert fake.statuses(wanted) == ["oom"]
    fake.send(wanted, retry=True)
    fake.queue(j2="RUNNING")
    fake.send(wanted, retry=True)  # under way by now
    assert fake.sent == 2
    fake.run("2")
    monkeypatch.setattr(slurm, "point_rows", None)
    fake.run("2")  # as Slurm does after a node's failure
    assert fake.statuses(wanted) == ["oom"]


# ---- a real Slurm

needs_slurm = pytest.mark.skipif(missing() is not None, reason=str(missing()))
GENEROUS = 600  # seconds; each job imports torch, and this may be a busy machine
TINY = {"scale": 0.01, "networks": 1, "steps": 1, "warmup": 0, "workers": 0, "device": "cpu"}


@pytest.fixture(scope="module")
def box(tmp_path_factory):
    folder = tmp_path_factory.mktemp("slurm")
    with real_slurm(folder):
        yield folder


@needs_slurm
@pytest.mark.slow
def test_points_land_though_the_notebook_is_closed_and_killed_and_cancelled_jobs_are_made_good(box, tmp_path):
    rows, wanted, stop, told = tmp_path / "rows", [Point(batch_size=b, **TINY) for b in (1, 2, 3, 4)], [], []

    def close(progress):
        raise Closed

    def sweep(progress=told.append):
        stop.append(threading.Event())
        options = {"slurm": "time:30", "progress": progress, "stop": stop[-1]}
        return threads.submit(tclab.sweep, wanted, results=rows, **options)

    def statuses(running):
        return running.result(GENEROUS).query("stage == 'step'")["status"].tolist()

    def logs():
        return "".join(f"\n--- {p.name}\n{p.read_text()[-1500:]}" for p in (rows / "slurm" / "logs").glob("*_log.*"))

    def that_run():
        steps = output("squeue", "--noheader", "--steps", "--format=%i").split()
        return sorted(step.removesuffix(".0") for step in steps if step.endswith(".0"))

    def two_that_run():
        return found if len(found := that_run()) == 2 else None

    def killed(job):
        """A step that is about to start, or has just ended, takes no signal: it is sent until the step has ended."""
        subprocess.run(["scancel", "--signal=KILL", f"{job}.0"], check=False)
        return job not in that_run()

    with ThreadPoolExecutor() as threads:
        try:
            first = sweep()
            one, other = wait_for("two jobs that run", two_that_run, GENEROUS, logs)
            subprocess.run(["scancel", one], check=True)
            wait_for("the end of a step", lambda: killed(other), GENEROUS, logs)
            failed = sorted(status for status in statuses(first) if status != "ok")
            assert len(failed) == 2, logs()
            assert {status.split(" ended: ")[0] for status in failed} == {f"failed: job {job}" for job in (one, other)}
            assert any("Killed" in status for status in failed), failed
            assert len(Results(rows).frame().query("stage == 'step'")) == 2  # what did not run left nothing behind
            with pytest.raises(Closed):
                statuses(sweep(close))
            told.clear()
            assert statuses(sweep()) == ["ok"] * 4, logs()
        finally:
            for one in stop:
                one.set()  # where the test failed; it cancels the jobs
    assert {one.kept for one in told} == {True, False}
    assert len(list((rows / "slurm" / "logs").glob("*_submission.sh"))) == 2
    assert len(list(rows.glob("[!.]*.parquet"))) == 4


@needs_slurm
@pytest.mark.slow
def test_the_documented_script_runs_a_point_s_ranks_on_two_nodes(box, tmp_path, root):
    page = (root / "docs" / "cluster.md").read_text().partition("## Ranks on several machines")[2]
    script, batch = (re.search(rf"```{kind}\n(.*?)^```", page, re.DOTALL | re.MULTILINE)[1] for kind in ("py", "bash"))
    small = "batch_size=1, scale=0.01, networks=1, workers=0, steps=1, warmup=0"
    (tmp_path / "point.py").write_text(script.replace("batch_size=28", small))
    # both nodes are this machine, which has no name for them, no GPU, and two cores
    batch = batch.replace("$MASTER", "127.0.0.1").replace("--nproc-per-node=4", "--nproc-per-node=1")
    batch = batch.replace("torchrun", "python -m torch.distributed.run").replace(" --gpus-per-node=4", "")
    (tmp_path / "ranks.sh").write_text(batch)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    given = {**os.environ, "PYTHONPATH": str(root), "OMP_NUM_THREADS": "1", "PATH": path}
    sent = ["sbatch", "--wait", "--output=said.txt", "ranks.sh"]
    done = subprocess.run(sent, cwd=tmp_path, env=given, timeout=GENEROUS, check=False)
    assert done.returncode == 0, (tmp_path / "said.txt").read_text()
    rows = tclab.rows(tmp_path / "rows.parquet")
    assert set(rows["status"]) == {"ok"}
    assert {"rank 0", "rank 1"} <= set(rows["where"])


@needs_slurm
@pytest.mark.slow
def test_options_of_a_live_sweep_are_those_of_its_jobs_which_its_stop_cancels(box, tmp_path):
    live = LiveSweep(Point(**TINY), results=tmp_path / "rows", slurm="partition:small,time:7").start()
    queue = partial(output, "squeue", "--noheader", "--format=%P %l")
    assert wait_for("a job in the queue", queue, GENEROUS).split() == ["small", "7:00"]
    live.stop()
    wait_for("an empty queue", lambda: not queue(), GENEROUS)
    assert live.join()["status"].tolist() == ["not run: stopped"]
