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
from dataclasses import replace
from difflib import get_close_matches
from functools import cache, partial
from math import inf
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory, TemporaryFile
from time import perf_counter_ns

from tclab._display import Display, counted, seconds_text
from tclab._limits import number_of
from tclab.errors import InputError
from tclab.timing._loader_arm import Arm
from tclab.timing._race import Race, check_settings, last_notes, race
from tclab.timing._verdict import MARGIN, sentence_of

SIDES = ("head", "base")
_BYTECODE = "PYTHONPYCACHEPREFIX"
_CONTROL = "head and base run the same code: what differs between them is the machine"
# Variables that a side does not get: those of git's hooks, whose index git worktree would change, and one by which
# Python would compile its code in each run.
_DROPPED = {
    "GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX", "GIT_OBJECT_DIRECTORY", "GIT_COMMON_DIR",
    "PYTHONDONTWRITEBYTECODE",
}  # fmt: skip


def _seconds_of(side: str, command: tuple[str, ...], folder: Path, variables: dict[str, str], printed: bool) -> float:
    """Run a side's command and return its seconds: of the whole run, or those that it prints."""
    begin = perf_counter_ns()
    text = _run(side, command, folder, variables)
    seconds = (perf_counter_ns() - begin) / 1e9
    _check_imports(side, command, folder, Path(variables[_BYTECODE]))
    if not printed:
        return seconds
    numbers = [number for number in map(number_of, text.splitlines()) if number is not None]
    if numbers and all(0 < number < inf for number in numbers):
        return median(numbers)
    found = ", ".join(map(str, numbers[:5])) or "no line that is a number"
    raise InputError(f"{side}: {shlex.join(command)} printed {found}, expected seconds, above 0")


@cache
def _check_imports(side: str, command: tuple[str, ...], folder: Path, bytecode: Path) -> None:
    """Check, by what a side's first run compiled, that it imported no other file where the side has one of that name.

    An editable install may have put a finder before PYTHONPATH (scikit-build-core, meson-python), and so is the folder
    of a script.
    """
    own = (folder, bytecode.with_name(f"{side}-environment"))
    compiled = [Path("/", file.relative_to(bytecode)) for file in bytecode.rglob("*.pyc")]
    if not compiled and Path(command[0]).name.startswith("python"):
        said = "expected a Python that stores bytecode where it is told to (no -I, -E, -B)"
        raise InputError(f"{side}: what {shlex.join(command)} imports cannot be checked; {said}")
    for file in compiled:
        source = file.with_name(f"{file.name.partition('.')[0]}.py")
        name = source.relative_to(next(each for each in source.parents if not (each / "__init__.py").exists()))
        is_of_side = any((root / name).exists() for root in (folder, folder / "src"))
        if is_of_side and not any(source.is_relative_to(each) for each in own):
            fix = "keep a script outside of both sides; setup= makes an environment for each"
            raise InputError(f"{side} imported {source}, expected its own {name}, in {folder}: {fix}")


def _variables() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name not in _DROPPED}


