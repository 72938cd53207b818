"""Inside forward and backward: a point's time by copies, layer, network and part, and its trace in one call."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from itertools import repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from tclab._display import Display, Shown, seconds_text
from tclab.errors import InputError, require
from tclab.sweeps.analysis._module_parts import REST, STAGES, Part, timed_parts
from tclab.sweeps.config._fields import NumberFrom1, checked
from tclab.sweeps.config._point import Point
from tclab.sweeps.config._point_inputs import resolve
from tclab.sweeps.execution._measure import may_run
from tclab.sweeps.execution._setup import Setup, setup
from tclab.timing import Ledger, receipt
from tclab.timing._ledger import NullLedger
from tclab.timing._receipt import Receipt
from tclab.training._step import WITHOUT_MODEL

if TYPE_CHECKING:
    from tclab.trace._report import Report  # it needs a package that a sweep does not

_FIRST = 2  # steps that are in no figure


@dataclass(frozen=True, repr=False)
class Inside(Shown):
    """Where forward and backward of some points spend their time.

    **Arguments:**

    - `frame`: a row for each part of each point: `point`, `copies` ("wild type", "samples", or both where a view
      computes them in one pass), `layer`, `network` (empty where several are computed in one pass), `part`, and the
      mean seconds of a step: `forward`, `backward`, `share` of both together. What is in no part is `the rest`.
    - `receipts`: point → what the parts' cuts cost; see `tclab.timing.receipt`.
    """

    frame: pd.DataFrame
    receipts: Mapping[str, Receipt]

    def by(self, *columns: str) -> pd.DataFrame:
        """Return the sums over all other columns, with a column for each point: `inside.by("layer")`."""
        figures = ["forward", "backward", "share"]
        points = self.frame.groupby("point", sort=False)
        return pd.concat({name: one.groupby([*columns], sort=False)[figures].sum() for name, one in points}, axis=1)

    def _display(self) -> Display:
        lines = []
        for (point, *names), group in self.frame.groupby(["point", "copies", "layer", "part"], sort=False):
            networks = group["network"].replace("", pd.NA).dropna().nunique()
            part = " · ".join(
                filter(None, [*map(str, names), f"{networks} network{'s' * (networks > 1)}" if networks else ""])
            )
            times = [seconds_text(group[stage].sum()) for stage in STAGES]
            lines.append((str(point).partition(" ")[0], part, *times, f"{group['share'].sum():.1%}"))
        points = ", ".join(map(str, dict.fromkeys(self.frame["point"])))
        notes = [f"{point}: {'; '.join(cost._display().notes)}" for point, cost in self.receipts.items()]
        return Display(f"Inside forward and backward of {points}", ("model", "part", *STAGES, "share"), lines, notes)


def inside(*points: Point, steps: int = 10, receipt_seconds: float = 10.0) -> Inside:
    """Return where the forward and the backward of each point spend their time, part by part.

    Each point runs in this process, after its equivalence check, on one batch that is kept. The parts are calls of the
    model's modules and of its view's methods, and what their gradients take in the backward; a part within another is
    taken out of it, so that parts and rest add up to the stage. Under `torch.compile` nothing is told apart.

    **Arguments:**

    - `points`: to be compared, say HeteroCell and DANGO, each with a batch size of its own.
    - `steps`: of each. `receipt_seconds`: for the race that tells what the parts' cuts cost; 0 for none.

    **Raises:** `InputError` for a point that cannot run here, or whose strategy is wrong.
    """
    checked("steps", steps, NumberFrom1)
    frames, receipts = [], {}
    for point in points:
        require("point", point, Point, "a tclab.Point")
        name = f"{point.model} · {point.strategy} · batch {point.batch_size}"
        point = _alone(replace(point, mode="fixed_batch", workers=0, ranks=1))
        with setup(point, point.batch_size) as here:
            batch = next(here.batches())
            parts: dict[str, tuple[str, Part]] = {}

            def loop(ledger: Ledger | NullLedger, steps: int = 1) -> None:
                if isinstance(ledger, NullLedger):
                    here.run(repeat(batch), steps=steps, ledger=ledger)  # noqa: B023 (called within this turn)
                    return
                with _parts_of(here, ledger) as found:
                    here.run(repeat(batch), steps=steps, ledger=ledger)  # noqa: B023
                parts.update(found)  # noqa: B023

            here.run(repeat(batch), steps=_FIRST)
            ledger = Ledger(cuda=point.device == "cuda")
            loop(ledger, steps)
            if receipt_seconds:
                receipts[name] = receipt(loop, budget_seconds=receipt_seconds)
        frames.append(_frame(name, ledger, parts))
    if not frames:
        raise InputError("there are no points, expected at least one")
    return Inside(pd.concat(frames, ignore_index=True), receipts)


def _parts_of(here: Setup, ledger: Ledger) -> AbstractContextManager[dict[str, tuple[str, Part]]]:
    return nullcontext({}) if here.point.compile else timed_parts(here.step, ledger)  # the compiler would see the hooks


def _alone(point: Point) -> Point:
    """Return a point as it is run here, resolved and checked."""
    require("point", point, Point, "a tclab.Point")
    reason = point.skipped_alone("this")
    if reason is None and point.mode in WITHOUT_MODEL:
        reason = f"mode {point.mode!r} has no model"
    if reason is not None:
        raise InputError(f"nothing is to be seen inside this point: {reason}")
    point = resolve(point)
    if not may_run(point):
        raise InputError(f"{point.strategy} does not give what 'subgraph' gives: it is not timed")
    return point


def _frame(name: str, ledger: Ledger, parts: Mapping[str, tuple[str, Part]]) -> pd.DataFrame:
    took: dict[Part, dict[str, float]] = {}
    seconds = ledger.seconds("device" if ledger.cuda else "host")
    for stage, (of, part) in {**parts, **{of: (of, REST) for of in STAGES}}.items():
        took.setdefault(part, dict.fromkeys(STAGES, 0.0))[of] += sum(seconds.get(stage, ())) / len(ledger)
    whole = sum(sum(one.values()) for one in took.values())
    rows: list[dict[str, Any]] = [
        {"point": name, **part._asdict(), **one, "share": sum(one.values()) / whole} for part, one in took.items()
    ]
    return pd.DataFrame(rows)


def trace_point(
    point: Point, folder: str | Path, *, wait: int = 6, warmup: int = 1, active: int = 3, **options: Any
) -> Report:
    """Run a point under torch.profiler in this process, after its equivalence check, and return the trace's report.

    The trace is in `folder`; it has a mark a stage and, on the track `parts`, what forward and backward were at. A
    finding says how many times as long a profiled step takes as one of the `wait` before it. `tclab.trace.compare` puts
    two of them side by side, and what the profiler makes of their ratio.

    **Arguments:**

    - `wait`, `warmup`, `active`, `options`: as for `tclab.trace.record`.

    **Raises:** `InputError` for a point without a model or of several ranks, and as `inside`.
    """
    from tclab import trace  # late: it needs a package that a sweep does not

    point = _alone(point)
    steps = wait + warmup + active
    ledger = Ledger(cuda=point.device == "cuda", marks=True)
    with setup(point, (steps + 1) * point.batch_size) as here:
        batches = repeat(next(here.batches())) if point.mode == "fixed_batch" else here.batches()
        try:
            here.run(batches, steps=1)
            with (
                _parts_of(here, ledger),
                trace.record(folder, wait=wait, warmup=warmup, active=active, steps=steps, **options) as recorder,
            ):
                for _ in range(steps):
                    here.run(batches, steps=1, ledger=ledger)
                    recorder.step()
        finally:
            del batches  # ends the workers
    assert recorder.path is not None
    trace.lay_spans(recorder.path, ledger.spans(), recorder.path, track="parts")
    return trace.analyze(recorder.path)
