"""Verbs that measure or estimate points: their options are the fields of `tclab.Point`, declared once.

What measures is imported when a verb runs: help needs no torch.
"""

from collections.abc import Iterable, Mapping
from dataclasses import fields, make_dataclass
from inspect import signature
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

from cyclopts import Group, Parameter

from tclab._display import bullets
from tclab.command._app import Own, helped, import_own, show
from tclab.errors import InputError, MissingExtraError
from tclab.sweeps.config._fields import declarations
from tclab.sweeps.config._grid import axis
from tclab.sweeps.config._grid import grid as grid_of
from tclab.sweeps.config._point import Point
from tclab.sweeps.slurm._slurm_options import OPTIONS
from tclab.timing._verdict import MARGIN

_SOME_FAILED = 1
_USUAL, _RARE = Group("What is measured", sort_key=1), Group("Other fields of a point", sort_key=2)
_CLUSTER = Group("With --executor slurm", sort_key=3)


def _option(help: str, default: Any = None, *, group: Group) -> Any:
    """Return the type of an option: a text that is `None` unless it was given."""
    shown = False if default in (None, "", ()) or str(default) == "" else lambda _: str(default)
    return Annotated[str | None, Parameter(help=help, group=group, allow_leading_hyphen=True, show_default=shown)]


