"""The notebook over traces runs headless with parameters of one's own."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOK = ROOT / "notebooks" / "trace.ipynb"


@pytest.mark.slow
def test_runs_with_two_traces(write_trace, complete, tmp_path):
    pytest.importorskip("papermill")
    events = [
        complete("ProfilerStep#1", 0, 100, "user_annotation"),
        complete("aten::mm", 10, 50),
        complete("cudaLaunchKernel", 20, 5, "cuda_runtime", correlation=1),
        complete("gemm", 30, 40, "kernel", pid=0, tid=7, correlation=1),
        complete("Memcpy HtoD (Pinned -> Device)", 5, 10, "gpu_memcpy", pid=0, tid=7, bytes=4096),
    ]
    a, b = write_trace(events, "a.json"), write_trace(events[:2], "b.json.gz")
    out = tmp_path / "out.ipynb"
    command = [sys.executable, "-m", "papermill", str(NOTEBOOK), str(out), "--execution-timeout", "120"]
    given = ["-p", "path", str(a), "-p", "other", str(b), "-p", "start_us", "0.0", "-p", "end_us", "100.0"]
    done = subprocess.run(
        [*command, *given],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stderr[-2000:]
    cells = json.loads(out.read_text())["cells"]
    pictures = [o for cell in cells for o in cell.get("outputs", []) if "image/png" in o.get("data", {})]
    assert len(pictures) == 7
