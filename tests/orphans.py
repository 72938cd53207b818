"""Processes that a test run left behind, wherever they have been adopted: they carry the run's mark."""

import os
import time

MARK = "TCLAB_TEST_RUN"
# Python's own, which end with the process that needed them
_OF_PYTHON = ("multiprocessing.resource_tracker", "multiprocessing.forkserver")


def marked(mark):
    """Return pid → command of every other process whose environment has a mark; nothing where there is no /proc."""
    found = {}
    if not os.path.isdir("/proc/self"):
        return found
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/environ", "rb") as file:
                if f"{MARK}={mark}".encode() not in file.read().split(b"\0"):
                    continue
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                command = file.read().replace(b"\0", b" ").decode(errors="replace").strip()
        except OSError:  # it has ended, or is somebody else's
            continue
        if int(pid) != os.getpid() and command and not any(words in command for words in _OF_PYTHON):
            found[int(pid)] = command
    return found


def left_behind(mark, seconds=15.0):
    """Return what is still there after some seconds in which it may end: a worker looks for its parent every 5."""
    until = time.monotonic() + seconds
    while (found := marked(mark)) and time.monotonic() < until:
        time.sleep(0.2)
    return found
