"""Where and beside what a figure was measured: machine, versions, settings; load, clocks and contention at the time."""

from __future__ import annotations

import os
import platform
import resource
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from time import monotonic, sleep
from typing import Any

from tclab import _limits as limits

# The share of the ten seconds before a measurement's end in which something waited for a processor. On a quiet machine
# of 2 cores it is 3 at most for a process with 2 threads and a worker, and below 50 for one that has just started or
# that follows 4 ranks on those cores; points whose times collapse have 60 and more.
BUSY_PERCENT = 50.0
# What is exceeded between two moments where the processors were shared. Two torch threads of small products on 2 cores
# wait 0.01 and switch 43 times a second alone; beside a busy process, ten times as slow, 0.53 and 193.
_WAITING, _STEAL, _SWITCHES = 0.2, 0.05, 100.0
_ALLOCATOR = ("MALLOC_", "LD_PRELOAD", "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")  # glibc's, a library's, torch's

HARDWARE = ("cpu", "cores", "cpu_limit_cores", "memory_bytes", "gpu", "gpu_memory_bytes", "gpus")
SOFTWARE = ("python", "torch", "torch_geometric", "numpy", "cuda")
_FINGERPRINTS = {
    "hardware": HARDWARE,
    "machine": (*HARDWARE, *SOFTWARE, "omp_threads", "allocator_settings"),
}


@cache
def _nvml() -> Any:
    """Return NVIDIA's management library, initialised; `None` without a GPU or driver."""
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception:  # it has another exception for each way of having no GPU
        return None
    return pynvml


def _gpu() -> dict[str, Any]:
    """Return the driver's readings of the first GPU that CUDA sees; `None` for what it does not tell."""
    names = ("gpu_memory_used_bytes", "gpu_memory_total_bytes", "gpu_clock_mhz", "gpu_busy_percent")
    readings: dict[str, Any] = dict.fromkeys(names)
    if (nvml := _nvml()) is None:
        return readings
    name = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")[0].strip() or "0"
    with suppress(nvml.NVMLError):  # no GPU of that name, or one that lacks the readings from here on
        gpu = nvml.nvmlDeviceGetHandleByIndex(int(name)) if name.isdigit() else nvml.nvmlDeviceGetHandleByUUID(name)
        memory = nvml.nvmlDeviceGetMemoryInfo(gpu)
        readings |= {"gpu_memory_used_bytes": int(memory.used), "gpu_memory_total_bytes": int(memory.total)}
        readings["gpu_clock_mhz"] = nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_SM)
        readings["gpu_busy_percent"] = nvml.nvmlDeviceGetUtilizationRates(gpu).gpu
    return readings


def _pressure_seconds() -> float | None:
    """Return the seconds since the machine started in which something waited for a processor; `None` where unknown."""
    some = (limits.text_of(Path("/proc/pressure/cpu")) or "").partition("\n")[0]
    total = limits.number_of(some.partition("total=")[2])
    return None if total is None else total / 1e6


def _steal_seconds() -> float | None:
    """Return the seconds, summed over processors, that a hypervisor gave to other machines; `None` where unknown."""
    fields = (limits.text_of(Path("/proc/stat")) or "").partition("\n")[0].split()
    steal = limits.number_of(fields[8]) if len(fields) > 8 else None
    return None if steal is None else steal / os.sysconf("SC_CLK_TCK")


def _ticks_of_no_others(own: tuple[int, ...]) -> int | None:
    """Return the clock ticks in which this process's processors idled or ran some processes; `None` where unknown."""
    text = limits.text_of(Path("/proc/stat"))
    if text is None:
        return None
    cpus = {f"cpu{i}" for i in os.sched_getaffinity(0)}
    lines = [line.split() for line in text.splitlines()]
    ticks = sum(int(line[4]) + int(line[5]) for line in lines if line and line[0] in cpus)  # idle and iowait
    for pid in own:
        used = (limits.text_of(Path(f"/proc/{pid}/stat")) or "").rpartition(")")[2].split()
        ticks += int(used[11]) + int(used[12]) if used else 0  # of one that has not ended
    return ticks


