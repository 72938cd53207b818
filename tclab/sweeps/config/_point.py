"""One point of a sweep: all settings of a run, each field with its declaration."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import lru_cache, wraps
from pathlib import Path
from textwrap import indent
from typing import TYPE_CHECKING, Any

import numpy as np

from tclab._display import WIDTH, Display, Shown, counted
from tclab.errors import InputError, require, unknown
from tclab.graph._cell_graph import VARIANTS, CellGraph, keep_graph, resolve_networks, to_merge
from tclab.graph._synthetic_graph import NETWORK_SIZES
from tclab.masking import get as strategy_of
from tclab.models import ModelKind
from tclab.models import get as model_of
from tclab.models._hetero_cell import METABOLISMS
from tclab.models._model_registry import loss_names
from tclab.perturbation import Perturbations, synthetic_perturbations
from tclab.perturbation._sample_store import STORES
from tclab.sweeps.config._fields import (
    Condition,
    Declaration,
    above_zero,
    arguments_text,
    count_or_names,
    declarations,
    declare,
    one_of,
    path,
    whole_number,
)
from tclab.sweeps.config._gpus import device_of
from tclab.sweeps.config._overhead_names import LOGGING, applicable_overheads, validate_overheads
from tclab.training._distributed import BUCKET_MB, COMPRESSIONS, Exchange
from tclab.training._loading import START_METHODS
from tclab.training._loops import LOOPS
from tclab.training._step import CLIP, DTYPES, MODES, OPTIMIZERS, WITHOUT_MODEL

if TYPE_CHECKING:
    from tclab.readers._screens import ScreenPerturbations

DEVICES = ("auto", "cpu", "cuda")
# The variable that names the file in which ranks on several machines find one another; set within a job that has them.
RENDEZVOUS_FILE = "TCLAB_RENDEZVOUS_FILE"
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

_SYNTHETIC = Condition("graph", lambda point: point.graph == "synthetic")
_DRAWN = Condition("perturbations", lambda point: point.perturbations is None)
_WORKERS = Condition("workers", lambda point: point.workers > 0)
_RANKS = Condition("ranks", lambda point: point.ranks > 1)
_LOGS = Condition("overheads", lambda point: bool(LOGGING & set(point.overheads)))
_SUMS = Condition("ranks", lambda point: point.ranks > 1 and point.accumulate > 1)


def _check_graph(name: str, value: Any) -> Any:
    if isinstance(value, CellGraph):
        return keep_graph(value)
    return path("'synthetic', a folder, a file or a tclab.CellGraph")(name, value)


def _check_model(name: str, value: Any) -> Any:
    require(name, value, str, "the name of a model; a model of yours is registered and then named")
    model_of(value)
    return value


def _check_strategy(name: str, value: Any) -> Any:
    strategy_of(value)
    return value


def _check_collation(name: str, value: Any) -> Any:
    if not isinstance(value, str):
        raise InputError(f"{name} is {value!r}, expected the name of a collation")
    return value


def _check_overheads(name: str, value: Any) -> Any:
    if not isinstance(value, (str, Sequence)):
        raise InputError(f"{name} is {value!r}, expected names of overheads")
    return validate_overheads(value)


@dataclass(frozen=True, repr=False)
class Point(Shown):
    """One point of a sweep, frozen and hashable.

    A field that is left out has its default. Making a point checks its values and opens no file, but to keep a
    `CellGraph`; `resolved` asks whether the files and the device that it names are there.
    """

    graph: str = declare(
        "synthetic",
        '"synthetic", a folder of public files (see `tclab.readers.read_folder`), a file that `CellGraph.save` wrote, '
        "or a `CellGraph`, which is kept in `TCLAB_CACHE`, or `tclab` in the user's cache folder, where jobs on other "
        "machines must be able to read it.",
        _check_graph,
        equivalence="reference",
        panel=True,
        reads=True,
        synthetic=("synthetic",),
    )
    scale: float | None = declare(
        1.0,
        "the size of the synthetic graph; edges grow with its square. Null for any other.",
        above_zero("a number above 0 (1.0 is the real size)"),
        unit="of the real number of nodes",
        needs=_SYNTHETIC,
        equivalence="reference",
        panel=True,
    )
    model: str = declare(
        "hetero_cell",
        "a name; see `tclab.models.names()`.",
        _check_model,
        equivalence="reference",
        grid="models",
        panel=True,
    )
    strategy: str = declare(
        "node_mask",
        "a name; see `tclab.masking.names()`.",
        _check_strategy,
        equivalence="candidate",
        charted=True,
        advised=True,
        grid="strategies",
        panel=True,
    )
    batch_size: int = declare(
        4,
        "B, the samples in a batch of one rank.",
        whole_number(1),
        unit="samples",
        charted=True,
        advised=True,
        caution="Told for a sample; another batch size trains otherwise.",
        grid="batch_sizes",
        panel=True,
    )
    networks: int | tuple[str, ...] | None = declare(
        None,
        "n for the first n of the graph's networks, beginning with those that the model reads, or names; `None` for "
        "all that it reads.",
        count_or_names,
        unit="networks",
        optional=True,
        column="whole",
        equivalence="reference",
        charted=True,
        panel=True,
    )
    mode: str = declare(
        "step",
        '"data", "empty", "model", "step" or "fixed_batch": how much of a step is run; see docs/measurement.md.',
        one_of(MODES),
        step=True,
        panel=True,
    )
    device: str = declare(
        "auto",
        '"auto" (CUDA where there is one), "cpu" or "cuda".',
        one_of(DEVICES),
        equivalence="reference",
        memory=False,
        place=True,
    )
    ranks: int = declare(
        1, "how many processes train together.", whole_number(1), unit="processes", memory=False, place=True
    )
    dtype: str = declare(
        "float32",
        '"float32", "float64" or "bfloat16" (autocast).',
        one_of(DTYPES),
        equivalence="candidate",
        advised=True,
        caution="It rounds otherwise: look at the loss.",
        step=True,
        panel=True,
    )
    runs: int = declare(
        1,
        "how many processes train side by side, each by itself: on one GPU, or each on its share of the cores. "
        "Samples a second and memory are those of all together, seconds are the mean run's.",
        whole_number(1),
        unit="processes",
        memory=False,
        charted=True,
        advised=True,
        caution="Told for a sample of all runs together; each of them is slower than it is alone.",
        label="runs side by side",
        panel=True,
    )
    machines: int = declare(
        1,
        'how many machines share the ranks evenly; more than one are for `executor="slurm"`.',
        whole_number(1),
        unit="machines",
        memory=False,
        place=True,
    )
    steps: int = declare(
        5,
        "how many batches are timed.",
        whole_number(1),
        unit="batches",
        memory=False,
        role="amount",
        label="timed steps",
        panel=True,
    )
    warmup: int = declare(
        2, "how many batches run before those.", whole_number(0), unit="batches", memory=False, role="amount"
    )
    seed: int = declare(
        0,
        "of graph, samples and weights.",
        whole_number(0),
        equivalence="reference",
        role="repetition",
        step=True,
        panel=True,
    )
    perturbations: str | None = declare(
        None,
        "a file of a genetic interaction screen, whose genes are deleted and whose scores are the targets; see "
        "`tclab.readers.read_perturbations`. `None` draws synthetic samples.",
        path("a file of a genetic interaction screen, or None"),
        optional=True,
        panel=True,
        reads=True,
    )
    num_deletions: int | None = declare(
        3,
        "how many nodes each synthetic sample deletes; null for `perturbations`, where the file says so.",
        whole_number(0),
        unit="nodes a sample",
        usual=3,
        needs=_DRAWN,
        label="nodes deleted",
        panel=True,
    )
    metabolism: str = declare(
        "off", '"off", "carried" or "used".', one_of(METABOLISMS), equivalence="reference", step=True
    )
    self_loops: bool = declare(False, "every node of a network has an edge to itself.", equivalence="reference")
    ship_edges: bool = declare(False, "see `tclab.masking.Strategy`.", advised=True)
    variant: str = declare(
        "separate",
        'what becomes of the chosen networks: "separate", as they are; "merged_string", those of STRING as one, each '
        'edge once; or "homogeneous", all as one, each edge with its type.',
        one_of(VARIANTS),
        equivalence="reference",
    )
    hidden: int | None = declare(
        None,
        "H, the model's width; `None` for the model's own.",
        whole_number(2, or_none=True),
        unit="features",
        optional=True,
        equivalence="reference",
        label="hidden size",
        panel=True,
    )
    layers: int | None = declare(
        None,
        "how many message-passing layers the model has; `None` for the model's own.",
        whole_number(1, or_none=True),
        unit="layers",
        optional=True,
        equivalence="reference",
        panel=True,
    )
    workers: int = declare(
        1, "DataLoader processes; 0 makes batches in the training process.", whole_number(0),
        unit="processes", advised=True,
    )  # fmt: skip
    prefetch_factor: int | None = declare(
        None,
        "batches that each worker makes ahead; 2 unless given, null without workers.",
        whole_number(1),
        unit="batches",
        usual=2,
        needs=_WORKERS,
        memory=False,
        advised=True,
    )
    start_method: str | None = declare(
        None,
        'how workers start, "fork", "spawn" or "forkserver"; the system\'s own unless given, null without workers.',
        one_of(START_METHODS),
        usual=START_METHODS[0],
        needs=_WORKERS,
        memory=False,
        advised=True,
    )
    persistent_workers: bool | None = declare(
        None,
        "workers stay from epoch to epoch; False unless given, null without workers.",
        usual=False,
        needs=_WORKERS,
        memory=False,
        advised=True,
    )
    store: str = declare(
        "memory",
        'where samples are read: "memory", "lmdb" (as integers) or "json" (as the case study\'s records, from LMDB). '
        "What a `stored_…` strategy stores for each sample is always in LMDB.",
        one_of(STORES),
        advised=True,
    )
    cold_reads: bool = declare(
        False,
        "drop stored samples and masks from the system's page cache before they are read, so that each is read from "
        "the disk, as in a store larger than memory; `store_cached` of the rows says what share was in memory.",
        memory=False,
    )
    stored_samples: int | None = declare(
        None,
        "how many samples a store holds at least, of which the steps read some in shuffled order; as many as they read "
        "unless given.",
        whole_number(1, or_none=True),
        unit="samples",
        optional=True,
        memory=False,
    )
    collation: str = declare(
        "lean",
        '"lean", or "pyg" for `subgraph` and strategies that ship every edge; see `tclab.masking.Strategy`.',
        _check_collation,
        equivalence="candidate",
        advised=True,
    )
    pin_memory: bool | None = declare(
        None,
        "copy batches to page-locked memory first; `None` does where the device is CUDA.",
        optional=True,
        memory=False,
        advised=True,
    )
    double_buffer: bool = declare(
        False,
        "copy the next batch to the device on a side stream while this one computes.",
        memory=False,
        advised=True,
    )
    allocator: str = declare(
        "default",
        '"default"; "keep_pages", by which glibc never gives a page back; or "map_each", by which every tensor has '
        "pages of its own that are given back at once: the least memory, and the slowest.",
        one_of(ALLOCATORS),
        memory=False,
        advised=True,
    )
    loop: str | None = declare(
        None,
        '"plain" or "lightning"; `None` is plain, but Lightning\'s for mode "empty", which is its alone.',
        one_of(LOOPS),
        usual=lambda point: "lightning" if point.mode == "empty" else "plain",
        advised=True,
    )
    loss: str | None = declare(
        None,
        "one of the model's losses by name; its first unless given.",
        one_of(loss_names),
        usual=lambda point: next(iter(model_of(point.model).losses)),
        step=True,
    )
    clip: float | None = declare(
        CLIP,
        "the norm that gradients are clipped to; `None` for no clipping.",
        above_zero("a norm above 0, or None for no clipping"),
        unit="norm",
        optional=True,
        step=True,
    )
    optimizer: str = declare(
        "fused", 'AdamW "fused", "foreach" or "plain".', one_of(OPTIMIZERS), advised=True, step=True
    )
    accumulate: int = declare(
        1,
        "batches whose gradients are added up for one step of the optimizer; `steps` counts batches.",
        whole_number(1),
        unit="batches",
        step=True,
    )
    overheads: tuple[str, ...] = declare(
        (),
        "slow ways of the case study, by name; see `tclab.case_study.OVERHEADS`.",
        _check_overheads,
        equivalence="reference",
        advised=True,
    )
    log_every: int | None = declare(
        None,
        "batches from one log to the next, of the overheads that log; 1 unless given, null without one.",
        whole_number(1),
        unit="batches",
        usual=1,
        needs=_LOGS,
        memory=False,
    )
    micro_batch: int | None = declare(
        None,
        "go through a batch in slices of at most so many samples, whose gradients are added up; `None` for the whole "
        "batch at once.",
        whole_number(1, or_none=True),
        unit="samples",
        optional=True,
        equivalence="candidate",
    )
    checkpoint: bool = declare(
        False,
        "compute a layer's inner activations again in the backward instead of keeping them.",
        equivalence="candidate",
        step=True,
    )
    compile: bool = declare(
        False,
        "run the model through `torch.compile`.",
        equivalence="candidate",
        memory=False,
        step=True,
        panel=True,
    )
    no_sync: bool | None = declare(
        None,
        "of gradients that add up over batches, ranks exchange the last sum alone. True unless given; null where "
        "nothing is accumulated or exchanged.",
        usual=True,
        needs=_SUMS,
        memory=False,
    )
    bucket_cap_mb: float | None = declare(
        None,
        f"the size of the buckets that gradients are exchanged in, {BUCKET_MB:g} unless given; null for one rank, as "
        "the next four.",
        above_zero("MiB above 0"),
        unit="MiB",
        usual=BUCKET_MB,
        needs=_RANKS,
        memory=False,
    )
    find_unused_parameters: bool | None = declare(
        None,
        "DDP looks after each forward for parameters that get no gradient. False unless given.",
        usual=False,
        needs=_RANKS,
        memory=False,
    )
    static_graph: bool | None = declare(
        None,
        "DDP may assume that every step is like the first one. False unless given.",
        usual=False,
        needs=_RANKS,
        memory=False,
    )
    compression: str | None = declare(
        None,
        'of gradients on their way: "none" unless given, "fp16", "bf16" or "powersgd".',
        one_of(COMPRESSIONS),
        usual="none",
        needs=_RANKS,
        memory=False,
    )
    gather_interval: int | None = declare(
        None,
        "passes between the all-gathers of a loss that has them; the loss's own unless given.",
        whole_number(1, or_none=True),
        unit="passes",
        optional=True,
        needs=_RANKS,
        memory=False,
        step=True,
    )

    def __post_init__(self) -> None:
        for name, declared in declarations(type(self)).items():  # type: ignore[arg-type]
            object.__setattr__(self, name, declared.resolved_value(self, getattr(self, name)))
        self._check_pairs()

    def _display(self) -> Display:
        """Return the fields that differ from their defaults."""
        lines = [
            (declared.label or name, str(getattr(self, name)), declared.unit or "", declared.meaning)
            for name, declared in self._changed().items()
        ]
        note = "Every other field has its default." if lines else "Every field has its default."
        return Display("Point", ("field", "value", "unit", "meaning") if lines else (), lines, [note])

    def __str__(self) -> str:
        return repr(self)

    def __repr__(self) -> str:
        given = [f"{name}={getattr(self, name)!r}" for name in self._changed()]
        line = f"Point({', '.join(given)})"
        return line if len(line) <= WIDTH else "Point(\n    " + ",\n    ".join(given) + ",\n)"

    def _changed(self) -> dict[str, Declaration]:
        """Return the declarations of the fields that do not have the value that leaving them out gives."""
        every = declarations(type(self)).items()  # type: ignore[arg-type]
        return {name: d for name, d in every if getattr(self, name) != d.resolved_value(self, d.default)}

    def _check_pairs(self) -> None:
        """Check what one field makes of another.

        **Raises:** `InputError` for fields that do not go together.
        """
        strategy = strategy_of(self.strategy)
        if self.collation not in strategy.collations:
            raise unknown("collation", self.collation, strategy.collations)
        if self.ship_edges and not strategy.can_ship_edges:
            raise InputError(f"ship_edges is a switch of the gpu_mask strategies, {self.strategy!r} has none")
        if self.ranks % self.machines:
            raise InputError(f"ranks is {self.ranks}, expected as many on each of {self.machines} machines")
        if self.ranks > 1 and self.runs > 1:
            raise InputError(f"ranks is {self.ranks} and runs is {self.runs}, expected one of them to be 1")
        if self.mode == "empty" and self.loop == "plain":
            raise InputError("loop is 'plain', and mode 'empty' is Lightning's; expected 'lightning' or None")
        if self.graph == "synthetic" and self.networks is not None:
            resolve_networks(self.networks, list(NETWORK_SIZES))
        self.exchange()

    def exchange(self) -> Exchange | None:
        """Return how this point's ranks exchange gradients; `None` for one rank."""
        if self.ranks == 1:
            return None
        settings: dict[str, Any] = {one.name: getattr(self, one.name) for one in fields(Exchange)}
        return Exchange(**settings | {"no_sync": bool(self.no_sync)})

    @property
    def backend(self) -> str | None:
        """What the ranks exchange through, "nccl" or "gloo"; `None` for one rank or the device "auto"."""
        return None if self.ranks == 1 else {"cuda": "nccl", "cpu": "gloo"}.get(self.device)

    @property
    def network_count(self) -> float:
        """How many networks are asked for; infinity for all that the model reads."""
        asked = self.networks
        return float("inf") if asked is None else len(asked) if isinstance(asked, tuple) else asked

    def network_names(self) -> list[str]:
        """Return the names of all networks of this point's graph, in order; a folder or file is read for them."""
        if self.graph == "synthetic":
            return list(NETWORK_SIZES)  # known without making it
        return list(self._whole().networks)

    @property
    def kind(self) -> ModelKind:
        """The model, in the size that the point asks for."""
        return model_of(self.model).sized(hidden=self.hidden, layers=self.layers)

    def skipped(self) -> str | None:
        """Return why this point cannot be run, where it cannot be."""
        if not self.kind.served_by(strategy_of(self.strategy)):
            if not self.kind.reads_masked_graph:
                return f"skipped: {self.model} reads no masked graph"
            return f"skipped: {self.strategy} makes no masked graph, and {self.model} reads one"
        if self.checkpoint and not self.kind.checkpoints:
            return f"skipped: {self.model} has no activation checkpointing"
        if self.loss not in self.kind.losses:
            return f"skipped: {self.model} is not trained on {self.loss}"
        for size in ("hidden", "layers"):
            if getattr(self, size) is not None and size not in self.kind.sizes:
                return f"skipped: {self.model} has no {size} to choose"
        if self.variant != "separate":
            number = len(to_merge(self.network_subset(self.network_names()), self.variant))
            if number < 2:
                return f"skipped: variant {self.variant} merges two or more networks, and there is {number or 'none'}"
        for overhead in self.overheads:
            if overhead not in applicable_overheads(self.model):
                return f"skipped: {self.model} cannot take on the overhead {overhead}"
            if self.mode in WITHOUT_MODEL:
                return f"skipped: mode {self.mode} has no model for the overhead {overhead}"
        if self.log_every is not None and self.steps < self.log_every:
            return f"skipped: of {self.steps} timed batches none may log, with log_every {self.log_every}"
        if (reason := self._no_store()) is not None:
            return f"skipped: {reason}"
        if self.machines > 1 and RENDEZVOUS_FILE not in os.environ:
            return f"not run: {self.machines} machines asked for, and this is one; executor='slurm' has more"
        if (self.double_buffer or self.pin_memory) and device_of(self.device) != "cuda":
            return f"skipped: {'double_buffer' if self.double_buffer else 'pin_memory'} needs cuda"
        return None

    def _no_store(self) -> str | None:
        """Return why what is asked of a store cannot be, where it cannot be."""
        stores = self.store != "memory" or strategy_of(self.strategy).stores
        if (self.cold_reads or self.stored_samples) and not stores:
            name = "cold_reads" if self.cold_reads else "stored_samples"
            return f"{name} is of a store, and nothing is stored (store 'memory', strategy {self.strategy})"
        if self.cold_reads and self.runs > 1:
            return "cold_reads, and runs side by side read the same samples"
        if self.cold_reads and not hasattr(os, "posix_fadvise"):
            return "cold_reads needs posix_fadvise, which this system does not have"
        return None

    def skipped_alone(self, what: str) -> str | None:
        """Return why this point cannot be run in one process alone, as `what` ("a race") is, where it cannot be."""
        if (reason := self.skipped()) is not None:
            return reason
        for kind, number in (("ranks", self.ranks), ("runs", self.runs)):
            if number > 1:
                return f"{number} {kind} asked for, and {what} is of one process"
        return None

    def resolved(self) -> Point:
        """Return this point with its device, its paths and `pin_memory` made definite.

        **Raises:** `InputError` for `device="cuda"` where there is none, a folder that is not there, or networks that
        it does not have.
        """
        self.check_files()
        device = device_of(self.device)
        definite: dict[str, Any] = {name: str(Path(value).resolve()) for name, value in self.paths().items()}
        definite["device"] = device
        definite["pin_memory"] = device == "cuda" if self.pin_memory is None else self.pin_memory
        changed = {name: value for name, value in definite.items() if getattr(self, name) != value}
        return replace(self, **changed) if changed else self

    def paths(self) -> dict[str, str]:
        """Return field → path of the files that the point is measured on; empty where all is synthetic."""
        read = [(getattr(self, name), declared) for name, declared in declarations(Point).items() if declared.reads]
        return {declared.name: value for value, declared in read if value not in (None, *declared.synthetic)}

    def check_files(self) -> None:
        """Look whether the files that the point names are there, and hold the networks that it names.

        **Raises:** `InputError` for one that is not.
        """
        if self.perturbations is not None and not os.path.isfile(self.perturbations):
            raise InputError(
                f"perturbations is {self.perturbations!r}, expected a file of a screen that exists, or None"
            )
        if self.graph == "synthetic":
            return
        if not os.path.exists(self.graph):
            raise InputError(f"graph is {self.graph!r}, expected 'synthetic' or a folder or file that exists")
        if self.networks is not None:
            resolve_networks(self.networks, self.network_names())

    def file_stamps(self) -> dict[str, Stamp]:
        """Return path → what tells whether the files there have changed, of those that the point is measured on."""
        return {value: stamp_of(value) for value in self.paths().values()}

    def screen(self) -> ScreenPerturbations | None:
        """Return the samples of the point's file of perturbations, with a report of its rows; `None` for no file.

        The last files are kept, each as it was when it was read.

        **Raises:** `InputError` for a file that is no screen, or has no sample for the point's graph.
        """
        if self.perturbations is None:
            return None
        return _screen(self.perturbations, self._whole(), stamp_of(self.perturbations))

    def samples(self, number: int, graph: CellGraph | None = None) -> Perturbations:
        """Return so many samples to train on: synthetic ones, or those of the file in an order drawn by the seed.

        A file that has fewer is gone through again.

        **Arguments:**

        - `number`: of samples.
        - `graph`: whose nodes they delete; the point's own, which is made for it, unless given.
        """
        screen = self.screen()
        if screen is None:
            assert self.num_deletions is not None  # null for a file alone
            graph = self.cell_graph() if graph is None else graph
            return synthetic_perturbations(graph, number, deleted=self.num_deletions, seed=self.seed)
        order = np.random.default_rng(self.seed).permutation(len(screen))
        return screen.read(np.resize(order, number).tolist())

    def deletions_a_sample(self) -> int:
        """Return how many nodes a sample deletes; of a file's samples the usual number."""
        screen = self.screen()
        if screen is None:
            return self.num_deletions or 0
        return int(np.median(screen.deletions.ptr.diff().numpy()))

    def cell_graph(self) -> CellGraph:
        """Return the graph that this point runs on, on the CPU; the last few are kept."""
        graph = self._whole()
        graph = _variant(graph, self.network_subset(list(graph.networks)), self.variant)
        return graph.without_metabolism() if self.metabolism == "off" else graph

    def network_subset(self, networks: list[str]) -> tuple[str, ...]:
        """Return which of a graph's networks the model reads."""
        own = self.kind.default_networks(networks)
        order = [*own, *(name for name in networks if name not in own)]
        return tuple(own) if self.networks is None else tuple(resolve_networks(self.networks, order))

    def _whole(self) -> CellGraph:
        return _whole_graph(self.graph, self.scale, self.seed, self.self_loops, self.file_stamps().get(self.graph))

    def to_dict(self) -> dict[str, Any]:
        """Return every field as JSON can hold it."""
        return asdict(self)

    @staticmethod
    def from_dict(values: dict[str, Any]) -> Point:
        """Return the point of `to_dict`'s fields."""
        read: dict[str, Any] = {name: tuple(one) if isinstance(one, list) else one for name, one in values.items()}
        return Point(**read)


