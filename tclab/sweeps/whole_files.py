"""Small files that others read while they are written: whole or not there at all."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


def write_whole(path: Path, text: str, *, onto_disk: bool = False) -> None:
    """Write a file under another name, and rename it when it is whole; a failure leaves nothing behind.

    **Arguments:**

    - `onto_disk`: see it onto the disk first, so that it is there after a crash of the machine.
    """
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".writing-", suffix=path.suffix)
    try:
        with os.fdopen(handle, "w") as file:
            file.write(text)
            if onto_disk:
                file.flush()
                os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
