"""The fresh processes of a race: started, given their share of the seconds in turn, and ended."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from tclab.timing.errors import TimingError

_SOURCE = Path(__file__).resolve().parents[2]  # a child imports the package that its parent runs


class Child:
    """One fresh process that holds arms and runs them when it is told to; it does nothing in between."""

    def __init__(self, begin: Mapping[str, Any], environment: Mapping[str, str]) -> None:
        self._words: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 (close() ends it)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tclab.timing.race_child"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._words,
            text=True,
            bufsize=1,
            env={
                **os.environ,
                **environment,
                "PYTHONPATH": os.pathsep.join([str(_SOURCE), os.environ.get("PYTHONPATH", "")]),
            },
            start_new_session=True,  # an interrupt is the race's to handle, not the child's
        )
        try:
            self._tell({**begin, "path": [p for p in sys.path if p] + [os.getcwd()]})
            self._hear("ready", lambda line: None)
        except BaseException:
            self.close()
            raise

    def _tell(self, line: Mapping[str, Any]) -> None:
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # its last words are told when it is heard
            self._process.stdin.write(json.dumps(line) + "\n")
            self._process.stdin.flush()

    def _hear(self, last: str, take: Callable[[dict[str, Any]], None]) -> None:
        """Take lines until one of kind `last`."""
        assert self._process.stdout is not None
        for text in self._process.stdout:
            line = json.loads(text)
            if line["kind"] == "error":
                raise TimingError(line["text"])
            if line["kind"] == last:
                return
            take(line)
        code = self._process.wait()
        self._words.seek(0)
        said = self._words.read().decode(errors="replace").strip().splitlines()
        raise TimingError(f"a process of the race ended with {code}: {said[-1] if said else 'it said nothing'}")

    def run(self, share: Mapping[str, Any], take: Callable[[dict[str, Any]], None]) -> None:
        """Run a share of the seconds, giving each line to `take` as it comes."""
        self._tell(share)
        self._hear("done", take)

    def close(self) -> None:
        """End the process and whatever it started."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout, self._words):
            if pipe is not None:
                with suppress(BrokenPipeError):
                    pipe.close()
