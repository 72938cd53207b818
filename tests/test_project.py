"""One truth for dependencies and commands: pyproject, environment.yml, lock, Makefile and README agree."""

import re
import subprocess
import sys
import tomllib
from itertools import chain

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from test_notebooks import NOTEBOOKS

import tclab

EXTRAS = ("sweep", "trace", "readers", "notebook", "data", "lightning", "slurm", "dev")


@pytest.fixture
def project(root):
    return tomllib.loads((root / "pyproject.toml").read_text())["project"]


def test_environment_yml_installs_the_versions_of_the_lock(root, project):
    *conda, rest = yaml.safe_load((root / "environment.yml").read_text())["dependencies"]
    assert conda == [f"python{project['requires-python']}", "pip", "make"]
    assert rest == {"pip": ["-r requirements.lock", "-e ."]}


def test_the_lock_has_every_dependency_at_one_version_that_is_allowed(root, project):
    locked = {}
    for line in (root / "requirements.lock").read_text().splitlines():
        if line and not line.startswith("#"):
            name, _, version = line.partition("==")
            assert version, f"{line!r} is not one exact version"
            locked[canonicalize_name(name)] = version
    for line in chain(project["dependencies"], *(project["optional-dependencies"][extra] for extra in EXTRAS)):
        wanted = Requirement(line)
        assert locked[canonicalize_name(wanted.name)] in wanted.specifier, line
    assert locked["torch"] == "2.13.0"  # a bare torch would bring gigabytes of CUDA


def test_the_version_is_one(root):
    citation = yaml.safe_load((root / "CITATION.cff").read_text())
    assert citation["version"] == tclab.__version__
    assert citation["license"] == tomllib.loads((root / "pyproject.toml").read_text())["project"]["license"]
    assert f"## {tclab.__version__}" in (root / "CHANGELOG.md").read_text()


def test_the_hook_that_cleans_notebooks_leaves_clean_ones_as_they_are(root):
    config = yaml.safe_load((root / ".pre-commit-config.yaml").read_text())
    entry = next(hook["entry"] for hook in config["repos"][0]["hooks"] if hook["id"] == "nbstripout")
    notebooks = sorted(map(str, NOTEBOOKS))
    command = [sys.executable, "-m", "nbstripout", *entry.split()[1:], "--verify", *notebooks]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_readme_and_make_help_name_commands_that_exist(root):
    made = (root / "Makefile").read_text()
    targets = set(re.search(r"^\.PHONY: (.*)$", made, re.MULTILINE)[1].split())
    shown = subprocess.run(["make", "help"], cwd=root, capture_output=True, text=True, check=True).stdout
    assert set(re.findall(r"^make ([\w-]+) ", shown, re.MULTILINE)) == targets - {"tests", "all-tests", "clean"}
    named = set(re.findall(r"(?:`|^)make ([a-z]+)", (root / "README.md").read_text(), re.MULTILINE))
    assert {"setup", "sweep", "test"} <= named <= targets
    assert "make test" in (root / ".ci" / "run").read_text()


def test_twelve_functions_at_most_say_how_long_something_takes_by_a_real_clock(root):
    files = [path.read_text() for path in (root / "tests").rglob("test_*.py")]
    marked = [line for text in files for line in re.findall(r"^[@p].*mark\.clock\b", text, re.MULTILINE)]
    assert len(marked) <= 12
    assert {*marked} == {"@pytest.mark.clock"}  # a function each, and no whole file
