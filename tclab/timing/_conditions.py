"""Conditions that may disturb a measurement: load, limits, clocks and temperature at this moment."""

from __future__ import annotations

import os
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from tclab._limits import field_of, groups, memory_available_bytes, number_of, text_of

_CPU0 = Path("/sys/devices/system/cpu/cpu0/cpufreq")


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


def _throttled() -> float | None:
    """Return how often a CPU limit throttled this process's control groups: the largest count of any of them."""
    times = [field_of(str(group / "cpu.stat"), "nr_throttled") for group in groups()]
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
    clock = number_of(text_of(_CPU0 / "scaling_cur_freq"))
    return {
        "load": load,
        "cpu_pressure_percent": field_of("/proc/pressure/cpu", "some"),
        "memory_available_bytes": memory_available_bytes(),
        "throttled_periods": _throttled(),
        "governor": text_of(_CPU0 / "scaling_governor"),
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
