"""How fast can a GNN train if every sample is the same graph with a few nodes deleted?

```
tclab sweep --strategies edge_mask,node_mask --batch-sizes 1,2,4 --scale 0.1 --results runs/mine
tclab advise runs/mine
tclab race node_mask edge_mask --scale 0.1 --batch-size 2 --budget-seconds 60
tclab race-commands --base main --head HEAD -- python bench.py
```

Every command has `--help` and, except profile and panel, `--json`. The exit code is 0 if all is done; 1 if a setting
failed, was not run or does not fit, if none has a time, or if a race of commands says SLOWER; 2 if an argument is
wrong; 3 if a race of commands says UNDECIDED. A setting is skipped if its values cannot be combined, which is not a
failure if another setting has a time. `tclab --install-completion` makes the shell complete commands and options.
"""

# that docstring is the help of the command; a verb's module is imported when the verb is run
from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from io import TextIOWrapper
from pathlib import Path
from typing import Annotated, Any, get_type_hints

from cyclopts import App, CycloptsError, Parameter

from tclab._display import bullets
from tclab._version import __version__
from tclab.errors import InputError

Imports = Annotated[
    list[Path] | None,
    Parameter(name=("--import", "--imports"), help="a Python file that registers a strategy or model of yours."),
]
Verb = Callable[..., int]
WRONG = 2  # the exit code if an argument is wrong
# verb → the module with its function, its line of help
_VERBS = {
    "sweep": ("_point_verbs", "Measure every combination of listed values (1,2,4 is a list); each is saved at once."),
    "run": ("_point_verbs", "Measure one setting."),
    "race": ("_point_verbs", "Race strategies, or values of an option, by turns, and say which is faster."),
    "race-commands": ("_result_verbs", "Race a command at two commits, or two commands; exit code 1 is SLOWER."),
    "fits": ("_point_verbs", "Estimate the memory of a setting without running it."),
    "advise": ("_result_verbs", "Say what to change, from the rows of a sweep."),
    "compare": ("_result_verbs", "Compare two folders of rows, with a verdict on each setting."),
    "trace": ("_result_verbs", "Say where the time of a torch.profiler trace goes, or compare two traces."),
    "profile": ("_result_verbs", "Run a script as it is, and say which of its lines take the time."),
    "panel": ("_result_verbs", "Open JupyterLab with a panel to set up, run and watch a sweep."),
}


app = App(
    name="tclab",
    help=__doc__,
    help_format="markdown",
    version=__version__,
    default_parameter=Parameter(negative=""),
    exit_on_error=False,
    help_on_error=False,
    result_action="return_value",
)
for _verb, (_module, _line) in _VERBS.items():
    app.command(f"tclab.command.{_module}:{_verb.replace('-', '_')}", name=_verb, help=_line)
app.register_install_completion_command()


def helped(verb: Verb) -> Verb:
    """Give each argument of a verb the help that the verb's docstring has of it; a decorator."""
    texts = {"json": "print JSON.", **bullets(verb.__doc__)}
    for name, annotation in get_type_hints(verb, include_extras=True).items():
        if name in texts:
            verb.__annotations__[name] = Annotated[annotation, Parameter(help=texts[name])]
    return verb


def taking(options: Mapping[str, Any]) -> Callable[[Verb], Verb]:
    """Name the options that a verb's `**` argument takes, name → type, for cyclopts; a decorator.

    The verb gets those that were given.
    """

    def changed(verb: Verb) -> Verb:
        as_written = inspect.signature(verb)
        named = [each for each in as_written.parameters.values() if each.kind is not each.VAR_KEYWORD]
        more = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)
                for name, annotation in options.items()]  # fmt: skip
        verb.__signature__ = as_written.replace(parameters=[*named, *more])  # type: ignore[attr-defined]
        return helped(verb)

    return changed


def import_files(files: Iterable[Path] | None) -> None:
    """Import the files of `--import`."""
    from tclab.sweeps._fingerprint import import_file

    for file in files or ():
        import_file(file)


def main(words: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code.

    **Arguments:**

    - `words`: its arguments; those of this process unless given.
    """
    for stream in (sys.stdout, sys.stderr):  # a letter that an output cannot hold is a question mark
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")
    try:
        return int(app(sys.argv[1:] if words is None else words) or 0)
    except CycloptsError:  # which the library has printed
        return WRONG
    except (InputError, OSError) as error:
        print(f"tclab: {error}", file=sys.stderr)
        return WRONG


# ---- what a verb prints


def show(result: Any, *, as_json: bool) -> None:
    """Print a result as its class shows it, or as JSON: of a table a dict for each line, of what is missing null."""
    if not as_json:
        print(result)
        return
    import msgspec  # it is not loaded for the help

    print(msgspec.json.encode(result, enc_hook=_plain).decode())


def _plain(value: Any) -> Any:
    """Return what JSON can hold of a value that is neither a plain one of Python's nor a dataclass of them."""
    import numpy as np
    import pandas as pd

    if isinstance(value, pd.DataFrame):
        return value.to_dict("records")
    if isinstance(value, (np.ndarray, np.generic)):
        return value.tolist()
    return None if value is pd.NA or callable(value) else str(value)
