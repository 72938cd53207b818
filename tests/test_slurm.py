"""A real Slurm of two nodes on this machine: arrays, jobs cancelled and killed, picking up again."""

import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pandas as pd
import pytest
from slurm_box import missing, slurm, wait_for

import tclab
from tclab import InputError, Point
from tclab.sweeps.slurm import _slurm_queue as slurm_queue
from tclab.sweeps.store._results import Results

pytestmark = [pytest.mark.slow, pytest.mark.clock, pytest.mark.skipif(missing() is not None, reason=str(missing()))]
pytest.importorskip("submitit", reason="submitit is not installed here: pip install 'tclab[slurm]'")
GENEROUS = 600  # seconds; each job imports torch, and this may be a busy machine


def points(number, **fields):
    tiny = {"scale": 0.01, "networks": 1, "steps": 1, "warmup": 0, "workers": 0, "device": "cpu", **fields}
    return [Point(batch_size=b + 1, **tiny) for b in range(number)]


@pytest.fixture(scope="module")
def box(tmp_path_factory):
    folder = tmp_path_factory.mktemp("slurm")
    with slurm(folder):
        yield folder


@pytest.fixture
def rows(box, tmp_path):
    yield tmp_path / "rows"
    subprocess.run(["scancel", "-u", str(os.getuid())], check=True)  # where a test failed
    wait_for("an empty queue", lambda: not alive())


def alive():
    return {job.job for job in slurm_queue.jobs().values() if job.alive}


def statuses(frame):
    return frame[frame["stage"] == "step"]["status"].tolist()


def submissions(rows):
    return sorted(path.name for path in (rows / "slurm" / "logs").glob("*_submission.sh"))


def logs(rows):
    return "".join(f"\n--- {p.name}\n{p.read_text()[-1500:]}" for p in (rows / "slurm" / "logs").glob("*_log.*"))


class Background:
    """A sweep in a thread, as a notebook has it."""

    def __init__(self, wanted, rows, told=None, **options):
        self.told, self.stop, self.frame, self.error, self.rows = [], threading.Event(), None, None, rows

        def tell(progress):
            self.told.append(progress)
            if told is not None:
                told(progress)

        def work():
            try:
                self.frame = tclab.sweep(
                    wanted, results=rows, executor="slurm", poll_seconds=0.5, time=30, progress=tell,
                    stop=self.stop, **options,
                )  # fmt: skip
            except BaseException as error:
                self.error = error

        self.thread = threading.Thread(target=work)
        self.thread.start()

    def join(self):
        self.thread.join(GENEROUS)
        if self.thread.is_alive():
            self.stop.set()  # which cancels its jobs
            self.thread.join(GENEROUS)
            pytest.fail(f"the sweep did not end within {GENEROUS} s: {logs(self.rows)}")
        if self.error is not None:
            raise self.error
        return self.frame


def process_of(job, rows):
    """Return the process in which a job runs, once it does: the one that has this folder and this number."""
    number, _, index = job.partition("_")
    asked = {f"SLURM_ARRAY_JOB_ID={number}", f"SLURM_ARRAY_TASK_ID={index}", "SLURM_PROCID=0"}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            line = (folder / "cmdline").read_text().split("\0")
            if line[:1] == [""] or "submitit.core._submit" not in line or line[0].endswith("srun"):
                continue
            if str(rows / "slurm" / "logs") in line and asked <= set((folder / "environ").read_text().split("\0")):
                return int(folder.name)
        except OSError:  # it has ended, or is not ours to read
            continue
    return None


def sweep(wanted, rows, told=None, **options):
    """Sweep, and do not wait for ever."""
    return Background(wanted, rows, told, **options).join()


def test_eight_points_land_though_the_notebook_is_closed_between_and_nothing_is_sent_twice(rows):
    class Closed(Exception):
        pass

    def close(progress):
        raise Closed

    wanted = points(8)
    with pytest.raises(Closed):
        sweep(wanted, rows, points_per_job=3, told=close)
    assert alive(), "there was nothing left to pick up"
    told = []
    frame = sweep(wanted, rows, points_per_job=3, told=told.append)
    assert statuses(frame) == ["ok"] * 8, logs(rows)
    assert list(frame[frame["stage"] == "step"]["batch_size"]) == list(range(1, 9))
    assert {p.kept for p in told} == {True, False}
    assert len(submissions(rows)) == 1
    assert len(Results(rows).frame().query("stage == 'step'")) == 8
    assert statuses(sweep(wanted, rows)) == ["ok"] * 8
    assert len(submissions(rows)) == 1


