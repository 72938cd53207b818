"""Trace files: what kineto writes, decoded into columns.

Read are traces of torch 1.8 to 2.14: times in whole µs or in ns after `baseTimeNanoseconds`, keys before or after the
events, categories in mixed case; the categories of 2.15 are known too. An out-of-tree device may name categories of its
own: an event that says on which `device` or `stream` it ran is that device's, whatever its category is called.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Hashable, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pandas as pd

from tclab._display import us_text
from tclab._source import opened
from tclab.trace._events import DEVICE_CATEGORIES, SECOND, TORCH_CATEGORIES, US, Bools, Floats, Ints, Trace, TraceError
from tclab.trace._nesting import union

_CHUNK = 10_000  # events that are decoded at a time: all of a large trace would not fit in memory as objects
_LONGEST = 4 * 10**18  # ticks: more than a century
_SINCE_1970 = 10**13  # ticks, three hours: times of today, or since the quarter that kineto counts from, are later
_MOST = 2**52  # µs since 1970: the year 2112
_EXACT_BELOW = 2**43  # µs, more than the quarter of a year that kineto counts from: a float of less holds its ns
_MISSING = -(2**63)


class _Args(msgspec.Struct, gc=False, frozen=True):
    """The arguments of an event that the analysis uses; the decoder skips the rest. ROCm writes numbers as columns."""

    correlation: float | str | None = None
    bytes: float | str | None = None
    size: Any = None
    device: Any = None
    stream: Any = None
    collective: Any = msgspec.field(name="Collective name", default=None)
    group: Any = msgspec.field(name="Process Group Name", default=None)
    ranks: Any = msgspec.field(name="Process Group Ranks", default=None)
    sequence: float | str | None = msgspec.field(name="Seq", default=None)
    elements: float | str | None = msgspec.field(name="In msg nelems", default=None)
    dims: msgspec.Raw = msgspec.field(name="Input Dims", default=msgspec.Raw(b""))


class _Event(msgspec.Struct, gc=False):
    """One entry of `traceEvents`."""

    ph: str = ""
    cat: str | None = None
    name: str | None = None
    pid: int | float | str | None = None
    tid: int | float | str | None = None
    ts: int | float | str | None = None
    dur: int | float | str | None = None
    id: Any = None
    args: _Args = _Args()


class _ExactEvent(_Event, gc=False):
    """An entry with its times as they are written, since a float of µs since 1970 holds no ns."""

    ts: Decimal | None = None  # type: ignore[assignment]
    dur: Decimal | None = None  # type: ignore[assignment]


class _File(msgspec.Struct):
    """A trace: its events, each as text, and the keys next to them that describe how it was made."""

    traceEvents: list[msgspec.Raw]
    distributedInfo: dict[str, Any] = {}
    deviceProperties: list[dict[str, Any]] = []
    baseTimeNanoseconds: int | float = 0
    record_shapes: Any = None


_FILE = msgspec.json.Decoder(_File | list[msgspec.Raw])
_EVENTS, _EXACT_EVENTS = msgspec.json.Decoder(list[_Event]), msgspec.json.Decoder(list[_ExactEvent])


class _Codes(dict[Hashable, int]):
    """Values → small integers, in the order in which they first occur."""

    def __missing__(self, key: Hashable) -> int:
        self[key] = code = len(self)
        return code

    def of(self, values: list[Any]) -> Ints:
        return np.fromiter(map(self.__getitem__, values), dtype=np.int64, count=len(values))


def _numbers(values: list[Any]) -> Floats:
    """Return numbers, and columns that hold one, as floats; NaN for null and for what is none."""
    if {*map(type, values)} <= {int, float, type(None)}:
        return np.array(values, dtype=np.float64)
    return pd.to_numeric(pd.Series(values, dtype=object), errors="coerce").to_numpy(np.float64)


def _ticks(values: list[Any]) -> Ints:
    """Return µs as whole ticks, cut to a century; `_MISSING` for null."""
    if Decimal in {*map(type, values)}:
        known = [None if us is None or us.is_nan() else max(min(us, _MOST), -_MOST) for us in values]
        return np.array([_MISSING if us is None else round(us * 1000) for us in known], dtype=np.int64)
    floats = np.clip(np.array(values, dtype=np.float64), -_MOST, _MOST)
    part, whole = np.modf(np.nan_to_num(floats))
    return np.where(np.isnan(floats), _MISSING, whole.astype(np.int64) * 1000 + np.rint(part * 1000).astype(np.int64))


class _Columns:
    """The columns of a file while its events are decoded."""

    def __init__(self) -> None:
        self.codes = {name: _Codes() for name in ("names", "categories", "tracks")}  # columns of `Trace`
        self.codes |= {name: _Codes({empty: 0}) for name, empty in (("shape_texts", b""), ("collectives", ""))}
        self.left_out: Counter[str] = Counter()
        self.events: list[dict[str, Any]] = []  # those with a duration, and ends of links, of each chunk
        self.links: dict[str, list[tuple[str, int, int]]] = {"s": [], "f": []}  # ends by phase: id, track, ticks

    def add(self, text: bytes) -> None:
        """Take a chunk of events, a list as JSON."""
        written: Sequence[_Event] = _EVENTS.decode(text)
        floats = [event.ts for event in written if type(event.ts) is float]
        if max(floats, default=0) >= _EXACT_BELOW or str in {type(us) for e in written for us in (e.ts, e.dur)}:
            written = _EXACT_EVENTS.decode(text)
        phases = Counter([event.ph for event in written])
        self.left_out["begin and end marks (only complete events, ph X, are read)"] += phases["B"] + phases["E"]
        events = [e for e in written if e.ph == "X" or (e.cat == "fwdbwd" and e.ph in ("s", "f"))]
        args = [event.args for event in events]
        correlation = _numbers([a.correlation for a in args])
        moved = [a.bytes if a.bytes is not None else a.elements if a.size is None else a.size for a in args]
        kinds = [event.cat if event.cat in TORCH_CATEGORIES else _category(event) for event in events]
        columns = {
            "is_event": np.array([event.ph == "X" for event in events], dtype=bool),
            "start": _ticks([event.ts for event in events]),
            "duration": _ticks([event.dur for event in events]),
            "name": self.codes["names"].of([event.name or "" for event in events]),
            "category": self.codes["categories"].of(kinds),
            "track": self.codes["tracks"].of([(event.pid, event.tid) for event in events]),
            "correlation": np.where(abs(correlation) < 2**53, correlation, -1).astype(np.int64),  # a NaN is not
            "size": _numbers(moved),
            "shapes": self.codes["shape_texts"].of([bytes(a.dims) if a.dims else b"" for a in args]),
            "collective": self.codes["collectives"].of(["" if a.collective is None else _collective(a) for a in args]),
            "sequence": _numbers([a.sequence for a in args]),
        }
        self.events.append(columns)
        for i in np.flatnonzero(~columns["is_event"] & (columns["start"] != _MISSING)).tolist():
            end = f"{events[i].id} of {events[i].pid}", int(columns["track"][i]), int(columns["start"][i])
            self.links[events[i].ph].append(end)


def _collective(args: _Args) -> str:
    """Return what a collective does in which group, as far as it is recorded."""
    return f"{args.collective} of group {args.group}" + (f" {args.ranks}" if args.ranks else "")


def _category(event: _Event) -> str:
    """Return an event's category in lower case; kineto's for a device's event whose maker calls it otherwise."""
    category = (event.cat or "").lower()
    if category in TORCH_CATEGORIES or (event.args.device is None and event.args.stream is None):
        return category
    name = (event.name or "").lower()
    return next((kind for kind in ("memcpy", "memset") if kind in name), "kernel")


