"""Traces as columns: one row per event with a duration, times in whole ticks since the first event."""

import re
from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from tclab.trace._read_trace import TraceError, event_slices

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

HOST, DEVICE, ANNOTATION = 0, 1, 2
"""Kinds of event: work of a host thread; work of a device; neither (spans, overhead, marks)."""

KERNEL_CATEGORIES = {"kernel"}
COPY_CATEGORIES = {"gpu_memcpy", "memcpy"}
SET_CATEGORIES = {"gpu_memset", "memset"}
DEVICE_CATEGORIES = KERNEL_CATEGORIES | COPY_CATEGORIES | SET_CATEGORIES
RUNTIME_CATEGORIES = {"cuda_runtime", "cuda_driver", "runtime", "driver", "xpu_runtime", "mtia_runtime"}
ANNOTATION_CATEGORIES = {"trace", "overhead", "gpu_user_annotation", "cuda_sync", "cuda_profiler_range", "ledger"}
COLLECTIVE_KERNEL = r"nccl|rccl|oneccl|msccl|nvshmem|cross_device_reduce|(one|two)_shot_all_?reduce|multimem_all_"


@dataclass(frozen=True)
class Memory:
    """The allocator's history, one row per allocation or release, in the order of time."""

    start: Ints  # ticks
    allocated: Floats  # bytes held after it, null where not recorded
    reserved: Floats
    device: list[str]  # "cpu" or "device 0"
    bytes: Floats  # taken, or given back where below 0; null where not recorded, as the next
    address: Floats
    track: Ints  # the thread, an index into `Trace.tracks`


@dataclass(frozen=True)
class Trace:
    """One file's events as columns of equal length, in the order of the file."""

    path: Path
    rank: int | None
    settings: dict[str, Any]  # profiler settings: from the file, or inferred from its events
    origin_us: float  # the file's time of tick 0
    ticks_per_us: float
    ts: Floats  # µs as in the file, with a float's rounding
    dur: Floats
    start: Ints  # ticks
    duration: Ints  # ticks, never negative
    name: Ints  # index into `names`
    category: Ints  # index into `categories`
    track: Ints  # index into `tracks`
    correlation: Ints  # the same in a launch and its kernel; -1 where there is none
    size: Floats  # bytes of a copy or set; null elsewhere
    collective: Ints  # index into `collectives`; -1 where it is not recorded
    names: list[str]
    categories: list[str]  # in lower case
    tracks: list[tuple[Hashable, Hashable]]  # (pid, tid)
    collectives: list[tuple[Hashable, Hashable]]  # (process group, collective)
    memory: Memory
    left_out: dict[str, int] = field(default_factory=dict)  # reason → how many events
    base_ns: int = 0  # what the file says is to be added to its times, ns
    negative_us: dict[bool, list[float]] = field(default_factory=dict)  # on a device? → durations below 0, their size

    def __len__(self) -> int:
        return len(self.start)

    def is_category(self, wanted: set[str]) -> Bools:
        """Return which events have one of the `wanted` categories (in lower case), [N]."""
        return np.array([c in wanted for c in self.categories], dtype=bool)[self.category]

    def names_match(self, pattern: str) -> Bools:
        """Return which events' names contain the regular expression, ignoring case, [N]."""
        return matches(self.name_bytes, pattern)[self.name]

    @cached_property
    def name_bytes(self) -> pa.Array:
        """The names as an Arrow column; a lone surrogate, which UTF-8 does not have, becomes a question mark."""
        return pa.array([name.encode("utf-8", "replace") for name in self.names], pa.large_binary())

    @property
    def kind(self) -> npt.NDArray[np.int8]:
        """`HOST`, `DEVICE` or `ANNOTATION` per event."""
        kinds = [
            DEVICE if c in DEVICE_CATEGORIES else ANNOTATION if c in ANNOTATION_CATEGORIES else HOST
            for c in self.categories
        ]
        return np.array(kinds, dtype=np.int8)[self.category]

    @property
    def label(self) -> str:
        """The name of this trace in findings: its rank, or its file where the rank is not known."""
        return self.path.name if self.rank is None else f"rank {self.rank}"

    def us(self, ticks: Any) -> Any:
        """Return ticks as microseconds."""
        return ticks / self.ticks_per_us

    def table(self) -> pd.DataFrame:
        """Return all events as a table: name, category, pid, tid, start_us (since the first event), duration_us."""
        tracks = np.empty((len(self.tracks), 2), dtype=object)
        tracks[:] = self.tracks if self.tracks else tracks
        return pd.DataFrame(
            {
                "name": pd.Series(self.names, dtype="str").take(self.name).to_numpy(),
                "category": pd.Series(self.categories, dtype="str").take(self.category).to_numpy(),
                "pid": tracks[self.track, 0],
                "tid": tracks[self.track, 1],
                "start_us": self.us(self.start),
                "duration_us": self.us(self.duration),
            }
        )


