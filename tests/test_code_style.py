"""Lint, format, types and the cap on lines of code: `make lint` and `make types` run the same."""

import subprocess
import sys

import pytest

COMMANDS = [
    ["-m", "mypy"],
    ["-m", "ruff", "check", "."],
    ["-m", "ruff", "format", "--check", "."],
    ["tools/code_lines.py", "tclab", "--cap", "pyproject.toml"],
]


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_the_code_is_typed_and_clean_and_no_longer_than_its_cap(root, command):
    done = subprocess.run([sys.executable, *command], cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stdout}{done.stderr}"
