"""Where a figure was measured: the machine, the versions and the settings."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

from tclab import _limits as limits

_ALLOCATOR = ("MALLOC_", "LD_PRELOAD", "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")  # glibc's, a library's, torch's

HARDWARE = ("cpu", "cores", "cpu_limit_cores", "memory_bytes", "gpu", "gpu_memory_bytes", "gpus")
SOFTWARE = ("python", "torch", "torch_geometric", "numpy", "cuda")


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


def _memory_bytes() -> int:
    """Return the machine's memory in bytes, or the container's limit where that is lower."""
    installed = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
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
