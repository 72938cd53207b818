"""Verbs that measure or estimate points: their options are the fields of `tclab.Point`, declared once."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import field, fields, make_dataclass
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import pandas as pd
from cyclopts import Group, Parameter

from tclab.command._output import Json, json_value, show
from tclab.errors import MissingExtraError
from tclab.sweeps._sweep import sweep as sweep_points
from tclab.sweeps.analysis._race_points import PROCESSES, race_points
from tclab.sweeps.config._fields import Declaration, declarations
from tclab.sweeps.config._grid import grid as grid_of
from tclab.sweeps.config._import_file import import_file
from tclab.sweeps.config._point import Point
from tclab.sweeps.execution._executor import print_progress
from tclab.sweeps.execution._run import run as run_point
from tclab.sweeps.predict._fits import fits as fits_of
from tclab.sweeps.slurm._slurm_options import SlurmOptions
from tclab.timing._race import Race
from tclab.timing._verdict import MARGIN

_SOME_FAILED = 1
_USUAL, _RARE = Group("What is measured", sort_key=1), Group("Other fields of a point", sort_key=2)
_CLUSTER = Group("With --executor slurm", sort_key=3)
_FIELDS = declarations(Point)
_HOLD_SEVERAL = ("networks", "overheads")  # fields that hold several names
_GRID = {
    name: one.default
    for name, one in inspect.signature(grid_of).parameters.items()
    if one.kind is one.KEYWORD_ONLY
}  # fmt: skip
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


def _option(name: str, help: str, default: Any = None, *, group: Group, metavar: str = "TEXT") -> Any:
    """Return a field of `_options_class`: a text that is `None` unless it was given."""
    shown = None if default in (None, ()) else str(default)
    if default == "auto" and name in _AUTO:
        shown = f"auto: {_AUTO[name]}"
    parameter = Parameter(
        help=help,
        metavar=metavar,
        show_default=False if shown is None else lambda _: shown,
        group=group,
        allow_leading_hyphen=True,
    )
    return name, Annotated[str | None, parameter], field(default=None)


def _option_of(declared: Declaration, name: str, default: Any) -> Any:
    """Return the option of a point's field, under its own name or a grid's."""
    unit = f" Unit: {declared.unit}." if declared.unit else ""
    metavar = "true|false" if declared.column == "flag" else "TEXT"
    group = _USUAL if declared.panel or declared.place else _RARE
    return _option(name, declared.meaning + unit, default, group=group, metavar=metavar)


def _options_class(name: str, options: Iterable[Any]) -> Any:
    """Return a dataclass of options, which a verb takes as one argument."""
    made = make_dataclass(name, list(options), frozen=True)
    made.__module__ = __name__  # of the standard library's classes, as it is made to be, no field is read
    # None where no option is given: cyclopts has pydantic check it where that is loaded
    return Annotated[made | None, Parameter(name="*")]


def _given(options: Any) -> dict[str, str]:
    """Return name → text of the options that were given; `None` has none."""
    every = {} if options is None else {one.name: getattr(options, one.name) for one in fields(options)}
    return {name: value for name, value in every.items() if value is not None}


def _value_of(text: str) -> Any:
    """Return a text as papermill's `-p` reads it: a number, true, false or none where it is one."""
    words: Mapping[str, Any] = {"true": True, "false": False, "none": None}
    if text.lower() in words:
        return words[text.lower()]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _point_options(*without: str) -> Iterator[Any]:
    for name, declared in _FIELDS.items():
        if name not in without:
            yield _option_of(declared, name, declared.default)


def _grid_options() -> Iterator[Any]:
    declared_as = {declared.grid: declared for declared in _FIELDS.values()}
    for name, default in _GRID.items():
        if name in _OF_A_GRID:
            yield _option(name, _OF_A_GRID[name], default, group=_USUAL)
        else:
            yield _option_of(declared_as[name], name, default)
    for name, declared in declared_as.items():
        if name not in _GRID and name != "ranks":  # which `gpus` says
            yield _option_of(declared, name, declared.default)


def _slurm_options() -> Iterator[Any]:
    for name in SlurmOptions.__annotations__:
        if name not in _GRID:
            yield _option(name, "see tclab.sweep" if name == "points_per_job" else "as sbatch takes it", group=_CLUSTER)


if TYPE_CHECKING:  # classes that are made here, of which no type is known before
    PointOptions: TypeAlias = Any
    RaceOptions: TypeAlias = Any
    GridOptions: TypeAlias = Any
    ClusterOptions: TypeAlias = Any
else:
    PointOptions = _options_class("PointOptions", _point_options())
    RaceOptions = _options_class("RaceOptions", _point_options("strategy"))
    GridOptions = _options_class("GridOptions", _grid_options())
    ClusterOptions = _options_class("ClusterOptions", _slurm_options())
Memory = Annotated[int | None, Parameter(help="bytes that a process may take.")]
Own = Annotated[
    list[Path] | None,
    Parameter(name="--import", negative="", help="a Python file that registers a strategy or model of yours."),
]


def _import(files: Iterable[Path] | None) -> None:
    for file in files or ():
        import_file(file)


def _point(texts: Mapping[str, str], **more: Any) -> Point:
    values = {name: _FIELDS[name].parsed(_listed(name, text)) for name, text in texts.items()}
    return Point(**values, **more)