class StepWindows(NamedTuple):
    """Steps in the order of time: names, start [N] and end [N] in ticks, and which side marks them."""

    names: list[str]
    start: Ints
    end: Ints
    marked_on: str  # "host" or "device"


def step_windows(trace: Trace) -> StepWindows:
    """Return the `ProfilerStep` marks of the host; of the device where only the device has them.

    A device marks a step once per stream; its window runs from the first mark's start to the last one's end.
    """
    is_step = trace.names_match(r"^ProfilerStep")
    rows = np.flatnonzero(is_step & trace.is_category({"user_annotation"}))
    marked_on = "host"
    if len(rows) == 0:
        rows, marked_on = np.flatnonzero(is_step & trace.is_category({"gpu_user_annotation"})), "device"
    start, end = trace.start[rows], trace.start[rows] + trace.duration[rows]
    names = trace.name[rows]
    if marked_on == "device":
        names, index = np.unique(names, return_inverse=True)
        first, last = np.full(len(names), np.iinfo(np.int64).max), np.zeros(len(names), dtype=np.int64)
        np.minimum.at(first, index, start)
        np.maximum.at(last, index, end)
        start, end = first, last
    order = np.argsort(start, kind="stable")
    return StepWindows([trace.names[i] for i in names[order].tolist()], start[order], end[order], marked_on)


def rank_column(trace: Trace, count: int) -> "pd.Series[int]":
    """Return the rank of a trace `count` times, null where it is not known."""
    return pd.Series([trace.rank] * count, dtype="Int64")


def matches(names: pa.Array, pattern: str) -> Bools:
    """Return which names contain the regular expression, ignoring case (RE2: time linear in a name's length)."""
    found = pc.match_substring_regex(names, pattern, ignore_case=True)
    return np.asarray(found.to_numpy(zero_copy_only=False), dtype=bool)


class _Codes(dict[Hashable, int]):
    """Values → small integers, in the order in which they first occur."""

    def __missing__(self, key: Hashable) -> int:
        self[key] = code = len(self)
        return code

    def of(self, values: list[Any]) -> Ints:
        try:
            return np.fromiter(map(self.__getitem__, values), dtype=np.int64, count=len(values))
        except TypeError:  # a list or an object in place of a name or number
            return np.fromiter((self[repr(value)] for value in values), dtype=np.int64, count=len(values))


def _numbers(values: list[Any]) -> Floats:
    """Return numbers as floats; NaN for null and for what is no number."""
    try:
        numbers = np.array(values, dtype=np.float64)
        if numbers.ndim == 1:
            return numbers
    except (TypeError, ValueError, OverflowError):
        pass
    return np.array([_number(value) for value in values], dtype=np.float64)


