"""Processes end with their parents, the check of the tests would see one that did not, and pipes hold what is sent."""

import os
import subprocess
import sys
from contextlib import closing

import pytest
from orphans import MARK, left_behind, marked

from tclab._child_process import ChildProcess, child_command

KILLED_AT_ONCE = """
import os, subprocess
from tclab._child_process import ChildProcess, child_command
child = ChildProcess(child_command("tclab.sweeps.execution._worker", "1", "cpu"), os.environ)
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


ANSWERS = """
import sys
from tclab._child_process import ParentPipe

def main():
    parent = ParentPipe()
    for request in parent.requests():
        print("whatever is printed")
        parent.send(request=request, arguments=sys.argv[1:], read=sys.stdin.read())
"""


def test_what_a_child_prints_or_reads_is_not_what_it_exchanges_with_its_parent(tmp_path):
    (tmp_path / "answers.py").write_text(ANSWERS)
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    command = child_command("answers", "one", "two")
    with closing(ChildProcess(command, {**os.environ, "PYTHONPATH": path})) as child:
        for number in (1, 2):
            child.send({"number": number})
            answer = {"request": {"number": number}, "arguments": ["one", "two"], "read": ""}
            assert child.receive() == answer  # a breakpoint() would wait for ever otherwise
