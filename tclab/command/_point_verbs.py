"""Verbs that measure or estimate points: their options are the fields of `tclab.Point`, declared once.

What measures is imported when a verb runs: help needs no torch.
"""

from collections.abc import Iterable, Mapping
from contextlib import suppress
from inspect import signature
from itertools import product
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Group, Parameter

from tclab._display import Sentences, bullets
from tclab.command._app import Imports, import_files, show, taking
from tclab.errors import InputError, MissingExtraError
from tclab.sweeps._fields import declarations
from tclab.sweeps._grid import axis
from tclab.sweeps._grid import grid as grid_of
from tclab.sweeps._point import Point
from tclab.timing._verdict import MARGIN

_SOME_FAILED = 1
_USUAL, _RARE = Group("What is measured", sort_key=1), Group("Other fields of a setting", sort_key=2)


def _option(help: str, default: Any, group: Group, *names: str) -> Any:
    """Return the type of an option, by some names: a text that is not there unless it was given."""
    name = [f"--{name.replace('_', '-')}" for name in dict.fromkeys(names)] or None
    shown = False if default in (None, "", ()) or str(default) == "" else lambda _: str(default)
    return Annotated[
        str | None, Parameter(name=name, help=help, group=group, allow_leading_hyphen=True, show_default=shown)
    ]


