"""Work of the devices: temporal breakdown, time by kernel and what launched it, copies, full queues."""

from collections.abc import Hashable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from tclab.trace._events import COPY_CATEGORIES, DEVICE, Bools, Ints, Trace
from tclab.trace._host_work import HostWork, rows_around
from tclab.trace._nesting import Intervals, union

TIMES = (
    "span_us", "compute_us", "non_compute_us", "idle_us", "busy_us", "communication_us", "exposed_communication_us",
    "copy_us", "set_us", "kernel_sum_us",
)  # fmt: skip
LAUNCH = r"Launch(Cooperative)?Kernel|GraphLaunch|^(cuda|hip|cu)Mem(cpy|set)"
FULL_QUEUE = 1000
"""Launches that have not begun when the next one waits for room: CUDA's queue has 1,024 places."""
FULL_QUEUE_US = 50.0  # a launch into a queue with room takes a tenth of it
_BY = ["kernel", "kind", "op", "shapes", "module", "stage"]
_DIRECTION = r"(HtoD|DtoH|DtoD|HtoH|PtoP|AtoH|HtoA|AtoD|DtoA)"
_MEMORY = r"\(([^()]*->[^()]*)\)"
_SIZES = {0: "", 16e3: "below 16 kB", 1e6: "16 kB to 1 MB", np.inf: "1 MB and more"}
"""Size classes of copies: a few kB cost their launch, many MB their bandwidth."""


@dataclass(frozen=True)
class DeviceWork:
    """The events of one device of a trace, or of all of them: rows of the trace, and the union of each kind."""

    label: str  # of the trace, and of the device where the trace has several
    rows: Ints  # in the order of their start
    kind: npt.NDArray[np.str_]  # [rows] compute (kernels but collectives), communication (these), copy, set
    times: dict[str, Intervals]  # of each kind, and busy: of all

    @property
    def is_kernel(self) -> Bools:
        """Which are kernels, [rows]."""
        return np.isin(self.kind, ["compute", "communication"])

    @property
    def span(self) -> int:
        """The ticks from the first event's start to the last one's end; 0 without events."""
        busy = self.times["busy"]
        return int(busy.end[-1] - busy.start[0]) if len(self.rows) else 0

    @property
    def exposed(self) -> int:
        """The ticks of collectives during which no other kernel runs."""
        communication = self.times["communication"]
        return communication.length - int(self.times["compute"].covered(*communication).sum())


def gather_device(trace: Trace, of: Bools | None = None, label: str = "") -> DeviceWork:
    """Return the device events of a trace among those `of` [N], all unless given; empty where there are none."""
    rows = np.flatnonzero((trace.kind == DEVICE) if of is None else of)
    rows = rows[np.argsort(trace.start[rows], kind="stable")]
    kinds = {"communication": trace.is_collective, "compute": trace.is_category({"kernel"}),
             "copy": trace.is_category(COPY_CATEGORIES)}  # fmt: skip
    kind = np.select([of_kind[rows] for of_kind in kinds.values()], list(kinds), "set")
    parts = {name: rows[kind == name] for name in (*kinds, "set")} | {"busy": rows}
    times = {name: union(trace.start[part], trace.stop[part]) for name, part in parts.items()}
    return DeviceWork(label or trace.label, rows, kind, times)


def devices_of(trace: Trace) -> dict[Hashable, DeviceWork]:
    """Return the work of each device by its process id, in the order of the file; of None where there is no device."""
    is_device = trace.kind == DEVICE
    process = [pid for pid, _ in trace.tracks]
    found = list(dict.fromkeys(process[track] for track in np.unique(trace.track[is_device]).tolist()))
    if len(found) < 2:
        return {found[0] if found else None: gather_device(trace)}
    mine = {pid: is_device & np.array([p == pid for p in process])[trace.track] for pid in found}
    return {pid: gather_device(trace, of, f"{trace.label}, device {pid}") for pid, of in mine.items()}


