"""The traces of all ranks on one timeline, after their clocks are aligned."""

import gzip
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pandas as pd

from tclab._io import atomic_write, writing
from tclab.trace._events import Trace
from tclab.trace._read_trace import TraceError
from tclab.trace._report import Report, analyze
from tclab.trace._trust import MIN_COLLECTIVES

_PIECE = 20_000  # events that are written at a time


def merge(path: str | Path | Report, out: str | Path) -> pd.DataFrame:
    """Write the traces of a folder, one per rank, as one Chrome trace on the first rank's clock.

    Perfetto and chrome://tracing open it: processes are named by rank. It holds all events with a duration, with
    their names, categories and correlation; arguments and arrows stay in the ranks' own files.

    **Arguments:**

    - `path`: a folder with one trace per rank, or a report of `analyze`.
    - `out`: the file to write, gzipped.

    **Returns:** one row per rank: rank, ahead_us (what its clock was ahead of the first one's, now taken off),
    error_us (how far single collectives disagree) and collectives. The file's `tclab_clocks` holds the same.

    **Raises:** `TraceError` where a rank shares too few collectives with the first one: its clock is not known.
    """
    report = path if isinstance(path, Report) else analyze(path)
    clocks, traces = report.trust.clocks, report.traces
    unknown = clocks[clocks["ahead_us"].isna()]["rank"].tolist()
    if unknown:
        raise TraceError(
            f"{traces[0].path.parent}: the clock of rank {unknown[0]} cannot be aligned with that of "
            f"{traces[0].label}: they share fewer than {MIN_COLLECTIVES} collectives; look at the ranks one by one"
        )
    rows = clocks.to_dict("records")
    said = [{str(key): value for key, value in row.items()} for row in rows]
    head = b'{"tclab_clocks":' + msgspec.json.encode(said) + b',"traceEvents":['
    start = min(_zero(trace, traces[0], row["ahead_us"]) for trace, row in zip(traces, rows, strict=True))

    def write(to: Path) -> None:
        with gzip.open(to, "wb", compresslevel=4) as file:
            file.write(head)
            comma = b""
            for trace, row in zip(traces, rows, strict=True):
                shift = _zero(trace, traces[0], row["ahead_us"]) - start
                for events in _shifted(trace, shift):
                    file.write(comma + msgspec.json.encode(events)[1:-1])
                    comma = b","
            file.write(b"]}")

    out = Path(out)
    with writing("out", out):
        out.parent.mkdir(parents=True, exist_ok=True)
        atomic_write(out, write)
    return clocks


def _zero(trace: Trace, first: Trace, ahead_us: float) -> float:
    """Return a trace's tick 0 on the first rank's clock, µs since the first rank's tick 0."""
    return (trace.base_ns - first.base_ns) / 1e3 + (trace.origin_us - first.origin_us) - ahead_us


def _shifted(trace: Trace, shift_us: float) -> Iterator[list[dict[str, object]]]:
    processes = {key: number for number, key in enumerate(dict.fromkeys(process for process, _ in trace.tracks))}
    offset = 1000 * (trace.rank or 0)
    yield [
        {"ph": "M", "name": "process_name", "pid": offset + number, "tid": 0, "ts": 0,
         "args": {"name": f"{trace.label}, {process}"}}
        for process, number in processes.items()
    ]  # fmt: skip
    for since in range(0, len(trace), _PIECE):
        events = []
        for row in range(since, min(since + _PIECE, len(trace))):
            process, thread = trace.tracks[trace.track[row]]
            event: dict[str, object] = {
                "ph": "X",
                "cat": trace.categories[trace.category[row]],
                "name": trace.names[trace.name[row]],
                "pid": offset + processes[process],
                "tid": thread if isinstance(thread, (int, str)) else str(thread),
                "ts": round(float(trace.us(trace.start[row])) + shift_us, 6),
                "dur": float(trace.us(trace.duration[row])),
            }
            if trace.correlation[row] >= 0:
                event["args"] = {"correlation": int(trace.correlation[row])}
            events.append(event)
        yield events
