"""Processes that a test run left behind, wherever they have been adopted: they carry the run's mark."""

import os
import time
from contextlib import suppress

import psutil

MARK = "TCLAB_TEST_RUN"
# Python's own, which end with the process that needed them
_OF_PYTHON = ("multiprocessing.resource_tracker", "multiprocessing.forkserver")


def marked(mark):
    """Return pid → command of every other process whose environment has a mark."""
    found = {}
    for process in psutil.process_iter():
        with suppress(psutil.Error):  # it has ended, or is somebody else's
            command = " ".join(process.cmdline())
            is_another = process.environ().get(MARK) == mark and process.pid != os.getpid()
            if is_another and command and not any(words in command for words in _OF_PYTHON):
                found[process.pid] = command
    return found


def left_behind(mark, seconds=15.0):
    """Return what is still there after some seconds in which it may end: a worker looks for its parent every 5."""
    until = time.monotonic() + seconds
    while (found := marked(mark)) and time.monotonic() < until:
        time.sleep(0.2)
    return found
