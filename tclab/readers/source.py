"""A file's bytes and lines, gzipped or not, within a size limit and with progress."""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

from tclab.readers.errors import bad_file

LIMIT_BYTES = 2 << 30  # of unpacked text; STRING's largest table of one organism is a tenth of this
LONGEST_LINE_BYTES = 4 << 20  # more than any published table has; what is longer is not a table

Progress = Callable[[int, int], None]
"""Called with (bytes of the file read so far, bytes of the file), a few times a second at most."""

_REPORT_EVERY = 8 << 20


class Source(io.RawIOBase):
    """A file opened for reading, unpacked where it begins as gzip does, whatever its name ends in.

    **Arguments:**

    - `path`: the file.
    - `limit_bytes`: how much it may unpack to.
    - `progress`: called as the file is read.

    **Raises:** `ReadError` where the file is missing or empty, and on reading where the gzip is damaged or
    cut short, or unpacks to more than the limit.
    """

    def __init__(
        self, path: str | Path, *, limit_bytes: int = LIMIT_BYTES, progress: Progress | None = None
    ) -> None:
        self.path = Path(path)
        self._limit = limit_bytes
        self._progress = progress
        try:
            self._file: BinaryIO = open(self.path, "rb")  # noqa: SIM115 closed by close()
            start = self._file.read(2)
            self._size = self._file.seek(0, io.SEEK_END)
            self._file.seek(0)
        except OSError as error:
            raise bad_file(path, f"cannot be read: {error.strerror or error}") from None
        if not start:
            self._file.close()
            raise bad_file(path, "the file is empty")
        self._packed = start == b"\x1f\x8b"
        self._stream: BinaryIO = gzip.GzipFile(fileobj=self._file) if self._packed else self._file  # type: ignore[assignment]
        self._unpacked = 0
        self._next_report = _REPORT_EVERY

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: object) -> int:
        """Read into a buffer; the number of bytes read, 0 at the end."""
        view = memoryview(buffer).cast("B")  # type: ignore[arg-type]
        try:
            number = self._stream.readinto(view)  # type: ignore[attr-defined]
        except EOFError:
            raise bad_file(self.path, "the gzip is cut short; copy or download the file again") from None
        except (gzip.BadGzipFile, zlib.error) as error:
            raise bad_file(self.path, f"the gzip is damaged: {error}") from None
        except OSError as error:
            raise bad_file(self.path, f"cannot be read: {error.strerror or error}") from None
        self._unpacked += number
        if self._unpacked > self._limit:
            raise bad_file(
                self.path,
                f"unpacks to more than {self._limit:,} bytes, the limit; "
                "where it is meant to be that large, pass a larger limit_bytes",
            )
        if self._progress and (self._unpacked >= self._next_report or number == 0):
            self._next_report = self._unpacked + _REPORT_EVERY
            self._progress(self._file.tell(), self._size)
        return int(number)

    def close(self) -> None:
        """Let go of the file."""
        if not self.closed:
            self._stream.close()
            self._file.close()
        super().close()


def read_bytes(path: str | Path, *, limit_bytes: int = LIMIT_BYTES) -> bytes:
    """Return a whole file, unpacked."""
    with Source(path, limit_bytes=limit_bytes) as source:
        return source.readall() or b""


def raw_lines(path: str | Path, *, limit_bytes: int = LIMIT_BYTES) -> Iterator[tuple[int, bytes]]:
    """Yield a file's lines that are not blank, as (number from 1, bytes without the line's end).

    A line ends with LF, CR LF or CR, as pyarrow takes it.
    """
    number, rest = 0, b""
    with Source(path, limit_bytes=limit_bytes) as source:
        while True:
            chunk = source.read(1 << 20) or b""
            if chunk and rest.endswith(b"\r") and chunk.startswith(b"\n"):
                rest = rest[:-1]  # CR LF that falls on the border of two chunks
            lines = (rest + chunk).splitlines(keepends=True)
            rest = lines.pop() if chunk and lines else b""
            if number == 0 and lines:
                lines[0] = lines[0].removeprefix(b"\xef\xbb\xbf")
            for line in lines:
                number += 1
                if line := line.rstrip(b"\r\n"):
                    yield number, line
            if len(rest) > LONGEST_LINE_BYTES:
                raise bad_file(
                    path, f"longer than {LONGEST_LINE_BYTES:,} bytes, so it is no table", line=number + 1
                )
            if not chunk:
                return


def text_lines(path: str | Path, *, limit_bytes: int = LIMIT_BYTES) -> Iterator[tuple[int, str]]:
    """Yield a file's lines that are not blank, as (number from 1, text).

    **Raises:** `ReadError` with the line where the bytes are not UTF-8.
    """
    for number, line in raw_lines(path, limit_bytes=limit_bytes):
        yield number, decoded(path, number, line)


def decoded(path: str | Path, number: int, line: bytes) -> str:
    """Return a line as text.

    **Raises:** `ReadError` with the line where the bytes are not UTF-8.
    """
    try:
        return line.decode()
    except UnicodeDecodeError as error:
        raise bad_file(
            path, f"byte 0x{line[error.start]:02x} at column {error.start + 1} is not UTF-8", line=number
        ) from None
