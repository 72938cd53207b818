"""Kills of a sweep and of its processes lose no row but the one in flight, double none and leave nobody behind."""

import importlib.util
import os

import pytest

pytestmark = pytest.mark.clock


@pytest.mark.slow
@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="looks into /proc")
def test_thirty_kills_lose_and_double_no_row_and_leave_no_process(root):
    """benchmarks/kill_matrix.py takes hundreds, of ranks too."""
    spec = importlib.util.spec_from_file_location("kill_matrix", root / "benchmarks" / "kill_matrix.py")
    kill_matrix = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(kill_matrix)
    with kill_matrix.Matrix(seed=1, stop_seconds=0.5) as matrix:
        matrix.run("one process", 30)
        assert matrix.summary()["kills"] == 30
        assert {name: faults for name, faults in matrix.faults.items() if faults} == {}
