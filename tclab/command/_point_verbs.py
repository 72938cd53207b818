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

from tclab.command._app import Json, show
from tclab.errors import InputError, MissingExtraError
from tclab.sweeps.config._fields import declarations
from tclab.sweeps.config._grid import axis
from tclab.sweeps.config._grid import grid as grid_of
from tclab.sweeps.config._import_file import import_file
from tclab.sweeps.config._point import Point
from tclab.sweeps.slurm._slurm_options import OPTIONS
from tclab.timing._verdict import MARGIN

_SOME_FAILED = 1
_USUAL, _RARE = Group("What is measured", sort_key=1), Group("Other fields of a point", sort_key=2)
_CLUSTER = Group("With --executor slurm", sort_key=3)
_FIELDS = declarations(Point)
# parameters of a grid that are no fields of a point
_OF_A_GRID = {
    "gpus": "auto, all there are; or how many ranks; 0 for the CPU.",
    "gpus_per_node": 'how many GPUs the machines of a cluster have that will run the points: 4, or "a100:4".',
}


def _option(help: str, default: Any = None, *, group: Group) -> Any:
    """Return the type of an option: a text that is `None` unless it was given."""
    shown = False if default in (None, "", ()) or str(default) == "" else lambda _: str(default)
    return Annotated[str | None, Parameter(help=help, group=group, allow_leading_hyphen=True, show_default=shown)]


def _field_options(defaults: Mapping[str, Any], *, of_grid: bool = False) -> dict[str, Any]:
    """Return the options of a point's fields, under their own names or a grid's, with these defaults."""
    found = {}
    for declared in _FIELDS.values():
        name = declared.grid if of_grid else declared.name
        help = declared.meaning + (f" Unit: {declared.unit}." if declared.unit else "")
        group = _USUAL if declared.panel or name in ("device", "ranks") else _RARE
        found[name] = _option(help, defaults.get(name, declared.default), group=group)
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
    PointOptions: TypeAlias = Any
    Arms: TypeAlias = Any
    Grid: TypeAlias = Any
    Cluster: TypeAlias = Any
else:
    _POINT = _field_options({})
    _DEFAULTS = {name: one.default for name, one in signature(grid_of).parameters.items()}
    _GRID = {name: _option(text, _DEFAULTS[name], group=_USUAL) for name, text in _OF_A_GRID.items()}
    _GRID |= {name: option for name, option in _field_options(_DEFAULTS, of_grid=True).items() if name != "ranks"}
    PointOptions = _together("point", _POINT)
    Arms = _together("point", {name: option for name, option in _POINT.items() if name != "strategy"})
    Grid = _together("grid", _GRID)  # whose `gpus` says how many ranks there are
    Cluster = _together("cluster", {name: _option("as sbatch takes it", group=_CLUSTER) for name in OPTIONS
                                    if name not in _GRID})  # fmt: skip
Memory = Annotated[int | None, Parameter(help="bytes that a process may take.")]
Own = Annotated[
    list[Path] | None,
    Parameter(name="--import", negative="", help="a Python file that registers a strategy or model of yours."),
]


def _import(files: Iterable[Path] | None) -> None:
    for file in files or ():
        import_file(file)


def _values(name: str, text: str) -> list[Any]:
    """Return the values that the text of an option asks for; names of networks, or of overheads, are one value."""
    if name not in ("networks", "overheads"):
        return axis(name, text)
    if text.lower() in ("all", "none"):
        return [() if name == "overheads" else None]
    values = axis(name, text)
    return values if all(type(value) is int for value in values) else [tuple(map(str, values))]


def _points(texts: Mapping[str, str], strategies: Iterable[str] = ()) -> dict[str, Point]:
    """Return each combination of the options' values, by what it does not share with every other.

    "node_mask, optimizer fused"; the only one is called "".
    """
    axes: dict[str, list[Any]] = {"strategy": list(strategies)} if strategies else {}
    axes |= {name: _values(name, text) for name, text in texts.items()}
    several = [name for name, values in axes.items() if len(values) > 1]
    points = {}
    for values in product(*axes.values()):
        chosen = dict(zip(axes, values, strict=True))
        label = [str(chosen[name]) if name == "strategy" else f"{name} {chosen[name]}" for name in several]
        points[", ".join(label)] = Point(**chosen)
    return points


