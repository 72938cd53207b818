"""Run a command while its processes pause at random: `python tools/paused.py make test`.

Every one to three seconds about half of the command's processes stop for up to two, as on a machine that is busy with
something else. It ends as the command does.
"""

from __future__ import annotations

import random
import subprocess
import sys
import time
from contextlib import suppress

import psutil

MOST_SECONDS = 2.0


def main() -> int:
    """Run the command of this one's arguments, and return how it ended."""
    child = subprocess.Popen(sys.argv[1:])
    root, pauses = psutil.Process(child.pid), 0
    while child.poll() is None:
        time.sleep(random.uniform(1.0, 3.0))
        with suppress(psutil.NoSuchProcess):
            paused = [one for one in [root, *root.children(recursive=True)] if random.random() < 0.5]
            _each(paused, "suspend")
            time.sleep(random.uniform(0.0, MOST_SECONDS))
            _each(paused, "resume")
            pauses += len(paused)
    print(f"paused {pauses} times, each for up to {MOST_SECONDS:g} s")
    return child.returncode


def _each(processes: list[psutil.Process], what: str) -> None:
    for one in processes:
        with suppress(psutil.NoSuchProcess):
            getattr(one, what)()


if __name__ == "__main__":
    sys.exit(main())
