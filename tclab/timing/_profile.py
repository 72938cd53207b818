"""The lines of a program that its time goes to, by py-spy, which reads the stacks of a process from outside of it."""

from __future__ import annotations

import os
import re
import runpy
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import TYPE_CHECKING, Any

from tclab._display import Display, Shown, seconds_text
from tclab.errors import InputError
from tclab.timing._environment import Contention, conditions, contention, usable_cores
from tclab.timing._loader_times import LoaderTimes, loader_times
from tclab.timing._user_code import is_user_file, short_place, source_of

if TYPE_CHECKING:
    from tclab.timing._advice import Advice

MAIN, WORKERS, OTHERS = "main", "workers", "other processes"
_MOST = 8  # lines that are shown of each kind of process
_LEAST = 0.0005  # share of a line that is shown; less would be "0.0%"
_BUSY_CORES = 0.5  # that other processes use, from which it is said
_FRAME = re.compile(r".*? \((.*):(\d+)\)")  # py-spy's: function (file:line)
# to stop a process, py-spy would wait until it has a core, and then meet what comes after: waits, too often
_OPTIONS = ("record", "--nonblocking", "--subprocesses", "--threads", "--idle", "--full-filenames", "--format", "raw")
_RUN = "from tclab.timing._profile import run_script; run_script()"
_APART = 'exec "$@" 3>&1 4>&2 >"$0" 2>&1'  # py-spy speaks into a file; 3 and 4 are the outputs of the script
_ALLOW = (
    "Where the system does not let it read another process (ptrace): start a container with --cap-add=SYS_PTRACE "
    "(Kubernetes: capabilities add SYS_PTRACE), elsewhere set `sudo sysctl kernel.yama.ptrace_scope=0`, or use sudo"
)

Line = tuple[str, int]  # file and line; ("", 0) of a worker that is in no line of the user's


@dataclass(repr=False)
class Profile(Shown):
    """Where a program's time went, by the innermost line of the user's own code; `print` it.

    A line has the time of all that it calls and waits for in libraries, but not in other lines of the user's, which
    have their own. Shares are of the wall time of main threads in which a line of the user's was open; of workers, of
    all the time.

    **Arguments:**

    - `samples`: "main", "workers" (of DataLoaders, all together) or "other processes" → line → times that it was seen,
      100 a second.
    - `seconds`: wall time, the start of Python included.
    - `exit_code`: the script's.
    - `loaders`: what the script's DataLoaders did; `None` without torch, and where it was killed.
    - `busy`: that other processes used the processors, which changes every share, and what to do; else empty.
    """

    samples: dict[str, Counter[Line]]
    seconds: float
    exit_code: int = 0
    loaders: LoaderTimes | None = None
    busy: str = ""

    def shares(self, where: str = MAIN) -> dict[Line, float]:
        """Return line → share of the time of the main process, of workers or of others, the largest first."""
        seen = self.samples.get(where, Counter())
        return {line: n / seen.total() for line, n in seen.most_common()}

    @property
    def advice(self) -> Advice:
        """What to change in the loading, where it would save a tenth or more; see `tclab.timing.advise`."""
        from tclab.timing._advice import advise  # late: the script's process needs none of its imports

        found = advise(loaders=self.loaders, margin=0.1)
        largest = next((f" {share:.0%} of the workers' time is in {short_place(file, line)}."
                        for (file, line), share in self.shares(WORKERS).items() if file), "")  # fmt: skip
        return replace(found, suggestions=tuple(replace(each, why=each.why + largest) for each in found.suggestions))

    def _display(self) -> Display:
        lines = []
        for where in self.samples:
            shares = self.shares(where)
            for file, line in [one for one, share in shares.items() if share >= _LEAST][:_MOST]:
                place = short_place(file, line) if file else "in torch: waiting, sending"
                lines.append((where, f"{shares.pop((file, line)):.1%}", place, source_of(file, line)))
            if (rest := sum(shares.values())) >= _LEAST:
                lines.append((where, f"{rest:.1%}", "other lines", ""))
        total = sum(seen.total() for seen in self.samples.values())
        title = f"{seconds_text(self.seconds)}, {total} samples; a line counts what it calls, but not your other lines"
        columns = ("process", "share", "line", "code") if lines else ()
        return Display(f"{self.busy}\n{title}".strip(), columns, lines)


def read_samples(text: str) -> dict[str, Counter[Line]]:
    """Return the samples of main threads in a file of `py-spy record --format raw --subprocesses --threads --idle`."""
    found: dict[str, Counter[Line]] = {MAIN: Counter()}
    for sample in text.splitlines():
        stack, _, n = sample.rpartition(" ")
        frames = stack.split(";")
        processes = [frame.split(":")[0].split()[1] for frame in frames if frame.startswith("process ")]
        thread = next((frame for frame in frames if frame.startswith("thread (")), "")
        if not processes or not (thread.endswith("MainThread") or thread == f"thread ({processes[-1]})"):
            continue
        where = MAIN if len(processes) == 1 else OTHERS
        loop = max((i for i, one in enumerate(frames) if one.startswith("_worker_loop (")), default=None)
        if loop is not None:  # a forked process has the stack of the one that forked it below
            where, frames = WORKERS, frames[loop:]
        called = [match for match in map(_FRAME.fullmatch, frames) if match and is_user_file(match[1])]
        if called or where == WORKERS:  # else Python begins or ends
            line = (called[-1][1], int(called[-1][2])) if called else ("", 0)
            found.setdefault(where, Counter())[line] += int(n)
    return found


