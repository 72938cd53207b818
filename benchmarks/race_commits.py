"""How often does a race of two commits tell equal code apart, and find code that is slower? Real runs, on this machine.

    python benchmarks/race_commits.py [--equal 100] [--slower 20] [--budget-seconds 120]

A repository is made whose script sorts numbers and adds squares, for about 0.3 s. Of "equal" the commits
differ by a text file alone, of "slower" head does 10 % more. A line a race, then how often they were told apart, with
the 95 % binomial interval.
"""

import argparse
import os
import subprocess
import sys
from collections import Counter
from contextlib import chdir
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter

from verdicts import share

from tclab.timing import race_commands

MORE = 0.1  # of its work that the slower commit does besides
SCRIPT = """
import random, time
from work import LOOPS

begin = time.perf_counter()
for _ in range(LOOPS):
    numbers = [random.random() for _ in range(2000)]
    numbers.sort()
    sum(x * x for x in numbers)
print(time.perf_counter() - begin)
"""


def committed(tag: str, file: str, text: str) -> None:
    """Write a file and commit it, with a tag."""
    Path(file).write_text(text)
    for words in (["add", "-A"], ["commit", "--quiet", "-m", tag], ["tag", tag]):
        subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b", *words], check=True)


def repository() -> None:
    """Make the repository in this folder, with a script that takes about 0.3 s."""
    subprocess.run(["git", "init", "--quiet"], check=True)
    Path("bench.py").write_text(SCRIPT)
    Path("work.py").write_text("LOOPS = 100")
    done = subprocess.run([sys.executable, "bench.py"], capture_output=True, text=True, check=True)
    loops = max(10, round(100 * 0.3 / float(done.stdout)))
    committed("base", "work.py", f"LOOPS = {loops}")
    committed("equal", "README.md", "The same.")
    committed("slower", "work.py", f"LOOPS = {round(loops * (1 + MORE))}")


def raced(races: int, head: str, budget_seconds: float) -> None:
    """Print each race of head against base, and the share of each verdict."""
    found: Counter[str] = Counter()
    for i in range(races):
        begin = perf_counter()
        race = race_commands(["python", "bench.py"], base="base", head=head, budget_seconds=budget_seconds)
        pair = race.pair("head", "base")
        found[pair.verdict] += 1
        took = f"{pair.kept} rounds, {perf_counter() - begin:.0f} s, load {os.getloadavg()[0]:.1f}"
        print(f"{head} {i + 1}: {pair.verdict:<9} {pair.ratio_text}; {took}", flush=True)
    if races:
        told = share(found["FASTER"] + found["SLOWER"], races)
        print(f"{head}: {dict(found)}; FASTER or SLOWER {told}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--equal", type=int, default=100, help="races of equal code")
    parser.add_argument("--slower", type=int, default=20, help="races of code that does 10 %% more")
    parser.add_argument("--budget-seconds", type=float, default=120.0)
    options = parser.parse_args()
    with TemporaryDirectory() as place, chdir(place):
        repository()
        for head in ("equal", "slower"):
            raced(getattr(options, head), head, options.budget_seconds)


if __name__ == "__main__":
    main()
