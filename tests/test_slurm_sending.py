"""What is sent to Slurm and what is made of its answers, with commands that only pretend to be Slurm's."""

import os
import shlex
import signal
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

import tclab
from tclab import InputError, Point, lab
from tclab.sweeps.config._gpus import ranks_of
from tclab.sweeps.execution import _executor as local_executor
from tclab.sweeps.slurm import _slurm_executor as slurm
from tclab.sweeps.slurm import _slurm_queue as slurm_queue
from tclab.sweeps.slurm._slurm_options import SlurmOptions, checked, machine_of, minutes_of
from tclab.sweeps.slurm._submissions import JobOutcome, Submission, Submissions, name_of, words_of
from tclab.sweeps.store._results import WHERE, Results
from tclab.sweeps.store._rows import not_measured, table

submitit = pytest.importorskip("submitit")
_KNOWN = submitit.SlurmExecutor._valid_parameters()

_COMMANDS = {
    "sbatch": 'for last; do true; done\n[ "$last" = --version ] && exit 0\n'
    '[ -e refuse ] && { cat refuse >&2; exit 1; }\necho x >> sent\nn=$(wc -l < sent)\n'
    'cp "$last" "script-$n"\necho "Submitted batch job $n"',
    "squeue": "[ -e down ] && { echo 'squeue: error: Unable to contact controller' >&2; exit 1; }\ncat queue",
    "scancel": "[ -e down ] && { echo 'scancel: error: no controller' >&2; exit 1; }\n"
    'shift\necho "$*" >> cancelled',
    "scontrol": "echo 'ClusterName             = fake'\necho 'MaxArraySize            = 4'",
    "sinfo": "echo debug\necho small",
    "srun": "exit 0",
}  # fmt: skip


class Closed(Exception):
    """The notebook was closed."""


class Closing(threading.Event):
    def wait(self, timeout=None):
        raise Closed


class Stopping(threading.Event):
    """Somebody stops as soon as the sweep waits."""

    def wait(self, timeout=None):
        self.set()
        return True


class Waiting(threading.Event):
    """Tells when the sweep has sent what there was to send, and waits."""

    def __init__(self):
        super().__init__()
        self.begun = threading.Event()

    def wait(self, timeout=None):
        self.begun.set()
        return super().wait(timeout)


class Fake:
    """Slurm's commands in a folder: a queue that the test writes, jobs that the test runs."""

    def __init__(self, folder):
        self.folder = folder
        self.results = folder / "rows"
        self.queue("")

    def queue(self, text):
        (self.folder / "queue").write_text(text)

    def lines(self, name):
        path = self.folder / name
        return path.read_text().splitlines() if path.exists() else []

    def submissions(self):
        return len(self.lines("sent"))

    def jobs_of(self, number):
        """Return submission and size of an array."""
        flags = [line.removeprefix("#SBATCH --") for line in self.lines(f"script-{number}") if "#SBATCH" in line]
        named = dict(flag.partition("=")[::2] for flag in flags)
        array = named.get("array")
        return named["job-name"], 1 if array is None else int(array.split("%")[0].split("-")[1]) + 1

    def all_are(self, state, number=1, reason="None"):
        name, size = self.jobs_of(number)
        self.queue("".join(
            f"{number}|{i if size > 1 else 'N/A'}|{state}|{reason}|{name}\n" for i in range(size)
        ))  # fmt: skip

    def run(self, job):
        """Do what a job would do, in this process."""
        path = self.results / "slurm" / "logs" / f"{job}_submitted.pkl"
        before, search = signal.getsignal(signal.SIGTERM), list(sys.path)
        try:
            assert submitit.core.utils.DelayedSubmission.load(path).result() is None
        finally:
            signal.signal(signal.SIGTERM, before)
            os.environ.pop(WHERE, None)
            sys.path[:] = search

    def send(self, points, **options):
        with pytest.raises(Closed):
            self.sweep(points, stop=Closing(), **options)

    def sweep(self, points, **options):
        options = {"executor": "slurm", "results": self.results, "poll_seconds": 0.01, **options}
        return tclab.sweep(points, **options)

    @contextmanager
    def waiting(self, points, **options):
        """A sweep in a thread, which must end by itself; its statuses are in the list."""
        found, stop = [], Waiting()
        sweep = threading.Thread(target=lambda: found.extend(self.statuses(points, stop=stop, **options)))
        sweep.start()
        assert stop.begun.wait(60)
        yield found
        sweep.join(60)
        assert not sweep.is_alive()

    def statuses(self, points, **options):
        frame = self.sweep(points, **options)
        return frame[frame["stage"] == "step"]["status"].tolist()


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
    monkeypatch.setattr(slurm, "_LOOK_SECONDS", 0.01)

    def point_rows(point, **options):
        return not_measured(point, "oom" if point.batch_size == 9 else "ok")

    monkeypatch.setattr(local_executor, "point_rows", point_rows)
    return Fake(tmp_path)


