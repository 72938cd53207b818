"""Work of the devices: temporal breakdown, steps, time by kernel and its launch; what the host did while idle."""

from collections.abc import Hashable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd

from tclab.trace._categories import OUTSIDE
from tclab.trace._events import COLLECTIVE, COPY_CATEGORIES, DEVICE, IN_KERNEL, US, Bools, Ints, Trace
from tclab.trace._host_work import HostWork, cut_steps, longest_first, rows_around
from tclab.trace._nesting import Intervals, union

# Size classes of copies: a few kB cost their launch, many MB their bandwidth.
_SIZES = {0: np.nan, 16e3: "below 16 kB", 1e6: "16 kB to 1 MB", np.inf: "1 MB and more"}


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


class Idle(NamedTuple):
    """The gaps of one device and their causes, HTA's idle time breakdown."""

    gaps: pd.DataFrame  # the longest gaps
    causes: pd.DataFrame  # what the host did while the device was idle
    # Idle before the next work was launched; from that launch until it began; although it had been launched before the
    # gap. Null where launches are not recorded.
    split_us: tuple[float, ...] | None


@dataclass(frozen=True)
class RankWork:
    """One rank's trace with its host work, the work of all its devices, and of each with its idle time, and tables."""

    trace: Trace
    host: HostWork
    device: DeviceWork  # all devices together
    devices: list[tuple[DeviceWork, Idle]]  # none where there are no device events
    tables: dict[str, pd.DataFrame]  # those of `Report` that need no other rank


def device_tables(trace: Trace, host: HostWork) -> tuple[list[tuple[DeviceWork, Idle]], dict[str, pd.DataFrame]]:
    """Return each device that worked with its idle time, and the tables of `Report` about devices."""
    devices = devices_of(trace)
    idle = {pid: explain_idle(trace, work, host) for pid, work in devices.items() if len(work.rows)}
    tables = {
        "breakdown": breakdown(trace, devices),
        "kernels": _joined(trace, {pid: kernel_table(trace, host, work) for pid, work in devices.items()}),
        "gaps": _joined(trace, {pid: of_device.gaps for pid, of_device in idle.items()}),
        "idle_causes": _joined(trace, {pid: of_device.causes for pid, of_device in idle.items()}),
    }
    return [(devices[pid], of_device) for pid, of_device in idle.items()], tables


def _joined(trace: Trace, of_devices: dict[Hashable, pd.DataFrame]) -> pd.DataFrame:
    """Return the devices' tables as one, with rank and device; without any column where there is no device."""
    if not of_devices:
        return pd.DataFrame()
    return trace.ranked(pd.concat(of_devices, names=["device"]).reset_index("device").reset_index(drop=True))


def gather_device(trace: Trace, of: Bools | None = None, label: str = "") -> DeviceWork:
    """Return the device events of a trace among those `of` [N], all unless given; empty where there are none."""
    rows = np.flatnonzero((trace.kind == DEVICE) if of is None else of)
    rows = rows[np.argsort(trace.start[rows], kind="stable")]
    is_kernel, is_copy = trace.is_category({"kernel"}), trace.is_category(COPY_CATEGORIES)
    among_threads = trace.names_match(IN_KERNEL) & ~trace.names_match(r"[nr]ccl")
    among_devices = (trace.names_match(COLLECTIVE) & ~among_threads) | (trace.collective > 0)  # by name or arguments
    kinds = {"communication": is_kernel & among_devices, "compute": is_kernel, "copy": is_copy}
    kind = np.select([of_kind[rows] for of_kind in kinds.values()], list(kinds), "set")
    parts = {name: rows[kind == name] for name in (*kinds, "set")} | {"busy": rows}
    times = {name: union(trace.start[part], trace.stop[part]) for name, part in parts.items()}
    return DeviceWork(label or trace.label, rows, kind, times)


