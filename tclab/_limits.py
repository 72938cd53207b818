"""What this machine, container or job lets a process have: memory and cores, now and at most."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

_PROCESS_GROUP = Path("/proc/self/cgroup")
_GROUPS = Path("/sys/fs/cgroup")
_OUT_OF_MEMORY = ("can't allocate memory", "cannot allocate memory", "out of memory", "bad_alloc", "mdb_map_full")


def text_of(path: Path) -> str | None:
    """Return the text of a small file; `None` where it cannot be read."""
    try:
        return path.read_text().strip()
    except OSError:
        return None


def number_of(text: str | None) -> float | None:
    """Return a text as a number; `None` for what is none, such as Python's own `1_000`."""
    with suppress(TypeError, ValueError):
        return None if "_" in (text or "") else float(text)  # type: ignore[arg-type]
    return None


def field_of(path: str, begins: str) -> float | None:
    """Return the number behind the word that a line of a file begins with; `None` where no line does."""
    for line in (text_of(Path(path)) or "").splitlines():
        if line.startswith(begins):
            return number_of(line.split()[1].rpartition("=")[2])
    return None


def groups() -> list[Path]:
    """Return the folders of the control groups (v2) that this process is in, innermost first; all their limits hold."""
    lines = (text_of(_PROCESS_GROUP) or "").splitlines()
    group = next((line.removeprefix("0::") for line in lines if line.startswith("0::")), "")
    folder = _GROUPS / group.strip("/")
    return [folder, *(parent for parent in folder.parents if parent.is_relative_to(_GROUPS))]


def cpu_limit_cores() -> float | None:
    """Return the container's or job's CPU limit in cores (cgroup v2); `None` without a limit."""
    limits = [(text_of(group / "cpu.max") or "max 1").split() for group in groups()]
    return min((float(quota) / float(period) for quota, period in limits if quota != "max"), default=None)


def memory_limit_bytes() -> int | None:
    """Return the container's or job's memory limit in bytes (cgroup v2); `None` without a limit."""
    limits = [number_of(text_of(group / "memory.max")) for group in groups()]
    return min((int(limit) for limit in limits if limit is not None), default=None)


def memory_available_bytes() -> int | None:
    """Return the memory that this machine, container or job has left, in bytes; `None` where unknown."""
    free = field_of("/proc/meminfo", "MemAvailable")
    if free is None:
        return None
    left = [int(free) * 1024]
    for group in groups():
        limit, used = number_of(text_of(group / "memory.max")), number_of(text_of(group / "memory.current"))
        if limit is not None and used is not None:
            # the page cache is freed when memory is needed
            left.append(max(0, int(limit - used + (field_of(str(group / "memory.stat"), "inactive_file") or 0))))
    return min(left)


def out_of_memory(error: BaseException) -> bool:
    """Return whether an error says that there is no memory left; on the CPU torch has no exception of its own."""
    return isinstance(error, MemoryError) or any(words in str(error).lower() for words in _OUT_OF_MEMORY)
