"""Bytes and lines of a file, gzipped or not, and the error for a bad file."""

from __future__ import annotations

import os
import stat
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tclab._display import progress_bar
from tclab._io import is_bomb
from tclab.errors import InputError, require

LIMIT_BYTES = 2 << 30  # of unpacked text; STRING's largest table of one organism is a tenth of this
LONGEST_LINE_BYTES = 1 << 20  # longer than in any published table

Progress = Callable[[int, int], None]
"""Called with (bytes of the file read so far, bytes of the file) every few megabytes and at the end."""

_CHUNK_BYTES = 1 << 18
_REPORT_EVERY_BYTES = 8 << 20
_GZIP = 31  # zlib's number for "a gzip header and checksum, the largest window"


class ReadError(InputError):
    """A file that its format does not allow; the message is one line with file, line and reason."""


def bad_file(path: str | Path, why: str, *, line: int | None = None) -> ReadError:
    """Return the error for a bad file: what it holds and what was expected, and the line from 1 where it is known."""
    place = f"{path}, line {line}" if line is not None else f"{path}"
    return ReadError(" ".join(f"{place}: {why}".split()))


def quoted(value: object, most: int = 60) -> str:
    """Return a value for a message: in quotes, cut after `most` characters."""
    text = str(value)
    return repr(text if len(text) <= most else text[: most - 1] + "…")


def check_regular(path: str | Path) -> None:
    """Refuse what no file is read from: a FIFO would wait for ever for its writer.

    **Raises:** `ReadError` for a path that is neither a file nor a folder (a pipe, say), or contains a NUL;
    `InputError` for what is no path.
    """
    require("path", path, (str, os.PathLike), "the path of a file")
    try:
        mode = os.stat(path).st_mode
    except OSError:
        return  # opening it says why
    except ValueError as error:
        raise bad_file(repr(str(path)), f"is no path: {error}") from None
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        raise bad_file(path, "is neither a file nor a folder")


class Source:
    """A file open for reading, unpacked where its first bytes are gzip's, whatever its name.

    It uses zlib directly: Python's gzip module takes three times as long before 3.12. A large file shows a bar unless
    `progress` is given, which is called as the file is read.

    **Raises:** `ReadError` where the file is missing or empty, and on reading where the gzip is damaged or
    cut short, or unpacks to more than the limit, or the text has a NUL byte.
    """

    def __init__(self, path: str | Path, *, limit_bytes: int = LIMIT_BYTES, progress: Progress | None = None) -> None:
        check_regular(path)
        self.path = Path(path)
        try:
            self._file = open(self.path, "rb")  # noqa: SIM115 closed by close()
            self._size = self.path.stat().st_size
            self._packed = self._file.read(2) == b"\x1f\x8b"
            self._file.seek(0)
        except OSError as error:
            raise bad_file(path, f"cannot be read: {error.strerror or error}") from None
        if not self._size:
            self._file.close()
            raise bad_file(path, "the file is empty")
        self._unzip = zlib.decompressobj(_GZIP)
        self._limit = limit_bytes
        self._bar: Any = None
        if progress is None and self._size > _REPORT_EVERY_BYTES:
            self._bar = progress_bar(self._size, f"reading {self.path.name}", "B")
        self._progress = progress if self._bar is None else self._show
        self._unpacked = self._reported = 0

    def read(self, size: int = -1) -> bytes:
        """Return up to `size` bytes, none at the end; without a size, the rest of the file."""
        if size is None or size < 0:
            return b"".join(iter(lambda: self.read(_CHUNK_BYTES), b""))
        try:
            chunk = self._unpacked_whole(size) if self._packed else self._file.read(size)
        except OSError as error:
            raise bad_file(self.path, f"cannot be read: {error.strerror or error}") from None
        except zlib.error as error:
            raise bad_file(self.path, f"the gzip is damaged: {error}") from None
        if (hole := chunk.find(b"\0")) >= 0:
            at = self._unpacked + hole + 1
            raise bad_file(self.path, f"byte {at:,} is NUL: the file has a hole, or is no UTF-8 text")
        self._unpacked += len(chunk)
        if self._unpacked > self._limit:
            raise bad_file(
                self.path,
                f"unpacks to more than {self._limit:,} bytes, the limit; "
                "if it is meant to be that large, pass a larger limit_bytes",
            )
        if self._packed and is_bomb(self._unpacked, packed := self._file.tell()):
            raise bad_file(self.path, f"unpacks to {self._unpacked // packed:,} times its size or more")
        if self._progress and (not chunk or self._unpacked - self._reported >= _REPORT_EVERY_BYTES):
            self._reported = self._unpacked
            self._progress(self._file.tell(), self._size)
        return chunk

    def _show(self, done: int, size: int) -> None:
        self._bar.update(done - self._bar.n)

    def _unpacked_whole(self, size: int) -> bytes:
        """Return `size` bytes where there are so many: pyarrow takes what it is given for a block, header included."""
        parts: list[bytes] = []
        while size > 0 and (part := self._unpack(size)):
            parts.append(part)
            size -= len(part)
        return b"".join(parts)

    def _unpack(self, size: int) -> bytes:
        while True:
            if self._unzip.eof:  # a gzip file may hold several members, end to end, and end in zeros
                packed = (self._unzip.unused_data or self._file.read(_CHUNK_BYTES)).lstrip(b"\0")
                if not packed:
                    if self._file.tell() >= self._size:
                        return b""
                    continue
                self._unzip = zlib.decompressobj(_GZIP)
            else:
                packed = self._unzip.unconsumed_tail or self._file.read(_CHUNK_BYTES)
            chunk = self._unzip.decompress(packed, size)
            if chunk:
                return chunk
            if not packed and not self._unzip.eof:
                raise bad_file(self.path, "the gzip is cut short; copy or download the file again")

    @property
    def closed(self) -> bool:  # pyarrow asks
        return self._file.closed

    def close(self) -> None:
        self._file.close()
        if self._bar is not None:
            self._bar.close()

    def __enter__(self) -> Source:
        return self

    def __exit__(self, *failure: object) -> None:
        self.close()


