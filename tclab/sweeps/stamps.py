"""What tells a graph folder from what it was before one of its files was changed."""

from __future__ import annotations

from pathlib import Path


def folder_stamp(graph: str) -> tuple[tuple[str, int, int], ...] | None:
    """Return name, size and time of every file that a graph is read from; `None` for the synthetic one."""
    if graph == "synthetic":
        return None
    files = sorted(path for path in Path(graph).rglob("*") if path.is_file())
    return tuple((str(f.relative_to(graph)), f.stat().st_size, f.stat().st_mtime_ns) for f in files)
