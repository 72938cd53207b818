"""One fresh process of a race: JSON lines in, JSON lines out; started as `python -m tclab.timing.race_child`."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any

from tclab.timing.blocks import Runner
from tclab.timing.errors import TimingError


def made(spec: str) -> Callable[[], Any]:
    """Return the arm that a factory, named "module:function" or "module:function:text", makes in this process.

    A text is the factory's argument.

    **Raises:** `TimingError` that says which part of the name does not hold.
    """
    module, name, *text = [*spec.split(":", 2), ""][: 3 if spec.count(":") > 1 else 2]
    if not module or not name:
        raise TimingError(f"arm {spec!r}, expected 'module:function', a factory that returns the call to time")
    try:
        factory = getattr(import_module(module), name)
    except ImportError as error:
        raise TimingError(
            f"arm {spec!r}: {error}; its module must be one that a fresh process can import"
        ) from None
    except AttributeError:
        raise TimingError(f"arm {spec!r}: module {module!r} has no {name!r}") from None
    arm = factory(*text)
    if not callable(arm):
        raise TimingError(f"arm {spec!r} made {arm!r}, expected a factory that returns the call to time")
    return arm


def run_share(runner: Runner, share: dict[str, Any], stop: Callable[[], bool], say: Callable[..., None]) -> bool:
    """Run one share of a race's seconds with a runner: what it still lacks first, then rounds."""
    if share["warm"]:
        runner.warm()
    if not runner.calls:
        runner.calibrate(share["calibration_seconds"], share["race_seconds"])
        say({"kind": "plan", "calls": runner.calls})
    look = (share["look"], share["looks"])
    if share["floor_seconds"] is not None:
        runner.floor(share["floor_seconds"], look, share["floor_from"])
    return runner.race(share["left"](), look, isolated=share["isolated"], stop=stop, least=share["least_rounds"])


def main() -> None:
    """Make the arms, then serve shares until standard input ends."""
    from time import perf_counter

    # Answers go out on a descriptor of their own: what an arm prints must not mix with them.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)

    def say(line: dict[str, Any]) -> None:
        answers.write(json.dumps(line) + "\n")

    begin = json.loads(sys.stdin.readline())
    sys.path[:] = [*sys.path, *(folder for folder in begin["path"] if folder not in sys.path)]
    try:
        arms = {name: made(spec) for name, spec in begin["arms"].items()}
    except TimingError as error:
        say({"kind": "error", "text": str(error)})
        return
    runner = Runner(arms, say, period=begin["period"], calls=begin["calls"], stamp=begin["stamp"])
    say({"kind": "ready"})
    for line in sys.stdin:
        share = json.loads(line)
        end = perf_counter() + share["seconds"]
        if share["calls"]:  # the first process found them; the same for all
            runner.calls = share["calls"]
        share["left"] = lambda end=end: end - perf_counter()
        run_share(runner, share, lambda: False, say)
        say({"kind": "done"})


if __name__ == "__main__":
    main()