class Points(Shown, list[Point]):
    """Points of a sweep, which show the fields that any of them has set, with their values.

    `first`: how many of them come first because together they show something of each axis.
    """

    first = 0

    def _display(self) -> Display:
        changed = {name for point in self for name in point._changed()}
        lines = []
        for name, declared in declarations(Point).items():
            values = dict.fromkeys(getattr(point, name) for point in self)
            if name in changed:
                texts = ["all it reads" if value is None and name == "networks" else str(value) for value in values]
                lines.append((declared.label or name, ", ".join(texts), declared.unit or ""))
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


@lru_cache(maxsize=4)
def _whole_graph(graph: str, scale: float | None, seed: int, self_loops: bool, stamp: object) -> CellGraph:
    if graph == "synthetic":
        assert scale is not None  # checked by Point
        whole = CellGraph.synthetic(scale, seed)
    elif os.path.isdir(graph):
        whole = CellGraph.from_folder(graph)
    else:
        whole = CellGraph.from_file(graph)
    return whole.with_self_loops() if self_loops else whole


@lru_cache(maxsize=2)
def _screen(path: str, graph: CellGraph, stamp: object) -> ScreenPerturbations:
    from tclab.readers import read_perturbations  # only a point with a file needs the readers

    return read_perturbations(path, graph)


