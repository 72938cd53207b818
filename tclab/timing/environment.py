"""The machine and the versions that a figure was measured with."""

from __future__ import annotations

import os
import platform
import subprocess
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from tclab.timing.conditions import cpu_limit_cores, gpu_driver, memory_limit_bytes

# What tells glibc, or a library put in its place, how to keep memory.
_ALLOCATOR_SETTINGS = (
    "MALLOC_MMAP_MAX_",
    "MALLOC_MMAP_THRESHOLD_",
    "MALLOC_TRIM_THRESHOLD_",
    "MALLOC_TOP_PAD_",
    "MALLOC_ARENA_MAX",
    "MALLOC_CONF",
    "LD_PRELOAD",
    "PYTORCH_CUDA_ALLOC_CONF",
    "PYTORCH_ALLOC_CONF",
)


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


@cache
def _cpu() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _cores() -> int | None:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count()


def usable_cores() -> int | None:
    """Return how many cores this process may use, by its affinity and by the container's limit; at least 1."""
    return cores_within(_cores(), cpu_limit_cores())


def cores_within(cores: int | None, limit: float | None) -> int | None:
    """Return how many of a machine's cores a limit on their time leaves, at least 1."""
    return None if cores is None else max(1, int(min(cores, limit or cores)))


def _memory_bytes() -> int | None:
    """Return the machine's memory, or the container's limit where that is lower."""
    try:
        found = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        return None
    return min(found, memory_limit_bytes() or found)


@cache
def _commit() -> str | None:
    """Return the commit of the checkout that this file is tracked in, with `+` where files differ from it."""

    def git(*arguments: str) -> str:
        asked = ["git", "-C", str(Path(__file__).parent), *arguments]
        return subprocess.run(asked, capture_output=True, text=True, check=True, timeout=10).stdout.strip()

    try:
        git("ls-files", "--error-unmatch", Path(__file__).name)  # else it is somebody else's checkout
        return git("rev-parse", "HEAD") + ("+" if git("status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.SubprocessError):
        return None


def environment() -> dict[str, str | int | float | None]:
    """Return what a figure should be read with: the machine, the versions, the allocator's settings.

    Missing is `None`. Loads torch, to ask for its threads and its device.
    """
    import torch

    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    properties = torch.cuda.get_device_properties(0) if gpus else None
    settings = [f"{name}={os.environ[name]}" for name in _ALLOCATOR_SETTINGS if name in os.environ]
    return {
        "cpu": _cpu(),
        "cores": _cores(),
        "cpu_limit_cores": cpu_limit_cores(),
        "memory_bytes": _memory_bytes(),
        "threads": torch.get_num_threads(),
        "gpu": properties.name if properties else None,
        "gpu_memory_bytes": properties.total_memory if properties else None,
        "gpus": gpus,
        "gpu_driver": gpu_driver() if gpus else None,
        "cuda": torch.version.cuda,
        "os": platform.platform(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "torch_geometric": _version("torch_geometric"),
        "numpy": _version("numpy"),
        "commit": _commit(),
        "allocator_settings": " ".join(settings) or None,
    }
