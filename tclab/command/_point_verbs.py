"""Verbs that measure or estimate points: their options are the fields of `tclab.Point`, declared once.

What measures is imported when a verb runs: help needs no torch.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, make_dataclass
from inspect import signature
from itertools import product
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Group, Parameter

from tclab.command._output import Json, json_value, show
from tclab.errors import InputError, MissingExtraError
from tclab.sweeps.config._fields import Declaration, declarations, text_value
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
_AUTO = {
    "scale": "0.1 on a CPU, 1.0 on a GPU",
    "models": "hetero_cell,dango",
    "strategies": "all that are exact",
    "batch_sizes": "1,2,4,8 on a CPU, 1,4,16,32,64 on a GPU",
    "networks": "one, a third and all of those that the graph has",
    "steps": "8 on a CPU, 20 on a GPU",
}


def _option(help: str, default: Any = None, *, group: Group, metavar: str = "TEXT") -> Any:
    """Return the type of an option: a text that is `None` unless it was given."""
    shown = None if default is None else str(default) or None
    parameter = Parameter(help=help, metavar=metavar, group=group, allow_leading_hyphen=True,
                          show_default=False if shown in (None, "()") else lambda _: shown)  # fmt: skip
    return Annotated[str | None, parameter]


def _option_of(declared: Declaration, default: Any) -> Any:
    """Return the option of a point's field, under its own name or a grid's."""
    if default == "auto" and declared.grid in _AUTO:
        default = f"auto: {_AUTO[declared.grid]}"
    group = _USUAL if declared.panel or declared.name in ("device", "ranks") else _RARE
    help = declared.meaning + (f" Unit: {declared.unit}." if declared.unit else "")
    return _option(help, default, group=group, metavar="true|false" if declared.column == "flag" else "TEXT")


def _takes(**arguments: Mapping[str, Any]) -> Callable[[Any], Any]:
    """Have a verb take several options as each of some arguments, which is `None` where none of them is given."""

    def mark(verb: Any) -> Any:
        for argument, options in arguments.items():
            made = make_dataclass(argument, [(name, kind, None) for name, kind in options.items()], frozen=True)
            made.__module__ = __name__  # of the standard library's classes, as it is made to be, no field is read
            verb.__annotations__[argument] = Annotated[made | None, Parameter(name="*")]
        return verb

    return mark


def _given(options: Any) -> dict[str, str]:
    """Return name → text of the options that were given."""
    every = {} if options is None else {one.name: getattr(options, one.name) for one in fields(options)}
    return {name: value for name, value in every.items() if value is not None}


_POINT = {name: _option_of(declared, declared.default) for name, declared in _FIELDS.items()}
_DEFAULTS = {name: one.default for name, one in signature(grid_of).parameters.items() if one.kind is one.KEYWORD_ONLY}
_GRID = {name: _option(text, _DEFAULTS[name], group=_USUAL) for name, text in _OF_A_GRID.items()} | {
    declared.grid: _option_of(declared, _DEFAULTS.get(declared.grid, declared.default))
    for declared in _FIELDS.values()
    if declared.name != "ranks"  # which `gpus` says
}
_SLURM = {name: _option("as sbatch takes it", group=_CLUSTER) for name in OPTIONS if name not in _GRID}
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
    if text.lower() == "none" or (name, text.lower()) == ("networks", "all"):
        return [() if name == "overheads" else None]
    return [int(text) if text.isdecimal() else tuple(text.split(","))]


def _points(texts: Mapping[str, str], strategies: Iterable[str] = ()) -> dict[str, Point]:
    """Return each combination of the options' values, by what it does not share with every other.

    "node_mask, optimizer fused"; the only one is called "".
    """
    axes: dict[str, list[Any]] = {"strategy": list(strategies)} if strategies else {}
    axes |= {name: _values(name, text) for name, text in texts.items()}
    points = {}
    for values in product(*axes.values()):
        chosen = dict(zip(axes, values, strict=True))
        several = {name: value for name, value in chosen.items() if len(axes[name]) > 1}
        first = [str(several.pop("strategy"))] if "strategy" in several else []
        points[", ".join([*first, *(f"{name} {value}" for name, value in several.items())])] = Point(**chosen)
    return points


def _point(texts: Mapping[str, str]) -> Point:
    points = _points(texts)
    if len(points) > 1:
        name = next(name for name, text in texts.items() if len(_values(name, text)) > 1)
        raise InputError(f"{name} is {texts[name]!r}, expected one value; tclab sweep takes several")
    (point,) = points.values()
    return point


def _end(rows: Any, as_json: bool) -> int:
    show(rows, as_json=as_json)
    if not as_json:
        try:
            from tclab import lab  # whose import takes a second or two

            print(lab.findings(rows))
        except MissingExtraError as missing:
            print(f"what was found: {missing}")
    timed = rows["status"].eq("ok") | rows["status"].str.startswith("skipped")
    return 0 if timed.all() else _SOME_FAILED


@_takes(grid=_GRID, cluster=_SLURM)
def sweep(
    *,
    results: Annotated[Path, Parameter(help="the folder that rows are kept in; the same command goes on with it.")],
    grid: Any = None,
    budget_seconds: Annotated[float | None, Parameter(help="start no point after so long.")] = None,
    retry: Annotated[bool, Parameter(negative="", help="run points again that failed.")] = False,
    fresh: Annotated[bool, Parameter(negative="", help="a new process for each point.")] = False,
    refuse: Annotated[bool, Parameter(negative="", help="skip a point whose memory is not there.")] = False,
    repeats: Annotated[int, Parameter(help="runs of each point; compare judges by what they differ by.")] = 1,
    memory_bytes: Memory = None,
    hang_seconds: Annotated[float | None, Parameter(help="end a point that hangs so long.")] = None,
    executor: Annotated[str, Parameter(help="local, or slurm.")] = "local",
    cluster: Any = None,
    own: Own = None,
    json: Json = False,
) -> int:
    """Measure the points of a grid, as `tclab.sweep(tclab.grid(…), …)` does; print their rows and what was found.

    A list is written `1,2,4`; of every option with several values each combination is a point. The options are the
    parameters of `notebooks/sweep.ipynb`, by the same names.
    """
    from tclab.sweeps._sweep import sweep as sweep_points
    from tclab.sweeps.execution._progress import print_progress

    _import(own)
    asked: dict[str, Any] = {
        name: text_value(text) if name in _OF_A_GRID else text for name, text in _given(grid).items()
    }
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
        progress=print_progress,
        **options,
    )
    return _end(rows, json)


@_takes(point=_POINT)
def run(*, point: Any = None, memory_bytes: Memory = None, own: Own = None, json: Json = False) -> int:
    """Measure one point, as `tclab.run(tclab.Point(…))` does, and print its rows.

    The equivalence check comes first: a strategy that does not compute what `subgraph` computes is not timed.
    """
    from tclab.sweeps.execution._run import run as run_point

    _import(own)
    return _end(run_point(_point(_given(point)), memory_bytes=memory_bytes), json)


@_takes(point={name: option for name, option in _POINT.items() if name != "strategy"})
def race(
    *strategies: Annotated[str, Parameter(help="ways of masking; see the README.")],
    point: Any = None,
    budget_seconds: Annotated[
        float,
        Parameter(
            help="for the rounds; the processes' start and the equivalence checks come before. However short, each "
            "process runs two rounds."
        ),
    ] = 60.0,
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


@_takes(point=_POINT)
def fits(*, point: Any = None, memory_bytes: Memory = None, own: Own = None, json: Json = False) -> int:
    """Estimate the memory of a point, as `tclab.fits` does; the exit code is 1 where it does not fit."""
    from tclab.sweeps.predict._fits import fits as fits_of

    _import(own)
    found = fits_of(_point(_given(point)), memory_bytes=memory_bytes)
    sums = {"host": found.host, "device": found.device, "refusal": found.refusal}
    show({**json_value(found), **sums} if json else found, as_json=json)
    return 0 if found.refusal is None else _SOME_FAILED
