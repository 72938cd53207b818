"""A file layer of which the n-th call fails: no space, an I/O error, a write cut short, a rename lost."""

import errno
import io
import os
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import lmdb

from tclab import _io
from tclab.perturbation import _sample_store

FAULTS = ("ENOSPC", "EIO", "short write", "rename lost")
_DAY = 86_400


class FaultyFiles:
    """Lets the n-th call of those that write fail within a `with` block; `fell` says whether one did.

    **Arguments:**

    - `fails`: n, from 1.
    - `fault`: one of `FAULTS`. A short write is of the n-th write alone, and the next one finds the disk full. A rename
      is lost as in a power cut: it says that it is done, and both names are as they were; by the end of the block the
      file under the temporary name is two days old.
    """

    def __init__(self, fails, fault):
        self.left, self.fault, self.fell, self.full = fails, fault, False, False
        self.error = getattr(errno, "ENOSPC" if fault == "short write" else fault, None)
        self.lost = []
        self.patches = ExitStack()

    def falls(self):
        """Count a call, and return whether it is the n-th."""
        self.left -= 1
        self.fell |= self.left == 0
        return self.left == 0

    def fail(self):
        """Count a call, and raise where it is the n-th."""
        if self.error is not None and self.fault != "short write" and self.falls():
            raise OSError(self.error, os.strerror(self.error))

    def watched(self, real):
        """Return a function that fails where its call is the n-th."""

        def call(*arguments, **options):
            self.fail()
            return real(*arguments, **options)

        return call

    def replace(self, path, target):
        """Rename a file, or say so."""
        if self.fault == "rename lost" and self.falls():
            self.lost.append(path)
            return Path(target)
        self.fail()
        os.replace(path, target)
        return Path(target)

    def open(self, path, mode="r", buffering=-1, **options):
        """Open a file, whose writes are counted where it is one of bytes."""
        if not set(mode) & set("wax+"):
            return open(path, mode, buffering, **options)
        self.fail()
        if "b" not in mode:
            return open(path, mode, buffering, **options)
        raw = _FaultyFile(path, mode.replace("b", ""), self)
        return raw if buffering == 0 else io.BufferedWriter(raw)

    def open_store(self, *arguments, **options):
        """Open LMDB, whose commits and flushes are counted."""
        self._fail_as_lmdb("mdb_env_open")
        return _FaultyStore(lmdb.open(*arguments, **options), self)

    def _fail_as_lmdb(self, what):
        try:
            self.fail()
        except OSError as error:
            kind = lmdb.DiskError if error.errno == errno.ENOSPC else lmdb.Error
            raise kind(f"{what}: {error.strerror}") from None

    def __enter__(self):
        failing = SimpleNamespace(**vars(os))
        for name in ("open", "fsync", "ftruncate", "write", "truncate"):
            setattr(failing, name, self.watched(getattr(os, name)))
        store = SimpleNamespace(**{**vars(lmdb), "open": self.open_store})
        for module in (_io, _sample_store):
            self.patches.enter_context(mock.patch.object(module, "os", failing))
        self.patches.enter_context(mock.patch.object(_sample_store, "lmdb_module", return_value=store))
        for name, real in (("open", self.open), ("replace", self.replace)):
            self.patches.enter_context(mock.patch.object(Path, name, _method(real)))
        for name in ("unlink", "mkdir"):
            self.patches.enter_context(mock.patch.object(Path, name, _method(self.watched(getattr(Path, name)))))
        return self

    def __exit__(self, *error):
        self.patches.close()
        for path in self.lost:
            if path.exists():
                os.utime(path, (path.stat().st_mtime - 2 * _DAY,) * 2)


def _method(call):
    def method(path, *arguments, **options):
        return call(path, *arguments, **options)

    return method


class _FaultyFile(io.FileIO):
    def __init__(self, path, mode, faults):
        super().__init__(path, mode)
        self.faults = faults

    def write(self, data):
        if self.faults.full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.faults.fail()
        if self.faults.fault == "short write" and self.faults.falls():
            self.faults.full = True
            return super().write(bytes(data)[: len(data) // 2])
        return super().write(data)

    def truncate(self, size=None):
        self.faults.fail()
        return super().truncate(size)


class _FaultyStore:
    """An LMDB environment."""

    def __init__(self, real, faults):
        self.real, self.faults = real, faults

    def __getattr__(self, name):
        return getattr(self.real, name)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.real.close()

    @contextmanager
    def begin(self, write=False):
        with self.real.begin(write=write) as transaction:
            entries = transaction.stat()["entries"]
            yield transaction
            if entries != transaction.stat()["entries"]:  # LMDB writes nothing else; within, that it comes to nothing
                self.faults._fail_as_lmdb("mdb_txn_commit")

    def sync(self, force):
        self.faults._fail_as_lmdb("mdb_env_sync")
        self.real.sync(force)
