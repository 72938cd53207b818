"""One point of a sweep: all settings of a run, each field with its check, unit and meaning; and points together."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from numbers import Real
from typing import TYPE_CHECKING, Annotated, Any, Literal

from msgspec import Meta

from tclab._display import Display, Shown, counted
from tclab._io import atomic_write, cache_folder, keep
from tclab.errors import InputError, about, check_known, require, shown
from tclab.sweeps._fields import AtLeast0, AtLeast1, Options, checked, declarations, declare, options, text_value

if TYPE_CHECKING:
    from tclab.masking import Strategy
    from tclab.models import ModelKind


def gpu_count() -> int:
    """Return how many GPUs torch lists, of those in `CUDA_VISIBLE_DEVICES`, without asking any of them."""
    import torch

    return int(torch.cuda.device_count())


def device_of(device: str) -> Literal["cpu", "cuda"]:
    """Return "cuda" or "cpu" for a point's device: "auto" is CUDA if there is any.

    **Raises:** `InputError` for "cuda" where there is none.
    """
    if device != "cpu" and gpu_count():
        return "cuda"
    if device == "cuda":
        raise InputError(
            "device is 'cuda', and torch finds no CUDA device here; expected 'cpu' or 'auto'", name="device"
        )
    return "cpu"


def check_enough(ranks: int) -> None:
    """Make sure that this machine has a GPU for each of some ranks.

    **Raises:** `InputError` where it has fewer.
    """
    if ranks > (gpus := gpu_count()):
        why = f"{ranks} ranks need {ranks} GPUs, and this machine has {counted(gpus, 'GPU')}"
        raise InputError(f"{why}; expected fewer, or device='cpu'", name="gpus")


def ranks_of(asked: int | str, device: str = "auto") -> tuple[str, int]:
    """Return device and ranks for a notebook's parameter `gpus`: "auto" is all GPUs, 0 the CPU.

    On a machine without GPUs that many ranks share the CPU. With `device="cuda"` a number of ranks is taken as it is:
    the machine that runs them, perhaps a cluster's, is looked at there.

    **Arguments:**

    - `asked`: "auto", or a number from 0 up. `device`: "auto", "cpu" or "cuda".

    **Raises:** `InputError` for what cannot be read, or for more GPUs than there are.
    """
    number = text_value(asked)
    if number != "auto" and (type(number) is not int or number < 0):
        raise InputError(f"gpus is {asked!r}, expected 'auto' or a number from 0 up", name="gpus")
    if device == "cuda" and number not in ("auto", 0):
        return "cuda", number
    gpus = 0 if number == 0 or device == "cpu" else gpu_count()
    if device == "cuda" and not gpus:
        why = "device is 'cuda', and there is none, or none was asked for; expected 'cpu' or 'auto'"
        raise InputError(why, name="device")
    ranks = max(gpus, 1) if number == "auto" else max(number, 1)
    if gpus:
        check_enough(ranks)
    return ("cuda" if gpus else "cpu"), ranks


# glibc's settings for each allocator; they must be in the environment when a process starts
ALLOCATORS: dict[str, dict[str, str]] = {
    "default": {},
    "keep_pages": {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": "1099511627776", "MALLOC_TOP_PAD_": "268435456"},
    "map_each": {"MALLOC_MMAP_THRESHOLD_": "131072"},
}
_DELETIONS = 3  # genes of a synthetic sample, as in the screen that the models are for
Names = Annotated[tuple[str, ...], Meta(min_length=1, description="names")]
Width = Annotated[int, Meta(ge=2, le=10**9, description="a whole number of at least 2")]
Scale = Annotated[float, Meta(gt=0, le=1e9, description="a number above 0 (1.0 is the real size)")]


# ---- the overheads of the case study by name; `sweeps/_overheads.py` is what they do


@dataclass(frozen=True)
class Overhead:
    """One slow way of the case study's training code."""

    what: str  # it does in each step, in one line
    models: tuple[str, ...] | None = None  # that can take it on, by name; `None` if it is of the training loop: all
    exact: bool = True  # false if it changes predictions or gradients: no strategy with it is equal to `subgraph`


