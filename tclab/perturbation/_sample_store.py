"""Encoded samples on disk, in LMDB: one value a sample, and a header that says what they were made for."""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import threading
import weakref
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

import numpy as np

from tclab._io import atomic_write
from tclab.errors import InputError

T = TypeVar("T")
SUM_FILE = "data.crc32"
_ALWAYS_SUMMED = 64 << 20  # bytes of a store that take a twentieth of a second to sum
_FEW = 0.01  # share of a file's pages that may stay in the page cache, where reads are said to be of the disk
HEADER, WHOLE = b"\0", b"\0\0"  # they sort before every sample, so that samples are appended and fill their pages
# What the error says of each part of a header that differs from the expected one.
_OTHERS = {
    "encoding": "another encoding",
    "graph": "another graph's encoding",
    "deletions": "the encoding of other deletions",
    "perturbations": "the encoding of other samples",
    "samples": "another number of samples",
}


def lmdb_module() -> ModuleType:
    """Return the package lmdb, which only those need who store samples.

    **Raises:** `InputError` that says how to install it.
    """
    try:
        import lmdb
    except ModuleNotFoundError:
        raise InputError("stored samples need the package lmdb: pip install 'tclab[data]'") from None
    module: ModuleType = lmdb
    return module


def sample_key(index: int) -> bytes:
    """Return the key of a sample; keys sort as their samples do."""
    return index.to_bytes(8, "big")


@contextmanager
def damage_named(path: str) -> Iterator[None]:
    """Turn what the values of a damaged store raise into an error that names the store.

    **Raises:** `InputError` that says to remove it.
    """
    try:
        yield
    except InputError:
        raise
    except (lmdb_module().Error, ArithmeticError, LookupError, RuntimeError, TypeError, ValueError) as error:
        why = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        raise InputError(f"the store {path} is damaged ({why}); remove it, and it is built anew") from error


def check_header(path: str, found: bytes | None, expected: Mapping[str, str]) -> None:
    """Compare the header of a store with the expected one.

    **Raises:** `InputError` for the first part that differs.
    """
    if found is None:
        raise InputError(f"{path} is an LMDB folder, and no store of samples: it has no header")
    with damage_named(path):
        stored = dict(json.loads(found))
    for name, value in expected.items():
        if stored.get(name) != value:
            raise InputError(
                f"the store {path} holds {_OTHERS.get(name, 'something else')}: "
                f"its {name} is {stored.get(name)!r}, expected {value!r}; build it in another folder"
            )


def pages_bytes(environment: Any) -> int:
    """Return how long the file of an LMDB environment must be for every page that it counts."""
    return int(environment.info()["last_pgno"] + 1) * int(environment.stat()["psize"])


def check_size(path: str | Path) -> None:
    """Refuse a truncated or damaged file: LMDB maps it, and a read past its end would kill the process (SIGBUS).

    A whole store has a checksum. One of up to 64 MiB is always compared with it; a larger one unless the file is, by
    its inode and times, the one that was compared last.

    **Raises:** `InputError` where there is no file, or too short a one, or one with another checksum.
    """
    file = Path(path) / "data.mdb"
    if not file.is_file():
        raise InputError(f"{path} is not a store that can be read: it has no data.mdb")
    size = file.stat().st_size
    least = 1
    if size:  # LMDB would take an empty file for a new store
        with _opened(path) as environment:
            least = pages_bytes(environment)
    if size < least:
        raise InputError(f"the store {path} was cut short: data.mdb has {size:,} of {least:,} bytes; build it anew")
    with suppress(FileNotFoundError):  # a store that is not whole has none
        compared = (Path(path) / SUM_FILE).read_bytes().split()
        if size > _ALWAYS_SUMMED and compared[1:] == _identity(file):
            return
        if compared[:1] != [_checksum(file)]:
            raise InputError(f"the store {path} is damaged: its checksum is another; remove it, and it is built anew")
        if size > _ALWAYS_SUMMED:
            with suppress(OSError):  # a folder that others alone may write
                _write_sum(file, compared[0], _identity(file))


def write_checksum(path: str | Path) -> None:
    """Write the checksum of a whole store, which reads it once."""
    file = Path(path) / "data.mdb"
    identity = _identity(file)  # of what is summed, whatever another build of it does meanwhile
    _write_sum(file, _checksum(file), identity)


def _write_sum(file: Path, checksum: bytes, identity: list[bytes]) -> None:
    atomic_write(file.with_name(SUM_FILE), b" ".join([checksum, *identity]))


def _identity(file: Path) -> list[bytes]:
    stat = file.stat()
    return [b"%d" % part for part in (stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns)]


