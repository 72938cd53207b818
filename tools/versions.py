"""Run the net of tests with every combination of Python, torch and PyG that this machine gets.

    python tools/versions.py [--torch-index URL] [--cuda]     `make versions` runs it, and prints a table of Markdown

Each Python and torch is an environment of its own, removed at its end. torch is asked for as `+cpu`, as its own index
(https://download.pytorch.org/whl/cpu) and local wheels name such a build. One for CUDA, some gigabytes, is taken only
where there is none for CPUs and `--cuda` allows it; the tests run on the CPU all the same.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from itertools import product
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
TORCHES = ("2.11.0", "2.13.0", "2.14.1")
PYGS = ("2.7.0", "2.8.1")
NET = ("test_equality", "test_shared_convs", "test_ledger", "test_step")
OTHERS = ("pytest", "pytest-xdist", "nbval", "hypothesis", "psutil", f"{ROOT}[lab,lightning]")


def found(python: str, torch: str, index: list[str], cuda: bool) -> Iterator[tuple[str, str]]:
    """Yield for each PyG its version with the last line of the tests, or why there is none."""
    program = shutil.which(f"python{python}")
    if program is None or subprocess.run([program, "-c", ""], capture_output=True).returncode:
        yield from ((pyg, "no such Python here") for pyg in PYGS)
        return
    with tempfile.TemporaryDirectory(prefix="tclab-versions-") as folder:
        install = ["-m", "pip", "install", "--quiet", "--no-compile", *index]
        there = ["--dry-run", "--no-deps", "--only-binary=:all:", "--target", folder, "--python-version", python]
        for build in (f"torch=={torch}+cpu", *[f"torch=={torch}"] * cuda):
            if subprocess.run([sys.executable, *install, build, *there], capture_output=True).returncode == 0:
                break
        else:
            yield from ((pyg, "no build for CPUs to be had") for pyg in PYGS)
            return
        own = f"{folder}/bin/python"
        subprocess.run([program, "-m", "venv", folder], check=True)
        for pyg in PYGS:
            asked = [own, *install, build, f"torch-geometric=={pyg}", *OTHERS]
            if (done := subprocess.run(asked, capture_output=True, text=True)).returncode:
                yield pyg, done.stderr.strip().splitlines()[-1]
                continue
            tests = [own, "-m", "pytest", "-q", "-n", "2", "-p", "no:cacheprovider", "-m", "not slow"]
            done = subprocess.run(
                [*tests, *(f"tests/{name}.py" for name in NET)], cwd=ROOT, capture_output=True, text=True,
                env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
            )  # fmt: skip
            print(done.stdout[-3000:] if done.returncode else "", file=sys.stderr)
            yield pyg, done.stdout.strip().splitlines()[-1].strip("= ")


def main() -> None:
    """Print a row for each combination."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--torch-index", default="", help="where builds for CPUs are")
    parser.add_argument("--cuda", action="store_true", help="take gigabytes of CUDA where there is none for CPUs")
    given = parser.parse_args()
    index = ["--extra-index-url", given.torch_index] if given.torch_index else []
    print("| Python | torch | PyG | " + ", ".join(NET) + " |", "|---|---|---|---|", sep="\n", flush=True)
    for python, torch in product(PYTHONS, TORCHES):
        for pyg, words in found(python, torch, index, given.cuda):
            print(f"| {python} | {torch} | {pyg} | {words} |", flush=True)


if __name__ == "__main__":
    main()