_HETERO = ("hetero_cell", "hetero_cell_production")
OVERHEADS = {
    "item_logging": Overhead("reads 15 figures of each step with .item()"),
    "print_loss": Overhead("prints the loss of each step"),
    "zero_params_loss": Overhead("adds zero times every parameter to the loss"),
    "isnan_checks": Overhead("checks each part of the model's output for NaN", _HETERO),
    "batch_wide_layer_norm": Overhead("normalises over the whole mini-batch: other predictions", _HETERO, exact=False),
    "wild_type_apart": Overhead("encodes the wild type in a separate pass, not together with the samples", _HETERO),
    "preprocessor_per_sample": Overhead("runs the preprocessor on B + 1 copies of the same features", _HETERO),
    "quadratic_attention": Overhead(
        "lets every removed node of the batch attend to every other, masked", ("hetero_cell_production", "dango")
    ),
    "second_forward": Overhead("runs the whole model a second time for the reconstructions", ("dango",)),
    "dense_targets": Overhead("makes a dense reconstruction and target of each network", ("dango",)),
}


def applicable_overheads(model: str) -> list[str]:
    """Return the names of the overheads that apply to a model, by its name."""
    return [name for name, overhead in OVERHEADS.items() if overhead.models is None or model in overhead.models]


# ---- the point


# torch is imported where a point is made, not where its fields are read, as by the command's help
def model_of(name: str) -> ModelKind:
    """Return the model of a name."""
    from tclab.models import get

    return get(name)


def strategy_of(name: str) -> type[Strategy]:
    """Return the strategy of a name."""
    from tclab.masking import get

    return get(name)


# ---- checks that no annotation says: name, value → the value as a point keeps it


def _path(name: str, value: Any, expected: str) -> str:
    """Check a path, which is kept as text; whether there is such a file is not asked here."""
    text = os.fspath(value) if isinstance(value, (str, os.PathLike)) else None
    if not isinstance(text, str) or not text or "\0" in text:
        raise InputError(f"{name} is {shown(value)}, expected {expected}")
    return str(text)


def _networks(name: str, value: Any) -> Any:
    """Check a number of networks, or names, as a tuple or as a text with commas between; "all" is `None`."""
    if isinstance(value, str):
        value = text_value(value.strip())
        if value in ("all", None):
            return None
        parts = tuple(part.strip() for part in value.split(",")) if isinstance(value, str) else ()
        value = parts if parts and all(parts) else value
    return checked(name, value, AtLeast1 | Names | None)


def _graph(name: str, value: Any) -> str:
    from tclab.graph._cell_graph import CellGraph, keep_graph

    if isinstance(value, CellGraph):
        return keep_graph(value)
    return _path(name, value, "'synthetic', a folder, a file or a tclab.CellGraph")


def _perturbations(name: str, value: Any) -> int | str:
    number = text_value(value)
    if isinstance(number, Real) and not isinstance(number, bool):
        return int(checked(name, number, AtLeast0))
    if hasattr(value, "to_csv"):  # a DataFrame
        text = value.to_csv(index=any(value.index.names))  # a named index is a column
        file = cache_folder() / "samples" / f"{hashlib.sha256(text.encode()).hexdigest()[:12]}.csv"
        return keep(file, lambda path: atomic_write(path, text))
    return _path(name, value, "how many nodes a sample deletes, or a DataFrame or a file of samples")


def _loss(name: str, value: Any) -> str:
    from tclab.models._model_registry import loss_names

    check_known(name, loss_names(), value)
    return str(value)


def _overheads(name: str, value: Any) -> tuple[str, ...]:
    """Check names of overheads, or one name as text; they are kept in the order of `OVERHEADS`, each once."""
    wanted = [value] if isinstance(value, str) else list(value)
    for one in wanted:
        check_known("overhead", OVERHEADS, one)
    return tuple(one for one in OVERHEADS if one in wanted)


