"""Damaged files of every format: a clear error or a result; what would hang a reader is refused."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import numpy as np
import pytest

from tclab import InputError

# of each format; benchmarks/fuzz_readers.py takes 10,000
INPUTS = {"fast": range(20), "wide": range(20, 200)}

_spec = importlib.util.spec_from_file_location(
    "fuzz_readers", Path(__file__).resolve().parents[2] / "benchmarks" / "fuzz_readers.py"
)
fuzz = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(fuzz)
FORMATS = fuzz.formats()


@pytest.mark.parametrize("inputs", ["fast", pytest.param("wide", marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", FORMATS)
def test_damaged_files_give_a_clear_error_or_a_result(name, inputs, tmp_path, monkeypatch):
    monkeypatch.setenv("TCLAB_CACHE", str(tmp_path / "cache"))
    file, content, read = FORMATS[name]
    (tmp_path / file).write_bytes(content)
    assert read(tmp_path / file) is not None
    for i in INPUTS[inputs]:
        (tmp_path / file).write_bytes(fuzz.mutated(content, np.random.default_rng([1, i])))
        assert fuzz.fault(read, tmp_path / file) is None, f"input {i}"


@pytest.mark.parametrize("name", FORMATS)
def test_what_is_no_file_is_refused(name, tmp_path):
    file, _, read = FORMATS[name]
    os.mkfifo(tmp_path / file)  # which would wait for ever
    for path in (tmp_path / file, tmp_path / "missing" / file, tmp_path / f"no\0path{Path(file).suffix}"):
        with pytest.raises(InputError):
            read(path)
