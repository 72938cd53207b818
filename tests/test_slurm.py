"""A real Slurm of two nodes on this machine: an array, jobs cancelled and killed, ranks on both nodes."""

import os
import re
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest
from slurm_box import missing, output, slurm, wait_for

import tclab
from tclab import Point
from tclab.sweeps.store._row_files import Results

pytestmark = [pytest.mark.slow, pytest.mark.skipif(missing() is not None, reason=str(missing()))]
pytest.importorskip("submitit", reason="submitit is not installed here: pip install 'tclab[slurm]'")
GENEROUS = 600  # seconds; each job imports torch, and this may be a busy machine
TINY = {"scale": 0.01, "networks": 1, "steps": 1, "warmup": 0, "workers": 0, "device": "cpu"}


@pytest.fixture(scope="module")
def box(tmp_path_factory):
    folder = tmp_path_factory.mktemp("slurm")
    with slurm(folder):
        yield folder


def process_of(job, logs):
    """Return the process in which a job runs, once it does: the one that has this folder and this number."""
    number, _, index = job.partition("_")
    asked = {f"SLURM_ARRAY_JOB_ID={number}", f"SLURM_ARRAY_TASK_ID={index}", "SLURM_PROCID=0"}
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended, or is not ours to read
            line = (folder / "cmdline").read_text().split("\0")
            if line[0].endswith("srun") or "submitit.core._submit" not in line or str(logs) not in line:
                continue
            if asked <= set((folder / "environ").read_text().split("\0")):
                return int(folder.name)
    return None


class Closed(Exception):
    """The notebook was closed."""


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

    def two_that_run():
        found = sorted(output("squeue", "--noheader", "--array", "--states=RUNNING", "--format=%i").split())
        return found if len(found) == 2 else None

    with ThreadPoolExecutor() as threads:
        try:
            first = sweep()
            one, other = wait_for("two jobs that run", two_that_run, GENEROUS, logs)
            process = partial(process_of, other, rows / "slurm" / "logs")
            os.kill(wait_for(f"the process of {other}", process, GENEROUS, logs), signal.SIGKILL)
            subprocess.run(["scancel", one], check=True)
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
