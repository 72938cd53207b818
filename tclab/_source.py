"""The door for a user's file: opened here, unpacked within limits, and one sentence for whatever a parser raises.

Every limit on what somebody else's file may do to this process is here and nowhere else: what it unpacks to, and what
is no file (a FIFO would wait for ever for its writer). How deep it nests and how much memory it takes is found out by
Python, whose error becomes a sentence as well; a parser in C that has no limit of its own asks `check_nesting` first.
"""

from __future__ import annotations

import gzip
import os
import re
import stat
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path
from typing import IO, Any

import numpy as np

from tclab.errors import InputError, require

LIMIT_BYTES = 8 << 30  # of what a packed file unpacks to; STRING's largest table of one organism is a fortieth of this

_SMALL_BYTES = 256 << 20  # below this, what has come out so far is no bomb
_MOST_TIMES = 150  # that a packed file unpacks to of its size: tables and traces shrink to a fifth or a fiftieth
_MOST_NESTED = 1_000  # brackets in brackets, or columns of indentation
_PIECE_BYTES = 1 << 20
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_GZIP, _ZIP = b"\x1f\x8b", b"PK\x03\x04"
_MEANING: dict[type[Exception], str] = {
    EOFError: "is cut short; copy or download it again",
    zlib.error: "is damaged; copy or download it again",
    gzip.BadGzipFile: "is damaged; copy or download it again",
    zipfile.BadZipFile: "is another kind of file, or is damaged or cut short",
    RecursionError: "is nested too deeply",
    MemoryError: "needs more memory than there is",
}


@contextmanager
def guarded(path: str | Path, what: str, error: type[InputError] = InputError) -> Iterator[None]:
    """Turn whatever the block raises, which reads a file, into one sentence: the file, the cause, the format.

    In the block a parser may raise what it likes, and a reader of ours raises `ValueError` with the row and what was
    expected. An `InputError` passes unchanged: it is a sentence already, and perhaps of an argument. The cause is
    chained, so that an error of our own is found in the traceback.

    **Arguments:**

    - `path`: the file.
    - `what`: its format with its article: "a BioGRID table".
    - `error`: the class that is raised.

    **Raises:** `error`: "edges.csv: row 3: weight is 'x', expected a number (read as an edge list)".
    """
    try:
        yield
    except InputError:
        raise
    except Exception as cause:
        raise error(f"{path}: {_why(cause)} (read as {what})") from cause


def _why(cause: Exception) -> str:
    """Return what an exception says, on one line, with its kind where that says more."""
    text = " ".join(str(cause).split())
    text = text if len(text) <= 400 else text[:399] + "…"
    for kind, meaning in _MEANING.items():
        if isinstance(cause, kind):
            return f"{meaning} ({text})" if text else meaning
    if isinstance(cause, UnicodeDecodeError):
        return f"byte 0x{cause.object[cause.start]:02x} is not {cause.encoding.upper()}; save it as UTF-8"
    if isinstance(cause, OSError):
        return f"cannot be read: {cause.strerror or text}"
    if type(cause) is ValueError and text:
        return text
    return f"{type(cause).__name__}: {text}"


@contextmanager
def opened(
    path: str | Path, what: str, error: type[InputError] = InputError, *, archive: bool = False
) -> Iterator[bytes]:
    """Give the content of a user's file within `guarded`: plain, gzipped, or the one file in a ZIP, whatever its name.

    It is UTF-8 text without a byte order mark.

    **Arguments:**

    - `path`, `what`, `error`: see `guarded`.
    - `archive`: the format itself is a ZIP, such as XLSX or NPZ: the content is the file as it is, and its parts are
      held to the limits.

    **Raises:** `error` for a missing file, with the nearest name in its folder; a folder, a FIFO, a device; an empty
    file; one that unpacks to more than `LIMIT_BYTES`, or to more than 150 times its size beyond 256 MiB; a ZIP of
    several files; text in UTF-16 or with a NUL byte; and for whatever the block raises.
    """
    require("path", path, (str, os.PathLike), "the path of a file")
    with guarded(path, what, error):
        _check_regular(Path(path))
        with open(path, "rb") as file:
            if archive:
                parts = zipfile.ZipFile(file).infolist()
                _check_size(sum(part.file_size for part in parts), sum(part.compress_size for part in parts))
                file.seek(0)
                yield file.read()
                return
            content = _unpacked(file)
        if not content:
            raise ValueError("is empty")
        if content.startswith(b"version https://git-lfs"):
            raise ValueError("is a pointer of Git LFS in the file's place: git lfs pull brings the file")
        if (hole := content.find(b"\0")) >= 0:
            raise ValueError(f"byte {hole + 1:,} is NUL: the file has a hole, or is not text in UTF-8")
        yield content.removeprefix(_BYTE_ORDER_MARK)


def check_nesting(content: bytes) -> None:
    """Raise `RecursionError` for JSON or YAML that is nested so deeply that it may end the process: libyaml's does."""
    characters = np.frombuffer(content, dtype=np.uint8)
    opened_here = np.isin(characters, [*b"[{"]).astype(np.int32) - np.isin(characters, [*b"]}"])
    indented = max(map(len, re.findall(rb"(?m)^[-?: ]+", content)), default=0)
    if indented > _MOST_NESTED or opened_here.cumsum(dtype=np.int32).max(initial=0) > _MOST_NESTED:
        raise RecursionError(f"more than {_MOST_NESTED:,} levels")


def _check_regular(path: Path) -> None:
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        names = sorted(each.name for each in path.parent.iterdir()) if path.parent.is_dir() else []
        near = get_close_matches(path.name, names, n=1)
        raise ValueError(f"no such file; did you mean {near[0]!r}?" if near else "no such file") from None
    if stat.S_ISDIR(mode):
        raise ValueError("is a folder, expected a file")
    if not stat.S_ISREG(mode):
        raise ValueError("is neither a file nor a folder")


def _unpacked(file: IO[bytes]) -> bytes:
    """Return the content of an open file, unpacked a piece at a time and held to the limits."""
    head = file.read(4)
    file.seek(0)
    stream: Any = file
    if head.startswith(_GZIP):
        stream = gzip.GzipFile(fileobj=file)
    elif head == _ZIP:
        stream = _only_member(file)
    pieces, size = [], 0
    while piece := stream.read(_PIECE_BYTES):
        pieces.append(piece)
        size += len(piece)
        if stream is not file:
            _check_size(size, file.tell())
    return b"".join(pieces)


def _check_size(unpacked: int, packed: int) -> None:
    if unpacked > LIMIT_BYTES:
        raise ValueError(f"unpacks to more than {LIMIT_BYTES:,} bytes, the limit; cut out the rows that are needed")
    if unpacked > _SMALL_BYTES and unpacked > _MOST_TIMES * packed:
        raise ValueError(f"unpacks to {unpacked // max(packed, 1):,} times its size or more")


def _only_member(file: IO[bytes]) -> IO[bytes]:
    """Open the one file in a ZIP; macOS adds a folder of its own, which is none."""
    archive = zipfile.ZipFile(file)
    names = [part.filename for part in archive.infolist() if not part.is_dir()]
    names = [name for name in names if not name.startswith("__MACOSX/")]
    if "[Content_Types].xml" in names:
        raise ValueError("is a workbook of Excel; save its sheet as text, with tabs between the cells")
    if len(names) != 1:
        raise ValueError(f"is a ZIP of {len(names)} files, expected one: {', '.join(names[:5]) or 'none'}")
    return archive.open(names[0])
