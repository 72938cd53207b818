"""Verbs that need no point: they read rows and traces, race commands, profile a script, open the panel."""

from __future__ import annotations

import os
import shlex
import signal
import sys
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from tclab._display import say
from tclab.command._app import Imports, helped, import_files, show
from tclab.errors import InputError, need
from tclab.timing._verdict import FASTER, MARGIN, SAME, SLOWER

_EXIT_CODES = {FASTER: 0, SAME: 0, SLOWER: 1}  # of a race of commands
_UNDECIDED = 3


def _rows(path: Path) -> Any:
    """Return the rows of a path.

    **Raises:** `InputError` if there are none: for a program an empty folder is not an answer.
    """
    from tclab.sweeps._row_files import rows_of

    rows = rows_of(path)
    if rows.empty:
        raise InputError(f"no rows in {path}")
    return rows


@helped
def advise(
    rows: Path, /, *, now: str | None = None, measure: bool = False, budget_seconds: float = 60.0,
    margin: float = MARGIN, imports: Imports = None, json: bool = False,
) -> int:  # fmt: skip
    """Say what to change, ranked by predicted gain, and which questions stay open; see `tclab.advise`.

    - `rows`: a folder of results, or a file of rows.
    - `now`: the strategy that is run now.
    - `measure`: race the first suggestions against the present setting.
    - `budget_seconds`: for all races together; the setup of their candidates is not counted.
    - `margin`: a gain below this share of the time does not count.
    """
    from tclab.sweeps._advise import advise as advise_on

    import_files(imports)
    advice = advise_on(_rows(rows), now=now, margin=margin)
    show(advice.measure(budget_seconds=budget_seconds) if measure else advice, as_json=json)
    return 0


@helped
def compare(first: Path, second: Path, /, *, stage: str = "step", margin: float = MARGIN, json: bool = False) -> int:
    """Compare runs of two commits, machines or settings; FASTER means that the second is. See `tclab.compare`.

    - `first`: a folder of results, or a file of rows.
    - `second`: the same, for the side that the verdict is about.
    - `stage`: step, or one stage of it.
    - `margin`: a difference below this share does not count. A verdict needs two runs of each setting.
    """
    from tclab.sweeps._compare import compare as compare_runs

    show(compare_runs(_rows(first), _rows(second), stage=stage, margin=margin), as_json=json)
    return 0


@helped
def race_commands(
    *command: str, base: str = ".", head: str = ".", base_command: str | None = None, setup: str | None = None,
    setup_base: str | None = None, printed: bool = False, budget_seconds: float = 120.0,
    margin: float = MARGIN, record: Path | None = None, markdown: bool = False, json: bool = False,
) -> int:  # fmt: skip
    """Race a command at two commits by turns, and print the verdict on head.

    `tclab race-commands --base main --head HEAD -- python bench.py`. Exit codes: 0 FASTER or SAME; 1 SLOWER; 2 an
    argument is wrong, or a command failed; 3 UNDECIDED. See `tclab.timing.race_commands` and docs/race_commits.md.

    - `command`: after --, the command that is timed, such as: -- python bench.py
    - `base`: a folder, or a revision, which is checked out into a worktree.
    - `head`: the same, for the side that the verdict is about.
    - `base_command`: the command for base, if it differs: 'python old.py'.
    - `setup`: a command that runs once for each side, in a Python environment of its own: 'pip install .'.
    - `setup_base`: the same for base, if it differs, to race two versions of a dependency.
    - `printed`: the command prints its seconds, one number per line; otherwise the whole command is timed.
    - `budget_seconds`: for the timed runs; setup and the first, untimed runs are not counted.
    - `margin`: a difference below this share does not count.
    - `record`: a file of finished rounds, from which the same command with the same budget resumes if interrupted.
    - `markdown`: print a table for a pull request, as HTML within Markdown.
    """
    from tclab.timing import race_commands as race
    from tclab.timing._commands_race import SIDES, answer_of
    from tclab.timing._verdict import explain

    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C does, it removes the worktrees
    say("making head and base ready")
    raced = race(
        command, base=base, head=head, base_command=None if base_command is None else shlex.split(base_command),
        setup=setup, setup_base=setup_base, printed=printed, budget_seconds=budget_seconds,
        margin=margin, record=record, progress=True,
    )  # fmt: skip
    pair = raced.pair(*SIDES)
    if json:
        more = {"settings": raced.settings, "machine": raced.machine, "stopped": raced.stopped}
        show(vars(pair) | {"why": explain(pair)} | more, as_json=True)
    else:
        print(answer_of(raced).html() if markdown else answer_of(raced).text())
    return _EXIT_CODES.get(pair.verdict, _UNDECIDED)


@helped
def trace(path: Path, other: Path | None = None, /, *, json: bool = False) -> int:
    """Say where the time of a torch.profiler trace goes, in figures that add up; see `tclab.trace`.

    - `path`: a .json or .json.gz file, or a folder with one for each rank.
    - `other`: the same, of a second trace, to compare with the first.
    """
    from tclab import trace

    report: Any = trace.analyze(path) if other is None else trace.compare(path, other)
    if json and other is None:
        report = {field.name: getattr(report, field.name) for field in fields(report) if field.name != "traces"}
    show(report, as_json=json)
    return 0


@helped
def profile(script: Path, /, *argv: Annotated[str, Parameter(allow_leading_hyphen=True)]) -> int:
    """Run a script, and say which of its lines take the time, what its DataLoaders did and what would help.

    - `script`: a Python program.
    - `argv`: arguments of the script.
    """
    from tclab import timing

    seen = timing.profile(script, argv)
    advice = seen.advice if seen.advice.suggestions else None
    print(*filter(None, (seen, seen.loaders, advice)), sep="\n")
    return seen.exit_code


@helped
def panel(
    results: Path = Path("runs/explore/rows"), /, *jupyter: str, imports: Imports = None, no_open: bool = False
) -> int:
    """Open JupyterLab with a panel on a folder of results: a form, a Run button, charts that follow the sweep.

    - `results`: the folder in which rows are kept; the notebook panel.ipynb is written there.
    - `jupyter`: after --, further arguments of `jupyter lab`, such as --port 9999.
    - `no_open`: write the notebook and print the command that opens it.
    """
    need("tclab panel", "lab", "nbformat", "jupyterlab")
    from nbformat import read, v4, writes

    results = results.resolve()
    results.mkdir(parents=True, exist_ok=True)
    notebook = results / "panel.ipynb"
    lines = "".join(f"lab.import_file({str(file.resolve())!r})\n" for file in imports or ())
    if not notebook.exists():
        show = f"from tclab import lab\n\n{lines}panel = lab.Panel(results={str(results)!r})\nawait panel.show()"
        cells = [v4.new_code_cell(source) for source in (show, "lab.findings(panel.rows())")]
        kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
        notebook.write_text(writes(v4.new_notebook(cells=cells, metadata={"kernelspec": kernel})))
    elif imports and lines not in "".join(cell.source for cell in read(notebook, 4).cells):
        raise InputError(f"{notebook} is kept as it is; write into its first cell: {lines.strip()}")
    print(shlex.join(["jupyter", "lab", str(notebook)]) if no_open else notebook, flush=True)
    if not no_open:
        os.execv(sys.executable, [sys.executable, "-m", "jupyter", "lab", str(notebook), *jupyter])
    return 0
