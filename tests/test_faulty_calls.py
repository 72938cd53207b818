"""A fault at every call that writes, below Python: nothing that was there is lost, and the user reads a sentence."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
COMPILER = shutil.which("cc")
QUICK = "full from then on"
SLOW = ("ENOSPC", "EIO", "EACCES", "read-only from then on", "short write", "rename or flush lost")


@pytest.fixture(scope="session")
def library(tmp_path_factory):
    """The library that lets calls fail."""
    path = tmp_path_factory.mktemp("faulty") / "faulty_calls.so"
    subprocess.run([COMPILER, "-shared", "-fPIC", "-o", path, HERE / "faulty_calls.c", "-ldl"], check=True)
    return path


@pytest.mark.skipif(COMPILER is None or sys.platform != "linux", reason="needs Linux and a C compiler")
@pytest.mark.parametrize("fault", [QUICK, *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)])
def test_whatever_call_fails_what_was_there_stays_and_the_user_is_told(fault, library):
    path = os.pathsep.join([str(HERE), str(HERE.parent / "tools"), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, HERE / "faulty_operations.py", fault],
        env={**os.environ, "LD_PRELOAD": str(library), "PYTHONPATH": path},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    tried = [re.fullmatch(r"(.*): (\d+) calls", line) for line in done.stdout.splitlines()]
    assert all(tried), done.stdout
    assert len(tried) == 7
    assert all(int(one[2]) >= 6 for one in tried), done.stdout  # as many as an atomic write makes