def read_trace(path: Path) -> Trace:
    """Return one trace file, gzipped or not, as columns.

    **Raises:** `TraceError` for a file that is no trace or has no event with a duration.
    """
    columns = _Columns()
    with opened(path, "a trace of torch.profiler", TraceError) as content:
        found = _parsed(content)
        for since in range(0, max(len(found.traceEvents), 1), _CHUNK):
            text = b"[" + b",".join(found.traceEvents[since : since + _CHUNK]) + b"]"
            try:
                columns.add(text)
            except msgspec.ValidationError as error:
                raise ValueError(f"an event is none of torch.profiler: {error}, counted from event {since:,}") from None
        found.traceEvents.clear()
    return _trace(path, found, columns)


def _parsed(text: bytes) -> _File:
    """Return the events of a file, each as text, and its other keys.

    **Raises:** `ValueError` with the place where its JSON breaks, or with what is there instead of a trace.
    """
    if text.startswith(b"[") and not text.rstrip().endswith(b"]"):
        text = text.rstrip().rstrip(b",") + b"]"  # other writers than kineto may omit it, which the format allows
    try:
        found = _FILE.decode(text)
    except msgspec.ValidationError as error:
        raise ValueError(f"is JSON, but no trace: {error}") from None
    except msgspec.DecodeError as error:
        raise ValueError(_broken(text, str(error))) from None
    return found if isinstance(found, _File) else _File(found)


