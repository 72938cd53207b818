"""Atomic writing of files; bytes, seconds and durations as text."""

import errno
import os
import subprocess
import sys

import pytest

from tclab._display import bytes_text, seconds_text, us_text
from tclab._io import TemporaryFolder, atomic_write


@pytest.mark.parametrize("content", ["a µ", b"a \xc2\xb5", lambda path: path.write_bytes(b"a \xc2\xb5")])
def test_a_file_is_written_whole_with_the_rights_that_a_new_file_has(tmp_path, content):
    (tmp_path / "plain").write_text("")
    atomic_write(tmp_path / "file.json", content)
    assert (tmp_path / "file.json").read_bytes() == b"a \xc2\xb5"
    assert (tmp_path / "file.json").stat().st_mode == (tmp_path / "plain").stat().st_mode
    assert sorted(os.listdir(tmp_path)) == ["file.json", "plain"]


FAILURES = [OSError(errno.EIO, "broken"), KeyboardInterrupt()]


@pytest.mark.parametrize("failure", FAILURES, ids=["broken", "interrupted"])
@pytest.mark.parametrize("call", ["tclab._io.open", "the content", "os.fsync", "pathlib.Path.replace"])
def test_whichever_call_fails_the_earlier_file_stays_and_nothing_else(tmp_path, monkeypatch, call, failure):
    def fails(*arguments):
        raise failure

    (tmp_path / "file").write_text("before")
    if call != "the content":
        monkeypatch.setattr(call, fails, raising=False)
    with pytest.raises(type(failure)):
        atomic_write(tmp_path / "file", fails if call == "the content" else "after")
    assert os.listdir(tmp_path) == ["file"]
    assert (tmp_path / "file").read_text() == "before"


HOLDS = """
import os, sys
from tclab._io import TemporaryFolder
folder = TemporaryFolder()
(folder.path / "store").write_text("gigabytes")
print(folder.path, flush=True)
sys.stdin.read()
os.kill(os.getpid(), 9)
"""


def test_a_temporary_folder_goes_with_its_owner_or_soon_after_one_that_was_killed(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)  # which remembers the variable
    (tmp_path / "tclab-of-somebody-else").mkdir()
    with subprocess.Popen([sys.executable, "-c", HOLDS], stdin=-1, stdout=-1, text=True) as holder:
        left = holder.stdout.readline().strip()
        mine = TemporaryFolder()
        assert os.path.isdir(left)  # its owner is alive
        holder.stdin.close()
    assert os.path.isdir(left)
    TemporaryFolder().close()
    assert not os.path.exists(left)
    assert mine.path.is_dir()
    mine.close()
    mine.close()
    assert os.listdir(tmp_path) == ["tclab-of-somebody-else"]


def test_bytes_and_times_have_three_digits():
    for number, text in ((0, "0 B"), (999_499, "999 kB"), (999_500, "1 MB"), (2_216_616, "2.22 MB"), (-45e3, "-45 kB")):
        assert bytes_text(number) == text
    for seconds, text in ((0, "0 s"), (1.27e-6, "1.27 µs"), (0.9996, "1 s"), (4321, "4,321 s"), (-0.0847, "-84.7 ms")):
        assert seconds_text(seconds) == text
        assert us_text(seconds * 1e6) == text