def busy_cores(*own: int) -> float | None:
    """Return how many of the processors that this process may use others keep busy; `None` where unknown.

    It looks for 0.3 s. `own` are ids of processes that are no others, as this one is none.
    """
    own = (os.getpid(), *own)
    before, begin = _ticks_of_no_others(own), monotonic()
    if before is None:
        return None
    sleep(0.3)
    after, took = _ticks_of_no_others(own) or before, monotonic() - begin
    return max(0.0, len(os.sched_getaffinity(0)) - (after - before) / os.sysconf("SC_CLK_TCK") / took)


def conditions() -> dict[str, float | int | None]:
    """Return readings of this moment; each is `None` where this machine does not provide it.

    They are the load average over one minute; the percentage of the last ten seconds in which something waited for a
    processor (Linux's pressure stall information); memory left, in bytes; and of the first GPU that CUDA sees memory in
    use and in total, clock and utilisation in percent. `contention` compares two moments, by `monotonic_seconds`,
    `cpu_pressure_seconds`, `steal_seconds` and `involuntary_switches`, which are counts since the machine or the
    process started.
    """
    load: float | None = None
    with suppress(OSError):
        load = os.getloadavg()[0]
    return {
        "load": load,
        "cpu_pressure_percent": limits.field_of("/proc/pressure/cpu", "some"),
        "monotonic_seconds": monotonic(),
        "cpu_pressure_seconds": _pressure_seconds(),
        "steal_seconds": _steal_seconds(),
        "involuntary_switches": resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw,  # of all threads
        "memory_available_bytes": limits.memory_available_bytes(),
        **_gpu(),
    }


@dataclass(frozen=True)
class Contention:
    """How the processors were shared between two moments; each figure is `None` where the system does not tell.

    **Arguments:**

    - `seconds`: time between the moments.
    - `waiting`: share of it in which something on the machine waited for a processor: another program, or threads of
      this one where they are more than its cores.
    - `switches`: how often a second another task took a processor from a thread of this process.
    - `steal`: processors that a hypervisor gave to other machines, on average.
    """

    seconds: float | None
    waiting: float | None
    switches: float | None
    steal: float | None

    @property
    def stolen(self) -> bool:
        """Whether a hypervisor gave so much to other machines."""
        return (self.steal or 0.0) > _STEAL

    @property
    def shared(self) -> bool | None:
        """Whether they were shared so much that times say little of this process alone; `None` where unknown.

        Switches count only where pressure is not known: there are some on a quiet machine, too.
        """
        seen = self.switches if self.waiting is None else self.waiting
        if seen is None:
            return None
        return seen > (_SWITCHES if self.waiting is None else _WAITING) or self.stolen

    def __str__(self) -> str:
        """Return a sentence where they were shared; empty where not, or not known."""
        if not self.shared:
            return ""
        parts = {
            "something waited for one {:.0%} of the time": self.waiting,
            "this process lost one {:.0f} times a second": self.switches,
            "a hypervisor took {:.2f} of them": self.steal,
        }
        words = [text.format(value) for text, value in parts.items() if value]
        return f"the processors were shared during {self.seconds:.3g} s: {', '.join(words)}"


def contention(before: Mapping[str, Any], after: Mapping[str, Any]) -> Contention:
    """Return how the processors were shared between two moments of `conditions`, such as around the timed steps."""

    def grown(name: str) -> float | None:
        begin, end = before.get(name), after.get(name)
        return None if begin is None or end is None else float(end - begin)

    seconds = grown("monotonic_seconds")
    counts = [grown(name) for name in ("cpu_pressure_seconds", "involuntary_switches", "steal_seconds")]
    return Contention(seconds, *(count / seconds if seconds and count is not None else None for count in counts))


def busy_percent(moment: Mapping[str, Any] | None) -> float | None:
    """Return the pressure on the processors in `conditions` at the end of a measurement; `None` unless it was busy."""
    percent = (moment or {}).get("cpu_pressure_percent")
    return percent if percent is not None and percent > BUSY_PERCENT else None


def busy_notes(percent: float | None) -> list[str]:
    """Return what to say of a busy machine, as the notes of a result; none of one that was not, or is not known."""
    if percent is None:
        return []
    return [f"the machine was busy: something waited for a processor in {percent:.0f} % of the last ten seconds"]


