"""What is sent to Slurm and what is made of its answers, with commands that only pretend to be Slurm's."""

import os
import shlex
import signal
import sys
import threading
from pathlib import Path

import pytest

import tclab
from tclab import InputError, Point
from tclab.sweeps.slurm import _slurm_executor as slurm
from tclab.sweeps.store._row_files import Results
from tclab.sweeps.store._rows import not_measured

submitit = pytest.importorskip("submitit")

_COMMANDS = {
    "sbatch": 'for last; do true; done\n[ "$last" = --version ] && exit 0\nenv > given\n'
    '[ -e refuse ] && { cat refuse >&2; exit 1; }\necho x >> sent\nn=$(wc -l < sent)\n'
    'cp "$last" "script-$n"\necho "Submitted batch job $n"',
    "squeue": "[ -e down ] && { echo 'squeue: error: Unable to contact controller' >&2; exit 1; }\ncat queue",
    "scancel": "[ -e down ] && { echo 'scancel: error: no controller' >&2; exit 1; }\n"
    'shift\necho "$*" >> cancelled',
    "srun": "exit 0",
}  # fmt: skip


class Closed(Exception):
    """The notebook was closed."""


def close(waiting):
    raise Closed


class Waiting(threading.Event):
    """A sweep's stop: each time that the sweep waits, the next thing happens."""

    def __init__(self, *things):
        super().__init__()
        self.things = iter(things)

    def wait(self, timeout=None):
        if (thing := next(self.things, None)) is not None:
            thing(self)
        return self.is_set()


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
        before, search = signal.getsignal(signal.SIGTERM), list(sys.path)
        try:
            assert submitit.core.utils.DelayedSubmission.load(path).result() is None
        finally:
            signal.signal(signal.SIGTERM, before)
            sys.path[:] = search

    def sweep(self, points, **options):
        return tclab.sweep(points, **{"slurm": {}, "results": self.results, "progress": None, **options})

    def send(self, points, **options):
        with pytest.raises(Closed):
            self.sweep(points, stop=Waiting(close), **options)

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
    monkeypatch.setattr(slurm, "point_rows", lambda point, **_: not_measured(point, status_of(point)))
    return Fake(tmp_path)


def status_of(point):
    return "oom" if point.batch_size == 9 else "ok"


def points(number, first=1):
    return [Point(scale=0.02, batch_size=first + i, device="cpu") for i in range(number)]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"slurm": {"partitoin": "gpu"}}, "unknown option of Slurm 'partitoin'; did you mean 'partition'"),
        ({"slurm": "nodes:2"}, "unknown option of Slurm 'nodes'"),
        *(({"slurm": {"time": time}}, "time is .*, expected a whole number") for time in ("long", "-5", 1.5)),
        ({"slurm": "array_parallelism:²"}, "array_parallelism is '²', expected a whole number"),
        ({"slurm": 4}, "slurm is 4, expected sbatch's options by name"),
        ({"budget_seconds": 5}, "budget_seconds and repeats are not for a sweep on Slurm"),
    ],
)
def test_bad_options_are_named_before_anything_is_sent(fake, options, words):
    with pytest.raises(InputError, match=words):
        fake.sweep(points(1), **options)
    assert fake.sent == 0


def test_what_is_missing_or_refused_is_said(fake, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "submitit", None)
        with pytest.raises(InputError, match=r"needs submitit: pip install 'tclab\[slurm\]'"):
            fake.sweep(points(1))
    with monkeypatch.context() as patch:
        patch.setattr(tclab.masking.get("node_mask"), "__module__", "__main__")
        with pytest.raises(InputError, match="defined in a notebook or script"):
            fake.sweep(points(1))
    (fake.folder / "refuse").write_text("sbatch: error: invalid partition specified: smal\n")
    with pytest.raises(InputError, match="invalid partition specified: smal"):
        fake.sweep(points(1), slurm="partition:smal")
    (fake.folder / "refuse").unlink()
    fake.send(points(1))  # nothing is thought to be sent that was refused
    assert fake.sent == 1
    (fake.folder / "down").write_text("")
    with pytest.raises(InputError, match="did not answer: squeue: error: Unable to contact controller"):
        fake.sweep(points(1))
    monkeypatch.setenv("PATH", str(fake.folder))
    with pytest.raises(InputError, match="there is no sbatch on this machine"):
        fake.sweep(points(1))


