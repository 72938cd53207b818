"""Encoded samples on disk, in LMDB: one value a sample, and a header that says what they were made for."""

from __future__ import annotations

import json
import os
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from tclab.errors import InputError

T = TypeVar("T")
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


def check_header(path: str, found: bytes | None, expected: Mapping[str, str]) -> None:
    """Compare the header of a store with the expected one.

    **Raises:** `InputError` for the first part that differs.
    """
    if found is None:
        raise InputError(f"{path} is an LMDB folder, and no store of samples: it has no header")
    stored = json.loads(found)
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
    """Refuse a truncated file: LMDB maps it, and a read past its end would kill the process (SIGBUS).

    **Raises:** `InputError` where there is no file, or too short a one.
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


def _opened(path: str | Path) -> Any:
    lmdb = lmdb_module()
    try:
        # no lock: a complete store is never written to, and a reader needs no permission to write
        return lmdb.open(str(path), readonly=True, lock=False, readahead=False)
    except lmdb.Error as error:
        raise InputError(f"{path} is not a store that can be read: {error}") from None


class Store:
    """A folder that `build_store` made, opened for reading, once in each process that reads it.

    **Arguments:**

    - `path`: the folder.
    - `header`: what it must have been made for.

    **Raises:** `InputError` where the folder holds no whole store, or one made for something else.
    """

    def __init__(self, path: str | Path, *, header: Mapping[str, str]):
        self.path = str(path)
        self._opened: Any = None
        check_size(path)
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

        **Raises:** `IndexError` for a sample that the store does not have.
        """
        for index in indices:
            if not 0 <= index < self._length:
                raise IndexError(f"sample {index} of {self._length} in {self.path}")
        with _reading, self._environment().begin(buffers=True) as transaction:
            get = transaction.get
            return [take(get(sample_key(index))) for index in indices]

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


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_close_all, after_in_parent=_reading.release, after_in_child=_reading.release)
