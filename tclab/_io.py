"""Atomic writing of files, a folder held against other processes, and temporary folders."""

from __future__ import annotations

import fcntl
import os
import shutil
import socket
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from uuid import uuid4

from tclab.errors import InputError


def atomic_write(path: str | Path, content: str | bytes | Callable[[Path], object]) -> None:
    """Write a file that is there whole or not at all, whoever else writes or reads it.

    The content goes into a file of its own name in the same folder, is flushed to the disk, and is renamed. On any
    failure the earlier file is left as it was and nothing else remains; a process that is killed leaves a file
    `.writing-…`, which is never read.

    **Arguments:**

    - `path`: the file; its folder must exist.
    - `content`: text (written as UTF-8), bytes, or a function that writes the file whose path it gets. That path has
      the same suffix as `path` and a name that begins with a dot; who lists the folder leaves such names out.

    **Raises:** `OSError` where it cannot be written.
    """
    path = Path(path)
    temporary = path.with_name(f".writing-{uuid4().hex}{path.suffix}")
    try:
        with open(temporary, "xb") as file:
            if callable(content):
                content(temporary)
            else:
                file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def cache_folder() -> Path:
    """Return the folder of what can be made again: `TCLAB_CACHE`, or `tclab` in the user's cache folder."""
    given = os.environ.get("TCLAB_CACHE")
    return Path(given) if given else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tclab"


def keep(path: Path, write: Callable[[Path], object]) -> str:
    """Return the name of a file of the cache, which `write` writes unless it is there: its name is of its content."""
    if not path.is_file():
        with writing(f"the folder of {path.parent.name}", path.parent):
            path.parent.mkdir(parents=True, exist_ok=True)
        write(path)
    return str(path)


@contextmanager
def writing(name: str, path: str | Path) -> Iterator[None]:
    """Make an `OSError` of the block, which writes to the path of an argument of that name, an `InputError`."""
    try:
        yield
    except OSError as error:
        why = f"{name} is {str(path)!r}, which cannot be written: {error.strerror or error}"
        raise InputError(why, name=name) from None


@contextmanager
def held(path: Path) -> Iterator[str | None]:
    """Hold a file against other processes within the block; yield who holds it already and since when, or `None`.

    The file is gone afterwards. A process that was killed holds it no more. Who only asks holds it for a moment, so a
    tenth of a second is waited.
    """
    from filelock import FileLock, Timeout  # takes 80 ms, and only sweeps need it

    lock, owner = FileLock(path), None
    try:
        lock.acquire(timeout=0.1, poll_interval=0.01)
        since = datetime.now(UTC).isoformat(timespec="seconds")
        path.write_text(f"process {os.getpid()} of {socket.gethostname()} since {since}")
    except Timeout:
        owner = "another process"
        with suppress(OSError):  # it has just ended
            owner = path.read_text() or owner
    except OSError:  # whoever writes there says why
        pass
    try:
        yield owner
    finally:
        if lock.is_locked:
            path.unlink(missing_ok=True)
            lock.release()


class TemporaryFolder:
    """A folder for temporary files: `path`, until `close`.

    A process that is killed cannot remove its own. Its lock on a file in there ends with it, and the next
    `TemporaryFolder` of the same user removes what has no owner any more.
    """

    def __init__(self) -> None:
        for owner in Path(tempfile.gettempdir()).glob("tclab-*/.owner"):
            with suppress(OSError), owner.open("rb") as file:  # locked by its owner, or just removed
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if owner.parent.lstat().st_uid == os.getuid():
                    shutil.rmtree(owner.parent, ignore_errors=True)
        self.path = Path(tempfile.mkdtemp(prefix="tclab-"))
        self._owner = (self.path / "new").open("wb")
        with suppress(OSError):  # a file system without locks: nobody else gets the lock either
            fcntl.flock(self._owner, fcntl.LOCK_EX | fcntl.LOCK_NB)
        (self.path / "new").rename(self.path / ".owner")  # others look for it when it is locked

    def close(self) -> None:
        """Remove the folder with all that is in it; a second call does nothing."""
        shutil.rmtree(self.path, ignore_errors=True)
        self._owner.close()
