"""Atomic writing of files, and the check of packed ones that would fill the memory."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable
from pathlib import Path


def atomic_write(path: str | Path, content: str | bytes | Callable[[Path], object]) -> None:
    """Write a file that is there whole or not at all, whoever else writes or reads it.

    The content goes into a file of its own name in the same folder, is flushed to the disk, and is renamed. On any
    failure the earlier file is left as it was and nothing else remains.

    **Arguments:**

    - `path`: the file; its folder must exist.
    - `content`: text (written as UTF-8), bytes, or a function that writes the file whose path it gets. That path has
      the same suffix as `path` and a name that begins with a dot; who lists the folder leaves such names out.

    **Raises:** `OSError` where it cannot be written.
    """
    path = Path(path)
    temporary = path.with_name(f".writing-{uuid.uuid4().hex}{path.suffix}")
    try:
        if callable(content):
            content(temporary)
        else:
            temporary.write_bytes(content.encode() if isinstance(content, str) else content)
        handle = os.open(temporary, os.O_RDWR)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def is_bomb(unpacked: int, packed: int) -> bool:
    """Return whether packed bytes unpack to more than text does: tables and traces shrink to a fifth or a fiftieth.

    **Arguments:**

    - `unpacked`: how many bytes have come out so far; below 256 MiB it is none.
    - `packed`: how many bytes have gone in.
    """
    return unpacked > 256 << 20 and unpacked > 150 * packed
