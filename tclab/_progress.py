"""A bar for what takes long: a widget in a notebook, a line in a terminal; a line every half a minute in a log."""

from __future__ import annotations

import os
import sys
from typing import Any

from tclab._child_process import PARENT

_DELAY_SECONDS = 2.0
_LOG_SECONDS = 30.0


def say(line: object) -> None:
    """Print a line of progress to standard error; in a notebook, where that is red, to the output."""
    print(line, file=sys.stdout if _in_notebook() else sys.stderr, flush=True)


def _in_notebook() -> bool:
    return type(sys.stderr).__module__.startswith("ipykernel")


def progress_bar(total: int, what: str, unit: str) -> Any:
    """Return tqdm's bar, which shows itself after two seconds and leaves nothing.

    `None` where tqdm is not installed, and in a process that measures a point: what that says last is why it ended.
    """
    if PARENT in os.environ:
        return None
    try:
        from tqdm.auto import tqdm
    except ImportError:
        return None
    watched = sys.stderr.isatty() or _in_notebook()
    return tqdm(
        total=total,
        desc=what,
        unit=unit,
        unit_scale=True,
        delay=_DELAY_SECONDS,
        leave=False,
        ascii=not watched,
        mininterval=0.2 if watched else _LOG_SECONDS,
    )
