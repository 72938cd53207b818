"""What two measurements must share to be of the same machine and the same code."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import tclab
from tclab.timing import environment
from tclab.timing._environment import fingerprint


@pytest.fixture
def checkout(tmp_path):
    """A checkout of tclab with a notebook, as git knows it."""
    shutil.copytree(Path(tclab.__file__).parent, tmp_path / "tclab", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "sweep.ipynb").write_text("{}")
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "add", "--all")
    git(tmp_path, "commit", "--quiet", "--message=first")
    return tmp_path


def git(folder, *arguments):
    who = ["-c", "user.name=A", "-c", "user.email=a@b.c"]
    return subprocess.run(
        ["git", "-C", folder, *who, *arguments], check=True, capture_output=True, text=True
    ).stdout.strip()


def commit_of(checkout):
    code = "from tclab.timing import environment; print(environment(load_torch=False)['commit'])"
    variables = {**os.environ, "PYTHONPATH": str(checkout)}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=checkout, env=variables, check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


def test_only_what_runs_changes_the_commit_of_a_row(checkout):
    first = git(checkout, "rev-parse", "HEAD")
    assert commit_of(checkout) == first
    (checkout / "sweep.ipynb").write_text('{"saved": true}')  # as JupyterLab does by itself while a sweep runs
    assert commit_of(checkout) == first
    git(checkout, "commit", "--quiet", "--all", "--message=a notebook")
    assert commit_of(checkout) == first
    with (checkout / "tclab/errors.py").open("a") as file:
        file.write("# changed\n")
    assert commit_of(checkout) == first + "+"
    git(checkout, "commit", "--quiet", "--all", "--message=the package")
    assert commit_of(checkout) == git(checkout, "rev-parse", "HEAD") != first


def test_settings_that_change_times_are_part_of_the_machine(monkeypatch):
    machine = fingerprint()
    assert machine.keys() - {"omp_threads"} <= environment().keys()
    for name in ("MALLOC_ARENA_MAX", "OMP_NUM_THREADS"):
        monkeypatch.setenv(name, "17")
        assert fingerprint() != machine
        monkeypatch.undo()
