"""Encoded samples on disk, in LMDB: one value a sample, under a header that says what they were made for."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

from tclab.errors import InputError

_HEADER = b"header"
_MARGIN = 64 << 20  # what LMDB itself may need beside the values


def _lmdb() -> ModuleType:
    try:
        import lmdb
    except ModuleNotFoundError:
        raise InputError("stored samples need the package lmdb: pip install 'tclab[data]'") from None
    module: ModuleType = lmdb
    return module


def _key(index: int) -> bytes:
    return index.to_bytes(8, "big")


def write_store(path: str | Path, values: Iterable[bytes], *, header: dict[str, str], size_bytes: int) -> None:
    """Write one encoded sample after the other into a new LMDB folder.

    The header, which says that the store is whole, is written last.

    **Arguments:**

    - `path`: the folder to make.
    - `values`: the samples in order.
    - `header`: what the samples were made for; `Store` compares it when it opens the folder.
    - `size_bytes`: how large the values are in all, at most.
    """
    with _lmdb().open(str(path), map_size=2 * size_bytes + _MARGIN, sync=False, metasync=False) as environment:
        number = 0
        with environment.begin(write=True) as transaction:
            for value in values:
                transaction.put(_key(number), value)
                number += 1
            transaction.put(_HEADER, json.dumps({**header, "samples": str(number)}).encode())
        environment.sync(True)


class Store:
    """A folder that `write_store` made, opened for reading, once in each process that reads it.

    **Raises:** `InputError` where the folder holds no whole store, or one made for something else.
    """

    def __init__(self, path: str | Path, *, header: dict[str, str]):
        self.path = str(path)
        self._opened: tuple[int, Any] | None = None
        with self._environment().begin() as transaction:
            found = transaction.get(_HEADER)
        self.close()  # so that a worker forked from here opens it anew
        if found is None:
            raise InputError(f"the store {self.path} was not written to its end; build it again")
        stored = json.loads(found)
        self._length = int(stored.pop("samples"))
        for name, expected in header.items():
            if stored.get(name) != expected:
                raise InputError(f"the store {self.path} has {name} {stored.get(name)!r}, expected {expected!r}")

    def _environment(self) -> Any:
        if self._opened is None or self._opened[0] != os.getpid():  # LMDB must not be used across a fork
            lmdb = _lmdb()
            try:
                environment = lmdb.open(self.path, readonly=True, lock=False, readahead=False)
            except lmdb.Error as error:
                raise InputError(f"{self.path} is not a store that can be read: {error}") from None
            self._opened = (os.getpid(), environment)
        return self._opened[1]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_opened": None}

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> bytes:
        with self._environment().begin() as transaction:
            value = transaction.get(_key(index))
        if value is None:
            raise IndexError(f"sample {index} of {self._length} in {self.path}")
        return bytes(value)

    def close(self) -> None:
        """Let go of the files."""
        if self._opened is not None and self._opened[0] == os.getpid():
            self._opened[1].close()
        self._opened = None
