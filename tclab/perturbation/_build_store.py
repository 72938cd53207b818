"""Building a store: its size in advance, its progress, and resuming a build that was killed."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any

import numpy as np

from tclab._format import bytes_text
from tclab.errors import InputError
from tclab.perturbation._sample_store import (
    HEADER,
    SUM_FILE,
    WHOLE,
    Store,
    check_header,
    check_size,
    lmdb_module,
    pages_bytes,
    sample_key,
    write_checksum,
)

_PAGE = 4096  # LMDB's pages here; a node has a header of 8 bytes, a pointer of 2 and a key of 8
_NODE = 18
_INLINE = 2020  # a value that leaves less than two nodes to a page gets pages of its own, with 16 bytes of header
_COMMIT_BYTES, _COMMIT_SECONDS = 64 << 20, 1.0
_MARGIN = 1 << 20  # the tree above the leaves, and space to write its pages again
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@dataclass(frozen=True)
class StoreSize:
    """The size of a store, known without building it."""

    samples: int
    value_bytes: int  # end to end
    disk_bytes: int  # at most, in LMDB's pages

    @staticmethod
    def of(value_bytes: np.ndarray[Any, Any]) -> StoreSize:
        """Return the size of a store of values of so many bytes each, [S] int64."""
        whole = np.where(value_bytes > _INLINE, (value_bytes + 16 + _PAGE - 1) // _PAGE * _PAGE, value_bytes)
        inline = np.where(value_bytes > _INLINE, 8, value_bytes) + _NODE + 1  # nodes begin at even places
        # a leaf is left with less than its largest node free
        largest = int(inline.max(initial=0))
        leaves = int(np.ceil(int(inline.sum()) / max(_PAGE - 16 - largest, 1))) * _PAGE
        pages = int(whole[value_bytes > _INLINE].sum())
        return StoreSize(len(value_bytes), int(value_bytes.sum()), pages + leaves + leaves // 64 + _MARGIN)

    def __str__(self) -> str:
        return f"{self.samples:,} samples, {bytes_text(self.value_bytes)} ({bytes_text(self.disk_bytes)} on disk)"


@dataclass(frozen=True)
class Building:
    """How far a build is: `done` of `size.samples`, of which `kept` were there when it began."""

    path: str
    size: StoreSize
    done: int
    kept: int


Progress = Callable[[Building], None]


def build_store(
    path: str | Path,
    value: Callable[[int], bytes],
    *,
    size: StoreSize,
    header: Mapping[str, str],
    progress: Progress | None = None,
) -> Store:
    """Write `size.samples` encoded samples into an LMDB folder, and return it opened for reading.

    A build that was stopped or killed resumes after its last committed sample; a complete store with the same
    header is returned as it is. Where the disk fills up, the store's files are removed, which would keep it full, and
    the folder if this call made it.

    **Arguments:**

    - `path`: the folder to make, or to go on in.
    - `value`: a sample's number → its encoding.
    - `size`: see `StoreSize.of`.
    - `header`: what the samples are made for; the number of samples is added.
    - `progress`: called before the first sample, then after every commit.

    **Raises:** `InputError` where the disk has too little space, before anything is written or once it is full;
    where the folder holds something else, or a store that is damaged.
    """
    folder = Path(path)
    wanted = {**header, "samples": str(size.samples)}
    is_new = not folder.exists()
    there = not is_new and folder.is_dir() and any(folder.iterdir())
    if there and not (folder / "data.mdb").is_file():
        raise InputError(f"{folder} is a folder with other files in it; a store needs an empty one")
    _check_space(folder, size)
    if there:
        check_size(folder)
    lmdb = lmdb_module()
    try:
        environment = lmdb.open(str(folder), map_size=2 * size.disk_bytes + (64 << 20), metasync=False)
    except (lmdb.Error, OSError) as error:
        if not there:
            _remove(folder, is_new)
        if _is_full(error, folder / "data.mdb"):
            raise _full(folder, size, 0) from None
        raise InputError(f"a store cannot be made in {folder}: {error}") from None
    done, whole = 0, False
    try:
        with environment:
            done = _begin(environment, str(folder), wanted)
            kept = done
            while True:
                if progress is not None:
                    progress(Building(str(folder), size, done, kept))
                if done >= size.samples:
                    break
                done = _commit(environment, value, size.samples)
                _extend_file(environment)
            with environment.begin() as transaction:
                whole = transaction.get(WHOLE) is not None
            if not whole:  # one that is stays as it is: other ranks may be looking at its length just now
                with environment.begin(write=True) as transaction:
                    transaction.put(WHOLE, b"")
                environment.sync(True)
                _extend_file(environment)
            whole = True
        if not (folder / SUM_FILE).exists():
            write_checksum(folder)
    except (lmdb.Error, OSError) as error:
        if not whole and _is_full(error, folder / "data.mdb"):
            _remove(folder, is_new)
            raise _full(folder, size, done) from None
        raise InputError(f"the store {folder} cannot be written: {error}; if it is damaged, remove it") from error
    return Store(folder, header=wanted)


def _remove(folder: Path, is_new: bool) -> None:
    """Remove a store's own files, and its folder if a build made it and nothing else is in it."""
    with suppress(OSError):
        for name in ("data.mdb", "lock.mdb", SUM_FILE):
            (folder / name).unlink(missing_ok=True)
        if is_new:
            folder.rmdir()


