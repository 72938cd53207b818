import os
import subprocess
import sys
import textwrap
import time
from types import SimpleNamespace

import pytest
import torch

from tclab import timing
from tclab.timing import Ledger, conditions, environment, syncs


def test_every_public_name_is_listed_and_there():
    assert set(timing.__all__) <= set(dir(timing))
    for name in timing.__all__:
        assert getattr(timing, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'rase'"):
        timing.rase  # noqa: B018


@pytest.mark.parametrize(
    ("call", "operation"),
    [
        (lambda x: x.sum().item(), "_local_scalar_dense"),
        (lambda x: bool(x.any()), "_local_scalar_dense"),
        (lambda x: x[x > 0], "index"),
        (lambda x: x.nonzero(), "nonzero"),
        (lambda x: x.masked_select(x > 0), "masked_select"),
        (lambda x: x.unique(), "_unique2"),
        (lambda x: torch.repeat_interleave(x, torch.ones(4, dtype=torch.int64)), "repeat_interleave"),
    ],
)
def test_waits_are_found_with_their_line(call, operation):
    x = torch.arange(4.0)
    with syncs() as found:
        call(x)
    assert found.operations[operation] == 1
    assert found.count == 1
    (place,) = found.places
    assert "test_timing.py" in place


def test_what_makes_no_one_wait_is_not_counted():
    x = torch.arange(4.0, requires_grad=True)
    counts = torch.ones(4, dtype=torch.int64)
    with syncs() as found:
        y = torch.repeat_interleave(x * 2, counts, output_size=4)
        y[torch.tensor([0, 1])].sum().backward()
        z = torch.zeros(4)
        z[torch.tensor([True, False, True, False])] = 1.0  # a masked fill
    assert found.count == 0


def test_waits_in_a_backward_are_found():
    class Waits(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 1

        @staticmethod
        def backward(ctx, gradient):
            gradient.sum().item()
            return gradient

    x = torch.ones(3, requires_grad=True)
    with syncs() as found:
        Waits.apply(x).sum().backward()
    assert found.count == 1


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="peak resident memory is Linux's to tell")
@pytest.mark.clock
def test_peak_memory_sees_what_was_let_go_again():
    """In a process of its own: what a long-lived one has mapped before may be used again unseen."""
    idle, busy = run("""
        import torch
        from tclab.timing._peak_memory import PeakMemory
        with PeakMemory() as idle:
            pass
        with PeakMemory() as busy:
            torch.ones(80_000_000 // 4).sum()
        print(idle.bytes, busy.bytes)
    """).split()
    assert int(busy) - int(idle) > 40_000_000


def test_the_environment_says_what_is_missing_with_none():
    found = environment()
    assert found["torch"] == torch.__version__
    assert found["cores"] >= 1
    if not torch.cuda.is_available():
        assert found["gpu"] is None
        assert found["gpus"] == 0


def test_the_commit_is_that_of_the_code_and_not_of_whoever_uses_it(root, tmp_path):
    git = ["git", "-C", str(root), "log", "-1", "--format=%H", "--", "tclab"]  # the last that changed the package
    head = subprocess.run(git, capture_output=True, text=True)
    if head.returncode:
        pytest.skip("this is no git checkout")
    assert environment()["commit"].rstrip("+") == head.stdout.strip()


class Nvml:
    """Stands in for pynvml: one GPU, which does not tell its power."""

    NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU = 1, 2, 0

    class NVMLError(Exception):
        pass

    nvmlDeviceGetHandleByIndex = staticmethod(lambda index: index)
    nvmlDeviceGetClockInfo = staticmethod(lambda handle, kind: {1: 1980, 2: 3201}[kind])
    nvmlDeviceGetTemperature = staticmethod(lambda handle, kind: 41)
    nvmlDeviceGetCurrentClocksThrottleReasons = staticmethod(lambda handle: 4)
    nvmlDeviceGetComputeRunningProcesses = staticmethod(
        lambda handle: [type("Process", (), {"pid": pid}) for pid in (os.getpid(), 1, 2)]
    )

    nvmlDeviceGetMemoryInfo = staticmethod(lambda handle: SimpleNamespace(used=3 << 30, total=80 << 30))
    nvmlDeviceGetUtilizationRates = staticmethod(lambda handle: SimpleNamespace(gpu=97))

    @staticmethod
    def nvmlDeviceGetPowerUsage(handle):
        raise Nvml.NVMLError("not supported")


def test_conditions_tell_what_the_machine_tells_and_none_for_the_rest(monkeypatch):
    found = conditions()
    assert found["load"] >= 0
    if not torch.cuda.is_available():
        assert found["gpu_clock_mhz"] is None
    monkeypatch.setattr(sys.modules["tclab.timing._conditions"], "_nvml", lambda: Nvml)
    with_gpu = conditions()
    assert with_gpu.keys() == found.keys()
    assert with_gpu["gpu_clock_mhz"] == 1980
    assert with_gpu["gpu_throttle_reasons"] == "0x4"
    assert with_gpu["gpu_other_processes"] == 2
    assert (with_gpu["gpu_memory_used_bytes"], with_gpu["gpu_memory_total_bytes"]) == (3 << 30, 80 << 30)
    assert with_gpu["gpu_busy_percent"] == 97
    assert with_gpu["gpu_power_watts"] is None


def test_the_gpu_that_cuda_sees_is_the_one_that_is_looked_at(monkeypatch):
    module = sys.modules["tclab.timing._conditions"]
    asked = []

    class Listening(Nvml):
        nvmlDeviceGetHandleByIndex = staticmethod(asked.append)

        @staticmethod
        def nvmlDeviceGetHandleByUUID(name):
            raise Nvml.NVMLError(f"no {name}")

    monkeypatch.setattr(module, "_nvml", lambda: Listening)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3, 1")
    conditions(), conditions(gpu=1)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    conditions(gpu=2)
    assert asked == [3, 1, 2]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-gone")
    assert conditions()["gpu_clock_mhz"] is None


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
        slurm__job_7=memory(f"{8 << 20}", 3 << 20, 1 << 20)
        | {"cpu.max": "150000 100000", "cpu.stat": "nr_throttled 4"},
        slurm__job_7__step_0=memory("max", 1 << 20) | {"cpu.max": "400000 100000", "cpu.stat": "nr_throttled 0"},
        elsewhere=memory("1", 1),
    )
    assert module.memory_limit_bytes() == 8 << 20
    assert module.memory_available_bytes() == conditions()["memory_available_bytes"] == 6 << 20
    assert environment()["memory_bytes"] == 8 << 20
    assert (conditions()["throttled_periods"], environment()["cpu_limit_cores"]) == (4, 1.5)
    assert sys.modules["tclab.timing._environment"].usable_cores() == 1