def _field_options(named: str, defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a point's fields, by their own names ("name") or a grid's ("grid"), with these defaults."""
    found = {}
    for one in declarations(Point).values():
        name, unit = getattr(one, named), f" Unit: {one.unit}." if one.unit else ""
        group = _USUAL if one.panel else _RARE
        found[name] = _option(one.meaning + unit, defaults.get(name, one.default), group=group)
    return found


def _together(name: str, options: Mapping[str, Any]) -> Any:
    """Return the type of one argument of a verb that has several options, and is `None` where none of them is given."""
    made = make_dataclass(name, [(option, kind, None) for option, kind in options.items()], frozen=True)
    made.__module__ = __name__  # of the standard library's classes, as it is made to be, no field is read
    return Annotated[made | None, Parameter(name="*")]


def _given(options: Any) -> dict[str, str]:
    """Return name → text of the options that were given."""
    every = {} if options is None else {one.name: getattr(options, one.name) for one in fields(options)}
    return {name: value for name, value in every.items() if value is not None}


if TYPE_CHECKING:
    OfPoint: TypeAlias = Any
    OfGrid: TypeAlias = Any
    OfCluster: TypeAlias = Any
else:
    _DEFAULTS = {name: one.default for name, one in signature(grid_of).parameters.items()}
    _GRID = _field_options("grid", _DEFAULTS)
    for _name in ("gpus", "gpus_per_node"):  # parameters of a grid that are no fields of a point
        _GRID[_name] = _option(bullets(grid_of.__doc__)[_name], _DEFAULTS[_name], group=_USUAL)
    del _GRID["ranks"]  # which `gpus` says
    OfPoint = _together("point", _field_options("name", {}))
    OfGrid = _together("grid", _GRID)
    _SBATCH = [name for name in OPTIONS if name not in _GRID]
    OfCluster = _together("cluster", {name: _option("as sbatch takes it", group=_CLUSTER) for name in _SBATCH})


def _points(texts: Mapping[str, str], strategies: Iterable[str] = ()) -> dict[str, Point]:
    """Return each combination of the options' values, by what it does not share with every other.

    "node_mask, optimizer fused"; the only one is called "".
    """
    axes: dict[str, list[Any]] = {"strategy": list(strategies)} if strategies else {}
    axes |= {name: axis(name, text) for name, text in texts.items()}
    several = [name for name, values in axes.items() if len(values) > 1]
    points = {}
    for values in product(*axes.values()):
        chosen = dict(zip(axes, values, strict=True))
        label = [str(chosen[name]) if name == "strategy" else f"{name} {chosen[name]}" for name in several]
        points[", ".join(label)] = Point(**chosen)
    return points


def _point(options: Any) -> Point:
    points = _points(_given(options))
    if len(points) > 1:
        raise InputError(f"{' and '.join(points)}: several values, expected one; tclab sweep takes several")
    return points[""]


def _end(rows: Any, as_json: bool) -> int:
    """Print rows and what was found; a combination that cannot be is no failure where another has a time."""
    show(rows, as_json=as_json)
    if not as_json:
        try:
            from tclab import lab  # whose import takes a second or two

            print(lab.findings(rows))
        except MissingExtraError as missing:
            print(f"what was found: {missing}")
    timed = rows["status"].eq("ok")
    return 0 if timed.any() and (timed | rows["status"].str.startswith("skipped")).all() else _SOME_FAILED


@helped
def sweep(
    *, results: Path, grid: OfGrid = None, budget_seconds: float | None = None, retry: bool = False,
    fresh: bool = False, refuse: bool = False, repeats: int = 1, memory_bytes: int | None = None,
    hang_seconds: float | None = None, executor: str = "local", cluster: OfCluster = None, own: Own = None,
    json: bool = False,
) -> int:  # fmt: skip
    """Measure the points of a grid, as `tclab.sweep(tclab.grid(…), …)` does; print their rows and what was found.

    A list is written `1,2,4`; of every option with several values each combination is a point. The options are the
    parameters of `notebooks/sweep.ipynb`, by the same names.

    - `results`: the folder that rows are kept in; the same command goes on with it.
    - `budget_seconds`: start no point after so long.
    - `retry`: run points again that failed.
    - `fresh`: a new process for each point.
    - `refuse`: skip a point whose memory is not there.
    - `repeats`: runs of each point; compare judges by what they differ by.
    - `memory_bytes`: bytes that a process may take.
    - `hang_seconds`: end a point that hangs so long.
    - `executor`: local, or slurm.
    """
    from tclab.sweeps._sweep import sweep as sweep_points

    import_own(own)
    asked: dict[str, Any] = {**_given(grid)}
    # as they are typed: an account may be 0042
    options: dict[str, Any] = {name: text for name, text in _given(cluster).items() if text.lower() != "none"}
    if executor == "slurm" and "gpus_per_node" in asked:
        options["gpus_per_node"] = asked["gpus_per_node"]
    rows = sweep_points(
        grid_of(**asked), results=results, retry=retry, fresh=fresh, refuse=refuse, repeats=repeats,
        budget_seconds=budget_seconds, memory_bytes=memory_bytes, hang_seconds=hang_seconds, executor=executor,
        **options,
    )  # fmt: skip
    return _end(rows, json)


@helped
def run(*, point: OfPoint = None, memory_bytes: int | None = None, own: Own = None, json: bool = False) -> int:
    """Measure one point, as `tclab.run(tclab.Point(…))` does, and print its rows.

    The equivalence check comes first: a strategy that does not compute what `subgraph` computes is not timed.

    - `memory_bytes`: bytes that a process may take.
    """
    from tclab.sweeps.execution._run import run as run_point

    import_own(own)
    return _end(run_point(_point(point), memory_bytes=memory_bytes), json)


@helped
def race(
    *strategies: str, point: OfPoint = None, budget_seconds: float = 60.0, margin: float = MARGIN,
    processes: int | None = None, record: Path | None = None, own: Own = None, json: bool = False,
) -> int:  # fmt: skip
    """Race whole steps of strategies in turn, as `tclab.sweeps.race_points` does, and print the verdicts.

    An option with several values, `--optimizer plain,fused`, races these, with each strategy. With `--base`, it is a
    race of commands: see `tclab race-commands --help`.

    - `strategies`: ways of masking; see the README.
    - `budget_seconds`: of the rounds, of which each process runs two or more.
    - `margin`: a share of the time that is no difference.
    - `processes`: fresh processes that take turns, as many as suit the machine; 0: this one alone.
    - `record`: a file; the same command goes on with it.
    """
    from tclab.sweeps.analysis._race_points import race_points

    import_own(own)
    more = {} if processes is None else {"processes": processes or None}
    arms = _points(_given(point), strategies)
    found = race_points(arms, budget_seconds=budget_seconds, margin=margin, record=record, **more)
    show(found.pairs if json else found, as_json=json)
    return 0


@helped
def fits(*, point: OfPoint = None, memory_bytes: int | None = None, own: Own = None, json: bool = False) -> int:
    """Estimate the memory of a point, as `tclab.fits` does; the exit code is 1 where it does not fit.

    - `memory_bytes`: bytes that a process may take.
    """
    from tclab.sweeps.predict._fits import fits as fits_of

    import_own(own)
    found = fits_of(_point(point), memory_bytes=memory_bytes)
    sums = {"host": found.host, "device": found.device, "refusal": found.refusal}
    show(vars(found) | sums if json else found, as_json=json)
    return 0 if found.refusal is None else _SOME_FAILED