@dataclass(frozen=True, kw_only=True, repr=False)
class Point:
    """One point of a sweep, frozen and hashable.

    A field that is left out has its default, and one that means nothing beside the others is null. Making a point
    checks its values and opens no file, but to keep a `CellGraph`.

    **Arguments:**

    - `graph`: "synthetic", a folder of public data files (see `tclab.readers.read_folder`), or a file that
      `CellGraph.save` wrote. In Python also a `CellGraph`, which is kept in `TCLAB_CACHE`, or `tclab` in the user's
      cache folder, where jobs on other machines must be able to read it.
    - `scale`: the size of the synthetic graph; edges grow with its square. A graph of your own has none.
    - `model`: by name; `tclab.models.names()` lists them.
    - `strategy`: by name; `tclab.masking.names()` lists them.
    - `batch_size`: B, the samples in a batch of one rank.
    - `networks`: edge types: how many of those that the model reads, then of the graph's others; or their names;
      `None` or "all" for all that the model reads.
    - `mode`: "data", "empty", "model", "step" or "fixed_batch": how much of a step is run; see docs/measurement.md.
    - `device`: "auto" (CUDA if there is a GPU), "cpu" or "cuda".
    - `ranks`: how many processes train together.
    - `dtype`: "float32", "float64" or "bfloat16" (autocast).
    - `steps`: how many batches are timed.
    - `warmup`: how many batches run first and are not timed.
    - `seed`: of graph, samples and weights.
    - `perturbations`: how many nodes each sample deletes, which are drawn at random; or deletions and targets of your
      own, a DataFrame or a file (CSV, TSV, Parquet) with the columns sample, node, target; or a file of a genetic
      interaction screen; see `tclab.readers.read_perturbations`. A DataFrame is kept as a `CellGraph` is.
    - `metabolism`: the metabolic network of reactions and metabolites: "off" leaves it out; "carried" puts it into
      each batch, and the model does not read it; "used": the model reads it.
    - `hidden`: H, the model's width; `None` for the model's own.
    - `layers`: how many message-passing layers the model has; `None` for the model's own.
    - `workers`: DataLoader processes; 0 makes batches in the training process.
    - `loader`: options of `torch.utils.data.DataLoader` by its names, {"prefetch_factor": 4} or as a text
      "prefetch_factor:4": prefetch_factor, multiprocessing_context (how workers start), persistent_workers, pin_memory
      (on CUDA true unless given), timeout, in_order. Without workers pin_memory alone is kept.
    - `ddp`: options of `torch.nn.parallel.DistributedDataParallel` by its names, as those of the loader: bucket_cap_mb,
      find_unused_parameters, static_graph, gradient_as_bucket_view, …; and compression of gradients, "none", "fp16"
      or "bf16"; no_sync (true by default): with accumulate, exchange gradients in the last batch alone;
      gather_interval: passes between the all-gathers of a loss that has them. Empty for one rank.
    - `store`: where samples are read: "memory", "lmdb" (as integers) or "json" (as the case study's records, from
      LMDB). What a `stored_…` strategy stores for each sample is always in LMDB.
    - `collation`: "lean" writes each tensor once; "pyg", for `subgraph` and strategies that mask in the worker, makes
      a batch by PyG's `Batch`; "edges", for those that mask on the device, sends every edge with each batch though they
      do not need it.
    - `allocator`: "default"; "keep_pages", by which glibc never gives a page back; or "map_each", by which every tensor
      has pages of its own that are given back at once: the least memory, and the slowest.
    - `loop`: "plain" or "lightning"; by default plain, except for mode "empty", which only Lightning runs.
    - `loss`: one of the model's losses by name; by default the model's first.
    - `optimizer`: AdamW "fused", "foreach" or "plain".
    - `accumulate`: batches whose gradients are added up for one step of the optimizer; `steps` counts batches.
    - `overheads`: slow habits of the case study's code, by name; see `tclab.sweeps.config.with_each_overhead`.
    - `micro_batch`: go through a batch in slices of at most so many samples, whose gradients are added up; `None` for
      the whole batch at once.
    - `compile`: run the model through `torch.compile`.
    - `capture`: on CUDA, replay the step as CUDA graphs, one per stage, from the third batch of each layout (the sizes
      of a batch's tensors) on.

    **Raises:** `InputError` that names the value, the expected values and the nearest one that exists.
    """

    graph: str = declare("synthetic", "reference panel", check=_graph)
    scale: Scale | None = declare(1.0, "reference panel", unit="share of the real number of nodes")
    model: str = declare("hetero_cell", "reference panel", grid="models", check=lambda _, name: model_of(name).name)
    strategy: str = declare(
        "node_mask", "advised panel", grid="strategies", check=lambda _, value: strategy_of(value).name
    )
    batch_size: AtLeast1 = declare(
        4, "advised panel", unit="samples", grid="batch_sizes",
        caution="The ratio is of the time of a sample. Training with another batch size gives another model.",
    )  # fmt: skip
    networks: AtLeast1 | Names | None = declare(None, "reference panel", unit="networks", check=_networks)
    mode: Literal["data", "empty", "model", "step", "fixed_batch"] = declare("step", "panel")
    device: Literal["auto", "cpu", "cuda"] = declare("auto", "reference")
    ranks: AtLeast1 = declare(1, unit="processes")
    dtype: Literal["float32", "float64", "bfloat16"] = declare(
        "float32", "advised panel", caution="It rounds differently: compare the losses, too."
    )
    steps: AtLeast1 = declare(5, "panel", unit="batches", role="amount")
    warmup: AtLeast0 = declare(2, unit="batches", role="amount")
    seed: AtLeast0 = declare(0, "reference panel", role="repetition")
    perturbations: int | str = declare(_DELETIONS, "panel", check=_perturbations)
    metabolism: Literal["off", "carried", "used"] = declare("off", "reference")
    hidden: Width | None = declare(None, "reference panel", unit="features")
    layers: AtLeast1 | None = declare(None, "reference panel", unit="layers")
    workers: AtLeast0 = declare(1, "advised", unit="processes")
    loader: Options = declare(Options(), "advised", check=options)
    ddp: Options = declare(Options(), check=options)
    store: Literal["memory", "lmdb", "json"] = declare("memory", "advised")
    collation: str = declare("lean", "advised")
    allocator: Literal["default", "keep_pages", "map_each"] = declare("default", "advised")
    loop: Literal["plain", "lightning"] | None = declare(None, "advised")
    loss: str | None = declare(None, check=_loss)
    optimizer: Literal["fused", "foreach", "plain"] = declare("fused", "advised")
    accumulate: AtLeast1 = declare(1, unit="batches")
    overheads: tuple[str, ...] = declare((), "reference", check=_overheads)
    micro_batch: AtLeast1 | None = declare(None, unit="samples")
    compile: bool = declare(False, "panel")
    capture: bool = declare(False, "panel")

    def __post_init__(self) -> None:
        every = declarations(Point).items()
        values = _settled({name: declared.checked(getattr(self, name)) for name, declared in every})
        for name, value in values.items():
            object.__setattr__(self, name, value)

    # ---- what follows from its fields

    @property
    def kind(self) -> ModelKind:
        """The model, in the size that the point asks for."""
        return model_of(self.model).sized(hidden=self.hidden, layers=self.layers)

    @property
    def prefetch_factor(self) -> int:
        """The batches that each worker makes ahead: 2 unless `loader` says so, as in `DataLoader`."""
        return int(self.loader.get("prefetch_factor", 2))

    def skipped(self) -> str | None:
        """Return why this point cannot be run, where it cannot be."""
        reason = next(self._obstacles(), None)
        return None if reason is None else f"skipped: {reason}"

    def _obstacles(self) -> Iterator[str]:
        from tclab.training._captured_step import refusals
        from tclab.training._step import WITHOUT_MODEL

        kind, model = self.kind, self.model
        if self.capture:
            yield from refusals(strategy_of(self.strategy), device_of(self.device), vars(self))
        if not kind.served_by(strategy_of(self.strategy)):
            reads = f"{self.strategy} makes no masked graph, which {model} needs"
            yield reads if kind.reads_masked_graph else f"{model} reads no masked graph"
        if self.loss not in kind.losses:
            yield f"{model} is not trained on {self.loss}"
        for size in ("hidden", "layers"):
            if getattr(self, size) is not None and size not in kind.sizes:
                yield f"{model} has no {size} to choose"
        for overhead in self.overheads:
            if overhead not in applicable_overheads(model):
                yield f"{model} cannot take on the overhead {overhead}"
            if self.mode in WITHOUT_MODEL:
                yield f"mode {self.mode} has no model for the overhead {overhead}"
        if self.loader.get("pin_memory") and device_of(self.device) != "cuda":
            yield "pin_memory needs cuda"

    # ---- as text and as JSON

    def changed(self) -> dict[str, Any]:
        """Return the fields whose values differ from those of `Point()`."""
        usual = vars(Point())
        return {name: value for name, value in vars(self).items() if value != usual[name]}

    def __repr__(self) -> str:
        return f"Point({', '.join(f'{name}={value!r}' for name, value in self.changed().items())})"

    def to_dict(self) -> dict[str, Any]:
        """Return every field as JSON can hold it; `Point(**fields)` is the point again."""
        return dict(vars(self))