def test_without_limits_the_machine_is_what_there_is(tmp_path, monkeypatch):
    module = groups(tmp_path, monkeypatch, "/not/seen/from/in/here", _={"memory.stat": ""})
    assert module.memory_limit_bytes() is module.cpu_limit_cores() is conditions()["throttled_periods"] is None
    if os.path.exists("/proc/meminfo"):
        assert module.memory_available_bytes() > 0
    assert sys.modules["tclab.timing._environment"].cores_within(None, 2.0) is None
    assert sys.modules["tclab.timing._environment"].cores_within(8, 0.5) == 1


def run(code):
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=True
    ).stdout.strip()


@pytest.mark.parametrize("package", ["timing", "trace"])
def test_a_standalone_package_loads_no_other(package):
    loaded = run(f"""
        import sys, tclab.{package}
        heavy = ("torch_geometric", "altair", "ipywidgets", "pandas" if "{package}" == "timing" else "altair")
        parts = [m.split(".") for m in sys.modules]
        packages = {{p[1] for p in parts if p[0] == "tclab" and len(p) > 1 and not p[1].startswith("_")}}
        print([p for p in parts if p[0] in heavy] + sorted(packages - {{"errors", "{package}"}}))
    """)
    assert loaded == "[]"


@pytest.mark.clock
def test_importing_tclab_costs_next_to_nothing():
    assert run("import sys, tclab; print('torch' in sys.modules, 'pandas' in sys.modules)") == "False False"

    def least(code):
        took = []
        for _ in range(5):
            begin = time.perf_counter()
            run(code)
            took.append(time.perf_counter() - begin)
        return min(took)

    assert least("import tclab") - least("pass") < 0.3