def _run(what: str, command: Sequence[str] | str, folder: Path, environment: Mapping[str, str] | None = None) -> str:
    """Run a command and return what it prints. What it starts ends with it, or an interrupt.

    Its output goes to files: a process that it leaves behind would hold a pipe open, and be waited for.

    **Arguments:**

    - `command`: program and arguments; or a text for the shell, a setup, which may leave a server behind.

    **Raises:** `InputError` where it fails.
    """
    is_setup = isinstance(command, str)
    shown = command if isinstance(command, str) else shlex.join(command)
    with TemporaryFile() as out, TemporaryFile() as err:
        try:
            process = subprocess.Popen(
                command, shell=is_setup, cwd=folder, env=environment or _variables(), stdin=subprocess.DEVNULL,
                stdout=out, stderr=err, start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            raise InputError(f"{what}: {shown} cannot be run in {folder}: {error.strerror or error}") from None
        try:
            process.wait()
        finally:
            if not is_setup or process.returncode is None:
                with suppress(ProcessLookupError):  # nothing is left
                    os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        text, errors = (os.pread(file.fileno(), 2**31 - 1, 0).decode(errors="replace") for file in (out, err))
    if process.returncode:
        said = (errors.strip() or text.strip() or "it said nothing").splitlines()[-1][-500:]
        raise InputError(f"{what}: {shown} ended with {process.returncode}: {said}")
    return text


def _git(*words: str) -> str:
    """Return what git says of the repository that this folder is in. **Raises:** `InputError` with its words."""
    try:
        said = subprocess.run(["git", *words], capture_output=True, text=True, env=_variables())
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
    is_path, folder, refusal = name.startswith((".", "/", "~")), Path(name).expanduser(), ""
    try:
        commit = "" if is_path else _git("rev-parse", "--verify", "--quiet", f"{name}^{{commit}}")
    except InputError as error:
        commit, refusal = "", str(error)  # empty where there is no such revision
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
        raise InputError(f"{side} is {name!r}: not a folder, and git refuses to look for a revision: {refusal}")
    else:
        refs = [] if is_path else ["HEAD", *_git("for-each-ref", "--format=%(refname:short)").split()]
        near = "".join(f"; did you mean {ref!r}?" for ref in get_close_matches(name, refs, n=1))
        if refs and _git("rev-parse", "--is-shallow-repository") == "true":
            near += "; this clone is shallow, git fetch --unshallow brings the rest"
        raise InputError(f"{side} is {name!r}, expected a revision of this repository or a folder{near}")


def _environment(side: str, folder: Path, setup: str | None, scratch: Path) -> dict[str, str]:
    """Return the variables of a side, and run the setup in an environment of its own.

    Without a setup `python` is the one that runs this, and the side's own code is found before any that is installed.
    Each keeps compiled bytecode in a new folder, since one may have some already, or a folder that cannot be written.
    """
    venv, variables = scratch / f"{side}-environment", _variables()
    programs = Path(sys.executable).parent if setup is None else venv / "bin"
    variables["PATH"] = os.pathsep.join([str(programs), variables.get("PATH", os.defpath)])
    path = [str(folder), str(folder / "src"), *filter(None, [variables.pop("PYTHONPATH", "")])]
    if setup is None:
        variables["PYTHONPATH"] = os.pathsep.join(path)
    else:
        _run(side, [sys.executable, "-m", "venv", str(venv)], folder)
        variables["VIRTUAL_ENV"] = str(venv)
        _run(f"{side}, setup", setup, folder, variables)
    return variables | {_BYTECODE: str(scratch / f"{side}-bytecode")}


def race_commands(
    command: Sequence[str], *, base: str = ".", head: str = ".", base_command: Sequence[str] | None = None,
    setup: str | None = None, setup_base: str | None = None, printed: bool = False, budget_seconds: float = 120.0,
    margin: float = MARGIN, record: str | Path | None = None, progress: bool = False,
) -> Race:  # fmt: skip
    """Race a command of one commit against the same of another, or two commands, and return the verdict on "head".

    Runs take turns in balanced order, "head" and "base" twice in each round. Each side is run once before that,
    unmeasured, in which Python compiles all that it imports; a race of Python code is refused if a side imported
    another file then where it has one of that name.

    **Arguments:**

    - `command`: program and arguments.
    - `base`, `head`: a revision of the repository that this folder is in (a branch, a tag, a hash), which is checked
      out in a worktree of its own; or a folder, which is taken as it is, changes that are not committed included. The
      same for both is a control (A/A): the result says so, and shows what differs without a difference of the code.
    - `base_command`: of `base`, if it is another.
    - `setup`: a command line for the shell, such as "pip install .", which is run once in each side's folder, in a
      Python environment of its own, in which the command then runs. Without one both run with the Python that runs
      this, and PYTHONPATH begins with the side's folder and its `src`.
    - `setup_base`: of `base`, if it is another: `setup="pip install . torch==2.13"`, `setup_base="pip install .
      torch==2.11"` race two versions of a dependency.
    - `printed`: the command prints its seconds, a number a line; the median of a run's numbers is one measurement.
      Otherwise a run is timed whole, its start included.
    - `budget_seconds`, `margin`, `record`, `progress`: as for `race`; setup and first runs come before the budget.

    **Raises:** `InputError` for what is neither a revision nor a folder; for a command that cannot be run or fails,
    with the last line that it wrote; with `printed`, for one that prints no number; for a side that imports another's
    files; with git's words where it refuses.
    """
    check_settings(budget_seconds, margin)
    of_base = command if base_command is None else base_command, base, setup if setup_base is None else setup_base
    arms = dict[str, Arm]()
    with ExitStack() as opened:
        scratch = Path(opened.enter_context(TemporaryDirectory(prefix="tclab-race-"))).resolve()
        for side, (words, name, line) in {"head": (command, head, setup), "base": of_base}.items():
            if not words:
                raise InputError(f"{side} has no command, expected one, such as: -- python bench.py")
            folder, commit = opened.enter_context(_folder_of(side, name, scratch))
            variables = _environment(side, folder, line, scratch)
            if commit and "\n-" in f"\n{_run(side, ['git', 'submodule', 'status'], folder)}":
                setups = "setup='git submodule update --init' fills them"
                warnings.warn(f"{side} has submodules, which a worktree leaves empty: {setups}", stacklevel=2)
            place = {"commit": commit} if commit else {"folder": str(folder)}
            identity = {"command": shlex.join(words), **place, "setup": line, "printed": printed}
            run = partial(_seconds_of, side, tuple(words), folder, variables, printed)
            arms[side] = Arm(run, returns_seconds=True, identity=identity)
        if arms["head"].identity == arms["base"].identity:
            warnings.warn(_CONTROL, stacklevel=2)
        found = race(arms, budget_seconds=budget_seconds, margin=margin, record=record, progress=progress)
    pairs = [replace(pair, processes=4 * pair.kept) for pair in found.pairs]  # each run is a process of its own
    settings = {**found.settings, "sides": {side: arm.identity for side, arm in arms.items()}}
    return replace(found, pairs=pairs, settings=settings)


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
    head, base = result.settings["sides"].values()
    notes = [turns, *([f"A control: {_CONTROL}."] if head == base else []), *last_notes(result)]
    return Display(sentence_of(pair), ("", "what ran", "at", "median run", "runs"), lines, notes)