def _settled(values: dict[str, Any]) -> dict[str, Any]:
    """Return a point's values as it keeps them: what was left open is definite, what means nothing is null.

    **Raises:** `InputError` for values that do not go together.
    """
    from tclab.graph._cell_graph import resolve_networks
    from tclab.graph._synthetic_graph import NETWORK_SIZES

    kept = dict(values)
    collations = strategy_of(kept["strategy"]).collations
    check_known("collation", collations, kept["collation"])
    if kept["graph"] != "synthetic":
        kept["scale"] = None
    elif kept["scale"] is None:
        raise InputError("scale is None, expected a number above 0 (1.0 is the real size)", name="scale")
    elif kept["networks"] is not None:
        with about("networks"):
            resolve_networks(kept["networks"], list(NETWORK_SIZES))
    if kept["mode"] == "empty" and kept["loop"] == "plain":
        raise InputError("loop is 'plain', and mode 'empty' is Lightning's; expected 'lightning' or None")
    kept["loop"] = kept["loop"] or ("lightning" if kept["mode"] == "empty" else "plain")
    kept["loss"] = kept["loss"] or next(iter(model_of(kept["model"]).losses))
    if not kept["workers"]:
        kept["loader"] = Options((name, one) for name, one in kept["loader"].items() if name == "pin_memory")
    if kept["ranks"] == 1:
        kept["ddp"] = Options()
    elif kept["accumulate"] == 1:  # nothing adds up
        kept["ddp"] = Options((name, one) for name, one in kept["ddp"].items() if name != "no_sync")
    return kept


class Points(Shown, list[Point]):
    """Points of a sweep, which show the fields that any of them has set, with their values."""

    def _display(self) -> Display:
        changed = {name for point in self for name in point.changed()}
        lines = []
        for name, declared in declarations(Point).items():
            if name in changed:
                none = "all" if name == "networks" else "none"
                cells = (declared.cell(getattr(point, name)) for point in self)
                values = dict.fromkeys(none if cell is None else str(cell) for cell in cells)
                lines.append((name.replace("_", " "), ", ".join(values), declared.unit or ""))
        columns = ("field", "values", "unit") if lines else ()
        return Display(counted(len(self), "setting"), columns, lines, ["Every other field has its default."])


def varying_fields(points: Iterable[Point]) -> list[str]:
    """Return the fields that differ among some points, but for a loss that follows from the model."""
    every = list(points)
    names = [name for name in declarations(Point) if len({getattr(point, name) for point in every}) > 1]
    of_models = len({(point.model, point.loss) for point in every}) == len({point.model for point in every})
    return [name for name in names if name != "loss" or not of_models]


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
    return Points(dict.fromkeys(every))
