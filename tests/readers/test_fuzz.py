"""Damaged files of every format: a clear error or a result; what would hang a reader is refused."""

import os

import fuzz_readers as fuzz
import numpy as np
import pytest

from tclab import InputError

pytestmark = pytest.mark.filterwarnings("ignore:.* were dropped")
FORMATS = fuzz.formats()


@pytest.mark.parametrize("name", FORMATS)
def test_damaged_files_give_a_clear_error_or_a_result(name, tmp_path, monkeypatch):
    monkeypatch.setenv("TCLAB_CACHE", str(tmp_path / "cache"))
    file, content, read = FORMATS[name]
    path = tmp_path / file
    path.write_bytes(content)
    assert read(path) is not None
    for i in range(20):  # benchmarks/fuzz_readers.py takes 10,000
        path.write_bytes(fuzz.mutated(content, np.random.default_rng([1, i])))
        assert fuzz.fault(read, path) is None, f"input {i}"
    path.unlink()
    os.mkfifo(path)  # which would wait for ever
    with pytest.raises(InputError):
        read(path)
