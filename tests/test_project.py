"""One truth: pyproject, lock, Makefile and pages agree, and the pages' Python runs as a reader would run it."""

import os
import re
import subprocess
import sys
import textwrap
import tomllib
from itertools import chain
from unittest.mock import Mock

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


# ---- the Python of the README and of `docs/`, block after block, each page by itself


BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\((?!https?:)([^)#]+)[^)]*\)")
# what the pages take for granted: files and folders of the reader's, points, and a cluster
PREPARE = """
    import inspect, shutil, sys
    from pathlib import Path
    import torch
    from torch.profiler import ProfilerActivity, profile
    import tclab

    assert Path(tclab.__file__).is_relative_to(Path.cwd() / "installed")  # and not the checkout
    sys.path.insert(0, str(Path.cwd()))
    Path("lines.tsv").write_text("a\\tb\\nb\\tc\\n")
    for name in ("trace", "before", "after"):
        with profile(activities=[ProfilerActivity.CPU]) as seen:
            torch.ones(3).sum()
        seen.export_chrome_trace(f"{name}.json.gz")
    point = tclab.Point(scale=0.01, networks=1, batch_size=1, steps=6, device="cpu")
    tclab.sweep([point], results="runs/before")
    shutil.copytree("runs/before", "runs/after")
    signature, sweep = inspect.signature(tclab.sweep), tclab.sweep

    def submitted(*points, **options):  # to a cluster: the call is checked, and nothing runs
        signature.bind(*points, **options)
        assert options["slurm"]["time"] == 90

    pages = {}

    def run(page, code):
        print(page, flush=True)
        tclab.sweep = submitted if 'slurm=' in code else sweep
        exec(compile(code, page, "exec"), pages.setdefault(page, {"tclab": tclab, "points": [point]}))
"""


def pages(root):
    return [root / "README.md", *sorted((root / "docs").glob("*.md"))]


def wheel_of(root, folder):
    """Build the wheel and install it by itself, as somebody without the checkout has it; return where it is."""
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "install", "--no-deps", "--target", str(folder / "installed"), str(root)], check=True)
    return folder / "installed"


@pytest.mark.slow
def test_every_block_runs_after_those_above_it_on_its_page_by_the_wheel_alone(root, tmp_path):
    pytest.importorskip("altair")
    script, number = [textwrap.dedent(PREPARE)], 0
    for page in pages(root):
        for block in BLOCK.findall(page.read_text(encoding="utf-8")):
            number += 1
            name = re.match(r"# (\w+\.py)\n", block)
            if name:  # a file that the page says to write
                (tmp_path / name[1]).write_text(block)
            else:
                script.append(f"run({page.name!r}, {block!r})")
    assert number >= 10
    (tmp_path / "pages.py").write_text("\n".join(script), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "pages.py"], cwd=tmp_path, capture_output=True, text=True, timeout=600,
        env={**os.environ, "PYTHONPATH": str(wheel_of(root, tmp_path))},
    )  # fmt: skip
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-3000:]}"
    for words in ("fits", "after against before", "accounted for: host", "9 samples: passed.", "packed passed"):
        assert words in " ".join(done.stdout.split())
    assert (tmp_path / "rows.parquet").is_file()


def test_links_and_named_files_are_there(root):
    for page in [*pages(root), root / "CONTRIBUTING.md"]:
        text = page.read_text(encoding="utf-8")
        for link in LINK.findall(text):
            assert (page.parent / link).exists(), f"{page.name}: {link}"
        named = re.findall(r"`((?:tclab|tests|tools|benchmarks|data_samples)/[\w/]+\.(?:py|csv))`", text)
        for path in (path for path in named if "recordings" not in path):
            assert (root / path).is_file(), f"{page.name}: {path}"


def test_the_commands_of_the_questions_have_points_to_measure(root, monkeypatch):
    from tclab.command import main

    measure = Mock(side_effect=NotImplementedError)
    for name in ("_sweep.sweep", "_race_points.race_points", "predict.fits"):
        monkeypatch.setattr(f"tclab.sweeps.{name}", measure)
    text = (root / "docs" / "questions.md").read_text(encoding="utf-8")
    (begins,) = re.findall(r"alias sweep='.venv/bin/tclab (.*)'", text)
    commands = re.findall(r"`tclab ((?:sweep|race|fits) [^`]+)`", text.replace("`sweep ", f"`tclab {begins} "))
    assert len(commands) > 12
    for command in commands:
        with pytest.raises(NotImplementedError):  # it has got as far as measuring
            main(command.split())
        if command.startswith("sweep ") and "," in command:
            assert len(measure.call_args.args[0]) > 1, f"{command}: a list with commas, and one point"


def test_the_notebooks_of_the_questions_have_the_parameters(root):
    commands = re.findall(r"`NB (\S+) out.ipynb([^`]*)`", (root / "docs" / "questions.md").read_text(encoding="utf-8"))
    assert len(commands) > 8
    for notebook, options in commands:
        source = (root / notebook).read_text(encoding="utf-8")
        for name in re.findall(r"-p (\w+) ", options):
            assert f'"{name} = ' in source or notebook.endswith("/sweep.ipynb"), f"{notebook}: {name}"


def test_the_documentation_has_every_page_every_notebook_and_every_package(root):
    docs = root / "docs"
    found = set(re.findall(r": (\S+\.(?:md|ipynb))$", (root / "mkdocs.yml").read_text(encoding="utf-8"), re.MULTILINE))
    assert {str(path.relative_to(docs)) for path in docs.rglob("*.md") if "notebooks" not in path.parts} <= found
    assert all((docs / name).is_file() for name in found)
    notebooks = {str(path.relative_to(root)) for path in NOTEBOOKS}
    assert notebooks <= found
    assert all(f"`{name}`" in (docs / "index.md").read_text(encoding="utf-8") for name in notebooks)
    for path in (root / "tclab").rglob("__init__.py"):
        package = "_".join(path.parent.relative_to(root / "tclab").parts) or "tclab"
        if "__all__" in path.read_text(encoding="utf-8"):
            assert f"api/{package}.md" in found