def points(number, **fields):
    return [Point(**{"scale": 0.02, "batch_size": b + 1, "device": "cpu", **fields}) for b in range(number)]


@pytest.mark.parametrize(
    ("time", "minutes"),
    [(90, 90), ("90", 90), ("5:30", 6), ("1:30:00", 90), ("2-12", 3600), ("1-00:30", 1470), ("1-0:0:1", 1441)],
)
def test_a_time_is_read_as_slurm_reads_it(time, minutes):
    assert minutes_of(time) == minutes


@pytest.mark.parametrize("time", ["soon", "-5", 0, "1:2:3:4", 1.5, True, "1-", ""])
def test_a_time_that_is_none_is_refused(time):
    with pytest.raises(InputError, match=r"time is .*, expected"):
        minutes_of(time)


def test_options_that_were_left_open_are_left_to_the_cluster():
    given = checked({"partition": None, "gpus_per_node": 0, "account": "", "qos": "high"}, _KNOWN)
    assert given == {"qos": "high", "time": 60, "signal_delay_s": 90}
    assert checked({"time": 2}, _KNOWN)["signal_delay_s"] == 30  # not warned as it starts
    assert checked({"cpus_per_task": 8}, _KNOWN)["srun_args"] == ["--cpus-per-task=8"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"partitoin": "gpu"}, "unknown option of Slurm 'partitoin'; did you mean 'partition'"),
        ({"nodes": 2}, "nodes is not an option of the sweep's: it is one: docs.cluster.md"),
        ({"time": "long"}, "time is 'long', expected minutes"),
        ({"comment": "a\ntouch here"}, "comment is .*, expected one line"),
        ({"additional_parameters": {"reservation": "a\ntouch here"}}, "expected one line"),
        ({"points_per_job": 0}, "points_per_job is 0, expected a whole number of at least 1"),
        ({"refuse": True}, "refuse is for executor='local'"),
        ({"budget_seconds": 5}, "budget_seconds is for executor='local'"),
    ],
)
def test_bad_options_are_named_before_anything_is_sent(fake, options, words):
    with pytest.raises(InputError, match=words):
        fake.sweep(points(1), **options)
    assert fake.submissions() == 0


def test_every_option_of_sbatch_that_is_not_the_sweep_s_is_typed():
    typed = set(SlurmOptions.__annotations__) - {"points_per_job", "poll_seconds"}
    assert typed == _KNOWN - {"nodes", "ntasks_per_node", "job_name", "use_srun"}


def test_an_executor_is_local_or_slurm_and_options_go_with_slurm(tmp_path):
    with pytest.raises(InputError, match="unknown executor 'slrum'; did you mean 'slurm'"):
        tclab.sweep(points(1), results=tmp_path, executor="slrum")
    with pytest.raises(InputError, match="partition, time: no option of a local sweep"):
        tclab.sweep(points(1), results=tmp_path, partition="gpu", time=5, gpus_per_node=None)


