"""The fresh processes of a race: started, given their share of the seconds in turn, and ended."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tclab.timing.child_process import ChildProcess
from tclab.timing.errors import TimingError

_SOURCE = Path(__file__).resolve().parents[2]  # a child imports the package that its parent runs


class Child:
    """One fresh process that holds arms and runs them when it is told to; it does nothing in between."""

    def __init__(self, begin: Mapping[str, Any], environment: Mapping[str, str]) -> None:
        path = os.pathsep.join([str(_SOURCE), os.environ.get("PYTHONPATH", "")])
        self._process = ChildProcess("tclab.timing.race_child", {**os.environ, **environment, "PYTHONPATH": path})
        try:
            self._process.tell({**begin, "path": [p for p in sys.path if p] + [os.getcwd()]})
            self._hear("ready", lambda line: None)
        except BaseException:
            self.close()
            raise

    def _hear(self, last: str, take: Callable[[dict[str, Any]], None]) -> None:
        """Take lines until one of kind `last`."""
        while (line := self._process.hear()) is not None:
            if line["kind"] == "error":
                raise TimingError(line["text"])
            if line["kind"] == last:
                return
            take(line)
        code = self._process.wait()
        raise TimingError(f"a process of the race ended with {code}: {self._process.last_words}")

    def run(self, share: Mapping[str, Any], take: Callable[[dict[str, Any]], None]) -> None:
        """Run a share of the seconds, giving each line to `take` as it comes."""
        self._process.tell(share)
        self._hear("done", take)

    def close(self) -> None:
        """End the process and whatever it started."""
        self._process.close()
