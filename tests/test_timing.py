"""What the package loads, and what it says of the machine: its limits, its GPU, who else wanted its processors."""

import os
import subprocess
import sys

import pytest
import torch

from tclab.timing._environment import contention, cores_within, environment, gpu_free_bytes, usable_cores

LOADS = """
import sys, tclab
from tclab.timing import Ledger
from tclab.timing._environment import conditions, environment
with Ledger() as ledger:
    for _ in ledger.steps(range(3)):
        with ledger.stage("forward"):
            pass
print(bool(str(ledger)), bool(conditions()), environment(load_torch=False)["torch"])
print([m for m in ("torch", "numpy", "scipy", "pandas", "lightning", "asyncio") if m in sys.modules])
from tclab.timing import race
result = race({"short": lambda: sum(range(3000)), "long": lambda: sum(range(9000))}, budget_seconds=2)
print(len(result.samples()) > 0, "pandas" in sys.modules, "torch" in sys.modules)
ledger.frame()
print("pandas" in sys.modules, "torch" in sys.modules)
"""


def test_a_ledger_and_a_race_load_no_torch_and_pandas_for_a_frame_alone():
    done = subprocess.run([sys.executable, "-c", LOADS], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [f"True True {torch.__version__}", "[]", "True False False", "True False"]


def test_the_environment_says_what_is_missing_with_none(monkeypatch):
    monkeypatch.setenv("MALLOC_ARENA_MAX", "2")
    found = environment()
    assert found["torch"] == torch.__version__
    assert found["cores"] >= 1
    assert "MALLOC_ARENA_MAX=2" in found["allocator_settings"]
    if not torch.cuda.is_available():
        assert found["gpu"] is None
        assert found["gpus"] == 0


@pytest.mark.parametrize(("visible", "free"), [("3, 1", 80_000 * 2**20), ("GPU-gone", None), ("7", None)])
def test_the_free_memory_is_of_the_gpu_that_cuda_sees(visible, free, tmp_path, monkeypatch):
    smi = tmp_path / "nvidia-smi"  # a machine of four GPUs, the last of which does not tell
    smi.write_text('#!/bin/sh\ncase $2 in [03]) echo 80000;; 7) echo "[N/A]";; *) exit 6;; esac')
    smi.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert gpu_free_bytes() == free


def moments(pressure=0.0, steal=0.0, **missing):
    """Return the conditions before and after 10 s with these readings between them."""
    before = {"monotonic_seconds": 5.0, "cpu_pressure_seconds": 70.0, "busy_seconds": 8.0, "steal_seconds": 1.0}
    grown = {"monotonic_seconds": 10.0, "cpu_pressure_seconds": pressure, "busy_seconds": 12.0, "steal_seconds": steal}
    return before, {name: value + grown[name] for name, value in before.items()} | missing


@pytest.mark.parametrize(
    ("readings", "shared", "percent", "words"),
    [
        ({}, False, None, ""),
        ({"pressure": 4.0}, True, None, "over 10 s, something waited for a processor 40% of the time"),
        ({"pressure": 5.3}, True, 53.0, "a processor 53% of the time"),
        ({"pressure": 0.1, "steal": 2.0}, True, None, "a hypervisor took 0.20 processors"),
        ({"cpu_pressure_seconds": None}, None, None, ""),
        ({"pressure": 9.0, "monotonic_seconds": None}, None, None, ""),
    ],
)
def test_a_neighbour_on_the_processors_is_said_and_what_is_not_known_is_missing(readings, shared, percent, words):
    found = contention(*moments(**readings))
    assert found.shared is shared
    assert found.busy_percent == pytest.approx(percent)
    assert found.busy_cores == (None if found.seconds is None else 1.2)
    assert words in str(found)
    assert bool(str(found)) == bool(shared)


def test_the_narrowest_limit_of_a_jobs_groups_holds(tmp_path, monkeypatch):
    groups = {"slurm": ("max", 9, 0, "max"), "slurm/job_7": (8 << 20, 3 << 20, 1 << 20, 150_000),
              "slurm/job_7/step_0": ("max", 1 << 20, 0, 400_000), "elsewhere": (1, 1, 0, "max")}  # fmt: skip
    for group, (limit, used, cached, cores) in groups.items():
        (tmp_path / group).mkdir(parents=True)
        (tmp_path / group / "memory.max").write_text(str(limit))
        (tmp_path / group / "memory.current").write_text(str(used))
        (tmp_path / group / "memory.stat").write_text(f"anon 5\ninactive_file {cached}\n")
        (tmp_path / group / "cpu.max").write_text(f"{cores} 100000")
    (tmp_path / "own").write_text("1:cpu:/old\n0::/slurm/job_7/step_0\n")
    limits = sys.modules["tclab._limits"]
    monkeypatch.setattr(limits, "_PROCESS_GROUP", tmp_path / "own")
    monkeypatch.setattr(limits, "_GROUPS", tmp_path)
    found = environment()
    assert (found["memory_bytes"], found["cpu_limit_cores"]) == (8 << 20, 1.5)
    assert limits.memory_available_bytes() == 6 << 20
    assert (usable_cores(), cores_within(None, 2.0), cores_within(8, 0.5)) == (1, None, 1)
