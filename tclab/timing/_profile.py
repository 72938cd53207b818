"""Profiling of a program that has no marks: its lines and functions, by a stack sampler, its loaders and its parts."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import zip_longest
from pathlib import Path
from statistics import median
from time import perf_counter

from tclab._display import Display, Shown, seconds_text
from tclab.errors import InputError
from tclab.timing._epoch_parts import FIRST_STEP, LOGGING, STEPS, EpochParts, PartClock
from tclab.timing._host_syncs import Syncs
from tclab.timing._line_times import MAIN, Lines, line_times
from tclab.timing._loader_watch import LoaderWatch
from tclab.timing._sample_times import Loaders, SampleTimes, sample_times
from tclab.timing._stack_sampler import HERTZ, Site, StackSampler, hide_from_dynamo

_FUNCTIONS = 3  # that are named


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


class Profile(Shown):
    """Where a program's time went, by line and by function; `print` it when it has ended."""

    def __init__(self, hertz: float = HERTZ) -> None:
        self.hertz = hertz
        self.seconds = 0.0  # wall time
        self.error: BaseException | None = None  # what ended the script
        self._profiler = ProgramProfiler(self._stage, hertz)

    def _stage(self) -> str:
        self._profiler.open_loaders()  # once the program has imported torch, when it likes
        return ""

    @property
    def lines(self) -> Lines:
        """The lines of the user's code that the time went to."""
        return self._profiler.lines()

    @property
    def samples(self) -> SampleTimes:
        """Where the time of making a sample went, if a DataLoader made any."""
        return self._profiler.samples()

    @property
    def loaders(self) -> Loaders:
        """The passes over DataLoaders."""
        return Loaders(tuple(self._profiler.watch.passes))

    @property
    def exit_code(self) -> int:
        """The script's exit status: 0, what it gave to `sys.exit`, or 1 after an exception."""
        if self.error is None:
            return 0
        code = self.error.code if isinstance(self.error, SystemExit) else 1
        return code if isinstance(code, int) else int(code is not None)

    def _display(self) -> Display:
        shown = self.lines
        display = shown._display()
        functions = ", ".join(f"{name} {share:.0%}" for name, share in list(shown.by_function().items())[:_FUNCTIONS])
        loaders, samples = self.loaders._display(), self.samples
        parts = ", ".join(f"{part} {seconds_text(seconds)}" for part, seconds in samples.parts().items() if seconds)
        notes = [*([f"by function: {functions}"] if functions else []), *display.notes, *loaders.notes]
        notes += [f"a sample is made in: {parts}"] if parts else []
        return Display(f"{seconds_text(self.seconds)}, {display.title}", display.columns, display.lines, notes)


@contextmanager
def profile(hertz: float = HERTZ) -> Iterator[Profile]:
    """Sample what a block of code does, on the main thread: `with profile() as seen: train()`, then `print(seen)`.

    **Arguments:**

    - `hertz`: samples a second.

    **Raises:** `InputError` on another thread than the main one, and where SIGALRM has a handler.
    """
    seen = Profile(hertz)
    seen._profiler.start()
    begin = perf_counter()
    try:
        yield seen
    finally:
        seen._profiler.stop()
        seen.seconds = perf_counter() - begin


def profile_script(path: str | Path, argv: Sequence[str] = (), *, hertz: float = HERTZ) -> Profile:
    """Run a script as `python script.py …` does, and return where its time went.

    An exception that ends the script is printed as Python does and kept as `error`; `exit_code` is the script's.

    **Arguments:**

    - `path`: the script.
    - `argv`: its arguments.
    - `hertz`: samples a second.

    **Raises:** `InputError` if there is no such file.
    """
    script = Path(path)
    if not script.is_file():
        raise InputError(f"the script {str(path)!r} is no file; expected the path of a Python program")
    before, folder = sys.argv, str(script.resolve().parent)
    sys.argv = [str(script), *argv]
    sys.path.insert(0, folder)
    try:
        with profile(hertz) as seen:
            try:
                runpy.run_path(str(script), run_name="__main__")
            except BaseException as error:
                seen.error = error
                if not isinstance(error, SystemExit):
                    sys.excepthook(type(error), error, error.__traceback__)
    finally:
        sys.argv = before
        if folder in sys.path:
            sys.path.remove(folder)
    return seen
