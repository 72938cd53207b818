"""What a Slurm job does: the same sweep as on one machine, over its points, into the same folder."""

from __future__ import annotations

import json
import os
import signal
from types import FrameType
from typing import Any

from tclab.errors import InputError
from tclab.sweeps.meeting import MEETING, call_off, called
from tclab.sweeps.own_code import import_own
from tclab.sweeps.point import Point
from tclab.sweeps.results import WHERE, Results, key_of
from tclab.sweeps.running import abandon, close_children, run_on_machines
from tclab.sweeps.sweeping import Progress, sweep
from tclab.sweeps.tickets import Landed, Tickets


def work(request: str) -> None:
    """Run the points of a request, and write down what became of each as soon as it is through.

    **Arguments:**

    - `request`: JSON: `results`, a folder; `points`, fields by ticket; the sweep's options; `where`, what decides
      the kind of machine; and what must be imported first.

    It runs once on each of the job's nodes: the first one sweeps, the others lend their ranks.
    """
    signal.signal(signal.SIGTERM, _end)  # submitit ignores it, and a cancelled job would linger
    asked: dict[str, Any] = json.loads(request)
    os.environ[WHERE] = json.dumps(asked["where"])
    import_own(asked["modules"], asked["path"])
    tickets = Tickets(Results(asked["results"]))
    node, this_run = os.environ.get("SLURM_NODEID", "0"), _this_run()
    for name, fields in asked["points"].items():
        point = Point.from_dict(fields)
        if point.machines > 1:
            os.environ[MEETING] = str(tickets.folder / f"{name}.{this_run}.meeting")
        if node == "0":
            _run(tickets, name, point, asked["submission"], asked["options"])
        else:
            _join(point, int(node), asked["options"])
    close_children()


def _this_run() -> str:
    """Return what tells this run of a job from others: its number, and how often Slurm has started it again."""
    return f"{os.environ.get('SLURM_JOB_ID', os.getpid())}-{os.environ.get('SLURM_RESTART_COUNT', 0)}"


def _run(tickets: Tickets, name: str, point: Point, submission: str, options: dict[str, Any]) -> None:
    def land(progress: Progress) -> None:
        tickets.land(name, Landed(submission, rows=f"{key_of(progress.point)}.parquet"))

    try:
        sweep([point], results=tickets.results.folder, progress=land, **options)
    except InputError as error:  # this machine cannot run it: device="cuda" where there is none
        tickets.land(name, Landed(submission, error=str(error)))
    finally:
        if point.machines > 1:
            call_off()  # where it was there already, or cannot be


def _join(point: Point, node: int, options: dict[str, Any]) -> None:
    """Have this node's ranks meet those of node 0, which sweeps."""
    endpoint = called()
    if endpoint is not None:
        more = {name: options[name] for name in ("memory_bytes", "hang_seconds")}
        run_on_machines(point.resolved(), node, endpoint, **more)


def _end(number: int, frame: FrameType | None) -> None:
    """End at once, and the children first."""
    abandon()
    close_children()
    os._exit(128 + number)