def test_without_slurm_or_submitit_it_says_what_is_missing(fake, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "submitit", None)
        with pytest.raises(InputError, match=r"needs submitit: pip install 'tclab\[slurm\]'"):
            fake.sweep(points(1))
    monkeypatch.setenv("PATH", str(fake.folder))
    with pytest.raises(InputError, match="there is no sbatch on this machine"):
        fake.sweep(points(1))


def test_a_strategy_that_no_job_could_import_is_refused(fake, monkeypatch):
    monkeypatch.setattr(tclab.masking.get("node_mask"), "__module__", "__main__")
    with pytest.raises(InputError, match="defined in a notebook or script"):
        fake.sweep(points(1))


def test_a_partition_that_does_not_exist_is_named_with_the_nearest(fake):
    (fake.folder / "refuse").write_text(
        "sbatch: error: invalid partition specified: smal\n"
        "sbatch: error: Batch job submission failed: Invalid partition name specified\n"
    )
    with pytest.raises(InputError, match="unknown partition 'smal'; did you mean 'small'"):
        fake.sweep(points(1), partition="smal")
    (fake.folder / "refuse").write_text("sbatch: error: Batch job submission failed: Invalid account\n")
    with pytest.raises(InputError, match="sbatch refused: Batch job submission failed: Invalid account"):
        fake.sweep(points(1), account="me")
    (fake.folder / "refuse").unlink()
    fake.send(points(1), account="me")  # nothing is thought to be sent that was refused
    assert fake.submissions() == 1


def test_options_and_names_reach_sbatch(fake):
    fake.send(points(3), partition="small", gpus_per_node="a100:2", time="1:30:00", points_per_job=2, mem="4GB")
    script = "\n".join(fake.lines("script-1"))
    for flag in (
        "partition=small",
        "gpus-per-node=a100:2",
        "time=90",
        "array=0-1%2",
        "ntasks-per-node=1",
        "mem=4GB",
    ):
        assert f"#SBATCH --{flag}\n" in script
    assert f"PYTHONPATH={shlex.quote(str(Path(tclab.__file__).parents[1]))}" in script


def test_what_is_queued_is_not_sent_again_and_what_is_gone_is(fake):
    wanted = points(3)
    fake.send(wanted)
    assert fake.jobs_of(1)[1] == 3
    fake.all_are("PENDING")
    fake.send(wanted)
    fake.all_are("RUNNING")
    fake.send(wanted[:2])
    assert fake.submissions() == 1
    fake.all_are("CANCELLED")
    fake.send(wanted)
    assert fake.submissions() == 2
    fake.queue("")
    fake.send(wanted)
    assert fake.submissions() == 3


def test_a_job_whose_number_nobody_wrote_down_is_found_by_its_name(fake):
    wanted = points(2)
    fake.send(wanted)
    submissions = Submissions(Results(fake.results))
    for path in submissions.folder.glob("*.submission.json"):
        name = path.name.removesuffix(".submission.json")
        sent = submissions.submission(name)
        assert sent.job == f"1_{sent.index}"
        submissions.record_job(name, Submission(sent.submission, sent.index))  # as it is while sbatch is asked
    fake.all_are("PENDING")
    stop = threading.Event()
    stop.set()
    assert fake.statuses(wanted, stop=stop) == ["not run: stopped"] * 2
    assert fake.submissions() == 1
    assert fake.lines("cancelled") == ["1_0 1_1"]


def test_another_job_that_took_the_number_is_not_taken_for_it(fake):
    fake.send(points(2))
    fake.queue("1|0|RUNNING|None|somebody's\n1|1|RUNNING|None|tclab-else\n")
    fake.send(points(2))
    assert fake.submissions() == 2


