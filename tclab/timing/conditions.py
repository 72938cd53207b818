"""What may have disturbed a measurement: load, limits, clocks, at this moment."""

from __future__ import annotations

import os
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

_CPU0 = Path("/sys/devices/system/cpu/cpu0/cpufreq")
_OWN_GROUP = Path("/proc/self/cgroup")
_GROUPS = Path("/sys/fs/cgroup")


def _text(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except OSError:
        return None


def _number(text: str | None) -> float | None:
    with suppress(TypeError, ValueError):
        return float(text)  # type: ignore[arg-type]
    return None


def _field(path: str, begins: str, place: int = 1) -> float | None:
    """Return one number of the line of a file that begins with a word."""
    for line in (_text(Path(path)) or "").splitlines():
        if line.startswith(begins):
            return _number(line.split()[place].rpartition("=")[2])
    return None


@cache
def _nvml() -> Any:
    """Return NVIDIA's management library, begun, or `None` where there is no GPU or no driver."""
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception:  # it raises an error of its own for each way of having no GPU
        return None
    return pynvml


def _gpu(index: int) -> dict[str, Any]:
    """Return what the driver tells of a GPU, by its place among those that CUDA sees."""
    nvml = _nvml()
    if nvml is None:
        return {}
    found: dict[str, Any] = {}
    named = [name.strip() for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip()]
    name = named[index] if index < len(named) else str(index)
    try:
        by_number = name.isdigit()
        handle = nvml.nvmlDeviceGetHandleByIndex(int(name)) if by_number else nvml.nvmlDeviceGetHandleByUUID(name)
    except nvml.NVMLError:  # none of that name
        return {}
    asked = {
        "gpu_clock_mhz": lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM),
        "gpu_memory_clock_mhz": lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM),
        "gpu_temperature_celsius": lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU),
        "gpu_power_watts": lambda: nvml.nvmlDeviceGetPowerUsage(handle) / 1e3,
        "gpu_throttle_reasons": lambda: hex(nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)),
        "gpu_memory_used_bytes": lambda: int(nvml.nvmlDeviceGetMemoryInfo(handle).used),
        "gpu_memory_total_bytes": lambda: int(nvml.nvmlDeviceGetMemoryInfo(handle).total),
        "gpu_busy_percent": lambda: nvml.nvmlDeviceGetUtilizationRates(handle).gpu,
        "gpu_other_processes": lambda: sum(
            process.pid != os.getpid() for process in nvml.nvmlDeviceGetComputeRunningProcesses(handle)
        ),
    }
    for name, ask in asked.items():
        with suppress(nvml.NVMLError):  # not every device tells everything
            found[name] = ask()
    return found


def gpu_driver() -> str | None:
    """Return the version of NVIDIA's driver, or `None` where there is none."""
    nvml = _nvml()
    return None if nvml is None else str(nvml.nvmlSystemGetDriverVersion())


def _groups() -> list[Path]:
    """Return the control groups (v2) that this process is in, its own first, the root last: limits of all hold."""
    lines = (_text(_OWN_GROUP) or "").splitlines()
    own = next((line.removeprefix("0::") for line in lines if line.startswith("0::")), "")
    folder = _GROUPS / own.strip("/")
    return [folder, *(parent for parent in folder.parents if parent.is_relative_to(_GROUPS))]


def cpu_limit_cores() -> float | None:
    """Return how many cores' time the container, or the job, may use; `None` without a limit (cgroup v2)."""
    limits = []
    for group in _groups():
        quota, _, period = (_text(group / "cpu.max") or "").partition(" ")
        limit, every = _number(quota), _number(period)
        if limit is not None and every:
            limits.append(limit / every)
    return min(limits, default=None)


def memory_limit_bytes() -> int | None:
    """Return how much memory the container, or the job, may use; `None` without a limit (cgroup v2)."""
    limits = [_number(_text(group / "memory.max")) for group in _groups()]
    return min((int(limit) for limit in limits if limit is not None), default=None)


def memory_available_bytes() -> int | None:
    """Return how much memory this machine, container or job has left; `None` where it does not tell."""
    free = _field("/proc/meminfo", "MemAvailable")
    if free is None:
        return None
    left = [int(free) * 1024]
    for group in _groups():
        limit, used = _number(_text(group / "memory.max")), _number(_text(group / "memory.current"))
        if limit is not None and used is not None:
            # files that are cached are let go when memory is asked for
            left.append(max(0, int(limit - used + (_field(str(group / "memory.stat"), "inactive_file") or 0))))
    return min(left)


def _throttled() -> float | None:
    """Return how often a limit stopped this process's groups, where it did so most."""
    times = [_field(str(group / "cpu.stat"), "nr_throttled") for group in _groups()]
    return max((number for number in times if number is not None), default=None)


def conditions(gpu: int = 0) -> dict[str, float | int | str | None]:
    """Return what goes on beside a measurement now; `None` where this machine does not tell.

    The load over one minute; the share of the last ten seconds in which something waited for a processor, in
    percent (Linux's pressure stall information); memory left, in bytes; how often a container's limit stopped it;
    the processor's governor and clock; and of one GPU its clocks, temperature, power, reasons for a lower clock
    (NVML's bits), its memory in use and in all, the share of the last moment in which it was busy, in percent, and
    how many other processes use it.
    """
    try:
        load: float | None = os.getloadavg()[0]
    except OSError:
        load = None
    clock = _number(_text(_CPU0 / "scaling_cur_freq"))
    return {
        "load": load,
        "cpu_pressure_percent": _field("/proc/pressure/cpu", "some"),
        "memory_available_bytes": memory_available_bytes(),
        "throttled_periods": _throttled(),
        "governor": _text(_CPU0 / "scaling_governor"),
        "cpu_clock_mhz": None if clock is None else clock / 1e3,
        "gpu_clock_mhz": None,
        "gpu_memory_clock_mhz": None,
        "gpu_temperature_celsius": None,
        "gpu_power_watts": None,
        "gpu_throttle_reasons": None,
        "gpu_memory_used_bytes": None,
        "gpu_memory_total_bytes": None,
        "gpu_busy_percent": None,
        "gpu_other_processes": None,
        **_gpu(gpu),
    }
