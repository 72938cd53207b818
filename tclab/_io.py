"""Atomic writing of files, temporary folders, and the check of packed files that would fill the memory."""

from __future__ import annotations

import fcntl
import os
import shutil
import socket
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

from tclab.errors import InputError

_PREFIX, _OWNER = "tclab-", ".owner"
_LEFT_SECONDS = 86_400  # no file is written for so long, and clocks of machines that share a folder differ by less


def atomic_write(path: str | Path, content: str | bytes | Callable[[Path], object], *, readers: int = 0o666) -> None:
    """Write a file that is there whole or not at all, whoever else writes or reads it.

    The content goes into a file of its own name in the same folder, is flushed to the disk, and is renamed. On any
    failure the earlier file is left as it was and nothing else remains. What a process that was killed, or a power cut,
    left under such a name goes with the first file that is written a day later.

    **Arguments:**

    - `path`: the file; its folder must exist.
    - `content`: text (written as UTF-8), bytes, or a function that writes the file whose path it gets. That path has
      the same suffix as `path` and a name that begins with a dot; who lists the folder leaves such names out.
    - `readers`: its permissions before the umask; 0o600 for the user alone.

    **Raises:** `OSError` where it cannot be written.
    """
    path = Path(path)
    for left in path.parent.glob(".writing-*"):
        with suppress(OSError):  # just renamed, or another user's
            if time.time() - left.lstat().st_mtime > _LEFT_SECONDS:
                left.unlink()
    temporary = path.with_name(f".writing-{uuid.uuid4().hex}{path.suffix}")
    try:
        os.close(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_RDWR, readers))
        if callable(content):
            content(temporary)
        else:
            temporary.write_bytes(content.encode() if isinstance(content, str) else content)
        _flush(temporary)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    with suppress(OSError):  # a file system that cannot flush a folder; the file is whole, under one name or the other
        _flush(path.parent)


def cache_folder() -> Path:
    """Return the folder of what can be made again: `TCLAB_CACHE`, or `tclab` in the user's cache folder."""
    given = os.environ.get("TCLAB_CACHE")
    return Path(given) if given else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tclab"


@contextmanager
def writing(name: str, path: str | Path) -> Iterator[None]:
    """Make an `OSError` of the block, which writes to the path of an argument of that name, an `InputError`."""
    try:
        yield
    except OSError as error:
        raise InputError(f"{name} is {str(path)!r}, which cannot be written: {error.strerror or error}") from None


def _flush(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def claimed(path: Path) -> Iterator[str | None]:
    """Hold a file against other processes within the block; yield who holds it already and since when, or `None`.

    The file is gone afterwards. A process that was killed holds it no more. Without locks nothing is held.
    """
    try:
        handle, owner = _locked(path)
    except OSError:  # whoever writes there says why
        yield None
        return
    try:
        if owner is None:
            with suppress(OSError):
                os.ftruncate(handle, 0)
                since = datetime.now(UTC).isoformat(timespec="seconds")
                os.write(handle, f"process {os.getpid()} of {socket.gethostname()} since {since}".encode())
        yield owner
    finally:
        if owner is None:
            with suppress(OSError):
                path.unlink()
        os.close(handle)


def tidy(path: Path) -> None:
    """Remove a file that a process claimed before it was killed; leave one that is held."""
    with suppress(OSError):
        handle, owner = _locked(path)
        try:
            if owner is None:
                path.unlink()
        finally:
            os.close(handle)


def _locked(path: Path) -> tuple[int, str | None]:
    """Open a file and lock it; return its descriptor, and who holds it: nobody else where a file system has no locks.

    Who tidies holds a file for a moment, and who claims it has not written its name yet: both get a tenth of a second.
    """
    left = 20
    while True:
        handle = os.open(path, os.O_CREAT | os.O_RDWR, 0o666)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            left -= 1
            if not left:
                return handle, os.pread(handle, 200, 0).decode(errors="replace") or "another process"
        except OSError:
            return handle, None
        else:
            if os.fstat(handle).st_nlink:
                return handle, None
        os.close(handle)  # perhaps its holder removed it after we had opened it: the next process would lock a new one
        time.sleep(0.005)


class TemporaryFolder:
    """A folder for temporary files: `path`, until `close`.

    A process that is killed cannot remove its own. Its lock on a file in there ends with it, and the next
    `TemporaryFolder` of the same user removes what has no owner any more.
    """

    def __init__(self) -> None:
        _remove_ownerless()
        self.path = Path(tempfile.mkdtemp(prefix=_PREFIX))
        self._owner: int | None = os.open(self.path / "new", os.O_CREAT | os.O_RDWR, 0o600)
        with suppress(OSError):  # a file system without locks: nobody else gets the lock either
            fcntl.flock(self._owner, fcntl.LOCK_EX | fcntl.LOCK_NB)
        (self.path / "new").rename(self.path / _OWNER)  # others look for it when it is locked

    def close(self) -> None:
        """Remove the folder with all that is in it; a second call does nothing."""
        shutil.rmtree(self.path, ignore_errors=True)
        if self._owner is not None:
            os.close(self._owner)
            self._owner = None


def _remove_ownerless() -> None:
    for owner in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*/{_OWNER}"):
        with suppress(OSError):  # locked by its owner, just removed, or another user's
            if owner.parent.lstat().st_uid != os.getuid() or owner.parent.is_symlink():
                continue
            handle = os.open(owner, os.O_RDWR | os.O_NOFOLLOW)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(owner.parent, ignore_errors=True)
            finally:
                os.close(handle)


def is_bomb(unpacked: int, packed: int) -> bool:
    """Return whether packed bytes unpack to more than text does: tables and traces shrink to a fifth or a fiftieth.

    Below 256 MiB that have come out so far it is none.
    """
    return unpacked > 256 << 20 and unpacked > 150 * packed