def test_rows_land_as_jobs_are_through_and_are_kept(fake):
    wanted = points(3)
    fake.send(wanted, points_per_job=2)
    fake.all_are("RUNNING")
    told = []
    with fake.waiting(wanted, progress=told.append) as found:
        fake.run("1_1")
        end = time.monotonic() + 60
        while not told and time.monotonic() < end:
            time.sleep(0.01)
        assert [(p.done, p.total, p.point.batch_size, p.kept) for p in told] == [(1, 3, 3, False)]
        fake.run("1_0")
    assert found == ["ok"] * 3
    assert len(Results(fake.results).frame()) == 3
    fake.queue("")
    told.clear()
    assert fake.statuses(wanted, progress=told.append) == ["ok"] * 3
    assert [p.kept for p in told] == [True] * 3
    assert fake.submissions() == 1


def test_rows_that_were_removed_are_measured_again(fake):
    fake.send(points(1))
    fake.run("1")
    for path in fake.results.glob("*.parquet"):
        path.unlink()
    fake.send(points(1))
    assert fake.submissions() == 2


def test_rows_of_another_partition_do_not_stand_in(fake, monkeypatch):
    fake.send(points(1), partition="debug")
    fake.run("1")
    assert fake.statuses(points(1), partition="debug", time=5, account="me") == ["ok"]
    assert fake.submissions() == 1
    fake.send(points(1), partition="small")
    fake.run("2")  # on as good as the same machine: it measures, and takes nothing for its own that is there
    assert len(Results(fake.results).frame()) == 2
    monkeypatch.setenv("SBATCH_CONSTRAINT", "a100")
    fake.send(points(1), partition="debug")
    assert fake.submissions() == 3


def test_a_job_that_ended_without_rows_fails_with_its_last_words_and_is_sent_again(fake):
    wanted = points(2)
    fake.send(wanted)
    fake.all_are("FAILED")
    logs = fake.results / "slurm" / "logs"
    (logs / "1_0_0_log.err").write_text("ImportError: no torch\nsrun: error: n1: task 0: Exited with exit code 1\n")
    fake.run("1_1")
    name, _ = fake.jobs_of(1)
    fake.queue(f"1|0|RUNNING|None|{name}\n")
    with fake.waiting(wanted) as found:
        fake.all_are("FAILED")
    assert fake.submissions() == 1
    assert found == ["failed: job 1_0 ended as FAILED: ImportError: no torch", "ok"]
    assert len(Results(fake.results).frame()) == 1
    fake.send(wanted)
    assert fake.submissions() == 2
    assert fake.jobs_of(2)[1] == 1


def test_what_failed_in_its_point_is_kept_until_retry(fake):
    (point,) = points(1)
    point = Point(scale=0.02, batch_size=9, device="cpu")  # the fixture's runs out of memory
    fake.send([point])
    fake.run("1")
    assert fake.statuses([point]) == ["oom"]
    fake.send([point], retry=True)
    assert fake.submissions() == 2
    fake.all_are("RUNNING", 2)
    fake.send([point], retry=True)  # under way by now
    assert fake.submissions() == 2


def test_a_point_that_the_node_cannot_run_says_why_and_its_neighbours_run(fake):
    if tclab.timing.environment()["gpus"]:
        pytest.skip("this machine has a GPU")
    wanted = [Point(scale=0.02, device="cuda"), *points(1)]
    fake.send(wanted, points_per_job=2)
    fake.all_are("RUNNING")
    with fake.waiting(wanted) as found:
        fake.run("1")
    assert found == [
        "failed: device is 'cuda', and torch finds no CUDA device here; expected 'cpu' or 'auto'",
        "ok",
    ]
    fake.queue("")
    fake.send(wanted)
    assert fake.jobs_of(2)[1] == 1


def test_an_array_is_no_longer_than_the_cluster_takes(fake):
    fake.send(points(7))
    assert [fake.jobs_of(n)[1] for n in (1, 2, 3)] == [3, 3, 1]  # MaxArraySize 4: indices 0 to 3, and one less


def test_a_controller_that_does_not_answer_ends_nothing_that_is_under_way(fake):
    fake.send(points(1))
    fake.all_are("RUNNING")
    with fake.waiting(points(1)) as found:
        (fake.folder / "down").write_text("")
        time.sleep(0.3)  # many questions without an answer
        assert not found
        fake.run("1")
    assert found == ["ok"]
    with pytest.raises(InputError, match="did not answer: squeue: error: Unable to contact controller"):
        fake.sweep(points(1))


