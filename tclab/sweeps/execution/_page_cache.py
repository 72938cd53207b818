"""What the system keeps of files in memory: how much it is, and that it is forgotten."""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from tclab.errors import InputError

_FEW = 0.01  # share of a file's pages that may stay in the page cache, where reads are said to be of the disk


def cached_share(files: Iterable[Path]) -> float | None:
    """Return the share of some files' pages that are in the system's page cache; `None` where it does not tell."""
    cached = pages = 0
    for file in files:
        size = file.stat().st_size
        if not size:
            continue
        is_cached = np.zeros(-(-size // mmap.PAGESIZE), dtype=np.uint8)
        with file.open("rb") as opened, mmap.mmap(opened.fileno(), size, access=mmap.ACCESS_COPY) as mapped:
            begin = ctypes.c_char.from_buffer(mapped)
            address, vector = ctypes.c_void_p(ctypes.addressof(begin)), is_cached.ctypes.data_as(ctypes.c_void_p)
            failed = ctypes.CDLL(None).mincore(address, ctypes.c_size_t(size), vector)
            del begin  # it would keep the mapping
        if failed:
            return None
        cached, pages = cached + int((is_cached & 1).sum()), pages + len(is_cached)
    return cached / pages if pages else None


def drop_from_cache(files: Iterable[Path]) -> None:
    """Have the system forget what it keeps of some files in memory, so that they are next read from the disk.

    Pages that any process has mapped stay: stores are closed before.

    **Raises:** `InputError` where they stay for another reason: a tmpfs has nowhere else to keep them.
    """
    files = list(files)
    for file in files:
        with file.open("rb") as opened:
            os.fsync(opened.fileno())  # only what is on the disk can be dropped
            os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    left = cached_share(files)
    if left is not None and left > _FEW:
        raise InputError(
            f"cold_reads is True, and {left:.0%} of {files[0].parent} stays in memory after it was dropped from the "
            "page cache: set TMPDIR to a folder on a disk (a tmpfs keeps all), and let workers end with their epoch"
        )