def _checksum(file: Path) -> bytes:
    checksum = 0
    with file.open("rb") as opened:
        while piece := opened.read(4 << 20):
            checksum = zlib.crc32(piece, checksum)
    return b"%08x" % checksum


def _opened(path: str | Path) -> Any:
    lmdb = lmdb_module()
    try:
        # no lock: a complete store is never written to, and a reader needs no permission to write
        # no readahead, as in the case study: a large value that is not in memory is read page by page
        return lmdb.open(str(path), readonly=True, lock=False, readahead=False)
    except lmdb.Error as error:
        raise InputError(f"{path} is not a store that can be read: {error}") from None


class Store:
    """A folder that `build_store` made for what `header` says, opened for reading once in each process that reads it.

    **Raises:** `InputError` where the folder holds no whole store, or one made for something else.
    """

    def __init__(self, path: str | Path, *, header: Mapping[str, str]):
        self.path = str(path)
        self._opened: Any = None
        with damage_named(self.path):
            check_size(path)
            self._bytes = (Path(path) / "data.mdb").stat().st_size
            with self._environment().begin() as transaction:
                found, whole = transaction.get(HEADER), transaction.get(WHOLE)
                entries = transaction.stat()["entries"]
            self.close()
            check_header(self.path, found, header)
            samples = int(json.loads(found)["samples"])
        if whole is None or entries != samples + 2:
            written = entries - 1 - (whole is not None)
            raise InputError(
                f"the store {self.path} was not written to its end, {written:,} of {samples:,} samples; "
                "build it again, and it goes on where it stopped"
            )
        self._length = samples

    def _environment(self) -> Any:
        if self._opened is None:
            self._opened = _opened(self.path)
            _open.add(self)
        return self._opened

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_opened": None}

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> bytes:
        return self.read([index], bytes)[0]

    def read(self, indices: Sequence[int], take: Callable[[memoryview], T]) -> list[T]:
        """Return `take` of each sample's value, all read in one transaction.

        **Arguments:**

        - `indices`: positions of the samples in their dataset.
        - `take`: given the value where it lies on disk; it must copy what it keeps.

        **Raises:** `IndexError` for a sample that the store does not have; `InputError` for a value that is damaged.
        """
        for index in indices:
            if not 0 <= index < self._length:
                raise IndexError(f"sample {index} of {self._length} in {self.path}")
        with damage_named(self.path), _reading, self._environment().begin(buffers=True) as transaction:
            get = transaction.get
            return [take(self._checked(index, get(sample_key(index)))) for index in indices]

    def _checked(self, index: int, value: memoryview | None) -> memoryview:
        """Return a value that is there and no longer than the whole file; reading past its end would kill the process.

        **Raises:** `ValueError` for any other.
        """
        if value is None or len(value) > self._bytes:
            raise ValueError(f"sample {index} is {'missing' if value is None else 'longer than the file'}")
        return value

    def close(self) -> None:
        """Close the files; the next read opens them again."""
        if self._opened is not None:
            self._opened.close()
        self._opened = None


# LMDB must not be used across a fork, so stores are closed before one, when no thread reads, and each side opens
# them anew.
_open: weakref.WeakSet[Store] = weakref.WeakSet()
_reading = threading.RLock()


def _close_all() -> None:
    _reading.acquire()
    for store in list(_open):
        store.close()


def cached_share(files: Iterable[Path]) -> float | None:
    """Return the share of some files' pages that are in the system's page cache; `None` where it does not tell."""
    cached = pages = 0
    for file in files:
        size = file.stat().st_size
        if not size:
            continue
        there = np.zeros(-(-size // mmap.PAGESIZE), dtype=np.uint8)
        with file.open("rb") as opened, mmap.mmap(opened.fileno(), size, access=mmap.ACCESS_COPY) as mapped:
            begin = ctypes.c_char.from_buffer(mapped)
            address, vector = ctypes.c_void_p(ctypes.addressof(begin)), there.ctypes.data_as(ctypes.c_void_p)
            failed = ctypes.CDLL(None).mincore(address, ctypes.c_size_t(size), vector)
            del begin  # it would keep the mapping
        if failed:
            return None
        cached, pages = cached + int((there & 1).sum()), pages + len(there)
    return cached / pages if pages else None


def drop_from_cache(files: Iterable[Path]) -> None:
    """Have the system forget what it keeps of some files in memory, so that they are next read from the disk.

    This process's stores are closed: pages that any process has mapped stay.

    **Raises:** `InputError` where they stay for another reason: a tmpfs has nowhere else to keep them.
    """
    files = list(files)
    with _reading:
        for store in list(_open):
            store.close()
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


os.register_at_fork(before=_close_all, after_in_parent=_reading.release, after_in_child=_reading.release)