def test_a_stop_that_slurm_does_not_hear_is_said_and_the_jobs_are_found_again(fake):
    def break_down(*arguments):
        (fake.folder / "down").write_text("")
        return numbers(*arguments)

    with pytest.MonkeyPatch.context() as patch:
        numbers = slurm._submit
        patch.setattr(slurm, "_submit", break_down)
        (status,) = fake.statuses(points(1), stop=Stopping())
    assert status == "not run: stopped, and its job goes on: scancel: error: no controller"
    (fake.folder / "down").unlink()
    fake.all_are("RUNNING")
    fake.send(points(1))
    assert fake.submissions() == 1


def test_nothing_is_sent_after_a_stop_and_what_was_stopped_is_sent_by_running_again(fake):
    stop = threading.Event()
    stop.set()
    told = []
    assert fake.statuses(points(2), stop=stop, progress=told.append) == ["not run: stopped"] * 2
    assert (fake.submissions(), told) == (0, [])
    assert fake.statuses(points(2), stop=Stopping()) == ["not run: stopped"] * 2
    assert fake.lines("cancelled") == ["1_0 1_1"]
    fake.all_are("RUNNING")  # Slurm takes its time
    fake.send(points(2))
    assert fake.submissions() == 2


def test_jobs_do_not_inherit_what_the_notebook_s_own_job_was_given(fake, monkeypatch):
    (fake.folder / "bin" / "sbatch").write_text(
        (fake.folder / "bin" / "sbatch").read_text().replace("echo x >> sent", "env >> given\necho x >> sent")
    )
    monkeypatch.setenv("SLURM_MEM_PER_CPU", "100")
    monkeypatch.setenv("SLURM_CONF", "/etc/slurm.conf")
    monkeypatch.setenv("SBATCH_QOS", "high")
    fake.send(points(1))
    given = fake.lines("given")
    assert not [line for line in given if line.startswith("SLURM_MEM")]
    assert {"SLURM_CONF=/etc/slurm.conf", "SBATCH_QOS=high"} <= set(given)
    assert os.environ["SLURM_MEM_PER_CPU"] == "100"


def test_two_sweeps_at_once_send_one_array(fake):
    def send():
        with pytest.raises(Closed):
            fake.sweep(points(2), stop=Closing())

    queue = fake.folder / "bin" / "squeue"  # shows what was sent, as Slurm's would
    queue.write_text(
        f"#!/bin/sh\ncd '{fake.folder}'\nfor n in 0 1; do [ -e script-1 ] && "
        "echo \"1|$n|PENDING|None|$(sed -n 's/#SBATCH --job-name=//p' script-1)\"; done\nexit 0\n"
    )
    both = [threading.Thread(target=send) for _ in range(2)]
    for one in both:
        one.start()
    for one in both:
        one.join(60)
        assert not one.is_alive()
    assert fake.submissions() == 1


def test_a_job_that_slurm_starts_again_runs_what_its_first_run_left(fake, monkeypatch):
    ran = []

    def point_rows(point, **options):
        ran.append((point.batch_size, os.environ.get("SLURM_RESTART_COUNT")))
        if ran == [(1, None), (2, None)]:
            raise SystemExit("the node goes down")
        return not_measured(point, "ok")

    monkeypatch.setattr(local_executor, "point_rows", point_rows)
    fake.send(points(2), points_per_job=2)
    with pytest.raises(SystemExit):
        fake.run("1")
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    fake.run("1")
    assert ran == [(1, None), (2, None), (2, "1")]
    assert fake.statuses(points(2)) == ["ok"] * 2
    assert fake.submissions() == 1


