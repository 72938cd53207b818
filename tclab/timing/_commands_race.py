"""`race_commands`: which of two commits, folders or commands is faster, from runs that take turns.

    result = tclab.timing.race_commands(["python", "bench.py"], base="main", head="HEAD", budget_seconds=120)
    result.verdict("head", "base"), result.pair("head", "base").ratio

Each run is a process of its own; a run of the one is followed by one of the other, in the rounds of a race. It knows
nothing of what the commands do.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from math import inf
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory, TemporaryFile
from time import perf_counter_ns
from typing import Any

from tclab._display import Display, counted, seconds_text
from tclab._limits import number_of
from tclab.errors import InputError
from tclab.timing import _side_imports
from tclab.timing._race import Race, check_settings, last_notes, race
from tclab.timing._verdict import MARGIN, SAME, UNDECIDED

SIDES = ("head", "base")
CONTROL = "base-again"
# Variables that a hook of git's is given: with its caller's index, git worktree would change that one.
_OF_HOOKS = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX", "GIT_OBJECT_DIRECTORY", "GIT_COMMON_DIR")


@dataclass(frozen=True)
class CommandArm:
    """One side of a race of commands: a call runs the command and returns its seconds.

    **Arguments:**

    - `side`: "head" or "base".
    - `command`: program and arguments. `folder`: where it runs. `environment`: all of its variables.
    - `printed`: whether the seconds are those that the command prints.
    - `identity`: what a record and a result say of this side.
    - `checked`: what the first runs of all sides imported, which the last of them compares.
    """

    side: str
    command: tuple[str, ...]
    folder: Path
    environment: Mapping[str, str]
    printed: bool
    identity: Mapping[str, Any]
    checked: _Imports

    returns_seconds = True

    def __call__(self) -> float:
        with self.checked.first_run(self) as variables:
            begin = perf_counter_ns()
            text = _run(self.side, self.command, self.folder, variables)
            seconds = (perf_counter_ns() - begin) / 1e9
        return self._printed_seconds(text) if self.printed else seconds

    def _printed_seconds(self, text: str) -> float:
        """Return the median of the lines that are a number."""
        numbers = [number for number in map(number_of, text.splitlines()) if number is not None]
        if numbers and all(0 < number < inf for number in numbers):
            return median(numbers)
        printed = ", ".join(map(str, numbers[:5])) or "no line that is a number"
        raise InputError(f"{self.side}: {shlex.join(self.command)} printed {printed}, expected seconds, above 0")


@dataclass
class _Imports:
    """What each side imported in its first run, which is not measured."""

    scratch: Path
    sides: int
    ran: dict[str, tuple[CommandArm, dict[str, Any]]] = field(default_factory=dict)

    @contextmanager
    def first_run(self, arm: CommandArm) -> Iterator[Mapping[str, str]]:
        """Yield the variables of a run; after the first run of the last side, compare what all imported.

        **Raises:** `InputError` where a side did not run its own files, or only one has compiled bytecode.
        """
        if arm.side in self.ran:
            yield arm.environment
            return
        folder = self.scratch / f"{arm.side}-imports"
        folder.mkdir()
        yield {**arm.environment, _side_imports.LIST: str(folder)}
        lists = [json.loads(path.read_bytes()) for path in folder.iterdir()]
        if not lists and Path(arm.command[0]).name.startswith("python"):
            raise InputError(
                f"{arm.side}: what {shlex.join(arm.command)} imports cannot be checked; expected a Python that reads "
                "PYTHONPATH and its sitecustomize (no -I, -E, -S), so that each side runs its own files"
            )
        self.ran[arm.side] = arm, {name: module for modules in lists for name, module in modules.items()}
        if len(self.ran) == self.sides:
            self._compare()

    def _compare(self) -> None:
        apart = "setup= makes an environment for each side"
        (head, of_head), (base, of_base) = sides = [self.ran[side] for side in SIDES]
        for arm, modules in sides:
            for name, (file, own, _) in modules.items():
                strange = own not in (None, file) and not Path(file).is_relative_to(arm.folder.resolve())
                if strange and _side_imports.FINDS in arm.environment:
                    raise InputError(f"{arm.side} imported {name} from {file}, expected its own {own}: {apart}")
        both = {name: (of_head[name], of_base[name]) for name in sorted(of_head.keys() & of_base.keys())}
        for name, ((file, _, compiled), (other_file, _, other_compiled)) in both.items():
            if file == other_file and head.folder != base.folder:
                raise InputError(f"both sides imported {name} from one file, {file}: {apart}")
            if compiled != other_compiled:
                has, has_not = SIDES if compiled else SIDES[::-1]
                raise InputError(
                    f"{has} has compiled bytecode of {name}, and {has_not} has none, which would be compiled in each "
                    "run; expected folders that both can be written to"
                )


def _run(what: str, command: Sequence[str] | str, folder: Path, environment: Mapping[str, str] | None = None) -> str:
    """Run a command and return what it prints. What it starts ends with it, or an interrupt.

    Its output goes to files: a process that it leaves behind would hold a pipe open, and be waited for.

    **Arguments:**

    - `command`: program and arguments; or a text for the shell, a setup, which may leave a server behind.

    **Raises:** `InputError` where it fails.
    """
    is_setup = isinstance(command, str)
    shown, ended = command if isinstance(command, str) else shlex.join(command), False
    with TemporaryFile() as printed, TemporaryFile() as errors:
        try:
            process = subprocess.Popen(
                command, shell=is_setup, cwd=folder, env=_without_hooks(environment or os.environ),
                stdin=subprocess.DEVNULL, stdout=printed, stderr=errors, start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            raise InputError(f"{what}: {shown} cannot be run in {folder}: {error.strerror or error}") from None
        try:
            process.wait()
            ended = True
        finally:
            if not (ended and is_setup):
                with suppress(ProcessLookupError):  # nothing is left
                    os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        for file in (printed, errors):
            file.seek(0)
        text, error_text = (file.read().decode(errors="replace") for file in (printed, errors))
    if process.returncode:
        said = (error_text.strip() or text.strip() or "it said nothing").splitlines()[-1][-500:]
        raise InputError(f"{what}: {shown} ended with {process.returncode}: {said}")
    return text


def _without_hooks(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if name not in _OF_HOOKS}


def _git(*words: str) -> str:
    """Return what git says of the repository that this folder is in. **Raises:** `InputError` with its words."""
    try:
        said = subprocess.run(["git", *words], capture_output=True, text=True, env=_without_hooks(os.environ))
    except OSError as error:
        raise InputError(f"git cannot be run: {error.strerror}") from None
    if said.returncode:
        raise InputError(" ".join(said.stderr.split()))
    return said.stdout.strip()


@contextmanager
def _folder_of(side: str, name: str, scratch: Path) -> Iterator[tuple[Path, str | None]]:
    """Yield the folder in which a side runs, and its commit: a worktree of a revision, or a folder as it is.

    A name that begins with a dot, / or ~ is a folder's. A worktree is removed afterwards. In it the command runs in the
    folder that corresponds to this one.
    """
    is_path, folder, commit, refusal = name.startswith((".", "/", "~")), Path(name).expanduser(), "", ""
    if not is_path:
        try:
            commit = _git("rev-parse", "--verify", "--quiet", f"{name}^{{commit}}")
        except InputError as error:
            refusal = str(error)  # empty where there is no such revision
    if commit:
        tree = scratch / side
        try:
            _run(side, ["git", "worktree", "add", "--detach", "--quiet", str(tree), commit], Path())
            yield tree / _git("rev-parse", "--show-prefix"), commit
        finally:
            with suppress(InputError):
                _git("worktree", "remove", "--force", str(tree))
    elif folder.is_dir():
        yield folder.resolve(), None
    elif refusal:
        raise InputError(f"{side} is {name!r}, which is no folder, and git refuses to look for a revision: {refusal}")
    else:
        refs = [] if is_path else ["HEAD", *_git("for-each-ref", "--format=%(refname:short)").split()]
        near = "".join(f"; did you mean {ref!r}?" for ref in get_close_matches(name, refs, n=1))
        if refs and _git("rev-parse", "--is-shallow-repository") == "true":
            near += "; this clone is shallow, git fetch --unshallow brings the rest"
        raise InputError(f"{side} is {name!r}, expected a revision of this repository or a folder{near}")


def _environment(side: str, folder: Path, setup: str | None, scratch: Path) -> dict[str, str]:
    """Return the variables of a side, and run the setup in an environment of its own.

    Without a setup `python` is the one that runs this, and the side's own code is found before any that is installed.
    Python may store compiled bytecode on each side, also where `PYTHONDONTWRITEBYTECODE` is set for this process: one
    side may have it already.
    """
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    roots = os.pathsep.join([str(folder), str(folder / "src")])
    hook = scratch / f"{side}-hook"
    hook.mkdir()
    shutil.copy(_side_imports.__file__, hook / "sitecustomize.py")
    if setup is None:
        programs, path = Path(sys.executable).parent, [roots, str(hook), variables.get("PYTHONPATH", "")]
        variables[_side_imports.FINDS] = "1"
    else:
        venv, path = scratch / f"{side}-environment", [str(hook)]
        _run(side, [sys.executable, "-m", "venv", str(venv)], folder)
        programs = venv / "bin"
        variables["VIRTUAL_ENV"] = str(venv)
        variables.pop("PYTHONPATH", None)
    variables["PATH"] = os.pathsep.join([str(programs), variables.get("PATH", os.defpath)])
    if setup is not None:
        _run(f"{side}, setup", setup, folder, variables)
    return variables | {"PYTHONPATH": os.pathsep.join(filter(None, path)), _side_imports.ROOTS: roots}


def race_commands(
    command: Sequence[str], *, base: str = ".", head: str = ".", base_command: Sequence[str] | None = None,
    setup: str | None = None, setup_base: str | None = None, control: bool = False, printed: bool = False,
    budget_seconds: float = 120.0, margin: float = MARGIN, record: str | Path | None = None, progress: bool = False,
) -> Race:  # fmt: skip
    """Race a command of one commit against the same of another, or two commands, and return the verdict on "head".

    Runs take turns in balanced order, "head" and "base" twice in each round. Each side is run once before that,
    unmeasured, and what it imported is checked: a race of Python code whose sides ran the same file, or of which one
    alone has compiled bytecode, is refused.

    **Arguments:**

    - `command`: program and arguments.
    - `base`, `head`: a revision of the repository that this folder is in (a branch, a tag, a hash), which is checked
      out in a worktree of its own; or a folder, which is taken as it is, changes that are not committed included.
    - `base_command`: of `base`, if it is another.
    - `setup`: a command line for the shell, such as "pip install .", which is run once in each side's folder, in a
      Python environment of its own, in which the command then runs. Without one both run with the Python that runs
      this, and each side's modules are found in its folder and its `src` before any other.
    - `setup_base`: of `base`, if it is another: `setup="pip install . torch==2.13"`, `setup_base="pip install .
      torch==2.11"` race two versions of a dependency.
    - `control`: race `base` against a copy of itself, too, "base-again". Where these two differ, the race has found
      what is not in the code, and its answer is no verdict.
    - `printed`: the command prints its seconds, a number a line; the median of a run's numbers is one measurement.
      Otherwise a run is timed whole, its start included.
    - `budget_seconds`, `margin`, `record`, `progress`: as for `race`; setup and first runs come before the budget.

    **Raises:** `InputError` for what is neither a revision nor a folder; for a command that cannot be run or fails,
    with the last line that it wrote; with `printed`, for one that prints no number; for sides that import the same
    file, or of which one alone has compiled bytecode; with git's words where it refuses.
    """
    check_settings(budget_seconds, margin)
    of_base = command if base_command is None else base_command, base, setup if setup_base is None else setup_base
    sides = {"head": (command, head, setup), "base": of_base} | ({CONTROL: of_base} if control else {})
    arms: dict[str, CommandArm] = {}
    with ExitStack() as opened:
        scratch = Path(opened.enter_context(TemporaryDirectory(prefix="tclab-race-")))
        checked = _Imports(scratch, len(sides))
        for side, (words, name, line) in sides.items():
            if not words:
                raise InputError(f"{side} has no command, expected one, such as: -- python bench.py")
            folder, commit = opened.enter_context(_folder_of(side, name, scratch))
            variables = _environment(side, folder, line, scratch)
            place = {"commit": commit} if commit else {"folder": str(folder)}
            identity = {"command": shlex.join(words), **place, "setup": line, "printed": printed}
            arms[side] = CommandArm(side, tuple(words), folder, variables, printed, identity, checked)
        if arms["head"].identity == arms["base"].identity:
            warnings.warn("head and base run the same command on the same code: nothing can differ", stacklevel=2)
        found = race(arms, budget_seconds=budget_seconds, margin=margin, record=record, progress=progress)
    pairs = [replace(pair, processes=4 * pair.kept) for pair in found.pairs]  # each run is a process of its own
    said = {side: arm.identity for side, arm in arms.items()}
    return replace(found, pairs=pairs, settings={**found.settings, "sides": said})


def control_differs(result: Race) -> str:
    """Return that base and its copy differ, where a control says so; else nothing."""
    pair = result.pair(CONTROL, "base") if CONTROL in result.arms else None
    if pair is None or pair.verdict in (SAME, UNDECIDED):
        return ""
    return f"No verdict: {pair.sentence}. These two are the same code, so what differs here is not in the code."


def answer_of(result: Race) -> Display:
    """Return the verdict of a race of commands, what ran on each side, and how long on which machine."""
    lines = []
    for side, what in reversed(result.settings["sides"].items()):
        seconds = [sample["seconds"] for sample in result.samples() if sample["arm"] == side]
        typical = seconds_text(median(seconds)) if seconds else ""
        folder = what["commit"][:10] if "commit" in what else what["folder"]
        lines.append((side, what["command"], folder, typical, str(len(seconds))))
    pair = result.pair(*SIDES)
    machine = f"{result.machine['cpu']}, {counted(result.machine['cores'], 'core')}"
    turns = f"Runs took turns for {result.spent_seconds:.3g} s on {machine}; {pair.floor_text}."
    control = [result.pair(CONTROL, "base").sentence] if CONTROL in result.arms else []
    title = control_differs(result) or pair.sentence
    return Display(title, ("", "what ran", "at", "median run", "runs"), lines, [*control, turns, *last_notes(result)])