def _begin(environment: Any, path: str, header: Mapping[str, str]) -> int:
    """Write or check the header, and return how many samples are there already."""
    with environment.begin(write=True) as transaction:
        entries = transaction.stat()["entries"]
        if entries == 0:
            transaction.put(HEADER, json.dumps(dict(header)).encode())
            return 0
        check_header(path, transaction.get(HEADER), header)
        return int(entries) - 1 - (transaction.get(WHOLE) is not None)


def _commit(environment: Any, value: Callable[[int], bytes], samples: int) -> int:
    """Write the next samples in one transaction, a second's worth or 64 MiB, and return how many there are.

    The count is read inside the transaction, so that two builds of one store help each other.
    """
    written, begin = 0, monotonic()
    with environment.begin(write=True) as transaction:
        number = transaction.stat()["entries"] - 1 - (transaction.get(WHOLE) is not None)
        while number < samples and written < _COMMIT_BYTES and monotonic() - begin < _COMMIT_SECONDS:
            encoded = value(number)
            if not transaction.put(sample_key(number), encoded, append=True):  # fills its pages
                raise InputError(
                    f"the store {environment.path()} is damaged: sample {number:,} is there out of its order"
                )
            written += len(encoded)
            number += 1
    return int(number)


def _extend_file(environment: Any) -> None:
    """Make the file as long as LMDB counts its pages, so that a shorter one was truncated.

    LMDB writes no page that is free, and the last may be.
    """
    file = Path(environment.path()) / "data.mdb"
    least = pages_bytes(environment)
    if file.stat().st_size < least:
        os.truncate(file, least)


def _check_space(folder: Path, size: StoreSize) -> None:
    existing = next(parent for parent in (folder, *folder.absolute().parents) if parent.is_dir())
    file = folder / "data.mdb"
    already = file.stat().st_blocks * 512 if file.is_file() else 0
    free = shutil.disk_usage(existing).free
    if size.disk_bytes - already > free:
        raise InputError(
            f"the store {folder} needs {bytes_text(size.disk_bytes)} for {size.samples:,} samples, and its disk has "
            f"{bytes_text(free + already)}; ask for fewer samples or choose another disk"
        )


def _is_full(error: Exception, file: Path) -> bool:
    """Return whether an error means that the disk, or the file's limit, is full."""
    if isinstance(error, OSError):
        return error.errno in _FULL
    if any(os.strerror(code) in str(error) for code in _FULL):
        return True
    if not hasattr(os, "posix_fallocate"):
        return False
    # LMDB calls a write that came through in part an I/O error: ask for the space of the next commit
    try:
        with open(file, "r+b") as opened:
            size = os.fstat(opened.fileno()).st_size
            os.posix_fallocate(opened.fileno(), size, _COMMIT_BYTES)
            opened.truncate(size)
    except OSError as refused:
        return refused.errno in _FULL
    return False


def _full(folder: Path, size: StoreSize, done: int) -> InputError:
    return InputError(
        f"the disk of {folder} is full after {done:,} of {size.samples:,} samples of {bytes_text(size.disk_bytes)}; "
        "what was written is removed"
    )
