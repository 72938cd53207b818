"""`make gpu`: every part is rehearsed on a CPU, a killed run goes on, and results of another size stay as they are."""

import argparse
import json
import os
import subprocess
import sys

import gpu
import pytest
from slurm_box import wait_for


@pytest.mark.slow
def test_the_rehearsal_runs_every_part_and_goes_on_after_a_kill(root, tmp_path):
    command = [sys.executable, "benchmarks/gpu.py", "--device", "cpu", "--scale", "0.01", "--out", str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": str(root)}
    first = subprocess.Popen(command, cwd=root, env=environment, start_new_session=True)
    wait_for("the second part", (tmp_path / "b.log").exists, seconds=600)
    first.kill()
    first.wait()
    assert not (tmp_path / "b.json").exists()
    second = subprocess.run(command, cwd=root, env=environment, stdout=subprocess.PIPE, text=True, timeout=3600)
    assert second.returncode == 0, second.stdout
    lines = [line for line in second.stdout.splitlines() if line.startswith("(")]
    assert "".join(line[1] for line in lines) == "abcdefghi"
    assert ["passed before" in line for line in lines] == [True] + [False] * 8
    assert {path.name[0] for path in tmp_path.glob("*_*.csv")} == set("abcdefghi")  # each has rows on disk
    assert list(tmp_path.glob("recordings/*/rows.parquet"))


def test_results_of_another_size_are_not_gone_on_with_and_what_fails_is_a_line(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(gpu, "child_command", lambda *words: [sys.executable, "-c", "print('no driver'); exit(3)"])
    (tmp_path / "c.json").write_text(json.dumps({"passed": True, "says": "as it was"}))
    given = argparse.Namespace(device="cpu", scale=0.02, out=tmp_path, minutes=9.0, parts="ic")
    assert gpu.drive(given) == 1
    said = capsys.readouterr().out
    assert "    ended with 3: no driver\n" in said
    assert f"    as it was\n1 of 2 parts passed; rows in {tmp_path}\n" in said
    with pytest.raises(SystemExit, match="give another --out"):
        gpu.drive(argparse.Namespace(**{**vars(given), "device": "cuda"}))