def breakdown_row(trace: Trace, pid: Hashable, device: DeviceWork) -> dict[str, object]:
    """Return one row of `report.breakdown`: times of a device over the whole trace in µs; null without device events.

    This is HTA's temporal breakdown (compute, non-compute, idle) and its communication-computation overlap.

    span = last end - first start of device events; compute = union of kernels that are not collectives;
    non_compute = union of all device events - compute; idle = span - union of all. Exposed communication is
    the part of the collectives' union during which no other kernel runs. `kernel_sum_us` adds durations up,
    so it exceeds the union by what ran concurrently.
    """
    row: dict[str, object] = {"rank": trace.rank, "device": pid, **dict.fromkeys(TIMES), "file": trace.path.name}
    if len(device.rows) == 0:
        return row | {"kernels": 0, "device_events": 0}
    communication, compute, copy, sets, busy = (times.length for times in device.times.values())
    kernels = int(trace.duration[device.rows[device.is_kernel]].sum())
    times = (device.span, compute, busy - compute, device.span - busy, busy, communication, device.exposed, copy, sets,
             kernels)  # fmt: skip
    counts = {"kernels": int(device.is_kernel.sum()), "device_events": len(device.rows)}
    return row | dict(zip(TIMES, map(trace.us, times), strict=True)) | counts


def full_queue(trace: Trace) -> Ints:
    """Return the launches that waited for room in the queue of a device, rows of the trace."""
    launched = np.flatnonzero(trace.launch >= 0)
    began, calls = np.sort(trace.start[launched]), np.unique(trace.launch[launched])
    at = trace.start[calls]
    waiting = np.searchsorted(np.sort(at), at, side="left") - np.searchsorted(began, at, side="right")
    slow = trace.us(trace.duration[calls]) >= FULL_QUEUE_US
    return calls[slow & (waiting >= FULL_QUEUE) & trace.names_match(LAUNCH)[calls]]


def kernel_table(trace: Trace, host: HostWork, device: DeviceWork) -> pd.DataFrame:
    """Return the time of a device by kernel, launching operator, shapes, module and stage; the longest first.

    Columns: kernel, kind (compute, communication, copy, set), op, shapes, module, stage, count, time_us, median_us,
    share. `op` is the innermost operator around the launch, `shapes` those of its inputs, `module` the innermost
    `nn.Module`; each is null where it is not recorded. `time_us` adds durations up, `share` is of all such time.
    """
    call = trace.launch[device.rows]
    known = np.flatnonzero(call >= 0)
    launch = np.searchsorted(host.rows, call[known])
    table = pd.DataFrame({"kernel": trace.names_of(device.rows), "kind": device.kind})
    table[_BY[2:]] = None
    around = rows_around(host, trace.is_op, launch)
    module = rows_around(host, trace.names_match(r"^nn\.Module"), launch)
    shapes = [trace.shape_texts[trace.shapes[row]] or None if row >= 0 else None for row in around.tolist()]
    found = trace.names_of(around), shapes, trace.names_of(module), host.stage[launch].astype(str)
    for column, values in zip(_BY[2:], found, strict=True):
        table.loc[known, column] = values
    times = table.assign(us=trace.us(trace.duration[device.rows])).groupby(_BY, dropna=False, sort=False)["us"]
    table = times.agg(count="size", time_us="sum", median_us="median").reset_index()
    table["share"] = table["time_us"] / (table["time_us"].sum() or np.nan)
    return table.sort_values("time_us", ascending=False, ignore_index=True, kind="stable")


def copy_table(trace: Trace) -> pd.DataFrame:
    """Return one row per direction, kind of memory and size class, with copies, bytes, time_us, gb_per_s.

    `bytes` is null where the trace lacks any copy's size. ROCm records sizes on the runtime call only; they are taken
    from there. Times are sums of durations; copies on two streams may overlap.
    """
    rows = np.flatnonzero(trace.is_category(COPY_CATEGORIES))
    call = trace.launch[rows]
    size = trace.size[rows]
    size = np.where(np.isnan(size) & (call >= 0), trace.size[call], size)
    names = pd.Series(trace.names_of(rows), dtype=object).str[:200]
    table = pd.DataFrame(
        {
            "direction": names.str.extract(_DIRECTION, expand=False),
            "memory": names.str.extract(_MEMORY, expand=False),
            "size": pd.cut(size, list(_SIZES), right=False, labels=list(_SIZES.values())[1:]).astype(object),
            "bytes": size,
            "time_us": trace.us(trace.duration[rows]),
        }
    )
    groups = table.groupby(["direction", "memory", "size"], dropna=False, sort=False)
    table = groups.agg(
        copies=("time_us", "size"),
        bytes=("bytes", lambda sizes: sizes.sum(skipna=False)),
        time_us=("time_us", "sum"),
    ).reset_index()
    table["gb_per_s"] = table["bytes"] / table["time_us"].where(table["time_us"] > 0) / 1e3
    return trace.ranked(table).sort_values("time_us", ascending=False, ignore_index=True)
