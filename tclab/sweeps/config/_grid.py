"""From a notebook's parameters to points."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any

from tclab.errors import InputError, unknown
from tclab.sweeps.config._fields import checked, declarations, option_choices, text_value
from tclab.sweeps.config._gpus import ranks_of
from tclab.sweeps.config._overhead_names import applicable_overheads
from tclab.sweeps.config._point import Point, Points

Listed = Sequence[Any] | str | int | None
# by default; of fewer than `tclab.timing._statistics.MIN_OBSERVATIONS` no verdict and no advice can come
_CPU_STEPS = 8
_FIRST = ("edge_mask", "node_mask", "delta", "indices")  # run first, so that a short budget covers them


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
    from tclab.models import get as model_of

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
    for strategies it is all that are exact, each with the models that it serves. If models and strategies are both
    named, an impossible pair is kept as a row `skipped`, with the reason.

    **Arguments:**

    - `graph`: "synthetic", of `scale` ("auto", or a number above 0), a folder of public files, or a file of a graph.
    - `models`, `strategies`, `batch_sizes`: lists, as above; names are those of `tclab.models` and `tclab.masking`.
      "auto" for models is "hetero_cell,dango", each with the strategies that serve it. "hetero_cell:28,dango:64"
      gives each model batch sizes of its own.
    - `networks`: edge-type counts (n: the first n of the graph's networks); or names, which are one choice; or
      "all", those that each model reads.
    - `gpus`: "auto", all there are, or a number of ranks, each on a GPU; on a machine without any they share its
      CPU, unless `device` is "cuda".
    - `gpus_per_node`: how many the machines of a cluster have that will run the points, as Slurm takes it (4, or
      "a100:4"); `None` counts this machine's.
    - `overheads`: each by itself, "none" for a point without any, "a+b" for two at once; "all" is none, and then
      each that the model can take on. An overhead's cost is the difference from the point without it.
    - `more`: any other field of `Point`; several values of one are an axis of the sweep: `loop="plain,lightning"`.
      Of `loader` and `ddp` each option's values are: `loader="prefetch_factor:2,4"`, or {"prefetch_factor": [2, 4]}.
    - `mode`: one or several modes of a `Point`. `steps`: timed steps a point. `seed`: of graph and samples.

    **Raises:** `InputError` that names the value, the expected values and the nearest one that exists.
    """
    from tclab.masking import get as strategy_of
    from tclab.masking import names as strategy_names
    from tclab.models import get as model_of
    from tclab.sweeps.config._point_inputs import check_files

    known = declarations(Point)
    for name in more:
        if name in known and name != known[name].grid:
            raise InputError(f"unknown parameter of a grid {name!r}; did you mean {known[name].grid!r}?")
    device, ranks = ranks_of(gpus, known["device"].checked(device), gpus_per_node=gpus_per_node)
    usual: dict[str, Any] = {"scale": 0.1, "batch_sizes": [1, 2, 4, 8], "steps": _CPU_STEPS}
    if device == "cuda":
        usual = {"scale": 1.0, "batch_sizes": [1, 4, 16, 32, 64], "steps": 20}
    common: dict[str, Any] = {"graph": graph, "device": device, "ranks": ranks}
    common["scale"] = usual["scale"] if scale == "auto" else known["scale"].parsed(scale)
    check_files(Point(graph=graph))
    any_auto = "auto" in (models, strategies)  # then no pair was asked for by name
    models = "hetero_cell,dango" if models == "auto" else models
    if strategies == "auto":
        exact = [name for name in strategy_names() if strategy_of(name).exact]
        strategies = sorted(exact, key=lambda name: name not in _FIRST)
    batch_sizes = usual["batch_sizes"] if batch_sizes == "auto" else batch_sizes
    more |= {"mode": mode, "steps": usual["steps"] if steps == "auto" else steps, "seed": seed}
    axes = {name: axis(name, value) for name, value in more.items()}
    points: list[Point] = []
    for model, name in product(listed("models", models), listed("strategies", strategies)):
        kind = model_of(model)
        if any_auto and not kind.served_by(strategy_of(name)):
            continue
        of_pair = {**axes, "overheads": _overheads(overheads, model)}
        for values in product(*of_pair.values()):
            chosen = {**common, **dict(zip(of_pair, values, strict=True)), "model": model, "strategy": name}
            counts = _networks(networks, kind.reads_masked_graph, chosen)
            sizes = sizes_of("batch_sizes", batch_sizes, model)
            points += [Point(**chosen, batch_size=size, networks=count) for count in counts for size in sizes]
    for point in {(point.networks, point.perturbations): point for point in points}.values():
        check_files(point)
    return _lines_first(points)


def axis(name: str, value: Any) -> list[Any]:
    """Return the values that a field of `Point` is to have; text is read as the field's declaration says."""
    known = declarations(Point)
    if name not in known:
        raise unknown("field of a point", name, known)
    if name in ("loader", "ddp"):
        return option_choices(name, value)
    return [known[name].parsed(item) for item in listed(name, value)]


def _overheads(overheads: Listed, model: str) -> list[tuple[str, ...]]:
    """Return the choices of overheads that a model is to be run with."""
    choices: list[tuple[str, ...]] = []
    for item in listed("overheads", overheads):
        if item == "all":
            choices += [(), *((name,) for name in applicable_overheads(model))]
        elif item in ("none", ()):
            choices.append(())
        else:
            choices.append(tuple(item.split("+")) if isinstance(item, str) else item)
    return choices


def _networks(networks: Listed, masked: bool, chosen: dict[str, Any]) -> list[Any]:
    """Return the choices of networks; by default one, a third and all of the graph's, for DANGO those it reads."""
    from tclab.sweeps.config._point_inputs import network_names

    if networks == "all" or (networks == "auto" and not masked):
        return [None]
    if networks == "auto":
        count = len(network_names(Point(**chosen)))
        return sorted({1, max(1, count // 3), count})
    asked = listed("networks", networks)
    if all(isinstance(item, int) for item in asked):
        return asked
    return [tuple(str(item) for item in asked)]  # names: one choice of networks


def _lines_first(points: list[Point]) -> Points:
    """Return the points in an order in which every budget shows something of each axis.

    First, for each model, its first two strategies at the middle batch size and the most networks, and its first one at
    another batch size and with the fewest networks; they are `Points.first`. Then the points where the charts' lines
    cross (every strategy at the middle batch size and the most networks), the rest of the lines, the other points; the
    strategies of one cell together.
    """
    sizes = {model: sorted({p.batch_size for p in points if p.model == model}) for model in {p.model for p in points}}
    middle = {model: each[len(each) // 2] for model, each in sizes.items()}
    least = {model: each[0] for model, each in sizes.items()}
    counts = [p.network_count for p in points if p.networks is not None]
    most, fewest = max(counts, default=float("inf")), min(counts, default=float("inf"))

    def order(point: Point) -> tuple[int, int, float]:
        on = (point.batch_size == middle[point.model]) + (point.network_count >= most)
        return (2 - on, point.batch_size, point.network_count)

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
