"""One point of a sweep: all settings of a run, each field with its check, unit and meaning; and points together."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from functools import wraps
from typing import TYPE_CHECKING, Annotated, Any, Literal

from msgspec import Meta

from tclab._display import WIDTH, Display, Shown, counted
from tclab.errors import InputError, require, unknown
from tclab.sweeps.config._fields import (
    Declaration,
    NumberFrom0,
    NumberFrom1,
    NumberFrom2,
    Options,
    declarations,
    declare,
    number_or_names,
    one_of,
    options,
    path,
)
from tclab.sweeps.config._gpus import device_of
from tclab.sweeps.config._overhead_names import applicable_overheads, validate_overheads

if TYPE_CHECKING:
    from tclab.masking import Strategy
    from tclab.models import ModelKind

# glibc's settings for each allocator; they must be in the environment when a process starts
ALLOCATORS: dict[str, dict[str, str]] = {
    "default": {},
    "keep_pages": {
        "MALLOC_MMAP_MAX_": "0",
        "MALLOC_TRIM_THRESHOLD_": "1099511627776",
        "MALLOC_TOP_PAD_": "268435456",
    },
    "map_each": {"MALLOC_MMAP_THRESHOLD_": "131072"},
}
_DELETIONS = 3  # of a synthetic sample, as in the screen that the models are for
Scale = Annotated[float, Meta(gt=0, le=1e9, description="a number above 0 (1.0 is the real size)")]


def _graph(name: str, value: Any) -> Any:
    from tclab.graph._cell_graph import CellGraph, keep_graph

    if isinstance(value, CellGraph):
        return keep_graph(value)
    return path("'synthetic', a folder, a file or a tclab.CellGraph")(name, value)


# torch is imported where a point is made, not where its fields are read, as by the command's help
def _model_of(name: str) -> ModelKind:
    from tclab.models import get

    return get(name)


def _strategy_of(name: str) -> type[Strategy]:
    from tclab.masking import get

    return get(name)


def _model(name: str, value: Any) -> Any:
    require(name, value, str, "the name of a model; a model of yours is registered and then named")
    return _model_of(value).name


def _strategy(name: str, value: Any) -> Any:
    return _strategy_of(value).name


def _losses() -> list[str]:
    from tclab.models._model_registry import loss_names

    return loss_names()


def _overheads(name: str, value: Any) -> Any:
    require(name, value, (str, Sequence), "names of overheads")
    return validate_overheads(value)


@dataclass(frozen=True, kw_only=True, repr=False)
class Point(Shown):
    """One point of a sweep, frozen and hashable.

    A field that is left out has its default, and one that means nothing beside the others is null. Making a point
    checks its values and opens no file, but to keep a `CellGraph`.

    **Arguments:**

    - `graph`: "synthetic", a folder of public files (see `tclab.readers.read_folder`), a file that `CellGraph.save`
      wrote, or a `CellGraph`, which is kept in `TCLAB_CACHE`, or `tclab` in the user's cache folder, where jobs on
      other machines must be able to read it.
    - `scale`: the size of the synthetic graph; edges grow with its square. Null for any other.
    - `model`: a name; see `tclab.models.names()`.
    - `strategy`: a name; see `tclab.masking.names()`.
    - `batch_size`: B, the samples in a batch of one rank.
    - `networks`: n for the first n of the graph's networks, beginning with those that the model reads, or names; `None`
      for all that it reads.
    - `mode`: "data", "empty", "model", "step" or "fixed_batch": how much of a step is run; see docs/measurement.md.
    - `device`: "auto" (CUDA where there is one), "cpu" or "cuda".
    - `ranks`: how many processes train together.
    - `dtype`: "float32", "float64" or "bfloat16" (autocast).
    - `steps`: how many batches are timed.
    - `warmup`: how many batches run before those.
    - `seed`: of graph, samples and weights.
    - `perturbations`: a file of a genetic interaction screen, whose genes are deleted and whose scores are the targets;
      see `tclab.readers.read_perturbations`. `None` draws synthetic samples.
    - `num_deletions`: how many nodes each synthetic sample deletes; null for `perturbations`, where the file says so.
    - `metabolism`: "off", "carried" or "used".
    - `ship_edges`: see `tclab.masking.Strategy`.
    - `variant`: what becomes of the chosen networks: "separate", as they are; "merged_string", those of STRING as one,
      each edge once; or "homogeneous", all as one, each edge with its type.
    - `hidden`: H, the model's width; `None` for the model's own.
    - `layers`: how many message-passing layers the model has; `None` for the model's own.
    - `workers`: DataLoader processes; 0 makes batches in the training process.
    - `loader`: options of `torch.utils.data.DataLoader` by its names, {"prefetch_factor": 4} or as a text
      "prefetch_factor:4": prefetch_factor, multiprocessing_context (how workers start), persistent_workers, pin_memory
      (on CUDA true unless given), timeout, in_order. Without workers pin_memory alone is kept.
    - `ddp`: options of `torch.nn.parallel.DistributedDataParallel` by its names, as those of the loader: bucket_cap_mb,
      find_unused_parameters, static_graph, gradient_as_bucket_view, …; and compression of gradients, "none", "fp16",
      "bf16" or "powersgd", and no_sync, whether gradients that add up over batches are exchanged in the last one alone
      (true unless given). Empty for one rank.
    - `store`: where samples are read: "memory", "lmdb" (as integers) or "json" (as the case study's records, from
      LMDB). What a `stored_…` strategy stores for each sample is always in LMDB.
    - `collation`: "lean", or "pyg" for `subgraph` and strategies that ship every edge; see `tclab.masking.Strategy`.
    - `allocator`: "default"; "keep_pages", by which glibc never gives a page back; or "map_each", by which every tensor
      has pages of its own that are given back at once: the least memory, and the slowest.
    - `loop`: "plain" or "lightning"; `None` is plain, but Lightning's for mode "empty", which is its alone.
    - `loss`: one of the model's losses by name; its first unless given.
    - `optimizer`: AdamW "fused", "foreach" or "plain".
    - `accumulate`: batches whose gradients are added up for one step of the optimizer; `steps` counts batches.
    - `overheads`: slow ways of the case study, by name; see `tclab.case_study.OVERHEADS`.
    - `micro_batch`: go through a batch in slices of at most so many samples, whose gradients are added up; `None` for
      the whole batch at once.
    - `checkpoint`: compute a layer's inner activations again in the backward instead of keeping them.
    - `compile`: run the model through `torch.compile`.
    - `gather_interval`: passes between the all-gathers of a loss that has them; the loss's own unless given.

    **Raises:** `InputError` that names the value, the expected values and the nearest one that exists.
    """

    graph: str = declare("synthetic", "reference panel", check=_graph)
    scale: Scale | None = declare(1.0, "reference panel", unit="of the real number of nodes")
    model: str = declare("hetero_cell", "reference panel", grid="models", check=_model)
    strategy: str = declare("node_mask", "charted advised panel", grid="strategies", check=_strategy)
    batch_size: NumberFrom1 = declare(
        4, "charted advised panel", unit="samples", grid="batch_sizes",
        caution="Told for a sample; another batch size trains otherwise.",
    )  # fmt: skip
    networks: int | tuple[str, ...] | None = declare(
        None, "reference charted panel", unit="networks", check=number_or_names
    )
    mode: Literal["data", "empty", "model", "step", "fixed_batch"] = declare("step", "step panel")
    device: Literal["auto", "cpu", "cuda"] = declare("auto", "reference", memory=False)
    ranks: NumberFrom1 = declare(1, unit="processes", memory=False)
    dtype: Literal["float32", "float64", "bfloat16"] = declare(
        "float32", "advised step panel", caution="It rounds otherwise: look at the loss."
    )
    steps: NumberFrom1 = declare(5, "panel", unit="batches", role="amount", memory=False)
    warmup: NumberFrom0 = declare(2, unit="batches", role="amount", memory=False)
    seed: NumberFrom0 = declare(0, "reference step panel", role="repetition")
    perturbations: str | None = declare(None, "panel", check=path("a file of a genetic interaction screen, or None"))
    num_deletions: NumberFrom0 | None = declare(_DELETIONS, "panel", unit="nodes a sample")
    metabolism: Literal["off", "carried", "used"] = declare("off", "reference step")
    ship_edges: bool = declare(False, "advised")
    variant: Literal["separate", "merged_string", "homogeneous"] = declare("separate", "reference")
    hidden: NumberFrom2 | None = declare(None, "reference panel", unit="features")
    layers: NumberFrom1 | None = declare(None, "reference panel", unit="layers")
    workers: NumberFrom0 = declare(1, "advised", unit="processes")
    loader: Options = declare(Options(), "advised", check=options, memory=False)
    ddp: Options = declare(Options(), check=options, memory=False)
    store: Literal["memory", "lmdb", "json"] = declare("memory", "advised")
    collation: str = declare("lean", "advised")
    allocator: Literal["default", "keep_pages", "map_each"] = declare("default", "advised", memory=False)
    loop: Literal["plain", "lightning"] | None = declare(None, "advised")
    loss: str | None = declare(None, "step", check=one_of(_losses))
    optimizer: Literal["fused", "foreach", "plain"] = declare("fused", "advised step")
    accumulate: NumberFrom1 = declare(1, "step", unit="batches")
    overheads: tuple[str, ...] = declare((), "reference advised", check=_overheads)
    micro_batch: NumberFrom1 | None = declare(None, unit="samples")
    checkpoint: bool = declare(False, "step")
    compile: bool = declare(False, "step panel", memory=False)
    gather_interval: NumberFrom1 | None = declare(None, "step", unit="passes", memory=False)

    def __post_init__(self) -> None:
        every = declarations(Point).items()
        values = _settled({name: declared.checked(getattr(self, name)) for name, declared in every})
        for name, value in values.items():
            object.__setattr__(self, name, value)
        self._check_pairs()

    def _check_pairs(self) -> None:
        """Check what one field makes of another.

        **Raises:** `InputError` for fields that do not go together.
        """
        from tclab.graph._cell_graph import resolve_networks
        from tclab.graph._synthetic_graph import NETWORK_SIZES

        strategy = _strategy_of(self.strategy)
        if self.collation not in strategy.collations:
            raise unknown("collation", self.collation, strategy.collations)
        if self.ship_edges and not strategy.can_ship_edges:
            raise InputError(f"ship_edges is a switch of the gpu_mask strategies, {self.strategy!r} has none")
        if self.mode == "empty" and self.loop == "plain":
            raise InputError("loop is 'plain', and mode 'empty' is Lightning's; expected 'lightning' or None")
        if self.graph == "synthetic" and self.networks is not None:
            resolve_networks(self.networks, list(NETWORK_SIZES))

    # ---- what follows from its fields

    @property
    def kind(self) -> ModelKind:
        """The model, in the size that the point asks for."""
        return _model_of(self.model).sized(hidden=self.hidden, layers=self.layers)

    @property
    def backend(self) -> str | None:
        """What the ranks exchange through, "nccl" or "gloo"; `None` for one rank or the device "auto"."""
        return None if self.ranks == 1 else {"cuda": "nccl", "cpu": "gloo"}.get(self.device)

    @property
    def prefetch_factor(self) -> int:
        """The batches that each worker makes ahead: 2 unless `loader` says so, as in `DataLoader`."""
        return int(self.loader.get("prefetch_factor", 2))

    @property
    def network_count(self) -> float:
        """How many networks are asked for; infinity for all that the model reads."""
        asked = self.networks
        return float("inf") if asked is None else len(asked) if isinstance(asked, tuple) else asked

    def network_subset(self, networks: list[str]) -> tuple[str, ...]:
        """Return which of a graph's networks the model reads."""
        from tclab.graph._cell_graph import resolve_networks

        own = self.kind.default_networks(networks)
        order = [*own, *(name for name in networks if name not in own)]
        return tuple(own) if self.networks is None else tuple(resolve_networks(self.networks, order))

    def skipped(self) -> str | None:
        """Return why this point cannot be run, where it cannot be."""
        from tclab.training._step import WITHOUT_MODEL

        kind = self.kind
        if not kind.served_by(_strategy_of(self.strategy)):
            if not kind.reads_masked_graph:
                return f"skipped: {self.model} reads no masked graph"
            return f"skipped: {self.strategy} makes no masked graph, and {self.model} reads one"
        if self.checkpoint and not kind.checkpoints:
            return f"skipped: {self.model} has no activation checkpointing"
        if self.loss not in kind.losses:
            return f"skipped: {self.model} is not trained on {self.loss}"
        for size in ("hidden", "layers"):
            if getattr(self, size) is not None and size not in kind.sizes:
                return f"skipped: {self.model} has no {size} to choose"
        for overhead in self.overheads:
            if overhead not in applicable_overheads(self.model):
                return f"skipped: {self.model} cannot take on the overhead {overhead}"
            if self.mode in WITHOUT_MODEL:
                return f"skipped: mode {self.mode} has no model for the overhead {overhead}"
        if self.loader.get("pin_memory") and device_of(self.device) != "cuda":
            return "skipped: pin_memory needs cuda"
        return self._nothing_to_merge()

    def _nothing_to_merge(self) -> str | None:
        """Return why the variant cannot be made, as far as is known without reading a file."""
        from tclab.graph._cell_graph import to_merge
        from tclab.graph._synthetic_graph import NETWORK_SIZES

        if self.variant == "separate" or self.graph != "synthetic":
            return None
        number = len(to_merge(self.network_subset(list(NETWORK_SIZES)), self.variant))
        few = f"skipped: variant {self.variant} merges two or more networks, and there is {number or 'none'}"
        return few if number < 2 else None

    def skipped_alone(self, what: str) -> str | None:
        """Return why this point cannot be run in one process alone, as `what` ("a race") is, where it cannot be."""
        if (reason := self.skipped()) is not None:
            return reason
        return None if self.ranks == 1 else f"{self.ranks} ranks asked for, and {what} is of one process"

    # ---- as text and as JSON

    def changed(self) -> dict[str, Declaration]:
        """Return the declarations of the fields that differ from those of `Point()`."""
        usual = Point()
        return {name: d for name, d in declarations(Point).items() if getattr(self, name) != getattr(usual, name)}

    def _display(self) -> Display:
        """Return the fields that differ from their defaults."""
        lines = [
            (name.replace("_", " "), str(getattr(self, name)), declared.unit or "", declared.meaning)
            for name, declared in self.changed().items()
        ]
        note = "Every other field has its default." if lines else "Every field has its default."
        return Display("Point", ("field", "value", "unit", "meaning") if lines else (), lines, [note])

    def __str__(self) -> str:
        return repr(self)

    def __repr__(self) -> str:
        given = [f"{name}={getattr(self, name)!r}" for name in self.changed()]
        line = f"Point({', '.join(given)})"
        return line if len(line) <= WIDTH else "Point(\n    " + ",\n    ".join(given) + ",\n)"

    def to_dict(self) -> dict[str, Any]:
        """Return every field as JSON can hold it."""
        values = {one.name: getattr(self, one.name) for one in fields(self)}
        return {name: dict(one) if isinstance(one, Options) else one for name, one in values.items()}

    @staticmethod
    def from_dict(values: dict[str, Any]) -> Point:
        """Return the point of `to_dict`'s fields."""
        return Point(**values)


