"""`make gpu`: every part is rehearsed on a CPU, a killed run goes on, and what is missing is said at once."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest


@pytest.fixture
def gpu(root, monkeypatch):
    monkeypatch.syspath_prepend(str(root / "benchmarks"))
    return __import__("gpu")


def test_a_missing_package_is_named_with_what_it_leaves_out_before_anything_runs(gpu, tmp_path, monkeypatch, capsys):
    there = gpu.find_spec
    monkeypatch.setattr(gpu, "find_spec", lambda name: None if name in ("one", "triton") else there(name))
    monkeypatch.setitem(gpu.NEEDS, "one", {"i": ""})
    monkeypatch.setattr(gpu.subprocess, "Popen", lambda *a, **k: pytest.fail("nothing can run"))
    (tmp_path / "c.json").write_text(json.dumps({"passed": True, "says": "as it was"}))
    assert gpu.drive(gpu.Settings("cpu", 0.02, tmp_path, 9.0), "ic") == 1
    said = capsys.readouterr().out.splitlines()
    assert said[:2] == [
        "missing package triton: part (c) leaves out our kernels",
        "missing package one: part (i) leaves out everything",
    ]
    assert said[2].startswith("(i) LEFT OUT, without one: ")
    assert "(c) " in said[3]
    assert said[3].endswith("passed before: as it was")
    assert said[4].startswith("1 of 2 parts passed")
    assert (tmp_path / "log.txt").read_text().splitlines() == said


def test_results_of_another_size_are_not_gone_on_with(gpu, tmp_path):
    (tmp_path / "settings.json").write_text(json.dumps({"device": "cuda", "scale": 1.0}))
    with pytest.raises(SystemExit, match="give another --out"):
        gpu.drive(gpu.Settings("cpu", 0.02, tmp_path, 9.0), "a")


@pytest.mark.slow
def test_a_point_runs_without_any_package_that_leaves_out_one_part_only(gpu, root):
    optional = [name for name, parts in gpu.NEEDS.items() if set(parts) != set(gpu.PARTS)]
    assert {"triton", "geomloss", "lightning"} <= set(optional)
    code = f"""
import sys
sys.modules.update(dict.fromkeys({optional}))  # importing one of them is an ImportError
import tclab
rows = tclab.run(tclab.Point(scale=0.02, batch_size=2, networks=2, steps=1, device="cpu", workers=0), fresh=False)
assert set(rows["status"]) == {{"ok"}}, rows["status"]
"""
    subprocess.run([sys.executable, "-c", code], check=True, env={**os.environ, "PYTHONPATH": str(root)})


@pytest.mark.slow
def test_the_rehearsal_runs_every_part_and_goes_on_after_a_kill(gpu, root, tmp_path):
    command = [sys.executable, "benchmarks/gpu.py", "--device", "cpu", "--scale", "0.02", "--out", str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": str(root)}
    first = subprocess.Popen(command, cwd=root, env=environment, start_new_session=True)
    until = time.monotonic() + 3600  # it only ends a hang
    while not (tmp_path / "c.log").exists():  # in the middle of the third part
        assert first.poll() is None
        assert time.monotonic() < until
        time.sleep(0.2)
    time.sleep(1.0)
    os.kill(first.pid, signal.SIGKILL)
    first.wait()
    assert not (tmp_path / "c.json").exists()
    second = subprocess.run(command, cwd=root, env=environment, stdout=subprocess.PIPE, text=True, timeout=3600)
    assert second.returncode == 0, second.stdout
    lines = [line for line in second.stdout.splitlines() if line.startswith("(")]
    assert [line[1] for line in lines] == list(gpu.PARTS)
    assert ["passed before" in line for line in lines] == [True, True] + [False] * 8
    assert {path.name[0] for path in tmp_path.glob("*_*.csv")} == set("abcdefghij")  # each has rows on disk
    assert list(tmp_path.glob("recordings/*/rows.parquet"))
