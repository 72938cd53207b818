"""From a notebook's parameters to points: of any grid, or those that answer one question."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from typing import Any

from tclab.errors import InputError, check_known
from tclab.sweeps._fields import AtLeast1, checked, declarations, option_choices, read_options, text_value
from tclab.sweeps._point import Point, Points, applicable_overheads, model_of, ranks_of, strategy_of

Listed = Sequence[Any] | str | int | None
# What suits the machine. Of fewer steps than `tclab.timing._step_means.MIN_OBSERVATIONS` no verdict can come
_USUAL: dict[str, dict[str, Any]] = {
    "cpu": {"scale": 0.1, "batch_sizes": [1, 2, 4, 8], "steps": 8},
    "cuda": {"scale": 1.0, "batch_sizes": [1, 4, 28, 64], "steps": 12},
}
# Run first, so that a short budget covers them: the fastest, what others train with, DANGO's, and the reference. The
# quick ones stand first: a time that they took foretells those of the slow ones.
KEY = ("node_mask", "delta", "edge_mask", "indices", "subgraph")
# At least so many steps where there is no model: they are short.
_STEPS_WITHOUT_MODEL = 20
_CYCLES = 6  # of workers, as many as a verdict needs steps
_MODES = ("step", "fixed_batch", "data", "model", "empty")  # the most useful first: a budget cuts the last ones


def listed(name: str, value: Listed) -> list[Any]:
    """Return a parameter as a list: one value as one, "1,2,4" as papermill's `-p` carries it; see `text_value`.

    **Raises:** `InputError` where nothing is in it.
    """
    items: Any = value
    if isinstance(value, str):
        text = value.strip()
        items = (text[1:-1] if text[:1] + text[-1:] in ("[]", "()") else text).split(",")
    items = list(items) if isinstance(items, (list, tuple)) else [items]
    values = [text_value(item.strip().strip("'\"")) if isinstance(item, str) else item for item in items]
    if not values or "" in values:
        raise InputError(f"{name} is {value!r}, expected one value or several with commas between", name=name)
    return values


def _sizes_of(value: Listed, model: str) -> list[int]:
    """Return a model's batch sizes from a parameter: those of every model, or "hetero_cell:28,dango:32,64", of each.

    **Raises:** `InputError` for what is no whole number, an unknown model, or a text that has nothing for this one.
    """
    if isinstance(value, str) and ":" in value:
        of_models = {model_of(of).name: sizes for of, sizes in read_options("batch_sizes", value).items()}
        if model not in of_models:
            raise InputError(f"batch_sizes is {value!r}, expected one for {model}, too", name="batch_sizes")
        value = of_models[model]
    return [checked("batch_sizes", size, int) for size in listed("batch_sizes", value)]


def grid(
    *, graph: str = "synthetic", scale: float | str = "auto", models: Listed = "auto", strategies: Listed = "auto",
    batch_sizes: Listed = "auto", networks: Listed = "auto", gpus: int | str = "auto", device: str = "auto",
    overheads: Listed = "none", steps: Listed = "auto", **more: Any,
) -> Points:  # fmt: skip
    """Return the points of a sweep, in an order by which a short budget answers every question a little.

    First come `node_mask`, `delta`, `edge_mask`, `indices` and `subgraph`, or the strategies that are named, at one
    batch size and all networks; then their fewer networks, then their other batch sizes; then all other strategies.

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
      CPU. With device "cuda" any number is taken, as a cluster's nodes may have more GPUs than this machine.
    - `device`: "auto", "cpu" or "cuda".
    - `overheads`: each by itself, "none" for a point without any, "a+b" for two at once; "all" is none, and then
      each that the model can take on. An overhead's cost is the difference from the point without it.
    - `steps`: timed steps a point.
    - `more`: any other field of `Point`; several values of one are an axis of the sweep: `mode="step,data"`, `seed=1`.
      `collation="pyg"` and "edges" are for the strategies that have them, the others are lean.
      Of `loader` and `ddp` each option's values are: `loader="prefetch_factor:2,4"`, or {"prefetch_factor": [2, 4]}.

    **Raises:** `InputError` that names the value, the expected values and the nearest one that exists.
    """
    from tclab.masking import names as strategy_names
    from tclab.sweeps._point_inputs import check_files

    known = declarations(Point)
    check_known("parameter of a grid", [one.grid for one in known.values()], *more)
    device, ranks = ranks_of(gpus, known["device"].checked(device))
    usual = _USUAL[device]
    scale = usual["scale"] if scale == "auto" else text_value(scale)
    common = {"graph": graph, "scale": scale, "device": device, "ranks": ranks}
    check_files(Point(graph=graph))
    key: Sequence[str] = KEY
    if strategies == "auto":
        named = [name for name in dict.fromkeys([*KEY, *strategy_names()]) if strategy_of(name).exact]
    else:
        key = named = [str(name) for name in listed("strategies", strategies)]
    batch_sizes = usual["batch_sizes"] if batch_sizes == "auto" else batch_sizes
    more["steps"] = usual["steps"] if steps == "auto" else steps
    axes = {name: axis(name, value) for name, value in more.items()}
    points: list[Point] = []
    for model in map(str, listed("models", "hetero_cell,dango" if models == "auto" else models)):
        kind, sizes = model_of(model), _sizes_of(batch_sizes, model)
        serving = [name for name in named if kind.served_by(strategy_of(name))]
        if not serving and models != "auto":  # it was asked for by name: its rows say why it cannot be
            serving = named
        slow = [(), *((name,) for name in applicable_overheads(model))] if overheads == "all" else None
        of_model = {"strategy": serving, **axes, "overheads": slow or axis("overheads", overheads)}
        for values in product(*of_model.values()):
            chosen = {**common, **dict(zip(of_model, values, strict=True)), "model": model}
            own = strategy_of(chosen["strategy"]).collations
            if chosen.get("collation") in ("pyg", "edges") and chosen["collation"] not in own:  # of other strategies
                chosen["collation"] = "lean"
            counts = _networks(networks, kind.reads_masked_graph, chosen)
            points += [Point(**chosen, batch_size=size, networks=count) for count in counts for size in sizes]
    for point in {(point.networks, point.perturbations): point for point in points}.values():
        check_files(point)
    return _answer_first(points, key)


def names_numbers(value: Any) -> bool:
    """Return whether a value is whole numbers, and no path: 3, "3" or "1, 3"."""
    try:
        return all(type(one) is int for one in listed("", value))
    except InputError:
        return False


def axis(name: str, value: Any) -> list[Any]:
    """Return the values that a field of `Point` is to have; text is read as the field's declaration says.

    Names of networks are one choice of networks; "a+b" are two overheads at once. A path may have commas and brackets.
    """
    if name in ("loader", "ddp"):
        return option_choices(name, value)
    if name == "graph" or (name == "perturbations" and not names_numbers(value)):
        return list(value) if isinstance(value, (list, tuple)) else [value]
    values = listed(name, value)
    if declarations(Point)[name].column is str:  # a folder may be named 2024
        values = [str(one) if type(one) is int else one for one in values]
    if name == "overheads":
        return [tuple(item.split("+")) if isinstance(item, str) else item or () for item in values]
    if name == "networks" and not all(item is None or isinstance(item, int) for item in values):
        return [None] if values == ["all"] else [tuple(map(str, values))]  # names: one choice of networks
    return values


def _networks(networks: Listed, masked: bool, chosen: dict[str, Any]) -> list[Any]:
    """Return the choices of networks; by default one, a third and all of the graph's for `KEY`, else those read."""
    from tclab.sweeps._point_inputs import network_names

    if networks != "auto":
        return axis("networks", networks)
    if not masked:
        return [None]
    count = len(network_names(Point(**chosen)))
    return sorted({1, max(1, count // 3), count}) if chosen["strategy"] in KEY else [count]


def _answer_first(points: list[Point], key: Sequence[str]) -> Points:
    """Return the points in the order in which a budget cuts the last.

    First come the `key` strategies at their model's middle batch size and the most networks, which are the answer;
    then their fewer networks, then their other batch sizes; then all other strategies at the size of the answer; then
    whatever is left. Smaller ones go first, and the strategies of one size stand together.
    """
    sizes = {model: sorted({p.batch_size for p in points if p.model == model}) for model in {p.model for p in points}}
    middle = {model: each[len(each) // 2] for model, each in sizes.items()}
    most = max((p.networks for p in points if isinstance(p.networks, int)), default=0)

    def order(point: Point) -> tuple[int, ...]:
        count = point.networks if isinstance(point.networks, int) else most
        in_the_middle = point.batch_size == middle[point.model]
        group = {(True, True): 0, (False, True): 1, (True, False): 2}.get((count == most, in_the_middle), 4)
        if point.strategy not in key:
            return 4 if group else 3, point.batch_size, count
        size = 0 if in_the_middle else point.batch_size  # each model may have a middle of its own
        return group, size, count, key.index(point.strategy)

    return Points(dict.fromkeys(sorted(points, key=order)))


# ---- where a step's time goes, what bytes cost, what more ranks bring


def in_each_mode(
    *, strategies: Listed, mode: Listed = _MODES, networks: Listed = "all", **parameters: Any
) -> list[Point]:
    """Return the points of a grid in each mode, or in some, mode by mode, `step` first.

    A model that reads no masked graph has the strategy `indices`. Points have steps enough for an interval, which a
    verdict needs: without a model they are short, and 20 at least; with several workers batches come in bursts, and six
    for each worker are whole cycles.

    **Arguments:**

    - `strategies`, `mode`, `networks`: as for `grid`, but for their defaults. `parameters`: the others of `grid`.
    """
    points = grid(**parameters, mode=mode, networks=networks, strategies=[*listed("strategies", strategies), "indices"])
    return sorted(map(_long_enough, points), key=lambda point: _MODES.index(point.mode))


def _long_enough(point: Point) -> Point:
    least = _STEPS_WITHOUT_MODEL if point.mode in ("data", "empty") else 1
    if point.workers > 1 and point.mode != "fixed_batch":
        least = max(least, _CYCLES * point.workers)
    return replace(point, steps=max(point.steps, least))


def with_each_overhead(*, overheads: Listed = "all", rounds: int = 3, seed: int = 0, **parameters: Any) -> list[Point]:
    """Return the points of a grid without an overhead and with each that their model can take on, round after round.

    A round has a seed of its own, and every other one runs in the opposite order: a machine that grows slower meanwhile
    favours no strategy.

    **Arguments:**

    - `overheads`: "all", or names with commas between: item_logging, print_loss, zero_params_loss, isnan_checks,
      batch_wide_layer_norm, wild_type_apart, preprocessor_per_sample, quadratic_attention, second_forward,
      dense_targets. The column `what` of `tclab.case_study.overhead_costs` says what each does.
    - `rounds`: how often each is run. `seed`: of the first round.
    - `parameters`: as for `in_each_mode`.
    """
    asked = "all" if overheads == "all" else ["none", *listed("overheads", overheads)]
    points: list[Point] = []
    for i in range(rounds):
        every = in_each_mode(**parameters, mode="step", overheads=asked, seed=seed + i)
        able = [point for point in every if point.skipped() is None]
        points += able if i % 2 == 0 else able[::-1]
    return points


def scaling_points(
    kinds: Listed, *, ranks: Listed, batch_size: Listed, strategies: Listed = "node_mask", **more: Any
) -> list[Point]:
    """Return a point for each number of ranks, each once; those of as many ranks are together and share warm ranks.

    **Arguments:**

    - `kinds`: one or both of "weak": each rank has batches of `batch_size`, so more ranks take more samples a step;
      and "strong": the ranks share batches of `batch_size`, so each step has the same samples.
    - `ranks`: numbers from 1 up.
    - `batch_size`: of a rank; of all ranks together for "strong". "hetero_cell:28,dango:64" is one for each model.
    - `strategies`, `more`: as for `in_each_mode`; `steps` are the optimizer's.

    **Raises:** `InputError` for an unknown kind, or a batch that ranks cannot share evenly ("strong").
    """
    numbers = [checked("ranks", number, AtLeast1) for number in listed("ranks", ranks)]
    points: list[Point] = []
    check_known("kind of scaling", ("weak", "strong"), *listed("kinds", kinds))
    for kind, number in product(listed("kinds", kinds), numbers):
        for point in in_each_mode(**more, mode="step", strategies=strategies, batch_sizes=batch_size, gpus=number):
            size, rest = divmod(point.batch_size, number if kind == "strong" else 1)
            if rest:
                raise InputError(f"batch_size is {point.batch_size}, expected one that {number} ranks can share evenly")
            points.append(replace(point, batch_size=size))
    return sorted(dict.fromkeys(points), key=lambda point: point.ranks)