def _arms(strategies: Iterable[str], texts: Mapping[str, str]) -> dict[str, Point]:
    """Return the arms of a race: each strategy with each combination of options that have several values.

    An arm is called by what it does not share with every other, "node_mask, optimizer fused".
    """
    strategies = tuple(strategies)
    several = {name: text.split(",") for name, text in texts.items() if "," in text and name not in _HOLD_SEVERAL}
    arms = {}
    for strategy, *values in product(strategies, *several.values()):
        chosen = dict(zip(several, values, strict=True))
        words = [strategy] if len(strategies) > 1 or not several else []
        name = ", ".join([*words, *(f"{name} {value}" for name, value in chosen.items())])
        arms[name] = _point({**texts, **chosen}, strategy=strategy)
    return arms


def _listed(name: str, text: str) -> Any:
    """Return the names of a text with commas between, of a field that holds several."""
    if name == "networks" and text.lower() == "all":  # as for the sweep
        return "none"
    several = name in _HOLD_SEVERAL and text.lower() != "none" and not text.isdigit()
    return tuple(text.split(",")) if several else text


def _end(rows: pd.DataFrame, as_json: bool) -> int:
    show(rows, as_json=as_json)
    if not as_json:
        try:
            from tclab import lab  # whose import takes a second or two

            print(lab.findings(rows))
        except MissingExtraError as missing:
            print(f"what was found: {missing}")
    timed = rows["status"].eq("ok") | rows["status"].str.startswith("skipped")
    return 0 if timed.all() else _SOME_FAILED


def sweep(
    *,
    results: Annotated[Path, Parameter(help="the folder that rows are kept in; the same command goes on with it.")],
    grid: GridOptions = None,
    budget_seconds: Annotated[float | None, Parameter(help="start no point after so long.")] = None,
    retry: Annotated[bool, Parameter(negative="", help="run points again that failed.")] = False,
    fresh: Annotated[bool, Parameter(negative="", help="a new process for each point.")] = False,
    refuse: Annotated[bool, Parameter(negative="", help="skip a point whose memory is not there.")] = False,
    repeats: Annotated[int, Parameter(help="runs of each point; compare judges by what they differ by.")] = 1,
    memory_bytes: Memory = None,
    hang_seconds: Annotated[float | None, Parameter(help="end a point that hangs so long.")] = None,
    executor: Annotated[str, Parameter(help="local, or slurm.")] = "local",
    cluster: ClusterOptions = None,
    own: Own = None,
    json: Json = False,
) -> int:
    """Measure the points of a grid, as `tclab.sweep(tclab.grid(…), …)` does; print their rows and what was found.

    A list is written `1,2,4`; of every option with several values each combination is a point. The options are the
    parameters of `notebooks/sweep.ipynb`, by the same names.
    """
    _import(own)
    counted = (*_OF_A_GRID, "machines")
    asked: dict[str, Any] = {n: _value_of(text) if n in counted else text for n, text in _given(grid).items()}
    options = {name: _value_of(text) for name, text in _given(cluster).items()}
    if executor == "slurm" and "gpus_per_node" in asked:
        options["gpus_per_node"] = asked["gpus_per_node"]
    points = grid_of(**asked)
    rows = sweep_points(
        points,
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


def run(*, point: PointOptions = None, memory_bytes: Memory = None, own: Own = None, json: Json = False) -> int:
    """Measure one point, as `tclab.run(tclab.Point(…))` does, and print its rows.

    The equivalence check comes first: a strategy that does not compute what `subgraph` computes is not timed.
    """
    _import(own)
    return _end(run_point(_point(_given(point)), memory_bytes=memory_bytes), json)


def race(
    *strategies: Annotated[str, Parameter(help="ways of masking; see the README.")],
    point: RaceOptions = None,
    budget_seconds: Annotated[
        float,
        Parameter(
            help="for the rounds; the processes' start and the equivalence checks come before. However short, each "
            "process runs two rounds."
        ),
    ] = 60.0,
    margin: Annotated[float, Parameter(help="a share of the time that is no difference.")] = MARGIN,
    processes: Annotated[int, Parameter(help="fresh processes that take turns; 0 for this one alone.")] = PROCESSES,
    record: Annotated[Path | None, Parameter(help="a file; the same command goes on with it.")] = None,
    own: Own = None,
    json: Json = False,
) -> int:
    """Race whole steps of strategies in turn, as `tclab.sweeps.race_points` does, and print the verdicts.

    An option with several values, `--optimizer plain,fused`, races these, with each strategy. With `--base`, it is a
    race of commands: see `tclab race-commands --help`.
    """
    _import(own)
    arms = _arms(strategies or (_FIELDS["strategy"].default,), _given(point))
    found: Race = race_points(
        arms, budget_seconds=budget_seconds, margin=margin, processes=processes or None, record=record
    )
    show(found.pairs if json else found, as_json=json)
    return 0


def fits(*, point: PointOptions = None, memory_bytes: Memory = None, own: Own = None, json: Json = False) -> int:
    """Estimate the memory of a point, as `tclab.fits` does; the exit code is 1 where it does not fit."""
    _import(own)
    found = fits_of(_point(_given(point)), memory_bytes=memory_bytes)
    show({**json_value(found), "host": found.host, "device": found.device, "refusal": found.refusal} if json else found,
         as_json=json)  # fmt: skip
    return 0 if found.refusal is None else _SOME_FAILED
