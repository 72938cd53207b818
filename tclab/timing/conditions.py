"""What may have disturbed a measurement: load, limits, clocks, at this moment."""

from __future__ import annotations

import os
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

_CPU0 = Path("/sys/devices/system/cpu/cpu0/cpufreq")


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
    nvml = _nvml()
    if nvml is None:
        return {}
    found: dict[str, Any] = {}
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
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


def cpu_limit_cores() -> float | None:
    """Return how many cores' time the container may use, or `None` without a limit (cgroup v2)."""
    quota, _, period = (_text(Path("/sys/fs/cgroup/cpu.max")) or "").partition(" ")
    limit, every = _number(quota), _number(period)
    return None if limit is None or not every else limit / every


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
    memory = _field("/proc/meminfo", "MemAvailable")
    clock = _number(_text(_CPU0 / "scaling_cur_freq"))
    return {
        "load": load,
        "cpu_pressure_percent": _field("/proc/pressure/cpu", "some"),
        "memory_available_bytes": None if memory is None else int(memory) * 1024,
        "throttled_periods": _field("/sys/fs/cgroup/cpu.stat", "nr_throttled"),
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
