"""What a Slurm job does: the same sweep as on one machine, over its points, into the same folder."""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
from types import FrameType
from typing import Any

from tclab.errors import InputError
from tclab.sweeps.point import Point
from tclab.sweeps.results import Results, key_of
from tclab.sweeps.running import close_children
from tclab.sweeps.sweeping import Progress, sweep
from tclab.sweeps.tickets import Landed, Tickets


def work(request: str) -> None:
    """Run the points of a request, and write down what became of each as soon as it is through.

    **Arguments:**

    - `request`: JSON: `results`, a folder; `points`, fields by ticket; the sweep's options; and what must be
      imported first.
    """
    signal.signal(signal.SIGTERM, _end)  # submitit ignores it, and a cancelled job would linger
    asked: dict[str, Any] = json.loads(request)
    sys.path[:] = [*sys.path, *(folder for folder in asked["path"] if folder not in sys.path)]
    for module in asked["modules"]:  # where strategies and models of the user's own are registered
        importlib.import_module(module)
    tickets = Tickets(Results(asked["results"]))
    for name, fields in asked["points"].items():
        _run(tickets, name, Point.from_dict(fields), asked["submission"], asked["options"])
    close_children()


def _run(tickets: Tickets, name: str, point: Point, submission: str, options: dict[str, Any]) -> None:
    def land(progress: Progress) -> None:
        tickets.land(name, Landed(submission, rows=f"{key_of(progress.point)}.parquet"))

    try:
        sweep([point], results=tickets.results.folder, progress=land, **options)
    except InputError as error:  # this machine cannot run it: device="cuda" where there is none
        tickets.land(name, Landed(submission, error=str(error)))


def _end(number: int, frame: FrameType | None) -> None:
    """End at once, and the children first."""
    close_children()
    os._exit(128 + number)
