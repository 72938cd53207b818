"""Bars of what takes long: on standard error after two seconds, never in a process that measures."""

import os
import subprocess
import sys

import pytest

from tclab._child_process import PARENT

# tqdm's own clock says that time has passed
SLOW = "import time; passed = iter(range(0, 10**9, 60)); time.time = lambda: next(passed)\n"
FILE = "from tclab.readers import string_links; print(len(string_links({path!r}, ['A', 'B'])))"


def ran(code, **environment):
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ, **environment}
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
    return done.stderr


@pytest.mark.parametrize(("characters", "shown"), [(18_000_000, True), (180, False)])
def test_a_large_file_has_a_bar_when_it_takes_seconds_but_not_in_a_process_that_measures(tmp_path, characters, shown):
    path, row = tmp_path / "1.protein.links.v12.0.txt", "1.A 1.B 500\n1.B 1.A 500\n"
    path.write_text("protein1 protein2 combined_score\n" + row * (characters // len(row)))
    code = SLOW + FILE.format(path=str(path))
    assert ("reading 1.protein.links.v12.0.txt:" in ran(code)) == shown
    assert ran(code, **{PARENT: "1"}) == ""