def test_a_job_that_is_cancelled_and_one_that_is_killed_are_made_good_by_running_again(rows):
    wanted = points(3)
    first = Background(wanted, rows)
    (one, other) = wait_for(
        "two jobs that run", lambda: found if len(found := running()) == 2 else None, GENEROUS, lambda: logs(rows)
    )
    pid = wait_for(f"the process of {other}", lambda: process_of(other, rows), GENEROUS, lambda: logs(rows))
    os.kill(pid, signal.SIGKILL)
    subprocess.run(["scancel", one], check=True)
    found = statuses(first.join())
    failed = sorted(status for status in found if status != "ok")
    assert len(failed) == 2, logs(rows)
    assert sum(f"failed: job {one} ended as CANCELLED" in status for status in failed) == 1, failed
    assert sum(f"failed: job {other} ended as FAILED" in status and "Killed" in status for status in failed) == 1, (
        failed
    )
    assert len(Results(rows).frame().query("stage == 'step'")) == 1  # what did not run left nothing behind
    told = []
    assert statuses(sweep(wanted, rows, points_per_job=2, told=told.append)) == ["ok"] * 3, logs(rows)
    assert sorted(p.kept for p in told) == [False, False, True]
    assert len(submissions(rows)) == 2


def running():
    return sorted(job.job for job in slurm_queue.jobs().values() if job.state == "RUNNING")


def test_stop_cancels_what_is_queued_and_what_runs(rows):
    under_way = Background(points(3), rows)
    wait_for("a job that runs", running, GENEROUS, lambda: logs(rows))
    under_way.stop.set()
    assert statuses(under_way.join()) == ["not run: stopped"] * 3
    assert not under_way.told
    wait_for("an empty queue", lambda: not alive())


def test_a_partition_that_does_not_exist_is_named_with_the_nearest(rows):
    with pytest.raises(InputError, match="unknown partition 'smalll'; did you mean 'small'"):
        sweep(points(1), rows, partition="smalll")
    with pytest.raises(InputError, match="sbatch refused: "):
        sweep(points(1), rows, partition="small", mem="1000000GB")
    assert not alive()


def test_the_script_of_the_documentation_runs_the_ranks_of_a_point_on_two_nodes(box, tmp_path, root):
    text = (root / "docs" / "cluster.md").read_text()
    point, script = re.findall(r"```\w+\n((?:# point\.py|#!/bin/bash).*?)```", text, re.DOTALL)
    tiny = 'scale=0.01, networks=1, batch_size=1, workers=0, steps=2, warmup=0, device="cpu"'
    here = {
        'strategy="node_mask", batch_size=28, num_deletions=3': tiny,
        " --gpus-per-node=4": "",
        '$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)': "127.0.0.1",  # both nodes are this machine
        "torchrun": f"{sys.executable} -m torch.distributed.run",
        "--nproc-per-node=4": "--nproc-per-node=1",
    }
    for words, instead in here.items():
        assert words in point + script, words
        point, script = point.replace(words, instead), script.replace(words, instead)
    (tmp_path / "point.py").write_text(point)
    (tmp_path / "job.sh").write_text(script)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(root), os.environ.get("PYTHONPATH", "")])}
    subprocess.run(["sbatch", "--wait", "job.sh"], cwd=tmp_path, env=environment, timeout=GENEROUS)
    said = "".join(path.read_text() for path in tmp_path.glob("slurm-*.out"))
    assert (tmp_path / "rows.parquet").exists(), said
    rows = tclab.rows(tmp_path / "rows.parquet")
    assert set(rows["status"]) == {"ok"}, said
    assert {"rank 0", "rank 1"} <= set(rows["where"])


def test_a_job_that_slurm_requeues_goes_on_where_it_was(rows):
    wanted = points(6)
    under_way = Background(wanted, rows, points_per_job=6)
    landed = wait_for("a point's rows", lambda: sorted(rows.glob("[!.]*.parquet")), GENEROUS, lambda: logs(rows))
    (job,) = running()
    before = {path: path.read_bytes() for path in landed}
    subprocess.run(["scontrol", "requeue", job], check=True)  # Slurm starts it again two minutes later
    assert statuses(under_way.join()) == ["ok"] * 6, logs(rows)
    assert all(path.read_bytes() == content for path, content in before.items())
    assert len(list(rows.glob("[!.]*.parquet"))) == 6
    assert len(submissions(rows)) == 1


def test_a_sweep_on_this_machine_and_jobs_share_a_folder_and_each_has_rows_of_its_own(rows):
    wanted = points(4)
    jobs = Background(wanted, rows, points_per_job=2)
    wait_for("a job that runs", running, GENEROUS, lambda: logs(rows))
    here = tclab.sweep(wanted, results=rows, progress=None)
    assert statuses(here) == ["ok"] * 4
    assert statuses(jobs.join()) == ["ok"] * 4, logs(rows)
    assert len(list(rows.glob("[!.]*.parquet"))) == 8  # another machine's figures do not stand in for this one's
    told = []
    again = tclab.sweep(wanted, results=rows, progress=told.append)
    assert [one.kept for one in told] == [True] * 4
    pd.testing.assert_frame_equal(again, here)
    assert statuses(sweep(wanted, rows)) == ["ok"] * 4
    assert len(submissions(rows)) == 1
