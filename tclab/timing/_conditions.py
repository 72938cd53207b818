"""Conditions that may disturb a measurement: load, limits, clocks and temperature at this moment."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from tclab._limits import field_of, groups, memory_available_bytes, number_of, text_of

# The share of the ten seconds before a measurement's end in which something waited for a processor. On a quiet machine
# of 2 cores it is 3 at most for a process with 2 threads and a worker, and below 50 for one that has just started or
# that follows 4 ranks on those cores; points whose times collapse have 60 and more.
BUSY_PERCENT = 50.0
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


_GPU_READINGS: dict[str, Callable[[Any, Any], Any]] = {  # by the library and a device's handle
    "gpu_clock_mhz": lambda nvml, gpu: nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_SM),
    "gpu_memory_clock_mhz": lambda nvml, gpu: nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_MEM),
    "gpu_temperature_celsius": lambda nvml, gpu: nvml.nvmlDeviceGetTemperature(gpu, nvml.NVML_TEMPERATURE_GPU),
    "gpu_power_watts": lambda nvml, gpu: nvml.nvmlDeviceGetPowerUsage(gpu) / 1e3,
    "gpu_throttle_reasons": lambda nvml, gpu: hex(nvml.nvmlDeviceGetCurrentClocksThrottleReasons(gpu)),
    "gpu_memory_used_bytes": lambda nvml, gpu: int(nvml.nvmlDeviceGetMemoryInfo(gpu).used),
    "gpu_memory_total_bytes": lambda nvml, gpu: int(nvml.nvmlDeviceGetMemoryInfo(gpu).total),
    "gpu_busy_percent": lambda nvml, gpu: nvml.nvmlDeviceGetUtilizationRates(gpu).gpu,
    "gpu_other_processes": lambda nvml, gpu: sum(
        process.pid != os.getpid() for process in nvml.nvmlDeviceGetComputeRunningProcesses(gpu)
    ),
}


def _gpu(index: int) -> dict[str, Any]:
    """Return the driver's readings of the GPU with this index among those that CUDA sees; `None` for what it lacks."""
    readings: dict[str, Any] = dict.fromkeys(_GPU_READINGS)
    nvml = _nvml()
    if nvml is None:
        return readings
    visible = [name.strip() for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip()]
    name = visible[index] if index < len(visible) else str(index)
    try:
        by_number = name.isdigit()
        handle = nvml.nvmlDeviceGetHandleByIndex(int(name)) if by_number else nvml.nvmlDeviceGetHandleByUUID(name)
    except nvml.NVMLError:  # no GPU of that name
        return readings
    for name, read in _GPU_READINGS.items():
        with suppress(nvml.NVMLError):  # not every device has every reading
            readings[name] = read(nvml, handle)
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
        **_gpu(gpu),
    }


def busy_percent(moment: Mapping[str, Any] | None) -> float | None:
    """Return the pressure on the processors in `conditions` at the end of a measurement; `None` unless it was busy."""
    percent = (moment or {}).get("cpu_pressure_percent")
    return percent if percent is not None and percent > BUSY_PERCENT else None


def busy_notes(percent: float | None) -> list[str]:
    """Return what to say of a busy machine, as the notes of a result; none of one that was not, or is not known."""
    if percent is None:
        return []
    return [f"the machine was busy: something waited for a processor in {percent:.0f} % of the last ten seconds"]
