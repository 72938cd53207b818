"""`make gpu`: every part is rehearsed on a CPU, a killed run goes on, and results of another size stay as they are."""

import argparse
import json
import os
import subprocess
import sys

import gpu
import gpu_parts
import pytest
from slurm_box import wait_for


@pytest.mark.slow
def test_every_part_passes_its_rehearsal_and_leaves_rows(tmp_path, monkeypatch):
    monkeypatch.setattr(gpu_parts, "close_workers", lambda: None)  # one worker serves all parts
    settings = gpu_parts.Settings("cpu", 0.01, tmp_path, minutes=9.0)
    parts = sorted({*gpu.PARTS} - {"c"})  # Triton's interpreter needs a process of its own: below
    for part in parts:
        gpu_parts.run_part(part, settings)
        assert gpu.verdict_of(part, tmp_path)["passed"], gpu.verdict_of(part, tmp_path)
    assert sorted({path.name[0] for path in tmp_path.glob("*_*.csv")}) == parts
    assert list(tmp_path.glob("recordings/*/rows.parquet"))


@pytest.mark.slow
def test_a_part_that_was_killed_runs_again_in_a_process_of_its_own(root, tmp_path):
    command = [sys.executable, "benchmarks/gpu.py", "--device", "cpu", "--scale", "0.01", "--out", str(tmp_path)]
    command += ["--parts", "c"]
    environment = {**os.environ, "PYTHONPATH": str(root)}
    first = subprocess.Popen(command, cwd=root, env=environment, start_new_session=True)
    wait_for("the part", (tmp_path / "c.log").exists, seconds=600)
    first.kill()
    first.wait()
    assert not (tmp_path / "c.json").exists()
    second = subprocess.run(command, cwd=root, env=environment, stdout=subprocess.PIPE, text=True, timeout=3600)
    assert second.returncode == 0, second.stdout
    assert "(c) passed, " in second.stdout
    assert (tmp_path / "c_layer.csv").exists()


def test_it_goes_on_with_the_first_part_that_has_not_passed(tmp_path, monkeypatch, capsys):
    passes = 'import pathlib, sys; pathlib.Path(*sys.argv[1:]).write_text(\'{"passed": true, "says": ""}\')'
    part = [sys.executable, "-c", passes, str(tmp_path)]
    monkeypatch.setattr(gpu, "child_command", lambda module, name, *words: [*part, f"{name}.json"])
    given = argparse.Namespace(device="cpu", scale=0.02, out=tmp_path, minutes=9.0, parts="".join(gpu.PARTS))
    for name in "bc":
        (tmp_path / f"{name}.json").write_text(json.dumps({"passed": name == "b", "says": ""}))
    assert gpu.drive(given) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("(")]
    assert "".join(line[1] for line in lines) == "".join(gpu.PARTS)
    assert [line[1] for line in lines if "passed before" in line] == ["b"]


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