def profile(path: str | Path, argv: Sequence[str] = ()) -> Profile:
    """Run a script as `python script.py …` does, and return where its time went, with what its DataLoaders did.

    Ctrl-C ends the script, and what was sampled is returned.

    **Arguments:**

    - `path`: the script.
    - `argv`: its arguments.

    **Raises:** `InputError` if there is no such file, or where py-spy is not installed or may not read a process.
    """
    import msgspec  # late: nothing else here needs it

    if not Path(path).is_file():
        raise InputError(f"the script {str(path)!r} is not a file; expected the path of a Python program")
    spy = shutil.which("py-spy", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}")
    if spy is None:
        raise InputError("profiling needs py-spy: in tclab's folder, pip install '.[profile]'")
    with TemporaryDirectory() as folder:
        samples, result, said = (Path(folder) / name for name in ("samples", "result", "said"))
        run = [sys.executable, "-c", _RUN, str(result), str(path), *argv]
        before, used, begin = conditions(), sum(os.times()[2:4]), perf_counter()
        running = subprocess.Popen(["sh", "-c", _APART, str(said), spy, *_OPTIONS, "-o", str(samples), "--", *run])
        while running.poll() is None:
            with suppress(KeyboardInterrupt):  # the script and py-spy get it, too
                running.wait()
        seen, waited, seconds = contention(before, conditions()), sum(os.times()[2:4]) - used, perf_counter() - begin
        if not samples.exists() or not samples.stat().st_size:
            last = " ".join(said.read_text(errors="replace").split())[-500:] or "nothing"
            raise InputError(f"py-spy recorded nothing; the last that it said: {last}. {_ALLOW}")
        ended = msgspec.json.decode(result.read_bytes(), type=_Ended) if result.exists() else _Ended()
        # py-spy often ends before the script has, and then does not wait for it: the script's own count is the larger
        busy = _busy_text(seen, max(waited, ended.processor_seconds))
        if not result.exists():
            busy = f"The script ended by os._exit, exec or a signal: its exit code is not known.\n{busy}".strip()
        return Profile(read_samples(samples.read_text()), seconds, ended.exit_code, ended.loaders, busy)


def _busy_text(seen: Contention, own_seconds: float) -> str:
    """Return how far other processes used the processors meanwhile; empty where they did not, or that is not known.

    **Arguments:**

    - `own_seconds`: processor time of the script, and of all that it started.
    """
    others = (seen.busy_cores or 0.0) - own_seconds / (seen.seconds or 1.0)
    if not seen.shared or others < _BUSY_CORES:
        return ""
    return (
        f"The script ran while other processes used {others:.1f} of {usable_cores()} processors, so the shares are not "
        f"its own alone ({seen}). Profile it again on a quiet machine."
    )


# ---- in the script's process


@dataclass
class _Ended:
    """How a script ended; by default as one that was killed."""

    exit_code: int = 1
    loaders: LoaderTimes | None = None
    processor_seconds: float = 0.0  # with those of its children that it waited for


def run_script() -> None:
    """Run the script that the command line names after a file, to which how it ended is written."""
    import msgspec

    for output, own in ((1, 3), (2, 4)):
        os.dup2(own, output)
        os.close(own)
    stdout: Any = sys.stdout
    stdout.reconfigure(line_buffering=os.isatty(1))  # as in a process that began with it
    result, *sys.argv = sys.argv[1:]
    sys.path[0] = str(Path(sys.argv[0]).resolve().parent)
    ended = _Ended()
    with ExitStack() as watch:
        sys.meta_path.insert(0, _Torch(watch, ended))
        try:
            runpy.run_path(sys.argv[0], run_name="__main__")
            ended.exit_code = 0
        except SystemExit as end:
            ended.exit_code = end.code if isinstance(end.code, int) else int(end.code is not None)
            raise
        finally:
            watch.close()
            Path(result).write_bytes(msgspec.json.encode(replace(ended, processor_seconds=sum(os.times()[:4]))))


class _Torch:
    """An importer's hook: begins to time DataLoaders when the script imports them, and imports nothing by itself.

    A script may set the environment before it imports torch.
    """

    def __init__(self, watch: ExitStack, ended: _Ended) -> None:
        self.watch, self.ended = watch, ended

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        if name != "torch.utils.data.dataloader":
            return None
        sys.meta_path.remove(self)
        spec: Any = find_spec(name)
        execute = spec.loader.exec_module

        def executed(module: Any) -> None:
            execute(module)
            self.ended.loaders = self.watch.enter_context(loader_times())

        spec.loader.exec_module = executed
        return spec