def test_squeue_is_read_line_by_line(monkeypatch):
    told = (
        "12|0|RUNNING|None|tclab-a\n12|1|PENDING|Priority|tclab-a\n13|N/A|COMPLETING|NonZeroExitCode|tclab-b\n"
        "14|N/A|RUNNING|None|a name | with bars\n15|2|PENDING|launch failed requeued held|tclab-c\n"
    )
    monkeypatch.setattr(slurm_queue, "ask", lambda *command: told)
    jobs = slurm_queue.jobs()
    assert {key: (job.job, job.alive) for key, job in jobs.items()} == {
        ("tclab-a", 0): ("12_0", True), ("tclab-a", 1): ("12_1", True), ("tclab-b", 0): ("13", False),
        ("tclab-c", 2): ("15_2", False),
    }  # fmt: skip


def test_a_ticket_is_named_by_what_decides_its_rows(tmp_path, monkeypatch):
    (point, other) = points(2)
    names = {name_of(point, {"partition": "a"}), name_of(other, {"partition": "a"}), name_of(point, {})}
    assert len(names) == 3
    assert name_of(point, {"partition": "a"}) in names
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    assert name_of(point, {}) not in names
    assert machine_of({"partition": "a", "time": 5, "account": "me", "mem": "4GB"}) == {
        "partition": "a",
        "mem": "4GB",
    }


