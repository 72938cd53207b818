"""Work of the devices: temporal breakdown, time by kernel and what launched it, copies."""

from collections.abc import Hashable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from tclab.trace._events import COPY_CATEGORIES, DEVICE, US, Bools, Ints, Trace
from tclab.trace._host_work import HostWork, longest_first, rows_around
from tclab.trace._nesting import Intervals, union

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
    def kernels(self) -> Ints:
        """The kernels among `rows`."""
        return self.rows[np.isin(self.kind, ["compute", "communication"])]

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
    process = pd.Series([pid for pid, _ in trace.tracks], dtype=object)[trace.track].where(trace.kind == DEVICE)
    pids = pd.Series(trace.track).groupby(process.to_numpy()).min().sort_values().index.tolist()
    if len(pids) < 2:
        return {pids[0] if pids else None: gather_device(trace)}
    return {pid: gather_device(trace, (process == pid).to_numpy(), f"{trace.label}, device {pid}") for pid in pids}


def breakdown(trace: Trace, devices: dict[Hashable, DeviceWork]) -> pd.DataFrame:
    """Return one row per device: times over the whole trace in µs; null without device events.

    This is HTA's temporal breakdown (compute, non-compute, idle) and its communication-computation overlap.

    span = last end - first start of device events; compute = union of kernels that are not collectives;
    non_compute = union of all device events - compute; idle = span - union of all. Exposed communication is
    the part of the collectives' union during which no other kernel runs. `kernel_sum_us` adds durations up,
    so it exceeds the union by what ran concurrently.
    """
    rows = []
    for pid, device in devices.items():
        time = {kind: intervals.length for kind, intervals in device.times.items()}
        ticks = {
            "span_us": device.span,
            "compute_us": time["compute"],
            "non_compute_us": time["busy"] - time["compute"],
            "idle_us": device.span - time["busy"],
            "busy_us": time["busy"],
            "communication_us": time["communication"],
            "exposed_communication_us": device.exposed,
            "copy_us": time["copy"],
            "set_us": time["set"],
            "kernel_sum_us": trace.duration[device.kernels].sum(),
        }
        times = {name: value / US if len(device.rows) else np.nan for name, value in ticks.items()}
        counts = {"kernels": len(device.kernels), "device_events": len(device.rows)}
        rows.append({"device": pid, **times, "file": trace.path.name, **counts})
    return trace.ranked(pd.DataFrame(rows))


def kernel_table(trace: Trace, host: HostWork, device: DeviceWork) -> pd.DataFrame:
    """Return the time of a device by kernel, launching operator, shapes, module and stage; the longest first.

    Columns: kernel, kind (compute, communication, copy, set), op, shapes, module, stage, count, time_us, median_us,
    share. `op` is the innermost operator around the launch, `shapes` those of its inputs, `module` the innermost
    `nn.Module`; each is null where it is not recorded. `time_us` adds durations up, `share` is of all such time.
    """
    launch = trace.launch[device.rows]
    call = np.where(launch >= 0, np.searchsorted(host.rows, launch), -1)
    op = rows_around(host, trace.is_op, call)
    events = {
        "kernel": trace.names_of(device.rows),
        "kind": device.kind,
        "op": trace.names_of(op),
        "shapes": [trace.shape_texts[trace.shapes[row]] or None if row >= 0 else None for row in op.tolist()],
        "module": trace.names_of(rows_around(host, trace.names_match(r"^nn\.Module"), call)),
        "stage": np.append(host.stage.astype(object), None)[call],
    }
    sums = {name: ("us", how) for name, how in (("count", "size"), ("time_us", "sum"), ("median_us", "median"))}
    durations = pd.DataFrame(events, dtype=object).assign(us=trace.duration[device.rows] / US)
    table = longest_first(durations, list(events), "time_us", **sums)
    return table.assign(share=table["time_us"] / (table["time_us"].sum() or np.nan))


def copy_table(trace: Trace) -> pd.DataFrame:
    """Return one row per direction, kind of memory and size class, with copies, bytes, time_us, gb_per_s.

    `bytes` is null where the trace lacks any copy's size. ROCm records sizes on the runtime call only; they are taken
    from there. Times are sums of durations; copies on two streams may overlap.
    """
    rows = np.flatnonzero(trace.is_category(COPY_CATEGORIES))
    launch, size = trace.launch[rows], trace.size[rows]
    size = np.where(np.isnan(size) & (launch >= 0), trace.size[launch], size)
    names = pd.Series(trace.names_of(rows), dtype=object).str[:200]
    kinds = {
        "direction": names.str.extract(_DIRECTION, expand=False),
        "memory": names.str.extract(_MEMORY, expand=False),
        "size": pd.cut(size, list(_SIZES), right=False, labels=list(_SIZES.values())[1:]).astype(object),
    }
    copies = pd.DataFrame({**kinds, "bytes": size, "us": trace.duration[rows] / US})
    table = longest_first(copies, list(kinds), "time_us", copies=("us", "size"),
                          bytes=("bytes", lambda sizes: sizes.sum(skipna=False)), time_us=("us", "sum"))  # fmt: skip
    table["gb_per_s"] = table["bytes"] / table["time_us"].where(table["time_us"] > 0) / 1e3
    return trace.ranked(table)
