"""Conditions that may disturb a measurement: load, limits, clocks and temperature at this moment."""

from __future__ import annotations

import os
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

_CPU0 = Path("/sys/devices/system/cpu/cpu0/cpufreq")
_PROCESS_GROUP = Path("/proc/self/cgroup")
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
    """Return the number at `place` in the first line of a file that begins with a word; `None` if there is none."""
    for line in (_text(Path(path)) or "").splitlines():
        if line.startswith(begins):
            return _number(line.split()[place].rpartition("=")[2])
    return None


@cache
def _nvml() -> Any:
    """Return NVIDIA's management library, initialised; `None` without a GPU or driver."""
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception:  # it has another exception for each way of having no GPU
        return None
    return pynvml


def _gpu(index: int) -> dict[str, Any]:
    """Return the driver's readings of the GPU with this index among those that CUDA sees."""
    nvml = _nvml()
    if nvml is None:
        return {}
    readings: dict[str, Any] = {}
    visible = [name.strip() for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip()]
    name = visible[index] if index < len(visible) else str(index)
    try:
        by_number = name.isdigit()
        handle = nvml.nvmlDeviceGetHandleByIndex(int(name)) if by_number else nvml.nvmlDeviceGetHandleByUUID(name)
    except nvml.NVMLError:  # no GPU of that name
        return {}
    readers = {
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
    for name, read in readers.items():
        with suppress(nvml.NVMLError):  # not every device has every reading
            readings[name] = read()
    return readings


def gpu_driver() -> str | None:
    """Return the version of NVIDIA's driver; `None` without one."""
    nvml = _nvml()
    return None if nvml is None else str(nvml.nvmlSystemGetDriverVersion())


def _groups() -> list[Path]:
    """Return the folders of the control groups (v2) that this process is in, innermost first; all their limits hold."""
    lines = (_text(_PROCESS_GROUP) or "").splitlines()
    group = next((line.removeprefix("0::") for line in lines if line.startswith("0::")), "")
    folder = _GROUPS / group.strip("/")
    return [folder, *(parent for parent in folder.parents if parent.is_relative_to(_GROUPS))]


def cpu_limit_cores() -> float | None:
    """Return the container's or job's CPU limit in cores (cgroup v2); `None` without a limit."""
    limits = []
    for group in _groups():
        quota, _, period = (_text(group / "cpu.max") or "").partition(" ")
        limit, every = _number(quota), _number(period)
        if limit is not None and every:
            limits.append(limit / every)
    return min(limits, default=None)


def memory_limit_bytes() -> int | None:
    """Return the container's or job's memory limit in bytes (cgroup v2); `None` without a limit."""
    limits = [_number(_text(group / "memory.max")) for group in _groups()]
    return min((int(limit) for limit in limits if limit is not None), default=None)


def memory_available_bytes() -> int | None:
    """Return the memory that this machine, container or job has left, in bytes; `None` where unknown."""
    free = _field("/proc/meminfo", "MemAvailable")
    if free is None:
        return None
    left = [int(free) * 1024]
    for group in _groups():
        limit, used = _number(_text(group / "memory.max")), _number(_text(group / "memory.current"))
        if limit is not None and used is not None:
            # the page cache is freed when memory is needed
            left.append(max(0, int(limit - used + (_field(str(group / "memory.stat"), "inactive_file") or 0))))
    return min(left)


def _throttled() -> float | None:
    """Return how often a CPU limit throttled this process's control groups: the largest count of any of them."""
    times = [_field(str(group / "cpu.stat"), "nr_throttled") for group in _groups()]
    return max((number for number in times if number is not None), default=None)


def conditions(gpu: int = 0) -> dict[str, float | int | str | None]:
    """Return readings of this moment; each is `None` where this machine does not provide it.

    They are the load average over one minute; the percentage of the last ten seconds in which something waited for a
    processor (Linux's pressure stall information); memory left, in bytes; how often a CPU limit throttled the
    container; the processor's governor and clock; and of one GPU its clocks, temperature, power, reasons for a lower
    clock (NVML's bits), memory in use and in total, utilisation in percent, and the number of other processes that
    use it.

    **Arguments:**

    - `gpu`: index of the GPU among those that CUDA sees.
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
