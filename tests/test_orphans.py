"""The check that no process outlives the tests would see one that did."""

import os
import subprocess
import sys

import pytest
from orphans import MARK, left_behind, marked


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="looks into /proc")
def test_a_process_that_was_left_is_seen_though_another_has_adopted_it():
    mark = f"{os.environ[MARK]}-seen"
    leave = "import subprocess; print(subprocess.Popen(['sleep', '600'], start_new_session=True).pid)"
    done = subprocess.run(
        [sys.executable, "-c", leave], env={**os.environ, MARK: mark}, stdout=subprocess.PIPE, text=True, check=True
    )
    pid = int(done.stdout)
    try:
        assert left_behind(mark, seconds=0.5) == {pid: "sleep 600"}
        assert pid not in marked(os.environ[MARK])  # a mark is not taken for the one it begins with
    finally:
        os.kill(pid, 9)
    assert left_behind(mark) == {}