def read_bytes(path: str | Path, *, limit_bytes: int = LIMIT_BYTES) -> bytes:
    """Return a whole file, unpacked."""
    with Source(path, limit_bytes=limit_bytes) as source:
        return source.read()


def raw_lines(path: str | Path, *, limit_bytes: int = LIMIT_BYTES) -> Iterator[tuple[int, bytes]]:
    """Yield a file's lines that are not blank, as (number from 1, bytes without the line's end).

    A line ends with LF, CR LF or CR, as in pyarrow.
    """
    number, rest = 0, b""
    with Source(path, limit_bytes=limit_bytes) as source:
        while True:
            chunk = source.read(_CHUNK_BYTES)
            if chunk and rest.endswith(b"\r") and chunk.startswith(b"\n"):
                rest = rest[:-1]  # CR LF across two chunks
            lines = (rest + chunk).splitlines(keepends=True)
            rest = lines.pop() if chunk and lines else b""
            if number == 0 and lines:
                lines[0] = lines[0].removeprefix(b"\xef\xbb\xbf")
            for line in lines:
                number += 1
                if line := line.rstrip(b"\r\n"):
                    yield number, line
            if len(rest) > LONGEST_LINE_BYTES:
                raise bad_file(path, f"longer than {LONGEST_LINE_BYTES:,} bytes, so it is no table", line=number + 1)
            if not chunk:
                return


def text_lines(path: str | Path, *, limit_bytes: int = LIMIT_BYTES) -> Iterator[tuple[int, str]]:
    """Yield a file's lines that are not blank, as (number from 1, text)."""
    for number, line in raw_lines(path, limit_bytes=limit_bytes):
        yield number, decoded(path, number, line)


def not_utf8(path: str | Path, content: bytes, error: UnicodeDecodeError) -> ReadError:
    """Return the error for a whole file that is not UTF-8, with the line of the first bad byte."""
    line = content.count(b"\n", 0, error.start) + 1
    return bad_file(path, f"byte 0x{content[error.start]:02x} is not UTF-8", line=line)


def decoded(path: str | Path, number: int, line: bytes) -> str:
    """Return a line as text; raise `ReadError` with the line where the bytes are not UTF-8."""
    try:
        return line.decode()
    except UnicodeDecodeError as error:
        raise bad_file(
            path, f"byte 0x{line[error.start]:02x} at column {error.start + 1} is not UTF-8", line=number
        ) from None
