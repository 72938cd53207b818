"""One rank's trace, analyzed: its host work, the work of its devices, and the tables that need no other rank."""

from dataclasses import dataclass

import pandas as pd

from tclab.trace._categories import Rule
from tclab.trace._collectives import calls_of
from tclab.trace._device_work import DeviceWork, Idle, device_tables, gather_device
from tclab.trace._events import Trace
from tclab.trace._host_work import HostWork, nest_host, sync_table, thread_table
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
    host, device = nest_host(trace, rules), gather_device(trace)
    devices, tables = device_tables(trace, host)
    tables |= {
        "threads": thread_table(trace, host),
        "steps": step_table(trace, device),
        "syncs": sync_table(trace, host),
        "collectives": calls_of(trace, device),
        "settings": pd.DataFrame([trace.settings]).astype({"rank": "Int64", "world_size": "Int64"}),
    }
    return RankWork(trace, host, device, devices, tables)