def devices_of(trace: Trace) -> dict[Hashable, DeviceWork]:
    """Return the work of each device by its process id, in the order of the file; of None where there is no device."""
    is_device, pid_of = trace.kind == DEVICE, [pid for pid, _ in trace.tracks]
    pids = dict.fromkeys(pid_of[track] for track in np.unique(trace.track[is_device]).tolist())
    if len(pids) < 2:
        return {next(iter(pids), None): gather_device(trace)}
    of = {pid: is_device & np.array([each == pid for each in pid_of])[trace.track] for pid in pids}
    return {pid: gather_device(trace, of[pid], f"{trace.label}, device {pid}") for pid in pids}


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
            "span_us": device.span, "compute_us": time["compute"], "non_compute_us": time["busy"] - time["compute"],
            "idle_us": device.span - time["busy"], "busy_us": time["busy"], "communication_us": time["communication"],
            "exposed_communication_us": device.exposed, "copy_us": time["copy"], "set_us": time["set"],
            "kernel_sum_us": trace.duration[device.kernels].sum(),
        }  # fmt: skip
        times = {name: value / US if len(device.rows) else np.nan for name, value in ticks.items()}
        counts = {"kernels": len(device.kernels), "device_events": len(device.rows)}
        rows.append({"device": pid, **times, "file": trace.path.name, **counts})
    return trace.ranked(pd.DataFrame(rows))


def step_table(trace: Trace, device: DeviceWork) -> pd.DataFrame:
    """Return one row per `ProfilerStep`: rank, step, start_us, wall_us, the devices' times within it, whole.

    Times are of any device: idle is when none was busy. They are clipped to the step's window, which is the host's
    where the host marks steps; work still queued when the last step ended is then in the breakdown of the whole trace
    only. A step is whole unless the recording began or ended within it. No rows where the trace has no steps.
    """
    start, end = trace.steps["start"].to_numpy(), trace.steps["end"].to_numpy()
    times = {"start_us": start / US, "wall_us": (end - start) / US}
    marks = {"step": trace.steps["name"], "marked_on": trace.steps["marked_on"]}
    table = pd.DataFrame({"file": trace.path.name, **marks, **times})
    within = {kind: device.times[kind].covered(start, end) for kind in ("busy", "compute", "communication", "copy")}
    for kind, ticks in (within | {"idle": end - start - within["busy"]}).items():
        table[f"{kind}_us"] = ticks / US if len(device.rows) else np.nan
    table["whole"] = ~table.index.isin(cut_steps(trace))
    return trace.ranked(table)


def kernel_table(trace: Trace, host: HostWork, device: DeviceWork) -> pd.DataFrame:
    """Return the time of a device by kernel, launching operator, shapes, module and stage; the longest first.

    Columns: kernel, kind (compute, communication, copy, set), op, shapes, module, size, stage, count, time_us,
    median_us, bytes, share, gb_per_s. `op` is the innermost operator around the launch, `shapes` those of its inputs,
    `module` the innermost `nn.Module`; each is null where it is not recorded. `size` is the class of what a copy or set
    moves and `bytes` what they moved together, null where it is not recorded; ROCm records it on the runtime call.
    `time_us` adds durations up, `share` is of all such time.
    """
    launch = trace.launch[device.rows]
    call = np.where(launch >= 0, np.searchsorted(host.rows, launch), -1)
    op = rows_around(host, trace.is_op, call)
    size = np.where(np.isnan(trace.size[device.rows]) & (launch >= 0), trace.size[launch], trace.size[device.rows])
    size = np.where(np.isin(device.kind, ["copy", "set"]), size, np.nan)
    stage = np.append(host.stage.codes, -1)[call]
    events = {
        "kernel": trace.names_of(device.rows),
        "kind": device.kind,
        "op": trace.names_of(op),
        "shapes": [trace.shape_texts[trace.shapes[row]] or None if row >= 0 else None for row in op.tolist()],
        "module": trace.names_of(rows_around(host, trace.names_match(r"^nn\.Module"), call)),
        "size": np.array([*_SIZES.values(), np.nan], dtype=object)[np.searchsorted(list(_SIZES), size, side="right")],
        "stage": np.append(host.stage.categories.to_numpy(object), np.array([None]))[stage],
    }
    sums = {"count": ("us", "size"), "time_us": ("us", "sum"), "median_us": ("us", "median")}
    sums |= {"bytes": ("bytes", "sum"), "known": ("bytes", "count")}
    work = pd.DataFrame(events, dtype=object).assign(us=trace.duration[device.rows] / US, bytes=size)
    table = longest_first(work, list(events), "time_us", **sums)
    table["bytes"] = table["bytes"].where(table.pop("known") == table["count"])
    rate = table["bytes"] / table["time_us"].where(table["time_us"] > 0) / 1e3
    return table.assign(share=table["time_us"] / (table["time_us"].sum() or np.nan), gb_per_s=rate)