def _version(package: str) -> str | None:
    from importlib.metadata import PackageNotFoundError, version  # late: it takes a sixth of `import tclab.timing`

    try:
        return version(package)
    except PackageNotFoundError:
        return None


@cache
def _cpu() -> str:
    for line in (limits.text_of(Path("/proc/cpuinfo")) or "").splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def _cores() -> int | None:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()


def usable_cores() -> int | None:
    """Return how many cores affinity and the container's limit leave this process, at least 1; `None` if unknown."""
    return cores_within(_cores(), limits.cpu_limit_cores())


def cores_within(cores: int | None, limit: float | None) -> int | None:
    """Return how many of `cores` cores a CPU limit leaves, at least 1; `None` if their number is unknown."""
    return None if cores is None else max(1, int(min(cores, limit or cores)))


def _memory_bytes() -> int | None:
    """Return the machine's memory in bytes, or the container's limit where that is lower; `None` if unknown."""
    try:
        installed = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        return None
    return min(installed, limits.memory_limit_bytes() or installed)


@cache
def _commit() -> str | None:
    """Return the last commit that changed the package `tclab`, with `+` where its files differ from that commit.

    Notebooks, tests and documents of the same checkout do not run in a measurement, so they do not count.
    """
    package = Path(__file__).parents[1]

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(package), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()

    try:
        git("ls-files", "--error-unmatch", "__init__.py")  # else the checkout is another project's
        changed = git("status", "--porcelain", "--untracked-files=no", "--", ".")
        return git("log", "-1", "--format=%H", "--", ".") + ("+" if changed else "")
    except (OSError, subprocess.SubprocessError):
        return None


def environment(*, load_torch: bool = True) -> dict[str, str | int | float | None]:
    """Return the machine, the versions and the allocator's settings that a figure was measured with.

    **Arguments:**

    - `load_torch`: import torch, to ask for its threads and its GPUs. With False these columns (`threads`, `gpu`,
      `gpu_memory_bytes`, `gpus`, `gpu_driver`, `cuda`) are filled only as far as this process has loaded torch
      and begun to use CUDA.

    Missing is `None`.
    """
    if load_torch:
        import torch  # noqa: F401 (found among the modules)
    loaded: Any = sys.modules.get("torch")
    gpus = None
    if loaded is not None and (load_torch or loaded.cuda.is_initialized()):
        gpus = loaded.cuda.device_count() if loaded.cuda.is_available() else 0
    properties = loaded.cuda.get_device_properties(0) if gpus else None
    nvml = _nvml() if gpus else None
    settings = [f"{name}={value}" for name, value in sorted(os.environ.items()) if name.startswith(_ALLOCATOR)]
    return {
        "cpu": _cpu(),
        "cores": _cores(),
        "cpu_limit_cores": limits.cpu_limit_cores(),
        "memory_bytes": _memory_bytes(),
        "threads": loaded.get_num_threads() if loaded is not None else None,
        "gpu": properties.name if properties else None,
        "gpu_memory_bytes": properties.total_memory if properties else None,
        "gpus": gpus,
        "gpu_driver": str(nvml.nvmlSystemGetDriverVersion()) if nvml else None,
        "cuda": loaded.version.cuda if gpus is not None else None,
        "os": platform.platform(),
        "python": platform.python_version(),
        "torch": _version("torch") if loaded is None else loaded.__version__,
        "torch_geometric": _version("torch_geometric"),
        "numpy": _version("numpy"),
        "commit": _commit(),
        "allocator_settings": " ".join(settings) or None,
    }


def fingerprint(level: str, *, load_torch: bool = True) -> dict[str, str | int | float | None]:
    """Return the columns of `environment` that two measurements must share to be of the same machine.

    `omp_threads` is the text of the variable `OMP_NUM_THREADS`: a process that only starts others which measure has
    another number of threads than they, and passes the variable on.

    **Arguments:**

    - `level`: what must be the same: "hardware", CPU, memory and GPUs, for the comparison of rows; "machine", also
      versions, threads and allocator settings, for a point's rows and for a race that a later session continues.
    - `load_torch`: as for `environment`.
    """
    here = {**environment(load_torch=load_torch), "omp_threads": os.environ.get("OMP_NUM_THREADS")}
    return {name: here[name] for name in _FINGERPRINTS[level]}
