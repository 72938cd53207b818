"""How busy the machine is: readings of a moment, and how its processors were shared between two moments."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any

from tclab import _limits as limits

# The percentage of a measurement in which something waited for a processor. In the last ten seconds of measurements on
# a quiet machine of 2 cores it was 3 at most for a process with 2 threads and a worker, and below 50 for one that had
# just started or that followed 4 ranks on those cores; points whose times collapsed had 60 and more.
BUSY_PERCENT = 50.0
# What is exceeded between two moments where the processors were shared. Two torch threads of small products on 2 cores
# wait 0.01 alone; beside a busy process, ten times as slow, 0.53.
_WAITING, _STEAL = 0.2, 0.05


def conditions() -> dict[str, float | None]:
    """Return readings of this moment; each is `None` where this machine does not provide it.

    They are the load average over one minute, and four counts of seconds since the machine started, by which
    `contention` compares two moments: all of them; those in which something waited for a processor (Linux's pressure
    stall information); those in which this process's processors were busy, summed over them; and those in which a
    hypervisor gave them to other machines.
    """
    some = (limits.text_of(Path("/proc/pressure/cpu")) or "").partition("\n")[0]
    waited_us = limits.number_of(some.partition("total=")[2])
    busy, steal = _busy_and_steal_seconds()
    return {
        "load": os.getloadavg()[0],
        "monotonic_seconds": monotonic(),
        "cpu_pressure_seconds": None if waited_us is None else waited_us / 1e6,
        "busy_seconds": busy,
        "steal_seconds": steal,
    }


def _busy_and_steal_seconds() -> tuple[float, float] | tuple[None, None]:
    """Return busy and stolen seconds since the start, summed over this process's processors; `None` where unknown."""
    text = limits.text_of(Path("/proc/stat"))
    if text is None:
        return None, None
    own = {f"cpu{i}" for i in os.sched_getaffinity(0)}
    # ticks of user, nice, system, idle, iowait, irq, softirq and steal
    ticks = [[int(n) for n in line.split()[1:9]] for line in text.splitlines() if line.partition(" ")[0] in own]
    hertz = os.sysconf("SC_CLK_TCK")
    return sum(sum(one) - one[3] - one[4] for one in ticks) / hertz, sum(one[7] for one in ticks) / hertz


@dataclass(frozen=True)
class Contention:
    """How the processors were shared between two moments; each figure is `None` where the system does not tell.

    **Arguments:**

    - `seconds`: time between the moments.
    - `waiting`: share of it in which something on the machine waited for a processor: another program, or threads of
      this one where they are more than its cores.
    - `busy_cores`: how many of this process's processors were busy, on average.
    - `steal`: processors that a hypervisor gave to other machines, on average.
    """

    seconds: float | None
    waiting: float | None
    busy_cores: float | None
    steal: float | None

    @property
    def stolen(self) -> bool:
        """Whether a hypervisor gave so much to other machines."""
        return (self.steal or 0.0) > _STEAL

    @property
    def shared(self) -> bool | None:
        """Whether they were shared so much that times say little of this process alone; `None` where unknown."""
        return None if self.waiting is None else self.waiting > _WAITING or self.stolen

    @property
    def busy_percent(self) -> float | None:
        """The percentage of the time in which something waited; `None` unless it is above 50, or not known."""
        percent = None if self.waiting is None else 100 * self.waiting
        return percent if percent is not None and percent > BUSY_PERCENT else None

    def __str__(self) -> str:
        """Return a sentence where they were shared; empty where not, or not known."""
        if not self.shared:
            return ""
        words = f"something waited for one {self.waiting:.0%} of the time"
        if self.stolen:
            words += f", a hypervisor took {self.steal:.2f} of them"
        return f"the processors were shared during {self.seconds:.3g} s: {words}"


def contention(before: Mapping[str, Any], after: Mapping[str, Any]) -> Contention:
    """Return how the processors were shared between two moments of `conditions`, such as around the timed steps."""

    def grown(name: str) -> float | None:
        begin, end = before.get(name), after.get(name)
        return None if begin is None or end is None else float(end - begin)

    seconds = grown("monotonic_seconds")
    counts = [grown(name) for name in ("cpu_pressure_seconds", "busy_seconds", "steal_seconds")]
    return Contention(seconds, *(count / seconds if seconds and count is not None else None for count in counts))


def busy_notes(percent: float | None) -> list[str]:
    """Return what to say of a busy machine, as the notes of a result; none of one that was not, or is not known."""
    if percent is None:
        return []
    return [f"the machine was busy: something waited for a processor in {percent:.0f} % of the time"]
