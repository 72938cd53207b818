"""The fresh processes of a race: `RaceProcess` in the parent, and `main`, which each process runs.

They exchange JSON lines. The parent sends the arms and the settings, then asks for the arms to be made, then sends one
share of the budget at a time; the process answers with a line for each block, and `done` after the share.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from importlib import import_module
from time import perf_counter
from typing import Any

from tclab._child_process import ChildProcess, ParentPipe, child_command
from tclab.errors import InputError
from tclab.timing.races._blocks import BlockRunner, construction_order

Line = dict[str, Any]


class RaceProcess:
    """A fresh process that makes its arms and runs them on request; it is idle in between.

    It returns at once, so that several processes import their modules side by side; `make_arms` ends when the arms are
    made, which processes do one after another: the threads of several on the same cores wait for one another. Four
    processes on two cores made three arms in 118 s side by side; one after another, they do in 22 s. `begin` has `arms`
    (name → factory), `period` and `process`, as `BlockRunner` takes them.
    """

    def __init__(self, begin: Mapping[str, Any], environment: Mapping[str, str]) -> None:
        self.process: int = begin["process"]
        self._process = ChildProcess(child_command(__name__), {**os.environ, **environment})
        self._process.send({**begin, "path": [p for p in sys.path if p] + [os.getcwd()]})

    def make_arms(self) -> None:
        """Let the process make its arms, and wait for them. **Raises:** `InputError` with its error if it cannot."""
        self._process.send({"make": True})
        self._receive_until("ready", lambda line: None)

    def _receive_until(self, last: str, take: Callable[[Line], None]) -> None:
        """Pass lines to `take` until one of kind `last`."""
        while (line := self._process.receive()) is not None:
            if line["kind"] == "error":
                raise InputError(line["text"])
            if line["kind"] == last:
                return
            take(line)
        code = self._process.wait()
        raise InputError(f"a process of the race ended with {code}: {self._process.last_error_line}")

    def run(self, share: Mapping[str, Any], take: Callable[[Line], None]) -> None:
        """Run a share of the budget, passing each line to `take` as it arrives."""
        self._process.send(share)
        self._receive_until("done", take)

    def close(self) -> None:
        """End the process and whatever it started."""
        self._process.close()


# ---- in the process


def arm_from(spec: str) -> Callable[[], Any]:
    """Return the arm that a factory makes in this process; it is named as for `race`.

    **Raises:** `InputError` that says which part of the name is wrong.
    """
    module, name, *text = [*spec.split(":", 2), ""][: 3 if spec.count(":") > 1 else 2]
    if not module or not name:
        raise InputError(f"arm {spec!r}, expected 'module:function', a factory that returns the function to time")
    try:
        factory = getattr(import_module(module), name)
    except ImportError as error:
        raise InputError(f"arm {spec!r}: {error}; its module must be one that a fresh process can import") from None
    except AttributeError:
        raise InputError(f"arm {spec!r}: module {module!r} has no {name!r}") from None
    arm = factory(*text)
    if not callable(arm):
        raise InputError(f"arm {spec!r} made {arm!r}, expected a factory that returns the function to time")
    return arm


def run_share(runner: BlockRunner, share: Line, stop: Callable[[], bool], emit: Callable[[Line], None]) -> bool:
    """Run one share of a race's budget, which `_Cell.run` makes: what is due before the rounds, then rounds."""
    if not runner.warmed:
        runner.warm()
    if not runner.calls:
        runner.calibrate(share["calibration_seconds"], share["race_seconds"])
        emit({"kind": "plan", "calls": runner.calls, "block_seconds": runner.block_seconds})
    look = (share["look"], share["looks"])
    if share["floor_seconds"] is not None:
        runner.floor(share["floor_seconds"], look, share["floor_from"])
    return runner.race(share["left"](), look, isolated=share["isolated"], stop=stop, least=share["least_rounds"])


def main() -> None:
    """Import the arms' modules, make the arms when asked to, then run shares until none follows."""
    parent = ParentPipe()

    def emit(line: Line) -> None:
        parent.send(**line)

    begin = parent.receive()
    assert begin is not None
    sys.path[:] = [*sys.path, *(folder for folder in begin["path"] if folder not in sys.path)]
    specs, process = begin["arms"], begin["process"]
    for spec in specs.values():
        with suppress(ImportError, ValueError):  # `arm_from` says what is wrong with the name
            import_module(spec.partition(":")[0])
    if parent.receive() is None:
        return
    try:
        made = {name: arm_from(specs[name]) for name in construction_order(list(specs), process)}
    except InputError as error:
        emit({"kind": "error", "text": str(error)})
        return
    runner = BlockRunner({name: made[name] for name in specs}, emit, period=begin["period"], process=process)
    emit({"kind": "ready"})
    for share in parent.requests():
        end = perf_counter() + share["seconds"]
        if share["calls"]:  # the first process calibrated them, for all processes
            runner.calls, runner.block_seconds = share["calls"], share["block_seconds"]
        share["left"] = lambda end=end: end - perf_counter()
        run_share(runner, share, lambda: False, emit)
        emit({"kind": "done"})
