"""What a panel says: a table of the last points, what failed, what is to come, the machine; as HTML or a line."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from html import escape
from time import monotonic

import pandas as pd

from tclab.lab.words import findings
from tclab.masking import get as strategy_of
from tclab.sweeps import Fits, Point, expected_batch_bytes, fits
from tclab.timing import conditions
from tclab.timing.units import bytes_text

_SHOWN = 12  # points in the table
BAD = "var(--jp-error-color1, #d55e00)"
_CELL = "padding:2px 8px 2px 0;text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap"


def _whole_steps(rows: pd.DataFrame) -> pd.DataFrame:
    return rows[rows["stage"] == "step"]


def points_table(rows: pd.DataFrame) -> str:
    """Return the last points as an HTML table, the newest first; the rest are counted, not shown."""
    steps = _whole_steps(rows)
    if steps.empty:
        return ""
    head = "".join(
        f'<th style="{_CELL};font-weight:600">{name}</th>'
        for name in ("strategy", "batch", "networks", "step [ms]<br>[quartiles]", "samples/s", "bytes<br>a batch")
    )
    lines = []
    for _, row in steps.iloc[: -_SHOWN - 1 : -1].iterrows():
        if row["status"] == "ok":
            figures = [
                "{:.4g} [{:.4g}, {:.4g}]".format(
                    *(1e3 * row[f"{name}_seconds"] for name in ("median", "q1", "q3"))
                ),
                f"{row['samples_per_second']:.4g}",
                bytes_text(row["batch_bytes"]),
            ]
            cells = "".join(f'<td style="{_CELL}">{figure}</td>' for figure in figures)
        else:
            cells = f'<td colspan="3" style="{_CELL};text-align:left;color:{BAD}">{escape(row["status"])}</td>'
        networks = "" if pd.isna(row["networks"]) else row["networks"]
        lines.append(
            f'<tr><td style="{_CELL}">{escape(row["strategy"])}</td><td style="{_CELL}">{row["batch_size"]}</td>'
            f'<td style="{_CELL}">{networks}</td>{cells}</tr>'
        )
    more = len(steps) - len(lines)
    said = f"<div>and {more} more, in <code>panel.rows()</code></div>" if more > 0 else ""
    style = "border-collapse:collapse;line-height:1.5;font-size:11px"
    return f'<table style="{style}"><tr>{head}</tr>{"".join(lines)}</table>{said}'


def failures(rows: pd.DataFrame) -> list[str]:
    """Return a line for each kind of point that has no figures, with how many there are."""
    lost = _whole_steps(rows)
    lost = lost[lost["status"] != "ok"]
    said = []
    for (model, strategy, status), own in lost.groupby(["model", "strategy", "status"], sort=False):
        batches = ", ".join(str(b) for b in sorted(set(own["batch_size"])))
        said.append(f"{model} · {strategy} · batch {batches}: {status}")
    return said


def listed_html(lines: Sequence[str], most: int = 20) -> str:
    """Return lines as an HTML list."""
    shown = "".join(f"<li>{escape(line)}</li>" for line in lines[:most])
    more = f"<li>and {len(lines) - most} more</li>" if len(lines) > most else ""
    return f'<ul style="margin:0;padding-left:1.2em;line-height:1.4">{shown}{more}</ul>' if lines else ""


def found(rows: pd.DataFrame) -> str:
    """Return what rows say, as HTML; empty where there are none."""
    return "" if rows.empty else f"<b>What was found</b>{listed_html(findings(rows), 8)}"


def ahead(points: Iterable[Point]) -> str:
    """Return what some points will be and need, in a line: how many, and what the heaviest batch carries.

    **Raises:** `InputError` for a graph that cannot be read.
    """
    every = list(points)
    runnable = [point for point in every if point.skipped() is None]
    words = [f"{len(every)} point" + ("s" if len(every) != 1 else "")]
    if len(runnable) < len(every):
        words.append(f"{len(every) - len(runnable)} of them cannot be: {_first_reason(every)}")
    needs = {}
    for point in _largest(runnable):
        found = expected_batch_bytes(point)
        if found is not None:
            needs[point.strategy, point.batch_size] = found
    if needs:
        (strategy, batch), most = max(needs.items(), key=lambda item: item[1])
        words.append(f"heaviest batch about {bytes_text(most)} ({strategy}, batch {batch})")
    inexact = sorted({p.strategy for p in runnable if not strategy_of(p.strategy).exact})
    if inexact:
        words.append(f"not exact: {', '.join(inexact)}")
    return " · ".join(words)


def weighed(
    points: Iterable[Point], stop: Callable[[], bool] = lambda: False, *, seconds: float = float("inf")
) -> str:
    """Return what the point that holds the most needs in memory, beside what there is, and all that will not fit.

    Each strategy's largest point is weighed, which takes some seconds the first time: its step is run on tensors
    without data. Empty where no point can run.

    **Arguments:**

    - `stop`: asked before each; once it is true nothing is said.
    - `seconds`: once they have passed no other is begun, and how many were left out is said.
    """
    needs: dict[Point, Fits] = {}
    unknown: list[str] = []
    left = 0
    end = monotonic() + seconds
    for point in _largest([point for point in points if point.skipped() is None]):
        if stop():
            return ""
        if monotonic() > end:
            left += 1
            continue
        try:
            needs[point] = fits(point)
        except Exception as error:  # of a strategy or a model of one's own; the others are told nevertheless
            unknown.append(f"{_named(point)} is not known: {error}")
    refused = [f"{_named(point)} {need.refusal}" for point, need in needs.items() if need.refusal]
    heaviest = [_heaviest(needs)] if needs else []
    more = [f"{left} more strategies were not weighed"] if left else []
    return " · ".join([*heaviest, *refused, *unknown, *more])


def _named(point: Point) -> str:
    return f"{point.strategy}, batch {point.batch_size},"


def _heaviest(needs: dict[Point, Fits]) -> str:
    point = max(needs, key=lambda point: _held(needs[point]))
    need = needs[point]
    words = [f"host memory {_of(need.host, need.host_limit)}"]
    if need.ranks > 1:
        words[0] += f" for each of {need.ranks} ranks"
    if need.device is not None:
        words.append(f"device memory {_of(need.device, need.device_limit)}")
    if need.shared:
        words.append(f"shared memory {_of(need.shared, need.shared_limit)}")
    return f"memory of the heaviest ({point.strategy}, batch {point.batch_size}): about {', '.join(words)}"


def _held(need: Fits) -> int:
    """Return what a rank holds where its steps are run."""
    return need.host if need.device is None else need.device


def _of(needed: int, there: int | None) -> str:
    return bytes_text(needed) if there is None else f"{bytes_text(needed)} of {bytes_text(there)}"


def _first_reason(points: list[Point]) -> str:
    return next(reason for point in points if (reason := point.skipped())).removeprefix("skipped: ")


def _largest(points: list[Point]) -> list[Point]:
    """Return of each strategy the point with the largest batch and the most networks."""
    found: dict[str, Point] = {}
    for point in sorted(points, key=lambda point: (point.batch_size, point.network_count)):
        found[point.strategy] = point
    return list(found.values())


def machine_now() -> str:
    """Return the load and the memory of this machine now, and of its GPU where there is one."""
    now = conditions()
    words = []
    if now["load"] is not None:
        words.append(f"load {now['load']:.1f}")
    if now["memory_available_bytes"] is not None:
        words.append(f"{bytes_text(float(now['memory_available_bytes']))} of memory free")
    if now["gpu_memory_used_bytes"] is not None and now["gpu_memory_total_bytes"] is not None:
        used, total = float(now["gpu_memory_used_bytes"]), float(now["gpu_memory_total_bytes"])
        words.append(f"GPU memory {bytes_text(used)} of {bytes_text(total)}")
    if now["gpu_busy_percent"] is not None:
        words.append(f"GPU busy {now['gpu_busy_percent']} %")
    return " · ".join(words)


def duration_text(seconds: float) -> str:
    """Return a duration as people read it: "8 s", "3 min 5 s", "2 h 10 min"."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"