def _point(options: Any) -> Point:
    texts = _given(options)
    for name, text in texts.items():
        if len(_values(name, text)) > 1:
            raise InputError(f"{name} is {text!r}, expected one value; tclab sweep takes several")
    return _points(texts)[""]


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


def sweep(
    *,
    results: Annotated[Path, Parameter(help="the folder that rows are kept in; the same command goes on with it.")],
    grid: Grid = None,
    budget_seconds: Annotated[float | None, Parameter(help="start no point after so long.")] = None,
    retry: Annotated[bool, Parameter(negative="", help="run points again that failed.")] = False,
    fresh: Annotated[bool, Parameter(negative="", help="a new process for each point.")] = False,
    refuse: Annotated[bool, Parameter(negative="", help="skip a point whose memory is not there.")] = False,
    repeats: Annotated[int, Parameter(help="runs of each point; compare judges by what they differ by.")] = 1,
    memory_bytes: Memory = None,
    hang_seconds: Annotated[float | None, Parameter(help="end a point that hangs so long.")] = None,
    executor: Annotated[str, Parameter(help="local, or slurm.")] = "local",
    cluster: Cluster = None,
    own: Own = None,
    json: Json = False,
) -> int:
    """Measure the points of a grid, as `tclab.sweep(tclab.grid(…), …)` does; print their rows and what was found.

    A list is written `1,2,4`; of every option with several values each combination is a point. The options are the
    parameters of `notebooks/sweep.ipynb`, by the same names.
    """
    from tclab.sweeps._sweep import sweep as sweep_points

    _import(own)
    asked: dict[str, Any] = {**_given(grid)}
    # as they are typed: an account may be 0042
    options: dict[str, Any] = {name: text for name, text in _given(cluster).items() if text.lower() != "none"}
    if executor == "slurm" and "gpus_per_node" in asked:
        options["gpus_per_node"] = asked["gpus_per_node"]
    rows = sweep_points(
        grid_of(**asked),
        results=results,
        retry=retry,
        fresh=fresh,
        refuse=refuse,
        repeats=repeats,
        budget_seconds=budget_seconds,
        memory_bytes=memory_bytes,
        hang_seconds=hang_seconds,
        executor=executor,
        **options,
    )
    return _end(rows, json)


def run(*, point: PointOptions = None, memory_bytes: Memory = None, own: Own = None, json: Json = False) -> int:
    """Measure one point, as `tclab.run(tclab.Point(…))` does, and print its rows.

    The equivalence check comes first: a strategy that does not compute what `subgraph` computes is not timed.
    """
    from tclab.sweeps.execution._run import run as run_point

    _import(own)
    return _end(run_point(_point(point), memory_bytes=memory_bytes), json)


def race(
    *strategies: Annotated[str, Parameter(help="ways of masking; see the README.")],
    point: Arms = None,
    budget_seconds: Annotated[float, Parameter(help="of the rounds, of which each process runs two or more.")] = 60.0,
    margin: Annotated[float, Parameter(help="a share of the time that is no difference.")] = MARGIN,
    processes: Annotated[
        int | None, Parameter(help="fresh processes that take turns, as many as suit the machine; 0: this one alone.")
    ] = None,
    record: Annotated[Path | None, Parameter(help="a file; the same command goes on with it.")] = None,
    own: Own = None,
    json: Json = False,
) -> int:
    """Race whole steps of strategies in turn, as `tclab.sweeps.race_points` does, and print the verdicts.

    An option with several values, `--optimizer plain,fused`, races these, with each strategy. With `--base`, it is a
    race of commands: see `tclab race-commands --help`.
    """
    from tclab.sweeps.analysis._race_points import race_points

    _import(own)
    arms = _points(_given(point), strategies or (_FIELDS["strategy"].default,))
    more = {} if processes is None else {"processes": processes or None}
    found = race_points(arms, budget_seconds=budget_seconds, margin=margin, record=record, **more)
    show(found.pairs if json else found, as_json=json)
    return 0


def fits(*, point: PointOptions = None, memory_bytes: Memory = None, own: Own = None, json: Json = False) -> int:
    """Estimate the memory of a point, as `tclab.fits` does; the exit code is 1 where it does not fit."""
    from tclab.sweeps.predict._fits import fits as fits_of

    _import(own)
    found = fits_of(_point(point), memory_bytes=memory_bytes)
    sums = {"host": found.host, "device": found.device, "refusal": found.refusal}
    show(vars(found) | sums if json else found, as_json=json)
    return 0 if found.refusal is None else _SOME_FAILED
