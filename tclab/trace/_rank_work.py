"""One rank's trace, analyzed: its host work, the work of its devices, and the tables that need no other rank."""

from collections.abc import Hashable
from dataclasses import dataclass

import pandas as pd

from tclab.trace._categories import Rule
from tclab.trace._collectives import calls_of
from tclab.trace._device_work import DeviceWork, breakdown, copy_table, devices_of, gather_device, kernel_table
from tclab.trace._events import Trace
from tclab.trace._host_work import HostWork, nest_host, sync_table, thread_table
from tclab.trace._idle import Idle, explain_idle
from tclab.trace._steps import step_table


@dataclass(frozen=True)
class RankWork:
    """One rank's trace with its host work, the work of all its devices, and of each with its idle time, and tables."""

    trace: Trace
    host: HostWork
    device: DeviceWork  # all devices together
    devices: list[tuple[DeviceWork, Idle]]  # none where there are no device events
    tables: dict[str, pd.DataFrame]  # those of `Report` that need no other rank


def analyze_rank(trace: Trace, rules: tuple[Rule, ...]) -> RankWork:
    """Return the work of one rank."""
    host, device, devices = nest_host(trace, rules), gather_device(trace), devices_of(trace)
    idle = {pid: explain_idle(trace, work, host) for pid, work in devices.items() if len(work.rows)}
    tables = {
        "breakdown": breakdown(trace, devices),
        "kernels": _of_devices(trace, {pid: kernel_table(trace, host, work) for pid, work in devices.items()}),
        "threads": thread_table(trace, host),
        "steps": step_table(trace, device),
        "gaps": _of_devices(trace, {pid: found.gaps for pid, found in idle.items()}),
        "idle_causes": _of_devices(trace, {pid: found.causes for pid, found in idle.items()}),
        "syncs": sync_table(trace, host),
        "copies": copy_table(trace),
        "collectives": calls_of(trace, device),
        "settings": pd.DataFrame([trace.settings]).astype({"rank": "Int64", "world_size": "Int64"}),
    }
    return RankWork(trace, host, device, [(devices[pid], found) for pid, found in idle.items()], tables)


def _of_devices(trace: Trace, tables: dict[Hashable, pd.DataFrame]) -> pd.DataFrame:
    """Return the tables of a trace's devices as one, with rank and device in front."""
    if not tables:
        return pd.DataFrame()
    return trace.ranked(pd.concat(tables, names=["device"]).reset_index("device").reset_index(drop=True))
