"""What is learnt of a program without marks in it, while a ledger or a profile is open: lines, loaders, parts."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from itertools import zip_longest
from statistics import median

from tclab.timing._epoch_parts import FIRST_STEP, LOGGING, STEPS, EpochParts, PartClock
from tclab.timing._host_syncs import Syncs
from tclab.timing._line_times import MAIN, Lines, line_times
from tclab.timing._loader_watch import LoaderWatch
from tclab.timing._sample_times import SampleTimes, sample_times
from tclab.timing._stack_sampler import HERTZ, Site, StackSampler, hide_from_dynamo


class ProgramProfiler:
    """A stack sampler, the parts of the run, and what DataLoaders do.

    `stage` returns the stage that the program is in, or `None` to leave a sample out.
    """

    def __init__(self, stage: Callable[[], str | None], hertz: float = HERTZ) -> None:
        self.hertz = hertz
        self.sampler = StackSampler(stage, hertz)
        self.clock = PartClock()
        self.watch = LoaderWatch(self.clock, self.sampler)
        self._loaders_open = False  # or opening: a signal's handler may ask meanwhile

    def start(self) -> None:
        """Begin; see `StackSampler.start` for what it raises."""
        self.sampler.start()
        self.clock.begin()
        self.open_loaders()

    def open_loaders(self) -> None:
        """Begin to watch DataLoaders, where torch is imported."""
        module = sys.modules.get("torch.utils.data.dataloader")
        if self._loaders_open or module is None or getattr(module.__spec__, "_initializing", False):
            return
        self._loaders_open = True
        self.watch.open()
        hide_from_dynamo()

    def stop(self) -> None:
        """End; what was learnt stays."""
        self.sampler.stop()
        self.clock.end()
        self.watch.close()
        self._loaders_open = False

    def lines(self, waits: Syncs | None = None) -> Lines:
        """Return the lines of the main thread and of the workers, with the synchronisations of one step."""
        times = line_times(self.sampler.sites(), waits=waits)
        by_worker: dict[str, dict[tuple[str, Site], float]] = {}
        for fetch in self.watch.fetches:
            if fetch.where == MAIN:
                continue
            sites = by_worker.setdefault(fetch.where, {})
            for (_, site), seconds in fetch.sites.items():
                if site.part:  # what a worker does between batches is waiting
                    sites[site.part, site] = sites.get((site.part, site), 0.0) + seconds
        for where in sorted(by_worker):
            times += line_times(by_worker[where], where=where)
        cuda = None if waits is None else waits.cuda
        return Lines(tuple(times), self.sampler.slots, self.hertz, cuda, self.sampler.own_ns / 1e9)

    def samples(self) -> SampleTimes:
        """Return where the time of making samples went."""
        for fetch in self.watch.fetches:
            if fetch.where == MAIN:
                fetch.sites = {key: seconds for key, seconds in self.sampler.sites().items() if key[1].part}
        return sample_times(self.watch.fetches)

    def epoch(self, steps: int, stages: Mapping[str, Sequence[float]]) -> EpochParts:
        """Return the parts of a run of so many steps; `stages`: stage → its seconds in each step that had it."""
        seconds = {part: spent / 1e9 for part, spent in self.clock.nanoseconds.items()}
        times = {part: number for part, number in self.clock.times.items() if part != STEPS}
        whole, waits, logs = (stages.get(name, ()) for name in ("step", "data_wait", "log"))
        taken = {LOGGING: (sum(logs), len(logs))}
        if len(whole) > 1 and len(waits) in (0, len(whole)):
            first, *later = (step - wait for step, wait in zip_longest(whole, waits, fillvalue=0.0))
            taken[FIRST_STEP] = (max(0.0, first - median(later)), 1)
        for part, (spent, number) in taken.items():  # out of the steps
            if number:
                seconds[STEPS] = seconds.get(STEPS, 0.0) - spent
                seconds[part] = seconds.get(part, 0.0) + spent
                times[part] = times.get(part, 0) + number
        return EpochParts(seconds, times, steps)
