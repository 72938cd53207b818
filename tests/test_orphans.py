"""Processes end with their parents, and the check of the tests would see one that did not."""

import os
import subprocess
import sys

import pytest
from orphans import MARK, left_behind, marked

KILLED_AT_ONCE = """
import os, subprocess
from tclab._child_process import ChildProcess
child = ChildProcess(["tclab.sweeps._worker", "1", "cpu"], os.environ)
print(subprocess.Popen(["sleep", "600"], stdout=subprocess.DEVNULL, start_new_session=True).pid, flush=True)
os.kill(os.getpid(), 9)
"""


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="looks into /proc")
def test_a_worker_ends_with_a_parent_that_is_killed_before_the_worker_can_look(root):
    """The worker's imports take seconds, and then it would run a whole point beside the next sweep.

    A process that does not end is seen, though another has adopted it.
    """
    mark = f"{os.environ[MARK]}-at-once"
    environment = {**os.environ, MARK: mark, "PYTHONPATH": str(root)}
    done = subprocess.run([sys.executable, "-c", KILLED_AT_ONCE], env=environment, stdout=subprocess.PIPE, text=True)
    assert done.returncode == -9
    pid = int(done.stdout)
    try:
        assert left_behind(mark, seconds=2.0) == {pid: "sleep 600"}
        assert pid not in marked(os.environ[MARK])  # a mark is not taken for the one it begins with
    finally:
        os.kill(pid, 9)
    assert left_behind(mark) == {}
