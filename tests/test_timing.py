"""What the package loads, and what it says of the machine: its limits, its GPU, who else wanted its processors."""

import os
import subprocess
import sys
import textwrap

import pytest
import torch

from tclab import timing
from tclab.timing import contention, environment
from tclab.timing._environment import cores_within, gpu_free_bytes, usable_cores


def run(code):
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=True
    ).stdout.strip()


def test_every_public_name_is_listed_and_there():
    assert set(timing.__all__) <= set(dir(timing))
    for name in timing.__all__:
        assert getattr(timing, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'rase'"):
        timing.rase  # noqa: B018


@pytest.mark.parametrize("package", ["timing", "trace"])
def test_a_standalone_package_loads_no_other(package):
    loaded = run(f"""
        import sys, tclab.{package}
        heavy = ("torch_geometric", "altair", "ipywidgets")
        parts = [m.split(".") for m in sys.modules]
        packages = {{p[1] for p in parts if p[0] == "tclab" and len(p) > 1 and not p[1].startswith("_")}}
        print([p for p in parts if p[0] in heavy] + sorted(packages - {{"errors", "{package}"}}))
    """)
    assert loaded == "[]"


def test_a_ledger_loads_neither_torch_nor_numpy_and_pandas_for_a_frame_alone():
    loaded = run("""
        import sys, tclab
        from tclab.timing import Ledger, conditions, environment
        with Ledger() as ledger:
            for _ in ledger.steps(range(3)):
                with ledger.stage("forward"):
                    pass
        print(bool(str(ledger)), bool(conditions()), environment(load_torch=False)["torch"])
        print([m for m in ("torch", "numpy", "scipy", "pandas", "lightning", "asyncio") if m in sys.modules])
        ledger.frame()
        print("pandas" in sys.modules, "torch" in sys.modules)
    """)
    assert loaded.splitlines() == [f"True True {torch.__version__}", "[]", "True False"]


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="peak resident memory is Linux's to tell")
def test_peak_memory_sees_what_was_let_go_again():
    """In a process of its own: what a long-lived one has mapped before may be used again unseen."""
    idle, busy = run("""
        import torch
        from tclab.timing._call_costs import PeakMemory
        with PeakMemory() as idle:
            pass
        with PeakMemory() as busy:
            torch.ones(80_000_000 // 4).sum()
        print(idle.bytes, busy.bytes)
    """).split()
    assert int(busy) - int(idle) > 40_000_000


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
        ({"pressure": 4.0}, True, None, "during 10 s: something waited for one 40% of the time"),
        ({"pressure": 5.3}, True, 53.0, "one 53% of the time"),
        ({"pressure": 0.1, "steal": 2.0}, True, None, "a hypervisor took 0.20 of them"),
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
    if readings.get("cpu_pressure_seconds", 0.0) is None:
        assert found.waiting is None


def groups(folder, monkeypatch, own, **files):
    """Have a process in the control group `own`; the files of each group are given by its path, / as __."""
    module = sys.modules["tclab._limits"]
    (folder / "own").write_text(f"1:cpu:/old\n0::{own}\n")
    for path, texts in files.items():
        group = folder / "groups" / path.strip("_").replace("__", "/")
        group.mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            (group / name).write_text(text)
    monkeypatch.setattr(module, "_PROCESS_GROUP", folder / "own")
    monkeypatch.setattr(module, "_GROUPS", folder / "groups")
    return module


def memory(limit, used, cached=0):
    return {"memory.max": limit, "memory.current": f"{used}", "memory.stat": f"anon 5\ninactive_file {cached}\n"}


def test_the_narrowest_limit_of_a_jobs_groups_holds(tmp_path, monkeypatch):
    module = groups(
        tmp_path,
        monkeypatch,
        "/slurm/job_7/step_0",
        slurm=memory("max", 9 << 20) | {"cpu.max": "max 100000"},
        slurm__job_7=memory(f"{8 << 20}", 3 << 20, 1 << 20) | {"cpu.max": "150000 100000"},
        slurm__job_7__step_0=memory("max", 1 << 20) | {"cpu.max": "400000 100000"},
        elsewhere=memory("1", 1),
    )
    assert module.memory_limit_bytes() == 8 << 20
    assert module.memory_available_bytes() == 6 << 20
    assert environment()["memory_bytes"] == 8 << 20
    assert environment()["cpu_limit_cores"] == 1.5
    assert (usable_cores(), cores_within(None, 2.0), cores_within(8, 0.5)) == (1, None, 1)
