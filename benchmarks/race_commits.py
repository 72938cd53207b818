"""How often does a race of two commits tell equal code apart, and find code that is slower? Real runs, on this machine.

    python benchmarks/race_commits.py [--equal 100] [--slower 20] [--script-seconds 0.3] [--budget-seconds 120]

A repository is made whose script sorts numbers and adds squares, for some tenths of a second. Of "equal" the commits
differ by a text file alone, of "slower" head does 10 % more. A line a race, then shares with their 95 % binomial
interval (Clopper and Pearson). `--printed` takes the seconds that the script prints, which leave the start of Python
out. 0 skips a part.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter

from scipy.stats import binomtest

from tclab.timing import race_commands
from tclab.timing._verdict import FASTER, SAME, SLOWER, UNDECIDED

VERDICTS = (FASTER, SAME, SLOWER, UNDECIDED)
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


def committed(folder: Path, tag: str, **files: str) -> None:
    for name, text in files.items():
        (folder / name.replace("_", ".")).write_text(text)
    for words in (["add", "-A"], ["commit", "--quiet", "-m", tag], ["tag", tag]):
        git(folder, *words)


def git(folder: Path, *words: str) -> None:
    subprocess.run(["git", "-C", folder, "-c", "user.name=a", "-c", "user.email=a@b", *words], check=True)


def loops_in(seconds: float, folder: Path) -> int:
    """Return how many loops of the script take about so many seconds."""
    (folder / "bench.py").write_text(SCRIPT)
    (folder / "work.py").write_text("LOOPS = 100")
    done = subprocess.run([sys.executable, "bench.py"], cwd=folder, capture_output=True, text=True, check=True)
    return max(10, round(100 * seconds / float(done.stdout)))


def raced(number: int, head: str, options: argparse.Namespace) -> Counter[str]:
    found: Counter[str] = Counter()
    for i in range(number):
        begin = perf_counter()
        result = race_commands(
            ["python", "bench.py"], base="base", head=head, printed=options.printed, margin=options.margin,
            budget_seconds=options.budget_seconds,
        )  # fmt: skip
        pair = result.pair("head", "base")
        found[pair.verdict] += 1
        took = f"{pair.kept} rounds, {perf_counter() - begin:.0f} s, load {os.getloadavg()[0]:.1f}"
        print(f"{head} {i + 1}: {pair.verdict:<9} {pair.ratio_text}; {took}", flush=True)
    return found


def share(found: Counter[str], *verdicts: str) -> str:
    hits = sum(found[verdict] for verdict in verdicts)
    low, high = binomtest(hits, found.total()).proportion_ci(0.95)
    return f"{' or '.join(verdicts)} {hits} of {found.total()} = {hits / found.total():.1%} [{low:.1%}, {high:.1%}]"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--equal", type=int, default=100, help="races of equal code")
    parser.add_argument("--slower", type=int, default=20, help="races of code that does 10 %% more")
    parser.add_argument("--script-seconds", type=float, default=0.3)
    parser.add_argument("--budget-seconds", type=float, default=120.0)
    parser.add_argument("--margin", type=float, default=0.02)
    parser.add_argument("--printed", action="store_true")
    options = parser.parse_args()
    with TemporaryDirectory() as place:
        folder = Path(place)
        git(folder, "init", "--quiet")
        loops = loops_in(options.script_seconds, folder)
        committed(folder, "base", work_py=f"LOOPS = {loops}")
        committed(folder, "equal", README_md="The same.")
        committed(folder, "slower", work_py=f"LOOPS = {round(loops * (1 + MORE))}")
        os.chdir(folder)
        results = {head: raced(getattr(options, head), head, options) for head in ("equal", "slower")}
        os.chdir("/")
    for head, found in results.items():
        if found:
            print(f"{head}: { ({verdict: found[verdict] for verdict in VERDICTS}) }")
            print("  " + (share(found, SLOWER) if head == "slower" else share(found, FASTER, SLOWER)))


if __name__ == "__main__":
    main()