def _settled(values: dict[str, Any]) -> dict[str, Any]:
    """Return a point's values as it keeps them: what was left open is definite, what means nothing is null."""
    kept = dict(values)
    if kept["graph"] != "synthetic":
        kept["scale"] = None
    elif kept["scale"] is None:
        raise InputError("scale is None, expected a number above 0 (1.0 is the real size)")
    if kept["perturbations"] is not None:
        kept["num_deletions"] = None
    elif kept["num_deletions"] is None:
        kept["num_deletions"] = _DELETIONS
    kept["loop"] = kept["loop"] or ("lightning" if kept["mode"] == "empty" else "plain")
    kept["loss"] = kept["loss"] or next(iter(_model_of(kept["model"]).losses))
    if not kept["workers"]:
        kept["loader"] = Options((name, one) for name, one in kept["loader"].items() if name == "pin_memory")
    if kept["ranks"] == 1:
        kept |= {"ddp": Options(), "gather_interval": None}
    elif kept["accumulate"] == 1:  # nothing adds up
        kept["ddp"] = Options((name, one) for name, one in kept["ddp"].items() if name != "no_sync")
    return kept


class Points(Shown, list[Point]):
    """Points of a sweep, which show the fields that any of them has set, with their values.

    `first`: how many of them come first because together they show something of each axis.
    """

    first = 0

    def _display(self) -> Display:
        changed = {name for point in self for name in point.changed()}
        lines = []
        for name, declared in declarations(Point).items():
            values = dict.fromkeys(getattr(point, name) for point in self)
            if name in changed:
                texts = ["all it reads" if value is None and name == "networks" else str(value) for value in values]
                lines.append((name.replace("_", " "), ", ".join(texts), declared.unit or ""))
        notes = ["Every other field has its default.", "points[0] is the one that is measured first."]
        title = counted(len(self), "point")
        return Display(title, ("field", "values", "unit") if lines else (), lines, notes[: 1 + bool(self)])


def points_of(points: Iterable[Point] | Point) -> Points:
    """Return some points, or one; each once.

    **Raises:** `InputError` for what is no point.
    """
    if isinstance(points, Point):
        return Points([points])
    require("points", points, (Iterable,), "tclab.Points, as tclab.grid returns them")
    every = list(points)
    for one in every:
        require("a point", one, Point, "a tclab.Point")
    made = Points(dict.fromkeys(every))
    made.first = getattr(points, "first", 0)
    return made


_dataclass_init = Point.__init__


@wraps(_dataclass_init)
def _init_of_known_fields(self: Point, **named: Any) -> None:
    for name in named:
        if name not in declarations(Point):
            raise unknown("field of a point", name, declarations(Point))
    _dataclass_init(self, **named)


Point.__init__ = _init_of_known_fields  # type: ignore[method-assign]
