"""Run a command while its processes pause at random: `python tools/paused.py [--times 20] make tests`.

Every one to three seconds about half of the command's processes stop for up to two, as on a machine that is busy with
something else. It runs so many times, and ends with 1 if one of them failed.
"""

import argparse
import random
import sys
import time
from contextlib import suppress

import psutil

MOST_SECONDS = 2.0


def paused(command: list[str]) -> tuple[int, int]:
    """Run the command; return how it ended, and how often one of its processes was paused."""
    child, pauses = psutil.Popen(command), 0
    while child.poll() is None:
        time.sleep(random.uniform(1.0, 3.0))
        with suppress(psutil.NoSuchProcess):
            some = [one for one in [child, *child.children(recursive=True)] if random.random() < 0.5]
            pauses += len(some)
            for what in ("suspend", "resume"):
                for one in some:
                    with suppress(psutil.NoSuchProcess):
                        getattr(one, what)()
                time.sleep(random.uniform(0.0, MOST_SECONDS) if what == "suspend" else 0.0)
    return child.returncode, pauses


def main() -> int:
    """Run the command of this one's arguments so many times; return 1 if it failed once."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--times", type=int, default=1)
    parser.add_argument("command", nargs=argparse.REMAINDER)
    given = parser.parse_args()
    failed = 0
    for i in range(given.times):
        code, pauses = paused(given.command)
        failed += code != 0
        print(f"run {i + 1}: exit status {code}, paused {pauses} times, each for up to {MOST_SECONDS:g} s", flush=True)
    print(f"{failed} of {given.times} runs failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