def _number(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return float("nan")


def read_trace(path: Path) -> Trace:
    """Return one trace file as columns.

    **Raises:** `TraceError` for a file that is no trace or has no event with a duration.
    """
    head: dict[str, Any] = {}
    columns: list[dict[str, npt.NDArray[Any]]] = []
    instants: list[dict[str, npt.NDArray[Any]]] = []
    names, categories, tracks, collectives, devices = _Codes(), _Codes(), _Codes(), _Codes(), _Codes()
    collectives[(None, None)]  # code 0: not recorded
    other: Counter[str] = Counter()
    for events in event_slices(path, head):
        complete = [e for e in events if e.ph == "X"]
        memory = [e for e in events if e.name == "[memory]" and e.ph == "i" and e.args is not None]
        other["entries that are no events"] += sum(not isinstance(e.ph, str) for e in events)
        other["begin and end marks (only complete events, ph X, are read)"] += sum(e.ph in ("B", "E") for e in events)
        del events
        args = [e.args for e in complete]
        columns.append(
            {
                "ts": _numbers([e.ts for e in complete]),
                "dur": _numbers([e.dur for e in complete]),
                "name": names.of([e.name for e in complete]),
                "category": categories.of([e.cat for e in complete]),
                "track": tracks.of([(e.pid, e.tid) for e in complete]),
                "correlation": _numbers([None if a is None else a.correlation for a in args]),
                "size": _numbers([None if a is None else a.bytes if a.bytes is not None else a.size for a in args]),
                "collective": collectives.of(
                    [(None, None) if a is None or a.collective is None else (a.group, a.collective) for a in args]
                ),
            }
        )
        taken = [e.args for e in memory if e.args is not None]
        instants.append(
            {
                "ts": _numbers([e.ts for e in memory]),
                "allocated": _numbers([a.allocated for a in taken]),
                "reserved": _numbers([a.reserved for a in taken]),
                "bytes": _numbers([a.memory_bytes for a in taken]),
                "address": _numbers([a.address for a in taken]),
                "track": tracks.of([(e.pid, e.tid) for e in memory]),
                "device": devices.of([(a.device_type, a.device_id) for a in taken]),
            }
        )
    joined, held = (
        {key: np.concatenate([piece[key] for piece in pieces]) for key in pieces[0]} for pieces in (columns, instants)
    )
    del columns, instants
    return _to_ticks(path, head, joined, held, (names, categories, tracks, collectives, devices), +other)


def _to_ticks(
    path: Path,
    head: dict[str, Any],
    columns: dict[str, npt.NDArray[Any]],
    held: dict[str, npt.NDArray[Any]],
    codes: tuple[_Codes, ...],
    left_out: dict[str, int],
) -> Trace:
    names, categories, tracks, collectives, devices = codes
    ts, dur = columns["ts"], columns["dur"]
    numeric = np.isfinite(ts) & np.isfinite(dur)
    good = numeric & (np.where(numeric, dur, 0) >= 0)
    if (lost := int((~numeric).sum())) > 0:
        left_out["events whose time or duration is no number"] = lost
    if (lost := int((numeric & ~good).sum())) > 0:
        left_out["events with a negative duration"] = lost
    if not good.any():
        reasons = "; ".join(f"{count} {reason}" for reason, count in left_out.items())
        raise TraceError(f"{path}: has no event with a duration" + (f" ({reasons})" if reasons else ""))
    negative_us: dict[bool, list[float]] = {False: [], True: []}
    on_device = [str(key or "").lower() in DEVICE_CATEGORIES for key in categories]
    for row in np.flatnonzero(numeric & ~good).tolist():
        negative_us[on_device[columns["category"][row]]].append(-float(dur[row]))
    columns = {key: values[good] for key, values in columns.items()} if not good.all() else columns
    ts, dur = columns["ts"], columns["dur"]
    origin = float(np.floor(ts.min()))
    span_us = float((ts - origin + dur).max())
    if span_us > 4e15:  # 2^62 ns: more than a century
        raise TraceError(f"{path}: its events span {span_us:.3g} µs; expected the time of one run, below 4e15 µs")
    ticks = _ticks_per_us(ts, dur, origin, span_us)

    known = np.isfinite(held["ts"]) & (np.abs(held["ts"] - origin) < 4e15)
    order = np.argsort(held["ts"][known], kind="stable")
    device_labels = ["cpu" if kind == 0 else f"device {number}" for kind, number in devices]  # type: ignore[misc, has-type]
    memory = Memory(
        start=np.rint((held["ts"][known][order] - origin) * ticks).astype(np.int64),
        allocated=held["allocated"][known][order],
        reserved=held["reserved"][known][order],
        device=[device_labels[code] for code in held["device"][known][order]],
        bytes=held["bytes"][known][order],
        address=held["address"][known][order],
        track=held["track"][known][order],
    )
    correlation = columns["correlation"]
    correlation = np.where(np.abs(correlation) < 2**53, correlation, -1)  # NaN compares false
    return Trace(
        path=path,
        rank=_rank(head, path),
        settings=_settings(head, path, categories, memory),
        origin_us=origin,
        ticks_per_us=ticks,
        ts=ts,
        dur=dur,
        start=np.rint((ts - origin) * ticks).astype(np.int64),
        duration=np.rint(dur * ticks).astype(np.int64),
        name=columns["name"],
        category=_lower(columns["category"], categories),
        track=columns["track"],
        correlation=correlation.astype(np.int64),
        size=columns["size"],
        collective=columns["collective"] - 1,
        names=[key if isinstance(key, str) else "" if key is None else repr(key) for key in names],
        categories=list(dict.fromkeys(str(key or "").lower() for key in categories)) or [""],
        tracks=[key if isinstance(key, tuple) else (key, None) for key in tracks],
        collectives=list(collectives)[1:],  # type: ignore[arg-type]
        memory=memory,
        left_out=left_out,
        base_ns=base if isinstance(base := head.get("baseTimeNanoseconds"), int) else 0,
        negative_us=negative_us,
    )


def _ticks_per_us(ts: Floats, dur: Floats, origin: float, span_us: float) -> float:
    """Return the resolution: whole nanoseconds, which Kineto writes; picoseconds where times are finer.

    A time stamp of 10¹² µs loses the last fraction of a nanosecond as a float, so that a child could outlive its
    parent; rounding to whole nanoseconds restores the written value.
    """
    lost_ns = 1e3 * float(np.spacing(np.abs(ts).max())) + 1e-3
    for values in (ts - origin, dur):
        residue = np.abs(values * 1e3 - np.rint(values * 1e3))
        if residue.max() > lost_ns and span_us < 4e12:
            return 1e6
    return 1e3


def _lower(codes: Ints, categories: _Codes) -> Ints:
    """Return the codes of the categories in lower case: old traces write `Kernel`."""
    lowered = _Codes()
    merged = np.array([lowered[str(key or "").lower()] for key in categories] or [0], dtype=np.int64)
    return merged[codes]


def _rank(head: dict[str, Any], path: Path) -> int | None:
    if (rank := _distributed(head, path, "rank")) is not None:
        return rank
    match = re.search(r"rank[-_]?(\d{1,9})(?!\d)", path.name, re.IGNORECASE)
    return int(match[1]) if match else None


def _distributed(head: dict[str, Any], path: Path, name: str) -> int | None:
    """Return a whole number of the file's `distributedInfo`, None where it has none.

    **Raises:** `TraceError` for one that no run has.
    """
    distributed = head.get("distributedInfo")
    value = distributed.get(name) if isinstance(distributed, dict) else None
    if not isinstance(value, int):
        return None
    if not -(2**31) <= value < 2**31:
        raise TraceError(f"{path}: its distributedInfo has {name} {str(value)[:30]}, expected one below 2^31")
    return value


def _settings(head: dict[str, Any], path: Path, categories: _Codes, memory: Memory) -> dict[str, Any]:
    """Return the profiler's settings: from the file, or inferred from its events where the file lacks them."""
    distributed = head.get("distributedInfo")
    backend = distributed.get("backend") if isinstance(distributed, dict) else None
    properties = head.get("deviceProperties")
    devices = properties if isinstance(properties, list) else []
    present = {str(key or "").lower() for key in categories}
    return {
        "schema": head.get("schemaVersion"),
        "world_size": _distributed(head, path, "world_size"),
        "backend": backend,
        "device_names": sorted({str(d.get("name")) for d in devices if isinstance(d, dict)}),
        "record_shapes": bool(head.get("record_shapes")),
        "with_stack": "python_function" in present,
        "profile_memory": len(memory.start) > 0,
        "device_events": bool(present & DEVICE_CATEGORIES),
        "record": head.get("tclab_record"),
    }
