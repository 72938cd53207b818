"""The cell magics `%%ledger` and `%%race`, which `%load_ext tclab` makes known."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, update_wrapper
from typing import Any

from tclab.errors import InputError
from tclab.timing import Ledger, race
from tclab.timing._race import Race

_ARM = "# arm:"
_SECONDS = 10.0


def register(shell: Any) -> None:
    for name, run in (("ledger", ledger_of_cell), ("race", race_of_cell)):
        shell.register_magic_function(update_wrapper(partial(run, shell), run), magic_kind="cell", magic_name=name)


def ledger_of_cell(shell: Any, line: str, cell: str) -> Ledger:
    """Run a cell's loop under a ledger and show where its time goes.

        %%ledger
        for batch in ledger.steps(loader):
            with ledger.stage("forward"):
                ...

    The cell finds a new `tclab.timing.Ledger` under the name `ledger`, or the one that stands behind `%%ledger`, and it
    is there afterwards: `tclab.advise(ledger)` says what to change.
    """
    name = line.strip() or "ledger"
    if not name.isidentifier():
        raise InputError(f"%%ledger {line!r}, expected a name for the ledger or none")
    with Ledger() as made:
        shell.user_ns[name] = made
        exec(_compiled(shell, cell, "%%ledger"), shell.user_ns)
    if not len(made):
        raise InputError(f"the cell ran no step; expected a loop such as: for batch in {name}.steps(loader):")
    return made


def race_of_cell(shell: Any, line: str, cell: str) -> Race:
    """Race the parts of a cell against one another and show the verdicts.

        %%race 20
        # arm: old
        old_step(batch)
        # arm: new
        new_step(batch)

    Behind `%%race` stand the seconds that it may take, 10 unless given. What precedes the first arm is run once.
    """
    try:
        seconds = float(line.strip() or _SECONDS)
    except ValueError:
        raise InputError(f"%%race {line!r}, expected seconds or nothing") from None
    before, *parts = f"\n{cell}".split(f"\n{_ARM}")
    arms: dict[str, Callable[[], None]] = {}
    for part in parts:
        name, _, code = part.partition("\n")
        arms[name.strip()] = partial(exec, _compiled(shell, code, f"%%race, arm {name.strip()}"), shell.user_ns)
    if len(arms) != len(parts) or len(arms) < 2 or "" in arms:
        raise InputError(f"%%race found {len(parts)} parts, expected two or more, each below a line '{_ARM} its name'")
    exec(_compiled(shell, before, "%%race"), shell.user_ns)
    return race(arms, budget_seconds=seconds)


def _compiled(shell: Any, source: str, name: str) -> Any:
    return compile(shell.transform_cell(source), f"<{name}>", "exec")