def _broken(text: bytes, error: str) -> str:
    place = re.search(r" ?\(byte (\d+)\)", error)
    if place is None:
        return f"is not valid JSON: the file ends in the middle of a value, after {len(text):,} bytes"
    found = text[int(place[1]) :][:12].decode("utf-8", "replace")
    what = error.replace(place[0], "").removeprefix("JSON is malformed: ")
    return f"is not valid JSON at byte {place[1]}: {what}, found {found!r}"


def _trace(path: Path, file: _File, found: _Columns) -> Trace:
    columns: dict[str, Any] = {name: np.concatenate([of[name] for of in found.events]) for name in found.events[0]}
    is_event, start, duration, left_out = columns.pop("is_event"), columns["start"], columns["duration"], found.left_out
    timed, negative = (start != _MISSING) & (duration != _MISSING), duration < 0
    left_out["events whose time or duration is not a number"] = int((is_event & ~timed).sum())
    left_out["events with a negative duration"] = int((is_event & timed & negative).sum())
    rows = np.flatnonzero(is_event & timed & ~negative)
    untimed = (start[rows] == 0) & (len(rows) > 0 and np.median(start[rows]) > _SINCE_1970)
    left_out["at time 0, as an event that its device did not time"] = int(untimed.sum())
    rows = rows[~untimed]
    if len(rows) == 0:
        reasons = "; ".join(f"{count} {reason}" for reason, count in left_out.items() if count)
        raise TraceError(f"{path}: has no event with a duration" + (f" ({reasons})" if reasons else ""))
    span = int(start[rows].max()) - int(start[rows].min()) + int(duration[rows].max())
    if span > _LONGEST:
        raise TraceError(f"{path}: its events span {span / US:.3g} µs; expected the time of one run, below 4e15 µs")
    far, names = _far(start[rows], duration[rows]), columns["name"]
    stray, rows = rows[far], rows[~far]
    origin = int(start[rows].min() // int(US) * int(US))
    columns = {name: column[rows] for name, column in columns.items()}
    columns |= {"start": columns["start"] - origin, **{name: list(codes) for name, codes in found.codes.items()}}
    # without the line ends and indents that some writers put into shapes
    shapes = (b"".join(written.split()).decode("utf-8", "replace") for written in columns["shape_texts"])
    columns["shape_texts"] = [text.replace(",", ", ") for text in shapes]
    if len(stray):
        us = (int(start[stray[0]]) - origin) / US
        side = f"{us_text(abs(us))} {'before' if us < 0 else 'after'} the window begins"
        left_out[f"far from all others, such as {columns['names'][names[stray[0]]]!r}, {side}"] = len(stray)
    callers: defaultdict[str, list[int]] = defaultdict(list)
    for link, track, _ in found.links["s"]:
        callers[link].append(track)
    links = [(caller, track, at - origin) for link, track, at in found.links["f"] for caller in callers[link]]
    return Trace(
        path=path,
        settings=_settings(file, path, {*columns["categories"]}),
        clock=int(file.baseTimeNanoseconds) + origin,
        **columns,
        links=pd.DataFrame(links, columns=["caller", "track", "at"], dtype=np.int64),
        left_out=+left_out,  # those that occur
    )


def _far(start: Ints, duration: Ints) -> Bools:
    """Return the few events that lie far from all others, [N]: a profiler's buffer may keep one of an earlier run.

    They are one in a thousand or fewer, and between them and the rest nothing is recorded for a second and for ten
    times as long as the rest lasts.
    """
    recorded = union(start, start + duration)
    silence = recorded.gaps.end - recorded.gaps.start
    usual = recorded.end[-1] - recorded.start[0] - silence[silence > SECOND].sum()
    long = silence > max(SECOND, 10 * usual)
    part = np.searchsorted(recorded.gaps.start[long], start, side="left")
    far = part != np.bincount(part).argmax()
    return far & (len(start) >= 20) & (far.sum() <= max(1, len(start) // 1000))


def _settings(file: _File, path: Path, categories: set[Any]) -> dict[str, Any]:
    """Return rank and settings of the profiler: from the file, or inferred where the file lacks them."""
    digits = {name: re.fullmatch(r"\s*(\d{1,9})(\.0)?\s*", str(n)) for name, n in file.distributedInfo.items()}
    known = {name: int(match[1]) for name, match in digits.items() if match}
    in_name = re.search(r"rank[-_]?(\d{1,9})(?!\d)", path.name, re.IGNORECASE)
    return {
        "rank": known.get("rank", int(in_name[1]) if in_name else None),
        "file": path.name,
        "world_size": known.get("world_size"),
        "device_names": sorted({str(device.get("name")) for device in file.deviceProperties}),
        "record_shapes": bool(file.record_shapes),
        "with_stack": "python_function" in categories,
        "device_events": bool(categories & DEVICE_CATEGORIES),
    }
