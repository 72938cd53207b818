"""From a notebook's parameters to points: of any grid, or those that answer one question."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from typing import Any

from tclab.errors import InputError, unknown
from tclab.sweeps.config._fields import NumberFrom1, checked, declarations, option_choices, text_value
from tclab.sweeps.config._gpus import ranks_of
from tclab.sweeps.config._overhead_names import applicable_overheads
from tclab.sweeps.config._point import Point, Points, model_of, strategy_of

Listed = Sequence[Any] | str | int | None
# What suits the machine. Of fewer steps than `tclab.timing._statistics.MIN_OBSERVATIONS` no verdict can come
_USUAL: dict[str, dict[str, Any]] = {
    "cpu": {"scale": 0.05, "batch_sizes": [1, 2, 4, 8], "steps": 8},
    "cuda": {"scale": 1.0, "batch_sizes": [1, 4, 16, 32, 64], "steps": 20},
}
_FIRST = ("edge_mask", "node_mask", "delta", "indices")  # run first, so that a short budget covers them
# At least so many steps where there is no model: they are short, and the first batches were made before the clock.
_STEPS_WITHOUT_MODEL = 20
_CYCLES = 6  # of workers, as many as a verdict needs steps
_MODES = ("step", "fixed_batch", "data", "model", "empty")  # the most useful first: a budget cuts the last ones
SCALING = ("weak", "strong", "accumulated")


def listed(name: str, value: Listed) -> list[Any]:
    """Return a parameter as a list: a list as it is, one value as one, "1,2,4" as papermill's `-p` carries it.

    Whole numbers are made of text that reads as one.

    **Raises:** `InputError` where nothing is in it.
    """
    items = value.strip("[]() ").split(",") if isinstance(value, str) else value
    if not isinstance(items, (list, tuple)):
        items = [items]
    values = [_item(item.strip().strip("'\"")) if isinstance(item, str) else item for item in items]
    if not values or "" in values:
        raise InputError(f"{name} is {value!r}, expected one value or several with commas between")
    return values


def _item(text: str) -> str | int:
    value = text_value(text)
    return value if type(value) is int else text


def sizes_of(name: str, value: Listed, model: str) -> list[int]:
    """Return a model's batch sizes from a parameter: those of every model, or "hetero_cell:28,dango:64", one for each.

    **Raises:** `InputError` for what is no whole number, an unknown model, or a list that has nothing for this one.
    """
    items = listed(name, value)
    if not any(isinstance(item, str) and ":" in item for item in items):
        return [checked(name, size, int) for size in items]
    pairs = [str(item).rpartition(":") for item in items]
    if not all(of_model and type(_item(size.strip())) is int for of_model, _, size in pairs):
        raise InputError(f"{name} is {value!r}, expected a model before each number: 'hetero_cell:28,dango:64'")
    sizes = [int(size) for of_model, _, size in pairs if model_of(of_model.strip()).name == model]
    if not sizes:
        raise InputError(f"{name} is {value!r}, expected one for {model}, too")
    return sizes


def grid(
    *,
    graph: str = "synthetic",
    scale: float | str = "auto",
    models: Listed = "auto",
    strategies: Listed = "auto",
    batch_sizes: Listed = "auto",
    networks: Listed = "auto",
    gpus: int | str = "auto",
    device: str = "auto",
    gpus_per_node: int | str | None = None,
    mode: Listed = "step",
    overheads: Listed = "none",
    steps: Listed = "auto",
    seed: Listed = 0,
    **more: Any,
) -> Points:
    """Return the points of a sweep, those of its charts' lines first, so that a budget cuts the other points.

    Lists may be written "1,2,4". "auto" suits the machine: minutes on two CPU cores, the full size on a GPU;
    for strategies it is all that are exact. Each model is run with those strategies that serve it; one that was named,
    and that none of them serves, has rows `skipped`, with the reason.

    **Arguments:**

    - `graph`: "synthetic", of `scale` ("auto", or a number above 0), a folder of public files, or a file of a graph.
    - `models`, `strategies`, `batch_sizes`: lists, as above; names are those of `tclab.models` and `tclab.masking`.
      "auto" for models is "hetero_cell,dango". "hetero_cell:28,dango:64" gives each model batch sizes of its own.
    - `networks`: edge-type counts (n: the first n of the graph's networks); or names, which are one choice; or
      "all", those that each model reads.
    - `gpus`: "auto", all there are, or a number of ranks, each on a GPU; on a machine without any they share its
      CPU, unless `device` is "cuda".
    - `gpus_per_node`: how many the machines of a cluster have that will run the points, as Slurm takes it (4, or
      "a100:4"); `None` counts this machine's.
    - `overheads`: each by itself, "none" for a point without any, "a+b" for two at once; "all" is none, and then
      each that the model can take on. An overhead's cost is the difference from the point without it.
    - `more`: any other field of `Point`; several values of one are an axis of the sweep: `loop="plain,lightning"`.
      `collation="pyg"` and "edges" are for the strategies that have them, the others are lean.
      Of `loader` and `ddp` each option's values are: `loader="prefetch_factor:2,4"`, or {"prefetch_factor": [2, 4]}.
    - `mode`: one or several modes of a `Point`. `steps`: timed steps a point. `seed`: of graph and samples.

    **Raises:** `InputError` that names the value, the expected values and the nearest one that exists.
    """
    from tclab.masking import names as strategy_names
    from tclab.sweeps.config._point_inputs import check_files

    known = declarations(Point)
    for name in more:
        if name in known and name != known[name].grid:
            raise InputError(f"unknown parameter of a grid {name!r}; did you mean {known[name].grid!r}?")
    device, ranks = ranks_of(gpus, known["device"].checked(device), gpus_per_node=gpus_per_node)
    usual = _USUAL[device]
    scale = usual["scale"] if scale == "auto" else known["scale"].parsed(scale)
    common = {"graph": graph, "scale": scale, "device": device, "ranks": ranks}
    check_files(Point(graph=graph))
    if strategies == "auto":
        exact = [name for name in strategy_names() if strategy_of(name).exact]
        strategies = sorted(exact, key=lambda name: name not in _FIRST)
    named = [str(name) for name in listed("strategies", strategies)]
    batch_sizes = usual["batch_sizes"] if batch_sizes == "auto" else batch_sizes
    more |= {"mode": mode, "steps": usual["steps"] if steps == "auto" else steps, "seed": seed}
    axes = {name: axis(name, value) for name, value in more.items()}
    points: list[Point] = []
    for model in map(str, listed("models", "hetero_cell,dango" if models == "auto" else models)):
        kind, sizes = model_of(model), sizes_of("batch_sizes", batch_sizes, model)
        serving = [name for name in named if kind.served_by(strategy_of(name))]
        if not serving and models != "auto":  # it was asked for by name: its rows say why it cannot be
            serving = named
        slow = [(), *((name,) for name in applicable_overheads(model))] if overheads == "all" else None
        of_model = {"strategy": serving, **axes, "overheads": slow or axis("overheads", overheads)}
        for values in product(*of_model.values()):
            chosen = {**common, **dict(zip(of_model, values, strict=True)), "model": model}
            if chosen.get("collation") in ("pyg", "edges"):  # others keep theirs
                chosen["collation"] = _collation(chosen["strategy"], chosen["collation"])
            counts = _networks(networks, kind.reads_masked_graph, chosen)
            points += [Point(**chosen, batch_size=size, networks=count) for count in counts for size in sizes]
    for point in {(point.networks, point.perturbations): point for point in points}.values():
        check_files(point)
    return _lines_first(points)


def axis(name: str, value: Any) -> list[Any]:
    """Return the values that a field of `Point` is to have; text is read as the field's declaration says.

    Names of networks are one choice of networks; "a+b" are two overheads at once.
    """
    known = declarations(Point)
    if name not in known:
        raise unknown("field of a point", name, known)
    if name in ("loader", "ddp"):
        return option_choices(name, value)
    values = [known[name].parsed(item) for item in listed(name, value)]
    if name == "overheads":
        return [tuple(item.split("+")) if isinstance(item, str) else item or () for item in values]
    if name == "networks" and not all(item is None or isinstance(item, int) for item in values):
        return [None] if values == ["all"] else [tuple(map(str, values))]  # names: one choice of networks
    return values


def _collation(strategy: str, collation: str) -> str:
    return collation if collation in strategy_of(strategy).collations else "lean"


def _networks(networks: Listed, masked: bool, chosen: dict[str, Any]) -> list[Any]:
    """Return the choices of networks; by default one, a third and all of the graph's for `_FIRST`, else those read."""
    from tclab.sweeps.config._point_inputs import network_names

    if networks != "auto":
        return axis("networks", networks)
    if not masked:
        return [None]
    count = len(network_names(Point(**chosen)))
    return sorted({1, max(1, count // 3), count}) if chosen["strategy"] in _FIRST else [count]


def _lines_first(points: list[Point]) -> Points:
    """Return the points in an order in which every budget shows something of each axis.

    First, for each model, its first two strategies at the middle batch size and the most networks, and its first one at
    another batch size and with the fewest networks; they are `Points.first`. Then every strategy at the middle
    batch size and the most networks, which is the answer; then the other batch sizes, then fewer networks, then the
    other points; the strategies of one cell together.
    """
    sizes = {model: sorted({p.batch_size for p in points if p.model == model}) for model in {p.model for p in points}}
    middle = {model: each[len(each) // 2] for model, each in sizes.items()}
    least = {model: each[0] for model, each in sizes.items()}
    counts = [p.network_count for p in points if p.networks is not None]
    most, fewest = max(counts, default=float("inf")), min(counts, default=float("inf"))

    def order(point: Point) -> tuple[int, int, float]:
        on = (point.batch_size == middle[point.model]) + 2 * (point.network_count >= most)
        return (3 - on, point.batch_size, point.network_count)

    ordered = sorted(points, key=order)
    first: list[Point] = []
    for batch, networks, strategies in ((middle, most, 2), (least, most, 1), (middle, fewest, 1)):
        for model in dict.fromkeys(point.model for point in ordered):
            cell = [p for p in ordered if p.model == model and p.batch_size == batch[model] and p.skipped() is None]
            cell = [p for p in cell if p.networks is None or p.network_count == networks]
            first += cell[:strategies]
    made = Points(dict.fromkeys([*first, *ordered]))
    made.first = len({*first})
    return made


# ---- where a step's time goes, what overheads and bytes cost, what more ranks bring


def in_each_mode(*, mode: Listed = _MODES, **parameters: Any) -> list[Point]:
    """Return the points of a grid in each mode, or in some, mode by mode, `step` first.

    `parameters` are those of `grid`, but that all networks are chosen unless others are named, and that a model which
    reads no masked graph has the strategy `indices`. With several workers a point has at least six steps for each, and
    so in `scaling_points`: batches come in bursts, and an interval, which a verdict needs, is of whole cycles of the
    workers.
    """
    return sorted(_long_enough(**parameters, mode=mode), key=lambda point: _MODES.index(point.mode))


def with_each_overhead(*, overheads: Listed = "all", rounds: int = 3, seed: int = 0, **parameters: Any) -> list[Point]:
    """Return points without an overhead and with each that their model can take on, round after round.

    A round has a seed of its own, so the same point is run again, and not read; every other round runs in the
    opposite order, so that a machine that grows slower favours no strategy.

    **Arguments:**

    - `overheads`: "all", or names; a model that cannot take one on is run without it.
    - `rounds`: how often each is run. `seed`: of the first round.
    - `parameters`: as for `in_each_mode`.

    **Raises:** `InputError` for less than one round, or an unknown overhead, with the nearest name.
    """
    asked = "all" if overheads == "all" else ["none", *listed("overheads", overheads)]
    points: list[Point] = []
    for i in range(checked("rounds", rounds, NumberFrom1)):
        every = _long_enough(**{**parameters, "overheads": asked, "seed": seed + i})
        one_round = [point for point in every if point.skipped() is None]
        points += one_round if i % 2 == 0 else one_round[::-1]
    return points


def scaling_points(
    kinds: Listed,
    *,
    ranks: Listed,
    batch_size: Listed,
    models: Listed = "hetero_cell,dango",
    strategies: Listed = "node_mask",
    steps: int = 8,
    **more: Any,
) -> list[Point]:
    """Return a point for each number of ranks, each once; those of as many ranks are together and share warm ranks.

    **Arguments:**

    - `kinds`: one or several of "weak": each rank has batches of `batch_size`, so more ranks take more samples a step;
      "strong": the ranks share batches of `batch_size`, so each step has the same samples; and "accumulated": the
      optimizer steps after as many samples, for which fewer ranks add up the gradients of several batches and exchange
      them once.
    - `ranks`: numbers from 1 up.
    - `batch_size`: of a rank; of all ranks together for "strong". "hetero_cell:28,dango:64" is one for each model.
    - `steps`: of the optimizer. `models`, `strategies`, `more`: as for `in_each_mode`.

    **Raises:** `InputError` for an unknown kind, a batch that ranks cannot share evenly ("strong"), or ranks that do
    not divide the most ("accumulated").
    """
    numbers = [checked("ranks", number, NumberFrom1) for number in listed("ranks", ranks)]
    each = product(listed("kinds", kinds), numbers, map(str, listed("models", models)))
    points: list[Point] = []
    for kind, number, model in each:
        if kind not in SCALING:
            raise unknown("kind of scaling", kind, SCALING)
        sizes, accumulate = sizes_of("batch_size", batch_size, model), 1
        if kind == "strong":
            if odd := [size for size in sizes if size % number]:
                raise InputError(f"batch_size is {odd[0]}, expected one that {number} ranks can share evenly")
            sizes = [size // number for size in sizes]
        if kind == "accumulated":
            if max(numbers) % number:
                raise InputError(f"ranks is {ranks!r}, expected numbers that divide the largest, {max(numbers)}")
            accumulate = max(numbers) // number
        points += _long_enough(
            **more, models=model, strategies=strategies, batch_sizes=sizes, gpus=number, accumulate=accumulate,
            steps=checked("steps", steps, NumberFrom1) * accumulate,
        )  # fmt: skip
    return sorted(dict.fromkeys(points), key=lambda point: point.ranks)


def _long_enough(*, strategies: Listed, networks: Listed = "all", **parameters: Any) -> list[Point]:
    """Return the points of a grid of all networks, with steps enough, and `indices` for a model that reads no mask."""
    points = grid(**parameters, networks=networks, strategies=[*listed("strategies", strategies), "indices"])
    return [replace(point, steps=max(point.steps, _least_steps(point))) for point in points]


def _least_steps(point: Point) -> int:
    from tclab.training._step import WITHOUT_MODEL

    least = _STEPS_WITHOUT_MODEL if point.mode in WITHOUT_MODEL else 1
    return least if point.workers < 2 or point.mode == "fixed_batch" else max(least, _CYCLES * point.workers)