def decode(x):
    found = []
    for i in range(len(x)):
        found.append(float(x[i]))  # noqa: PERF401
    return found


def test_waits_are_ranked_by_what_they_cost_and_predicted_on_a_cpu():
    first = decode.__code__.co_firstlineno
    x = torch.arange(6.0)
    with syncs() as found:
        decode(x)
        x[x > 2]
        x.tolist()
        repr(x)
        x.cpu()
    ranked = found.ranked()
    assert [times for _, times, _ in ranked] == [6, 1, 1, 1, 1]
    assert ranked[0][0].endswith(f":{first + 3} in decode")
    assert all(__file__ in place and seconds is None for place, _, seconds in ranked)
    assert found.operations == {"_local_scalar_dense": 6, "index": 1, "tolist": 1, "__repr__": 1, "cpu": 1}
    assert "forecast" in str(found)
    assert "cpu" not in vars(torch.Tensor)  # put back
    found.cuda = True  # as if on a device: then seconds decide
    found.seconds = dict.fromkeys(found.seconds, 0.001)
    found.seconds[ranked[3][0]] = 0.5
    assert found.ranked()[0] == (ranked[3][0], 1, 0.5)
    assert "500 ms" in str(found)


@pytest.mark.parametrize("optimizer", ["SGD", "AdamW", "NAdam", "Adagrad"])
def test_an_optimizers_count_of_steps_is_no_wait_since_it_stays_on_the_cpu(optimizer):
    model = torch.nn.Linear(3, 1)
    made = getattr(torch.optim, optimizer)(model.parameters())
    for _ in range(2):  # the first step makes the counts
        with syncs() as found:
            loss = model(torch.ones(2, 3)).sum()
            loss.backward()
            made.step()
            loss.item()
    assert found.count == 1
    assert found.operations == {"_local_scalar_dense": 1}


def test_each_stage_has_its_syncs_kernels_and_memory():
    layer = torch.nn.Linear(8, 4)
    x = torch.ones(16, 8)
    ledger = Ledger()
    with syncs(ledger) as found, ledger.step():
        with ledger.stage("forward"):
            loss = layer(x).relu().sum()
        with ledger.stage("log"):
            loss.item()
        with ledger.stage("backward"):
            loss.backward()
        with ledger.stage("view"):
            x.view(8, 16)[2:].t()
    assert found.stages["log"].syncs == 1
    assert found.stages["forward"].syncs == found.stages["backward"].syncs == 0
    assert found.stages["forward"].kernels == 3  # addmm, relu, sum; the transposed weight is a view
    assert found.stages["forward"].allocations == 3
    assert found.stages["forward"].allocated_bytes == 2 * 16 * 4 * 4 + 4
    assert found.stages["view"].kernels == found.stages["view"].allocations == 0
    assert found.stages["backward"].kernels > 3
    assert sum(stage.syncs for stage in found.stages.values()) == found.count


def test_memory_that_is_set_aside_or_written_in_place_is_told_from_results():
    x = torch.ones(4)
    with syncs() as found:
        x.add_(1.0)
        torch.empty(256)
    assert found.stages["other"].kernels == 1
    assert found.stages["other"].allocations == 1
    assert found.stages["other"].allocated_bytes == 1024
