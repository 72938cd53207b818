"""The accounts of one rank, made once and read by tables and findings."""

from dataclasses import dataclass

import pandas as pd

from tclab.trace.categories import Rule
from tclab.trace.device import DeviceWork, device_work, steps
from tclab.trace.events import Trace
from tclab.trace.host import HostWork, host_work
from tclab.trace.idle import Idle, idle


@dataclass(frozen=True)
class RankWork:
    """One rank's trace with its accounts."""

    trace: Trace
    device: DeviceWork
    host: HostWork
    steps: pd.DataFrame
    idle: Idle | None


def account(trace: Trace, rules: tuple[Rule, ...]) -> RankWork:
    """Device, host, steps and idle time of one trace."""
    device, host = device_work(trace), host_work(trace, rules)
    return RankWork(trace, device, host, steps(trace, device), idle(trace, device, host))