def explain_idle(trace: Trace, device: DeviceWork, host: HostWork) -> Idle:
    """Return the gaps between the events of a device and what the thread that launched the next one did meanwhile."""
    begin, end = device.times["busy"].gaps
    # The event that ends a gap is the first to start where the gap ends.
    ended_by = device.rows[np.searchsorted(trace.start[device.rows], end, side="left")]
    launch = trace.launch[ended_by]
    known, length = launch >= 0, end - begin
    launched = np.where(known, trace.start[launch], begin)
    late = np.clip(launched - begin, 0, length)
    queued = known & (launched < begin)
    thread = np.full(len(launch), trace.main)
    thread[known] = host.on[np.searchsorted(host.rows, launch[known])]
    gaps = pd.DataFrame({"begin": begin, "end": end, "length": length, "thread": thread, "next": ended_by})
    split = (late[known], (length - late)[known & ~queued], length[queued])
    split_us = tuple(float(part.sum() / US) for part in split) if known.any() else None
    return Idle(_longest(trace, device, host, gaps), _causes(host, gaps), split_us)


def _causes(host: HostWork, gaps: pd.DataFrame) -> pd.DataFrame:
    """Return the idle time by what the thread that ended each gap did: stage, host_category, idle_us, share."""
    spent = np.zeros(len(host.rows), dtype=np.int64)
    for track, mine in gaps.groupby("thread"):
        idle = Intervals(mine["begin"].to_numpy(), mine["end"].to_numpy())
        spent += np.where(host.on == track, host.spent(idle), 0)
    some = np.flatnonzero(spent)
    kinds = {"stage": [*host.stage[some], OUTSIDE], "host_category": [*host.category[some], "no event recorded"]}
    table = pd.DataFrame(kinds, dtype=object).assign(ticks=np.append(spent[some], gaps["length"].sum() - spent.sum()))
    table = longest_first(table[table["ticks"] > 0], list(kinds), "ticks", ticks=("ticks", "sum"))
    table["idle_us"], table["share"] = table["ticks"] / US, table["ticks"] / (gaps["length"].sum() or np.nan)
    return table.drop(columns="ticks")


def _longest(trace: Trace, device: DeviceWork, host: HostWork, gaps: pd.DataFrame) -> pd.DataFrame:
    """Return the ten longest gaps: start_us, gap_us, the work after and before which, host_mostly_in."""
    by_end = device.rows[np.argsort(trace.stop[device.rows], kind="stable")]
    longest = gaps.sort_values("length", ascending=False, kind="stable").head(10)
    doing = []
    for begin, end, thread in zip(longest["begin"], longest["end"], longest["thread"], strict=True):
        spent = host.spent(Intervals(np.array([begin]), np.array([end]))) * (host.on == thread)
        doing.append(host.rows[spent.argmax()] if spent.any() else -1)
    columns = {
        "start_us": longest["begin"] / US,
        "gap_us": longest["length"] / US,
        "after": trace.names_of(by_end[np.searchsorted(trace.stop[by_end], longest["begin"], side="left")]),
        "before": trace.names_of(longest["next"].to_numpy()),
        "host_mostly_in": trace.names_of(np.array(doing, dtype=np.int64)),
    }
    return pd.DataFrame(columns).reset_index(drop=True)
