"""A real Slurm of two nodes on this machine: an array, jobs cancelled and killed, ranks on both nodes."""

import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from slurm_box import missing, slurm, wait_for

import tclab
from tclab import Point
from tclab.sweeps.slurm._slurm_executor import _ask
from tclab.sweeps.store._row_files import Results

pytestmark = [pytest.mark.slow, pytest.mark.skipif(missing() is not None, reason=str(missing()))]
pytest.importorskip("submitit", reason="submitit is not installed here: pip install 'tclab[slurm]'")
GENEROUS = 600  # seconds; each job imports torch, and this may be a busy machine


def points(number):
    tiny = {"scale": 0.01, "networks": 1, "steps": 1, "warmup": 0, "workers": 0, "device": "cpu"}
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
    wait_for("an empty queue", lambda: not in_state("PENDING", "RUNNING", "COMPLETING"))


def in_state(*states):
    """The jobs in some states, by their number."""
    return sorted(_ask("squeue", "--noheader", "--array", f"--states={','.join(states)}", "--format=%i").split())


def submissions(rows):
    return len(list((rows / "slurm" / "logs").glob("*_submission.sh")))


def logs(rows):
    return "".join(f"\n--- {p.name}\n{p.read_text()[-1500:]}" for p in (rows / "slurm" / "logs").glob("*_log.*"))


class Background:
    """A sweep in a thread, as a notebook has it."""

    def __init__(self, wanted, rows, told=None):
        self.told, self.stop, self.frame, self.error, self.rows = [], threading.Event(), None, None, rows

        def tell(progress):
            self.told.append(progress)
            if told is not None:
                told(progress)

        def work():
            try:
                self.frame = tclab.sweep(wanted, results=rows, executor="slurm", time=30, progress=tell, stop=self.stop)
            except BaseException as error:
                self.error = error

        self.thread = threading.Thread(target=work)
        self.thread.start()

    def statuses(self):
        """Wait for its end, not for ever, and return the points' statuses."""
        self.thread.join(GENEROUS)
        if self.thread.is_alive():
            self.stop.set()  # which cancels its jobs
            self.thread.join(GENEROUS)
            pytest.fail(f"the sweep did not end within {GENEROUS} s: {logs(self.rows)}")
        if self.error is not None:
            raise self.error
        return self.frame[self.frame["stage"] == "step"]["status"].tolist()


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


def test_points_land_though_the_notebook_is_closed_and_killed_and_cancelled_jobs_are_made_good(rows):
    class Closed(Exception):
        pass

    def close(progress):
        raise Closed

    wanted = points(4)
    first = Background(wanted, rows)
    one, other = wait_for(
        "two jobs that run", lambda: found if len(found := in_state("RUNNING")) == 2 else None, GENEROUS,
        lambda: logs(rows),
    )  # fmt: skip
    pid = wait_for(f"the process of {other}", lambda: process_of(other, rows), GENEROUS, lambda: logs(rows))
    os.kill(pid, signal.SIGKILL)
    subprocess.run(["scancel", one], check=True)
    failed = sorted(status for status in first.statuses() if status != "ok")
    assert len(failed) == 2, logs(rows)
    assert sum(status.startswith(f"failed: job {one} ended: ") for status in failed) == 1, failed
    assert sum(status.startswith(f"failed: job {other} ended: ") and "Killed" in status for status in failed) == 1
    assert len(Results(rows).frame().query("stage == 'step'")) == 2  # what did not run left nothing behind
    with pytest.raises(Closed):
        Background(wanted, rows, close).statuses()
    last = Background(wanted, rows)
    assert last.statuses() == ["ok"] * 4, logs(rows)
    assert {one.kept for one in last.told} == {True, False}
    assert submissions(rows) == 2
    assert len(list(rows.glob("[!.]*.parquet"))) == 4


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
