"""Spans of one's own clock, laid into a trace as a track of its own."""

import gzip
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from tclab.trace.errors import TraceError
from tclab.trace.read import event_slices, head_and_rest


def lay_spans(
    trace: str | Path,
    spans: Iterable[tuple[str, int, int]],
    out: str | Path,
    *,
    track: str = "ledger",
    unix_minus_clock_ns: int | None = None,
) -> Path:
    """Write a copy of a trace to `out` (gzip) with the spans (name, start_ns, end_ns) as the track `track`.

    Spans of `time.perf_counter_ns` fit a trace made by `record` on the same machine since it was started,
    which keeps the distance of the two clocks. For any other trace or clock give `unix_minus_clock_ns`, the
    time of `time.time_ns()` less that of the spans' clock at one moment. Spans before or after everything
    in the trace are left out. The track is beside the accounting: it shows in a timeline and in no sum.

    Raises `TraceError` when the trace is none or no distance of clocks is known, and ValueError for a span
    that ends before it starts.
    """
    trace, out = Path(trace), Path(out)
    out.parent.mkdir(parents=True, exist_ok=True)
    head: dict[str, Any] = {}
    begin, finish = float("inf"), float("-inf")
    for events in event_slices(trace, head):  # the base of the file's time stands behind the last event
        for event in events:
            if event.ph == "X" and isinstance(event.ts, (int, float)) and isinstance(event.dur, (int, float)):
                begin, finish = min(begin, event.ts), max(finish, event.ts + event.dur)
    distance = unix_minus_clock_ns
    if distance is None:
        made_by = head.get("tclab_record")
        distance = made_by.get("unix_minus_perf_ns") if isinstance(made_by, dict) else None
    if not isinstance(distance, int):
        raise TraceError(
            f"{trace}: was not made by `record`, so the distance of its clock from the spans' is not known; "
            "give unix_minus_clock_ns = time.time_ns() - <the spans' clock>, taken at one moment"
        )
    base_ns = head.get("baseTimeNanoseconds") or 0
    laid: list[dict[str, Any]] = [
        {"ph": "M", "name": "process_name", "pid": track, "tid": track, "ts": 0, "args": {"name": track}}
    ]
    for name, start_ns, end_ns in spans:
        if end_ns < start_ns:
            raise ValueError(f"span {name!r} ends at {end_ns} ns, before its start at {start_ns} ns")
        ts, dur = (start_ns + distance - base_ns) / 1e3, (end_ns - start_ns) / 1e3
        if begin < ts + dur and ts < finish:
            place = {"pid": track, "tid": track}
            laid.append({"ph": "X", "cat": "ledger", "name": name, **place, "ts": ts, "dur": dur})
    write_with(trace, out, laid, {})
    return out


def write_with(trace: Path, out: Path, events: list[dict[str, Any]], head: dict[str, Any]) -> None:
    """Copy a trace to `out` (gzip), with events added in front and keys added beside `traceEvents`.

    The text is passed on as it is, so nothing of the trace is lost. Written beside `out` and renamed.
    """
    pieces = head_and_rest(trace)
    before = next(pieces)
    added = b",".join(map(msgspec.json.encode, events))
    if head and before.lstrip().startswith(b"{"):
        keys = msgspec.json.encode(head).strip()[1:-1]
        before = before.replace(b"{", b"{" + keys + b",", 1)
    partial = out.with_name(f".{out.name}.{os.getpid()}")
    try:
        with gzip.open(partial, "wb", compresslevel=4) as file:
            file.write(before + added)
            for number, piece in enumerate(pieces):
                if number == 0 and added and not piece.lstrip().startswith(b"]"):
                    file.write(b",")
                file.write(piece)
        partial.replace(out)
    finally:
        partial.unlink(missing_ok=True)