def test_rows_of_an_earlier_version_of_the_user_s_own_code_are_not_kept(fake, tmp_path, monkeypatch):
    code = tmp_path / "own_sent.py"
    code.write_text(
        "from tclab import masking\n\n@masking.register\nclass Own(masking.get('node_mask')):\n    name = 'own_sent'\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    import own_sent  # noqa: F401

    try:
        wanted = points(1, strategy="own_sent")
        fake.send(wanted)
        fake.run("1")
        assert fake.statuses(wanted) == ["ok"]
        assert fake.submissions() == 1
        code.write_text(code.read_text() + "    # faster\n")
        fake.send(wanted)
        assert fake.submissions() == 2
    finally:
        sys.modules.pop("own_sent")


@pytest.mark.parametrize("text", [
    b"", b"{", b"[]", b"null", b"3", b"\xff\xfe", b"[" * 100_000, b"{}", b'{"submission": 3}', b'{"unknown": 1}',
    b'{"submission": "tclab-1", "index": "0"}', b'{"submission": "tclab-1", "index": 0, "job": 5}',
    b'{"submission": "tclab-1", "rows": 3}', b'{"submission": "tclab-1", "rows": "../outside.parquet"}',
    b'{"submission": "tclab-1", "rows": "/outside.parquet"}', b'{"submission": "tclab-1", "rows": ".."}',
])  # fmt: skip
def test_a_damaged_record_is_named_and_left_out(text, tmp_path):
    submissions = Submissions(Results(tmp_path))
    (tmp_path.parent / "outside.parquet").write_bytes(b"no rows")
    (submissions.folder / "a.submission.json").write_bytes(text)
    (submissions.folder / "a.outcome.json").write_bytes(text)
    with pytest.warns(UserWarning, match=r"a\.outcome\.json is damaged, and left out"):
        assert submissions.rows("a") is None
    with pytest.warns(UserWarning, match=r"a\.submission\.json is damaged, and left out"):
        assert submissions.submission("a") is None
    submissions.record("a", Submission("tclab-1", 0))
    assert submissions.submission("a") == Submission("tclab-1", 0)


def test_records_are_written_whole_and_sending_again_forgets_what_landed(tmp_path):
    submissions = Submissions(Results(tmp_path))
    assert submissions.submission("a") is submissions.outcome("a") is submissions.rows("a") is None
    submissions.record("a", Submission("tclab-1", 0))
    submissions.record_outcome("a", JobOutcome("tclab-1", rows="x.parquet"))
    submissions.record_job("a", Submission("tclab-1", 0, "5_0"))
    assert submissions.submission("a") == Submission("tclab-1", 0, "5_0")
    assert submissions.names_with_outcome() == {"a"}
    assert submissions.rows("a") is None  # named, and not there
    submissions.record("a", Submission("tclab-2", 3))
    assert submissions.names_with_outcome() == set()
    submissions.forget("a")
    assert submissions.submission("a") is None
    assert not list(tmp_path.rglob(".writing-*"))


def test_last_words_are_those_that_tell(tmp_path):
    assert words_of(tmp_path, None) is None
    assert words_of(tmp_path, "7_0") is None
    (tmp_path / "7_0_0_log.err").write_text("ValueError: no\n\nsrun: error: n1: task 0: Exited with exit code 1\n")
    assert words_of(tmp_path, "7_0") == "ValueError: no"
    (tmp_path / "7_1_0_log.err").write_text("srun: error: n1: task 0: Killed\n")
    assert words_of(tmp_path, "7_1") == "srun: error: n1: task 0: Killed"
    (tmp_path / "7_2_0_log.err").write_text("srun: error: n1: task 0: Exited with exit code 1\n")
    assert words_of(tmp_path, "7_2") == "srun: error: n1: task 0: Exited with exit code 1"


def test_rows_of_two_kinds_of_machine_are_warned_of(fake, monkeypatch):
    def point_rows(point, **options):
        row = not_measured(point, "ok").to_pylist()[0]
        return table([{**row, "gpu": "A100" if point.batch_size == 1 else "H100"}])

    monkeypatch.setattr(local_executor, "point_rows", point_rows)
    fake.send(points(2))
    fake.run("1_0")
    fake.run("1_1")
    with pytest.warns(UserWarning, match=r"2 kinds of machine \(A100, H100\)"):
        fake.sweep(points(2))


def test_the_notebook_s_sweep_passes_its_options_on_and_leaves_its_budget_here(fake, monkeypatch, capsys):
    monkeypatch.delenv("JPY_SESSION_NAME", raising=False)
    sweep = lab.LiveSweep(
        points(1),
        results=fake.results,
        budget_seconds=5,
        executor="slurm",
        partition="small",
        time=None,
        poll_seconds=1,
    )
    sweep.panel()
    sweep.start()
    end = time.monotonic() + 60
    while not (fake.results / "slurm" / "logs" / "1_submitted.pkl").exists() and time.monotonic() < end:
        time.sleep(0.01)
    assert "#SBATCH --partition=small" in fake.lines("script-1")
    fake.run("1")
    assert sweep.join()["status"].tolist() == ["ok"]
    assert capsys.readouterr().out.startswith("[1/1] hetero_cell")


def test_the_grid_counts_the_gpus_of_the_nodes():
    (point, *_) = tclab.grid(models="hetero_cell", strategies="node_mask", networks=1, gpus_per_node="a100:4")
    assert (point.device, point.ranks) == ("cuda", 4)


@pytest.mark.parametrize(
    ("asked", "device_and_ranks"),
    [
        (("auto", 4), ("cuda", 4)),
        (("auto", "a100:2"), ("cuda", 2)),
        ((3, 4), ("cuda", 3)),
        (("2", "4"), ("cuda", 2)),
        ((0, 4), ("cpu", 1)),
        (("0", 4), ("cpu", 1)),
        (("auto", 0), ("cpu", 1)),
        ((2, 4, "cpu"), ("cpu", 2)),
    ],
)
def test_ranks_are_counted_on_the_machines_of_a_cluster(asked, device_and_ranks):
    gpus, per_node, *device = asked
    assert ranks_of(gpus, *device, gpus_per_node=per_node) == device_and_ranks


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        (("auto", "many"), "gpus_per_node is 'many', expected a number"),
        ((9, 4), "gpus is 9, and there are 4; expected fewer"),
        ((-1, 4), "gpus is -1, expected 'auto' or a number"),
        ((2, 0, "cuda"), "device is 'cuda', and gpus_per_node asks for none"),
    ],
)
def test_gpus_that_a_cluster_was_not_asked_for_are_refused(asked, words):
    gpus, per_node, *device = asked
    with pytest.raises(InputError, match=words):
        ranks_of(gpus, *device, gpus_per_node=per_node)
