"""Where a figure was measured: the machine, the versions, the settings, and how its processors were shared."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from time import monotonic
from typing import Any, NamedTuple

from tclab import _limits as limits

_ALLOCATOR = ("MALLOC_", "LD_PRELOAD", "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")  # glibc's, a library's, torch's

HARDWARE = ("cpu", "cores", "cpu_limit_cores", "memory_bytes", "gpu", "gpu_memory_bytes", "gpus")
SOFTWARE = ("python", "torch", "torch_geometric", "numpy", "cuda")
# The percentage of a measurement in which something waited for a processor. In the last ten seconds of measurements on
# a quiet machine of 2 cores it was 3 at most for a process with 2 threads and a worker, and below 50 for one that had
# just started or that followed 4 ranks on those cores; points whose times collapsed had 60 and more.
_BUSY_PERCENT = 50.0
# What is exceeded between two moments where the processors were shared. Two torch threads of small products on 2 cores
# wait 0.01 alone; beside a busy process, ten times as slow, 0.53.
_WAITING, _STEAL = 0.2, 0.05


def gpu_free_bytes() -> int | None:
    """Return the free memory of the first GPU that CUDA sees; `None` without one.

    It asks the driver's `nvidia-smi`: to ask torch would start CUDA in this process.
    """
    gpu = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")[0].strip() or "0"
    query = ["nvidia-smi", "-i", gpu, "--query-gpu=memory.free", "--format=csv,noheader,nounits"]
    try:
        return int(subprocess.run(query, capture_output=True, text=True, check=True).stdout) * 2**20
    except (OSError, subprocess.CalledProcessError, ValueError):  # none of that name, or one that does not tell
        return None


def _gpu_driver() -> str | None:
    found = re.search(r"\d+\.[\d.]+", limits.text_of(Path("/proc/driver/nvidia/version")) or "")
    return found and found[0]


def _version(package: str) -> str | None:
    from importlib.metadata import PackageNotFoundError, version  # late: it takes a sixth of `import tclab.timing`

    with suppress(PackageNotFoundError):
        return version(package)
    return None


@cache
def _cpu() -> str:
    model = re.search(r"model name\s*: (.+)", limits.text_of(Path("/proc/cpuinfo")) or "")
    return model[1].strip() if model else platform.processor() or platform.machine()


def _cores() -> int | None:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()


def usable_cores() -> int | None:
    """Return how many cores affinity and the container's limit leave this process, at least 1; `None` if unknown."""
    return cores_within(_cores(), limits.cpu_limit_cores())


def cores_within(cores: int | None, limit: float | None) -> int | None:
    """Return how many of `cores` cores a CPU limit leaves, at least 1; `None` if their number is unknown."""
    return None if cores is None else max(1, int(min(cores, limit or cores)))


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


def on_cuda(*calls: str) -> bool:
    """Call functions of `torch.cuda` by their names where this process uses it, and return whether it does."""
    torch: Any = sys.modules.get("torch")
    in_use = torch is not None and torch.cuda.is_initialized()
    for call in calls if in_use else ():
        getattr(torch.cuda, call)()
    return bool(in_use)


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
    if load_torch or on_cuda():
        gpus = loaded.cuda.device_count() if loaded.cuda.is_available() else 0
    properties = loaded.cuda.get_device_properties(0) if gpus else None
    settings = [f"{name}={value}" for name, value in sorted(os.environ.items()) if name.startswith(_ALLOCATOR)]
    installed = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "cpu": _cpu(),
        "cores": _cores(),
        "cpu_limit_cores": limits.cpu_limit_cores(),
        "memory_bytes": min(installed, limits.memory_limit_bytes() or installed),
        "threads": loaded.get_num_threads() if loaded is not None else None,
        "gpu": properties.name if properties else None,
        "gpu_memory_bytes": properties.total_memory if properties else None,
        "gpus": gpus,
        "gpu_driver": _gpu_driver() if gpus else None,
        "cuda": loaded.version.cuda if gpus is not None else None,
        "os": platform.platform(),
        "python": platform.python_version(),
        "torch": _version("torch") if loaded is None else loaded.__version__,
        "torch_geometric": _version("torch_geometric"),
        "numpy": _version("numpy"),
        "commit": _commit(),
        "allocator_settings": " ".join(settings) or None,
    }


