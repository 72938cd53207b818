"""The machine and the versions that a figure was measured with."""

from __future__ import annotations

import os
import platform
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

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


def _memory_bytes() -> int | None:
    """Return the machine's memory, or the container's limit where that is lower."""
    try:
        found = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        return None
    try:
        return min(found, int(Path("/sys/fs/cgroup/memory.max").read_text()))
    except (OSError, ValueError):  # no limit, or no such file
        return found


def environment() -> dict[str, str | int | None]:
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
        "memory_bytes": _memory_bytes(),
        "threads": torch.get_num_threads(),
        "gpu": properties.name if properties else None,
        "gpu_memory_bytes": properties.total_memory if properties else None,
        "gpus": gpus,
        "cuda": torch.version.cuda,
        "os": platform.platform(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "torch_geometric": _version("torch_geometric"),
        "numpy": _version("numpy"),
        "allocator_settings": " ".join(settings) or None,
    }
