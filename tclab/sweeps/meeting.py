"""Where a point's ranks on several machines meet: the first machine says so in a file that all of them can read."""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path

from tclab.sweeps.whole_files import write_whole

# The variable that names the file for the point under way; set on every machine of a job that has several.
MEETING = "TCLAB_MEETING"
_LOOK_SECONDS = 0.2
_FAILED, _OVER = ".failed", ".over"


def _write(text: str, suffix: str = "") -> None:
    write_whole(Path(os.environ[MEETING] + suffix), text)


def _read(suffix: str) -> str | None:
    path = Path(os.environ[MEETING] + suffix)
    return path.read_text() if path.name in os.listdir(path.parent) else None


def call() -> str:
    """Return a free "host:port" of this machine, and let the others know it."""
    with socket.socket() as free:
        free.bind(("", 0))
        endpoint = f"{socket.gethostname()}:{free.getsockname()[1]}"
    _write(endpoint)
    return endpoint


def call_off() -> None:
    """Let the others know that nobody meets for this point, unless they have been called."""
    if not Path(os.environ[MEETING]).exists():
        _write("")


def fail(why: str) -> None:
    """Let the first machine know that ranks have failed on this one, which it would wait for."""
    _write(why, _FAILED)


def failure() -> str | None:
    """Return why ranks have failed on another machine, or `None`."""
    return _read(_FAILED)


def end(how: str) -> None:
    """Let the other machines know that the first one is through with the point, and has no ranks any more."""
    _write(how, _OVER)


def over() -> str | None:
    """Return how the first machine came through, or `None` as long as it has not."""
    return _read(_OVER)


def called() -> str | None:
    """Return where to meet, once the first machine has said so; `None` where it has called off."""
    path = Path(os.environ[MEETING])
    while path.name not in os.listdir(path.parent):  # a listing is asked of the file server, a miss is remembered
        time.sleep(_LOOK_SECONDS)
    return path.read_text() or None
