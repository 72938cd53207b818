"""The verb that races commands: two commits, two folders, or two command lines; it takes nothing of graphs."""

from __future__ import annotations

import shlex
from pathlib import Path

from tclab.command._app import helped, show
from tclab.timing import race_commands as race
from tclab.timing._commands_race import SIDES, markdown_of
from tclab.timing._verdict import FASTER, MARGIN, SAME, SLOWER

_EXIT_CODES = {FASTER: 0, SAME: 0, SLOWER: 1}
_UNDECIDED = 3


@helped
def race_commands(
    *command: str, base: str = ".", head: str = ".", base_command: str | None = None, setup: str | None = None,
    printed: bool = False, budget_seconds: float = 120.0, margin: float = MARGIN, record: Path | None = None,
    markdown: bool = False, json: bool = False,
) -> int:  # fmt: skip
    """Race a command at one commit against the same at another, in turn, and print the verdict on head.

    `tclab race --base main --head HEAD -- python bench.py` is the same. Exit codes: 0 FASTER or SAME; 1 SLOWER; 2 an
    argument is wrong, or a command failed; 3 UNDECIDED. See `tclab.timing.race_commands` and docs/race_commits.md.

    - `command`: after --, the command that is timed, such as: -- python bench.py
    - `base`: a revision, which gets its own worktree, or a folder as it is.
    - `head`: the same, of what the verdict is about.
    - `base_command`: of base, where it is another: 'python old.py'.
    - `setup`: run in each side in a Python environment of its own: 'pip install .'.
    - `printed`: the command prints its seconds, a number a line; else it is timed whole.
    - `budget_seconds`: for the runs; setup and first runs come before.
    - `margin`: a share that is no difference.
    - `record`: a file; the same command goes on with it.
    - `markdown`: print Markdown, for a pull request.
    """
    found = race(
        command, base=base, head=head, base_command=None if base_command is None else shlex.split(base_command),
        setup=setup, printed=printed, budget_seconds=budget_seconds, margin=margin, record=record,
    )  # fmt: skip
    pair = found.pair(*SIDES)
    if json:
        more = {"settings": found.settings, "machine": found.machine, "stopped": found.stopped}
        show(vars(pair) | more, as_json=True)
    else:
        print(markdown_of(found) if markdown else found)
    return _EXIT_CODES.get(pair.verdict, _UNDECIDED)
