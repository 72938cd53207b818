"""The texts of a panel: failures, what the points need, the machine; HTML or a line."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from html import escape
from time import monotonic
from typing import NamedTuple

from tclab._display import bytes_text, counted
from tclab.masking import get as strategy_of
from tclab.sweeps.config._point import Point
from tclab.sweeps.predict._fits import Fits, fits
from tclab.timing import conditions

ERROR_COLOUR = "var(--jp-error-color1, #d55e00)"


def list_html(title: str, lines: Sequence[str], most: int = 20) -> str:
    """Return lines as an HTML list below a title; empty without lines."""
    shown = "".join(f"<li>{escape(line)}</li>" for line in lines[:most])
    more = f"<li>and {len(lines) - most} more</li>" if len(lines) > most else ""
    listed = f'<ul style="margin:0;padding-left:1.2em;line-height:1.4">{shown}{more}</ul>'
    return f"<b>{title}</b>{listed}" if lines else ""


def points_text(points: Iterable[Point]) -> str:
    """Return in a line how many points there are, how many cannot be run and why, and which are not exact.

    **Raises:** `InputError` for a graph that cannot be read.
    """
    every = list(points)
    runnable = [point for point in every if point.skipped() is None]
    words = [counted(len(every), "point")]
    if len(runnable) < len(every):
        why = next(reason for point in every if (reason := point.skipped())).removeprefix("skipped: ")
        words.append(f"{len(every) - len(runnable)} of them cannot run: {why}")
    inexact = sorted({p.strategy for p in runnable if not strategy_of(p.strategy).exact})
    if inexact:
        words.append(f"not exact: {', '.join(inexact)}")
    return " · ".join(words)


class Part(NamedTuple):
    """A part of a line of text, and whether it says that a point cannot run."""

    text: str
    refuses: bool = False


def memory_parts(
    points: Iterable[Point], stop: Callable[[], bool] = lambda: False, *, seconds: float = float("inf")
) -> list[Part]:
    """Return the memory of the point that needs the most, what there is, and each point that will not fit.

    Each strategy's largest point is estimated, which takes some seconds the first time: its step is run on meta
    tensors. Empty where no point can run. `stop` is asked before each; once it is true the result is empty. Once
    `seconds` have passed no other estimate begins, and the result says how many were left out.
    """
    needs: dict[Point, Fits] = {}
    unknown: list[str] = []
    left = 0
    end = monotonic() + seconds
    for point in _largest([point for point in points if point.skipped() is None]):
        if stop():
            return []
        if monotonic() > end:
            left += 1
            continue
        try:
            needs[point] = fits(point)
        except Exception as error:  # of a user's strategy or model; the others are estimated nevertheless
            unknown.append(f"{_named(point)} is not known: {error}")
    refused = [Part(f"{_named(point)} {need.refusal}", True) for point, need in needs.items() if need.refusal]
    heaviest = [_heaviest(needs)] if needs else []
    more = [f"{left} more {'strategy was' if left == 1 else 'strategies were'} not estimated"] if left else []
    return [*map(Part, heaviest), *refused, *map(Part, [*unknown, *more])]


def _named(point: Point) -> str:
    return f"{point.strategy}, batch {point.batch_size},"


def _heaviest(needs: dict[Point, Fits]) -> str:
    # by the bytes that a rank needs where its steps are run
    point, need = max(needs.items(), key=lambda item: item[1].host if item[1].device is None else item[1].device)
    words = [f"host memory {_of(need.host, need.host_limit)}"]
    if need.ranks > 1:
        words[0] += f" for each of {need.ranks} ranks"
    if need.device is not None:
        words.append(f"device memory {_of(need.device, need.device_limit)}")
    if need.shared:
        words.append(f"shared memory {_of(need.shared, need.shared_limit)}")
    return f"memory of the heaviest ({point.strategy}, batch {point.batch_size}): about {', '.join(words)}"


def _of(needed: int, there: int | None) -> str:
    return bytes_text(needed) if there is None else f"{bytes_text(needed)} of {bytes_text(there)}"


def _largest(points: list[Point]) -> list[Point]:
    """Return each strategy's point with the largest batch and the most networks."""
    found: dict[str, Point] = {}
    for point in sorted(points, key=lambda point: (point.batch_size, point.network_count)):
        found[point.strategy] = point
    return list(found.values())


def machine_text() -> str:
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