def fingerprint(*, load_torch: bool = True) -> dict[str, str | int | float | None]:
    """Return what two measurements must share to be of the same machine: of a point's rows, and of a race's sessions.

    They are hardware and versions, allocator settings, and `omp_threads`, the text of the variable `OMP_NUM_THREADS`: a
    process that only starts others which measure has another number of threads than they, and passes the variable on.

    **Arguments:**

    - `load_torch`: as for `environment`.
    """
    here = {**environment(load_torch=load_torch), "omp_threads": os.environ.get("OMP_NUM_THREADS")}
    return {name: here[name] for name in (*HARDWARE, *SOFTWARE, "omp_threads", "allocator_settings")}


# ---- how busy the machine is


def conditions() -> dict[str, float | None]:
    """Return readings of this moment; each is `None` where this machine does not provide it.

    They are the load average over one minute, and four counts of seconds since the machine started, by which
    `contention` compares two moments: all of them; those in which something waited for a processor (Linux's pressure
    stall information); those in which this process's processors were busy, summed over them; and those in which a
    hypervisor gave them to other machines.
    """
    some = (limits.text_of(Path("/proc/pressure/cpu")) or "").partition("\n")[0]
    waited_us = limits.number_of(some.partition("total=")[2])
    stat = limits.text_of(Path("/proc/stat")) or ""
    cores = {f"cpu{i}" for i in os.sched_getaffinity(0)} if stat else set()
    # ticks of user, nice, system, idle, iowait, irq, softirq and steal
    ticks = [[int(n) for n in line.split()[1:9]] for line in stat.splitlines() if line.partition(" ")[0] in cores]
    hertz = os.sysconf("SC_CLK_TCK")
    return {
        "load": os.getloadavg()[0],
        "monotonic_seconds": monotonic(),
        "cpu_pressure_seconds": None if waited_us is None else waited_us / 1e6,
        "busy_seconds": sum(sum(core) - core[3] - core[4] for core in ticks) / hertz if ticks else None,
        "steal_seconds": sum(core[7] for core in ticks) / hertz if ticks else None,
    }


class Contention(NamedTuple):
    """How the processors were shared between two moments; each figure is `None` where the system does not tell.

    **Arguments:**

    - `seconds`: time between the moments.
    - `waiting`: share of it in which something on the machine waited for a processor: another program, or threads of
      this one where they are more than its cores.
    - `busy_cores`: how many of this process's processors were busy, on average.
    - `steal`: processors that a hypervisor gave to other machines, on average.
    """

    seconds: float | None
    waiting: float | None
    busy_cores: float | None
    steal: float | None

    @property
    def stolen(self) -> bool:
        """Whether a hypervisor gave so much to other machines."""
        return (self.steal or 0.0) > _STEAL

    @property
    def shared(self) -> bool | None:
        """Whether they were shared so much that times say little of this process alone; `None` where unknown."""
        return None if self.waiting is None else self.waiting > _WAITING or self.stolen

    @property
    def busy_percent(self) -> float | None:
        """The percentage of the time in which something waited; `None` unless it is above 50, or not known."""
        percent = 100 * (self.waiting or 0.0)
        return percent if percent > _BUSY_PERCENT else None

    def __str__(self) -> str:
        """Return a sentence where they were shared; empty where not, or not known."""
        if not self.shared:
            return ""
        stolen = f", and a hypervisor took {self.steal:.2f} processors" if self.stolen else ""
        return f"over {self.seconds:.3g} s, {_waited(100 * (self.waiting or 0.0))}{stolen}"


def contention(before: Mapping[str, Any], after: Mapping[str, Any]) -> Contention:
    """Return how the processors were shared between two moments of `conditions`, such as around the timed steps."""
    grown = {name: after[name] - begin for name, begin in before.items() if None not in (begin, after.get(name))}
    seconds = grown.get("monotonic_seconds")
    counts = map(grown.get, ("cpu_pressure_seconds", "busy_seconds", "steal_seconds"))
    return Contention(seconds, *(count / seconds if seconds and count is not None else None for count in counts))


def busy_notes(percent: float | None) -> list[str]:
    """Return what to say of a busy machine, as the notes of a result; none of one that was not, or is not known."""
    return [] if percent is None else [f"the machine was busy: {_waited(percent)}"]


def _waited(percent: float) -> str:
    return f"something waited for a processor {percent:.0f}% of the time"
