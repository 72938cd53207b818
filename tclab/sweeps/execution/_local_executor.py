"""The executor that runs a sweep's points one after the other on this machine."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from time import monotonic

import pyarrow as pa

from tclab.errors import InputError
from tclab.sweeps.config._point import Point
from tclab.sweeps.execution._executor import Progress, SweepOptions, failed_or_oom
from tclab.sweeps.execution._run import point_rows
from tclab.sweeps.store._results import Results
from tclab.sweeps.store._rows import not_measured


class LocalExecutor:
    """Runs points one after the other in warm worker processes of this machine; an `Executor`.

    **Arguments:**

    - `budget_seconds`: start no point after so long; see `tclab.sweep`.
    - `refusal`: returns why a point is not to be run, or `None`; asked before each that would be.
    """

    def __init__(
        self, *, budget_seconds: float | None = None, refusal: Callable[[Point], str | None] | None = None
    ) -> None:
        if budget_seconds is not None and not budget_seconds > 0:
            raise InputError(f"budget_seconds is {budget_seconds!r}, expected a number above 0, or None for no limit")
        self._budget_seconds = budget_seconds
        self._refusal = refusal

    def run(self, points: list[Point], options: SweepOptions) -> list[pa.Table]:
        """Return the rows of each point: those that are kept, and of the others those that they are run for."""
        results = Results(options.results).make()
        begin, any_run = monotonic(), False
        not_kept: str | None = None  # why no more rows can be kept
        tables: list[pa.Table] = []
        for done, point in enumerate(points, start=1):
            if options.stopped:
                tables.append(not_measured(point, "not run: stopped"))
                continue
            definite = point.resolved()
            name = results.name(definite)
            rows = results.read_file(name)
            if rows is not None and not (options.retry and failed_or_oom(rows)):
                tables.append(rows)
                options.report(Progress(done, len(points), point, rows, kept=True))
                continue
            if not_kept is None and self._budget_seconds is not None and monotonic() - begin > self._budget_seconds:
                tables.append(not_measured(point, f"not run: the budget of {self._budget_seconds:g} s was spent"))
                continue
            refusal = not_kept
            if refusal is None and self._refusal is not None and not definite.skipped():
                refusal = self._refusal(definite)
            if refusal is not None:
                tables.append(not_measured(point, f"not run: {refusal}"))
                options.report(Progress(done, len(points), point, tables[-1], kept=False))
                continue
            starts_ranks = not any_run and point.ranks > 1
            any_run = True
            rows = point_rows(
                definite, fresh=options.fresh, memory_bytes=options.memory_bytes, hang_seconds=options.hang_seconds
            )
            if options.stopped and failed_or_oom(rows):  # the stop killed its worker
                tables.append(not_measured(point, "not run: stopped"))
                continue
            if starts_ranks:  # which is not what the budget is for
                begin = monotonic()
            if not rows["status"][0].as_py().startswith("not run"):
                try:
                    results.write_file(name, point, rows)
                except InputError as error:  # the disk is full: what was measured is returned, and the rest waits
                    not_kept = str(error)
                    warnings.warn(f"{not_kept}. The sweep returns them, and runs no other point", stacklevel=3)
            tables.append(rows)
            options.report(Progress(done, len(points), point, rows, kept=False))
        return tables
