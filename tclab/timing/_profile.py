"""Profiling of a program that has no marks: its lines and functions, by a stack sampler."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter

from tclab._display import Display, Shown
from tclab._format import seconds_text
from tclab.errors import InputError
from tclab.timing._line_times import Lines
from tclab.timing._program_profiler import ProgramProfiler
from tclab.timing._sample_times import Loaders, SampleTimes
from tclab.timing._stack_sampler import HERTZ

_FUNCTIONS = 3  # that are named


class Profile(Shown):
    """Where a program's time went, by line and by function; `print` it when it has ended.

    **Arguments:**

    - `hertz`: samples a second.
    """

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
