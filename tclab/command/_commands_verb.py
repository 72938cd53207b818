"""The verb that races commands: two commits, two folders, or two command lines; it takes nothing of graphs."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from tclab.command._app import Json, show
from tclab.timing import race_commands as race
from tclab.timing._commands_race import SIDES, markdown_of
from tclab.timing._verdict import FASTER, MARGIN, SAME, SLOWER

_EXIT_CODES = {FASTER: 0, SAME: 0, SLOWER: 1}
_UNDECIDED = 3


def race_commands(
    *command: Annotated[str, Parameter(help="after --, the command that is timed, such as: -- python bench.py")],
    base: Annotated[str, Parameter(help="a revision, which gets its own worktree, or a folder as it is.")] = ".",
    head: Annotated[str, Parameter(help="the same, of what the verdict is about.")] = ".",
    base_command: Annotated[str | None, Parameter(help="of base, where it is another: 'python old.py'.")] = None,
    setup: Annotated[
        str | None, Parameter(help="run in each side in a Python environment of its own: 'pip install .'.")
    ] = None,
    printed: Annotated[
        bool, Parameter(negative="", help="the command prints its seconds, a number a line; else it is timed whole.")
    ] = False,
    budget_seconds: Annotated[float, Parameter(help="for the runs; setup and first runs come before.")] = 120.0,
    margin: Annotated[float, Parameter(help="a share that is no difference.")] = MARGIN,
    record: Annotated[Path | None, Parameter(help="a file; the same command goes on with it.")] = None,
    markdown: Annotated[bool, Parameter(negative="", help="print Markdown, for a pull request.")] = False,
    json: Json = False,
) -> int:
    """Race a command at one commit against the same at another, in turn, and print the verdict on head.

    `tclab race --base main --head HEAD -- python bench.py` is the same. Exit codes: 0 FASTER or SAME; 1 SLOWER; 2 an
    argument is wrong, or a command failed; 3 UNDECIDED. See `tclab.timing.race_commands` and docs/race_commits.md.
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