@lru_cache(maxsize=4)
def _variant(graph: CellGraph, networks: tuple[str, ...], variant: str) -> CellGraph:
    """Return a variant of some of a graph's networks; cached, with the lookups of a merged network."""
    return graph.select(networks).variant(variant)


Stamp = tuple[tuple[str, int, int], ...]


def stamp_of(place: str) -> Stamp:
    """Return name, size and time of a file, or of every file in a folder."""
    root = Path(place)
    files = sorted(path for path in root.rglob("*") if path.is_file()) if root.is_dir() else [root]
    return tuple((str(f.relative_to(root)), f.stat().st_size, f.stat().st_mtime_ns) for f in files)


_dataclass_init = Point.__init__


@wraps(_dataclass_init)
def _checked_init(self: Point, *given: Any, **named: Any) -> None:
    for name in named:
        if name not in declarations(Point):
            raise unknown("field of a point", name, declarations(Point))
    _dataclass_init(self, *given, **named)


Point.__init__ = _checked_init  # type: ignore[method-assign]
# the fields with their defaults and units, for whoever asks for help on `Point`
Point.__doc__ = f"""{Point.__doc__}
    **Arguments:**

{indent(arguments_text(Point), "    ")}

    **Raises:** `InputError` that names the value, the expected values and the nearest one that exists.
    """