def _field_options(named: str, defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a point's fields, by their names ("name") or a grid's ("grid"), with these defaults.

    Both names of a field are taken: `--strategy` and `--strategies`.
    """
    options = {}
    for field in declarations(Point).values():
        name, unit = getattr(field, named), f" Unit: {field.unit}." if field.unit else ""
        group = _USUAL if field.panel else _RARE
        default = defaults.get(name, field.default)
        options[name] = _option(field.meaning + unit, default, group, name, field.name, field.grid)
    return options


_OF_POINT = _field_options("name", {})
_DEFAULTS = {name: each.default for name, each in signature(grid_of).parameters.items()}
_GPUS = _option(bullets(grid_of.__doc__)["gpus"], _DEFAULTS["gpus"], _USUAL)  # which says the ranks
_OF_GRID = {**_field_options("grid", _DEFAULTS), "gpus": _GPUS}
del _OF_GRID["ranks"]


def _points(texts: Mapping[str, str], strategies: Iterable[str] = ()) -> dict[str, Point]:
    """Return each combination of the options' values, by what it does not share with every other.

    "node_mask, optimizer fused"; the only one is called "".
    """
    axes: dict[str, list[Any]] = {"strategy": list(strategies)} if strategies else {}
    axes |= {name: axis(name, text) for name, text in texts.items()}
    several = [name for name, values in axes.items() if len(values) > 1]
    points: dict[str, Point] = {}
    for values in product(*axes.values()):
        chosen = dict(zip(axes, values, strict=True))
        label = [str(chosen[name]) if name == "strategy" else f"{name} {chosen[name]}" for name in several]
        if points.setdefault(", ".join(label), point := Point(**chosen)) is not point:
            raise InputError(f"{', '.join(label)} is there twice, expected settings that differ")
    return points


def _point(texts: Mapping[str, str]) -> Point:
    points = _points(texts)
    if len(points) > 1:
        raise InputError(f"{' and '.join(points)}: several values, expected one; tclab sweep takes several")
    return points[""]


def _end(rows: Any, as_json: bool) -> int:
    """Print rows and findings; a skipped setting does not count as a failure if another has a time."""
    show(rows, as_json=as_json)
    if not as_json:
        with suppress(MissingExtraError):  # findings are a part of the charts, which may not be installed
            from tclab import lab  # whose import takes a second or two

            noted = rows._display().notes  # which the rows say below their table
            print(Sentences(text for text in lab.findings(rows) if text not in noted))
    timed = rows["status"].eq("ok")
    return 0 if timed.any() and (timed | rows["status"].str.startswith("skipped")).all() else _SOME_FAILED


@taking(_OF_GRID)
def sweep(
    *, results: Path, budget_seconds: float | None = None, retry: bool = False, repeats: int = 1,
    hang_seconds: float | None = None, slurm: str | None = None, imports: Imports = None, json: bool = False,
    **grid: str,
) -> int:  # fmt: skip
    """Measure the settings of a grid, as `tclab.sweep(tclab.grid(…), …)` does; print rows and findings.

    A list is written `1,2,4`; each combination of values is a setting. `notebooks/sweep.ipynb` takes the same options
    as parameters.

    - `results`: the folder in which rows are kept; run the same command again to resume.
    - `budget_seconds`: of the whole sweep; a setting that would end after it does not run.
    - `retry`: run failed settings again.
    - `repeats`: runs of each setting; `tclab compare` needs at least two for a verdict.
    - `hang_seconds`: end a setting that takes longer than this.
    - `slurm`: run as jobs of a cluster, with these sbatch options: partition:gpu,gpus_per_node:4,time:60
    """
    from tclab.sweeps._sweep import sweep as sweep_points

    import_files(imports)
    rows = sweep_points(
        grid_of(**grid), results=results, retry=retry, repeats=repeats, budget_seconds=budget_seconds,
        hang_seconds=hang_seconds, slurm=slurm,
    )  # fmt: skip
    return _end(rows, json)


@taking(_OF_POINT)
def run(*, hang_seconds: float | None = None, imports: Imports = None, json: bool = False, **point: str) -> int:
    """Measure one setting, as `tclab.run(tclab.Point(…))` does, and print its rows.

    The equivalence check comes first: a strategy that does not compute what `subgraph` computes is not timed.

    - `hang_seconds`: end the run if it takes longer than this.
    """
    from tclab.sweeps._run import run as run_point

    import_files(imports)
    return _end(run_point(_point(point), hang_seconds=hang_seconds), json)


@taking(_OF_POINT)
def race(
    *strategies: str, budget_seconds: float = 60.0, margin: float = MARGIN, processes: int | None = None,
    record: Path | None = None, imports: Imports = None, json: bool = False, **point: str,
) -> int:  # fmt: skip
    """Race whole steps of strategies by turns, as `tclab.sweeps.race_points` does, and print the verdicts.

    If an option has several values, such as `--optimizer plain,fused`, each races with each strategy. Commits are
    raced by `tclab race-commands`.

    - `strategies`: their names; see the README.
    - `budget_seconds`: for all rounds of blocks; each process runs at least two rounds.
    - `margin`: a difference below this share of the time does not count.
    - `processes`: how many fresh processes take turns, as many as suit the machine by default; 0: this process alone.
    - `record`: a file of finished rounds, from which the same command with the same budget resumes if interrupted.
    """
    from tclab.sweeps._race_points import race_points
    from tclab.timing._verdict import explain

    import_files(imports)
    more = {} if processes is None else {"processes": processes or None}
    arms = _points(point, strategies)
    raced = race_points(arms, budget_seconds=budget_seconds, margin=margin, record=record, progress=True, **more)
    show([vars(pair) | {"why": explain(pair)} for pair in raced.pairs] if json else raced, as_json=json)
    return 0


@taking(_OF_POINT)
def fits(*, memory_bytes: int | None = None, imports: Imports = None, json: bool = False, **point: str) -> int:
    """Estimate the memory of a setting, as `tclab.fits` does; the exit code is 1 if it does not fit.

    - `memory_bytes`: bytes that the process may use; the memory that is free now unless given.
    """
    from tclab.sweeps.predict import fits as fits_of

    import_files(imports)
    estimate = fits_of(_point(point), memory_bytes=memory_bytes)
    sums = {"host": estimate.host, "device": estimate.device, "refusal": estimate.refusal}
    show(vars(estimate) | sums if json else estimate, as_json=json)
    return 0 if estimate.refusal is None else _SOME_FAILED
