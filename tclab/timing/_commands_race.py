"""`race_commands`: which of two commits, folders or commands is faster, from runs that take turns.

    result = tclab.timing.race_commands(["python", "bench.py"], base="main", head="HEAD", budget_seconds=120)
    result.verdict("head", "base"), result.pair("head", "base").ratio

Each run is a process of its own; a run of the one is followed by one of the other, in the rounds of a race. It knows
nothing of what the commands do.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from difflib import get_close_matches
from math import inf
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter_ns

from tclab._display import Display, counted, seconds_text
from tclab._limits import number_of
from tclab.errors import InputError
from tclab.timing._race import Race, check_settings, last_notes, race
from tclab.timing._race_blocks import Arm
from tclab.timing._verdict import MARGIN, sentence_of

SIDES = ("head", "base")


@dataclass(frozen=True)
class CommandArm:
    """One side of a race of commands: a call runs the command and returns its seconds.

    **Arguments:**

    - `side`: "head" or "base".
    - `command`: program and arguments. `folder`: where it runs. `environment`: all of its variables.
    - `printed`: whether the seconds are those that the command prints.
    """

    side: str
    command: tuple[str, ...]
    folder: Path
    environment: Mapping[str, str]
    printed: bool

    def __call__(self) -> float:
        begin = perf_counter_ns()
        text = _run(self.side, self.command, self.folder, self.environment)
        seconds = (perf_counter_ns() - begin) / 1e9
        return self._printed_seconds(text) if self.printed else seconds

    def _printed_seconds(self, text: str) -> float:
        """Return the median of the lines that are a number."""
        numbers = [number for number in map(number_of, text.splitlines()) if number is not None]
        if not numbers or not all(0 < number < inf for number in numbers):
            raise InputError(
                f"{self.side}: {shlex.join(self.command)} printed "
                f"{', '.join(map(str, numbers[:5])) or 'no line that is a number'}, expected seconds, above 0"
            )
        return median(numbers)


def _run(what: str, command: Sequence[str] | str, folder: Path, environment: Mapping[str, str] | None = None) -> str:
    """Run a command and return what it prints; a text is for the shell. What it starts ends with an interrupt.

    **Raises:** `InputError` where it fails.
    """
    shown = command if isinstance(command, str) else shlex.join(command)
    try:
        process = subprocess.Popen(
            command, shell=isinstance(command, str), cwd=folder, env=environment, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace", start_new_session=True,
        )  # fmt: skip
    except OSError as error:
        raise InputError(f"{what}: {shown} cannot be run in {folder}: {error.strerror or error}") from None
    with process:
        try:
            printed, errors = process.communicate()
        except BaseException:
            with suppress(ProcessLookupError):  # it has just ended
                os.killpg(process.pid, signal.SIGKILL)
            raise
    if process.returncode:
        said = (errors.strip() or printed.strip() or "it said nothing").splitlines()[-1][-500:]
        raise InputError(f"{what}: {shown} ended with {process.returncode}: {said}")
    return printed


def _git(*words: str) -> str:
    """Return what git says of the repository that this folder is in; empty where it fails."""
    try:
        return subprocess.run(["git", *words], capture_output=True, text=True).stdout.strip()
    except OSError:
        return ""


@contextmanager
def _folder_of(side: str, name: str, scratch: Path) -> Iterator[tuple[Path, str | None]]:
    """Yield the folder in which a side runs, and its commit: a worktree of a revision, or a folder as it is.

    A name that begins with a dot, / or ~ is a folder's. A worktree is removed afterwards. In it the command runs in the
    folder that corresponds to this one.
    """
    is_path = name.startswith((".", "/", "~"))
    commit = "" if is_path else _git("rev-parse", "--verify", "--quiet", f"{name}^{{commit}}")
    folder = Path(name).expanduser()
    if commit:
        tree = scratch / side
        try:
            _run(side, ["git", "worktree", "add", "--detach", "--quiet", str(tree), commit], Path())
            yield tree / _git("rev-parse", "--show-prefix"), commit
        finally:
            _git("worktree", "remove", "--force", str(tree))
    elif folder.is_dir():
        yield folder.resolve(), None
    else:
        refs = ["HEAD", *_git("for-each-ref", "--format=%(refname:short)").split()]
        near = "".join(f"; did you mean {ref!r}?" for ref in get_close_matches(name, refs, n=1))
        raise InputError(f"{side} is {name!r}, expected a revision of this repository or a folder{near}")


def _environment(side: str, folder: Path, setup: str | None, scratch: Path) -> dict[str, str]:
    """Return the variables of a side, and run the setup in an environment of its own.

    Without a setup `python` is the one that runs this, and the side's own code is found before any that is installed.
    """
    variables = dict(os.environ)
    programs = Path(sys.executable).parent
    if setup is None:
        path = [str(folder), str(folder / "src"), variables.get("PYTHONPATH", "")]
        variables["PYTHONPATH"] = os.pathsep.join(filter(None, path))
    else:
        place = scratch / f"{side}-environment"
        _run(side, [sys.executable, "-m", "venv", str(place)], folder)
        programs = place / "bin"
        variables["VIRTUAL_ENV"] = str(place)
        variables.pop("PYTHONPATH", None)
    variables["PATH"] = os.pathsep.join([str(programs), variables.get("PATH", os.defpath)])
    if setup is not None:
        _run(f"{side}, setup", setup, folder, variables)
    return variables


def race_commands(
    command: Sequence[str],
    *,
    base: str = ".",
    head: str = ".",
    base_command: Sequence[str] | None = None,
    setup: str | None = None,
    printed: bool = False,
    budget_seconds: float = 120.0,
    margin: float = MARGIN,
    record: str | Path | None = None,
    progress: bool = False,
) -> Race:
    """Race a command of one commit against the same of another, or two commands, and return the verdict on "head".

    Runs take turns in balanced order, "head" and "base" twice in each round. Each side is run once before that,
    unmeasured.

    **Arguments:**

    - `command`: program and arguments.
    - `base`, `head`: a revision of the repository that this folder is in (a branch, a tag, a hash), which is checked
      out in a worktree of its own; or a folder, which is taken as it is, changes that are not committed included.
    - `base_command`: of `base`, if it is another.
    - `setup`: a command line for the shell, such as "pip install .", which is run once in each side's folder, in a
      Python environment of its own, in which the command then runs. Without one both run with the Python that runs
      this, and PYTHONPATH begins with the side's folder and its `src`.
    - `printed`: the command prints its seconds, a number a line; the median of a run's numbers is one measurement.
      Otherwise a run is timed whole, its start included.
    - `budget_seconds`, `margin`, `record`, `progress`: as for `race`; setup and first runs come before the budget.

    **Raises:** `InputError` for what is neither a revision nor a folder; for a command that cannot be run or fails,
    with the last line that it wrote; with `printed`, for one that prints no number.
    """
    check_settings(budget_seconds, margin)
    commands = {"head": tuple(command), "base": tuple(command if base_command is None else base_command)}
    for side, words in commands.items():
        if not words:
            raise InputError(f"{side} has no command, expected one, such as: -- python bench.py")
    arms = dict[str, Arm]()
    with ExitStack() as opened:
        scratch = Path(opened.enter_context(TemporaryDirectory(prefix="tclab-race-")))
        for side, name in (("head", head), ("base", base)):
            folder, commit = opened.enter_context(_folder_of(side, name, scratch))
            variables = _environment(side, folder, setup, scratch)
            place = {"commit": commit} if commit else {"folder": str(folder)}
            identity = {"command": shlex.join(commands[side]), **place, "setup": setup, "printed": printed}
            run = CommandArm(side, commands[side], folder, variables, printed)
            arms[side] = Arm(run, returns_seconds=True, identity=identity)
        if arms["head"].identity == arms["base"].identity:
            warnings.warn("head and base run the same command on the same code: nothing can differ", stacklevel=2)
        found = race(arms, budget_seconds=budget_seconds, margin=margin, record=record, progress=progress)
    pairs = [replace(pair, processes=4 * pair.kept) for pair in found.pairs]  # each run is a process of its own
    sides = {side: arm.identity for side, arm in arms.items()}
    return replace(found, pairs=pairs, settings={**found.settings, "sides": sides})


def answer_of(result: Race) -> Display:
    """Return the verdict of a race of commands, what ran on each side, and how long on which machine."""
    pair, lines = result.pair(*SIDES), []
    for side, what in reversed(result.settings["sides"].items()):
        seconds = [sample["seconds"] for sample in result.samples() if sample["arm"] == side]
        typical = seconds_text(median(seconds)) if seconds else ""
        place = what["commit"][:10] if "commit" in what else what["folder"]
        lines.append((side, what["command"], place, typical, str(len(seconds))))
    turns = (
        f"Runs took turns for {result.spent_seconds:.3g} s on {result.machine['cpu']}, "
        f"{counted(result.machine['cores'], 'core')}; margin ±{pair.margin:.1%}."
    )
    return Display(sentence_of(pair), ("", "what ran", "at", "median run", "runs"), lines, [turns, *last_notes(result)])
