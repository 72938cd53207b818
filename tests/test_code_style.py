"""Lint, format and types, beside the other tests: `make lint` and `make types` run the same."""

import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    "command", [["mypy"], ["ruff", "check", "."], ["ruff", "format", "--check", "."]], ids=" ".join
)
def test_the_code_is_typed_and_clean(root, command):
    done = subprocess.run([sys.executable, "-m", *command], cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stdout}{done.stderr}"