def test_options_reach_sbatch_and_what_the_notebook_s_own_job_was_given_does_not(fake, monkeypatch):
    monkeypatch.setenv("SLURM_MEM_PER_CPU", "100")
    monkeypatch.setenv("SLURM_CONF", "/etc/slurm.conf")
    monkeypatch.setenv("SBATCH_QOS", "high")
    fake.send(
        points(2),
        slurm="partition:small,gpus_per_node:a100:2,time:90,account:0042,array_parallelism:1,cpus_per_task:8",
    )
    script = "\n".join(fake.lines("script-1"))
    for flag in ("partition=small", "gpus-per-node=a100:2", "time=90", "account=0042", "array=0-1%1", "signal=USR2@15"):
        assert f"#SBATCH --{flag}\n" in script
    assert "--cpus-per-task=8" in script.splitlines()[-1]
    assert f"PYTHONPATH={shlex.quote(str(Path(tclab.__file__).parents[1]))}" in script
    given = fake.lines("given")
    assert not [line for line in given if line.startswith("SLURM_MEM")]
    assert {"SLURM_CONF=/etc/slurm.conf", "SBATCH_QOS=high"} <= set(given)


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
    told = []
    assert fake.statuses(wanted, progress=told.append) == ["ok"] * 3
    assert [one.kept for one in told] == [True] * 3
    assert len(Results(fake.results).frame()) == 3


def test_rows_of_another_partition_do_not_stand_in(fake, monkeypatch):
    fake.send(points(1), slurm={"partition": "debug"})
    fake.run("1")
    assert fake.statuses(points(1), slurm="partition:debug,time:5,account:me") == ["ok"]
    assert fake.sent == 1
    fake.send(points(1), slurm="partition:small")
    monkeypatch.setenv("SBATCH_CONSTRAINT", "a100")
    fake.send(points(1), slurm="partition:debug")
    assert fake.sent == 3


def test_a_job_that_ended_without_rows_fails_with_its_last_words_and_is_sent_again(fake):
    wanted = points(3)
    fake.send(wanted)
    logs = fake.results / "slurm" / "logs"
    (logs / "1_0_0_log.err").write_text("ImportError: no torch\nsrun: error: n1: task 0: Exited with exit code 1\n")
    fake.queue(j1_0="RUNNING", j1_1="RUNNING", j1_2="RUNNING")

    def controller_is_restarted(_):
        (fake.folder / "down").write_text("")

    def two_end(_):
        (fake.folder / "down").unlink()
        fake.run("1_1")
        fake.queue(j1_0="FAILED")

    assert fake.statuses(wanted, stop=Waiting(controller_is_restarted, two_end)) == [
        "failed: job 1_0 ended: ImportError: no torch", "ok", "failed: job 1_2 ended: it said nothing"
    ]  # fmt: skip
    assert len(Results(fake.results).frame()) == 1
    fake.send(wanted)
    assert fake.sent == 2


def test_what_failed_in_its_point_is_kept_until_retry_and_a_job_that_is_requeued_measures_nothing_twice(
    fake, monkeypatch
):
    wanted = points(1, first=9)  # the fixture's runs out of memory
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


def test_a_stop_cancels_what_was_sent_and_running_again_sends_it_again(fake):
    stop = threading.Event()
    stop.set()
    assert fake.statuses(points(2), stop=stop) == ["not run: stopped"] * 2
    assert fake.sent == 0
    assert fake.statuses(points(2), stop=Waiting(Waiting.set)) == ["not run: stopped"] * 2
    assert fake.lines("cancelled") == ["1_0 1_1"]
    fake.queue(j1_0="RUNNING", j1_1="RUNNING")  # Slurm takes its time
    fake.send(points(2))
    assert fake.sent == 2

    def stop_while_slurm_is_down(waiting):
        (fake.folder / "down").write_text("")
        waiting.set()

    fake.queue()
    with pytest.warns(UserWarning, match="the jobs go on, .*scancel: error: no controller"):
        assert fake.statuses(points(1, first=5), stop=Waiting(stop_while_slurm_is_down)) == ["not run: stopped"]
    (fake.folder / "down").unlink()
    fake.queue(j3="RUNNING")
    fake.send(points(1, first=5))  # its job is found again
    assert fake.sent == 3
