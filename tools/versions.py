"""Run the net of tests with every combination of Python, torch and PyG for which this machine gets a CPU build.

    python tools/versions.py [--torch-index URL]     `make versions` runs it, and prints a table of Markdown

Each combination is an environment of its own, removed at its end. torch is asked for as `+cpu`, as its own index
(https://download.pytorch.org/whl/cpu) and local wheels name such a build: one for CUDA, of gigabytes, is never taken.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from itertools import product
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
TORCHES = ("2.11.0", "2.13.0", "2.14.1")
PYGS = ("2.7.0", "2.8.1")
NET = ("test_equality", "test_shared_convs", "test_ledger", "test_step")
OTHERS = ("pytest", "pytest-xdist", "nbval", "hypothesis", "psutil", f"{ROOT}[sweep,data,lightning]")


def found(python: str, torch: str, pyg: str, index: list[str]) -> str:
    """Return the last line of the tests, or why there is none."""
    program = shutil.which(f"python{python}")
    if program is None or subprocess.run([program, "-c", ""], capture_output=True).returncode:
        return "no such Python here"
    with tempfile.TemporaryDirectory(prefix="tclab-versions-") as folder:
        install = ["-m", "pip", "install", "--quiet", "--no-compile", *index, f"torch=={torch}+cpu"]
        there = ["--dry-run", "--no-deps", "--only-binary=:all:", "--target", folder, "--python-version", python]
        if subprocess.run([sys.executable, *install, *there], capture_output=True).returncode:
            return "no CPU build to be had"
        own = f"{folder}/bin/python"
        subprocess.run([program, "-m", "venv", folder], check=True)
        asked = [own, *install, f"torch-geometric=={pyg}", *OTHERS]
        if (done := subprocess.run(asked, capture_output=True, text=True)).returncode:
            return done.stderr.strip().splitlines()[-1]
        tests = [own, "-m", "pytest", "-q", "-n", "2", "-p", "no:cacheprovider", "-m", "not slow"]
        done = subprocess.run(
            [*tests, *(f"tests/{name}.py" for name in NET)], cwd=ROOT, capture_output=True, text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        )  # fmt: skip
        print(done.stdout[-3000:] if done.returncode else "", file=sys.stderr)
        return done.stdout.strip().splitlines()[-1].strip("= ")


def main() -> None:
    """Print a row for each combination."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--torch-index", default="")
    index = parser.parse_args().torch_index
    print("| Python | torch | PyG | " + ", ".join(NET) + " |", "|---|---|---|---|", sep="\n", flush=True)
    for python, torch, pyg in product(PYTHONS, TORCHES, PYGS):
        words = found(python, torch, pyg, ["--extra-index-url", index] if index else [])
        print(f"| {python} | {torch} | {pyg} | {words} |", flush=True)


if __name__ == "__main__":
    main()
