"""One point of a sweep: everything that decides what is run."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from tclab.errors import InputError, unknown
from tclab.graph import NETWORK_SIZES, VARIANTS, CellGraph, chosen, variant_of
from tclab.masking import get as strategy_of
from tclab.models import ModelKind, loss_names
from tclab.models import get as model_of
from tclab.models.hetero_cell import METABOLISMS
from tclab.perturbation import STORES
from tclab.sweeps.allocators import ALLOCATORS
from tclab.sweeps.gpus import device_of
from tclab.sweeps.meeting import MEETING
from tclab.sweeps.stamps import folder_stamp
from tclab.training import BUCKET_MB, DTYPES, LOOPS, MODES, OPTIMIZERS, START_METHODS, Exchange
from tclab.training.habits import applying, checked
from tclab.training.step import CLIP, WITHOUT_MODEL

DEVICES = ("auto", "cpu", "cuda")
_EXCHANGED = ("no_sync", "find_unused_parameters", "static_graph")
_SWITCHES = ("pin_memory", "persistent_workers", "double_buffer", "checkpoint", "compile", *_EXCHANGED)


@dataclass(frozen=True)
class Point:
    """One point of a sweep, frozen and hashable.

    **Arguments:**

    - `graph`: "synthetic", or a folder of public files; `scale` and `self_loops` are the synthetic one's.
    - `model`, `strategy`: names; see `tclab.models.names()` and `tclab.masking.names()`.
    - `hidden`, `layers`: the model's width H and how many message-passing layers it has; `None` for its own.
    - `batch_size`: samples in a batch, B. `deleted`: nodes that each deletes.
    - `networks`: n for the first n of the graph's networks, or names; `None` for those the model reads.
    - `variant`: what becomes of the networks that were chosen: "separate", "merged_string" or "homogeneous"; see
      `tclab.graph.variant_of`.
    - `mode`: "data", "empty", "model", "step" or "fixed_batch"; see `tclab.training.Step`.
    - `loop`: "plain" or "lightning"; `None` is plain, but Lightning's for mode "empty", which is its alone.
    - `loss`: one of the model's losses by name, `None` for its first.
    - `clip`: the norm that gradients are clipped to; `None` for no clipping.
    - `optimizer`: AdamW "fused", "foreach" or "plain". `accumulate`: batches to one step of it; `steps` counts
      batches.
    - `habits`: the original's, by name; see `tclab.training.habits`.
    - `device`: "auto" (CUDA where there is one), "cpu" or "cuda". `ranks`: processes that train together.
      `machines` share them evenly; more than one are for `executor="slurm"`.
    - `dtype`: "float32", "float64" or "bfloat16" (autocast).
    - `steps`: how many are timed, after `warmup` that are not. `seed`: of graph, samples and weights.
    - `metabolism`: "off", "carried" or "used". `ship_edges`: see `tclab.masking.Strategy`.
    - `workers`: DataLoader processes; 0 makes batches in the training process.
    - `store`: where samples are read: "memory", "lmdb" (as integers) or "json" (as the original's records, from
      LMDB). What a `stored_…` strategy keeps beside them is in LMDB always.
    - `collation`: "lean", or "pyg" for strategies that ship every edge; see `tclab.masking.Strategy`.
    - `pin_memory`: copy batches to page-locked memory first; `None` does where the device is CUDA.
    - `prefetch_factor` (2), `start_method` ("fork", "spawn" or "forkserver"; the system's own) and
      `persistent_workers` (False): of the workers; null without any.
    - `double_buffer`: copy the next batch to the device on a side stream while this one computes.
    - `allocator`: "default"; "keep_pages", which tells glibc never to give a page back; or "map_each", which
      gives every tensor pages of its own and takes them back at once: the least memory, and the slowest.
    - `no_sync` (True), `bucket_cap_mb` (25), `find_unused_parameters` (False), `static_graph` (False),
      `compression` ("none", "fp16", "bf16", "powersgd"): how ranks exchange gradients; see
      `tclab.training.Exchange`. Null for one rank, and `no_sync` where nothing is accumulated.
    - `gather_interval`: passes between the all-gathers of a loss that has them; the loss's own unless given, and
      null for one rank.
    - `micro_batch`: go through a batch in slices of at most so many samples, whose gradients are added up; `None`
      for the whole batch at once. `checkpoint`: compute a layer's inner activations again in the backward instead
      of keeping them. `compile`: run the model through `torch.compile`.

    **Raises:** `InputError` that names the value, what was expected and the nearest thing that exists.
    """

    graph: str = "synthetic"
    scale: float | None = 1.0
    model: str = "hetero_cell"
    strategy: str = "node_mask"
    batch_size: int = 4
    networks: int | tuple[str, ...] | None = None
    mode: str = "step"
    device: str = "auto"
    ranks: int = 1
    machines: int = 1
    dtype: str = "float32"
    steps: int = 5
    seed: int = 0
    deleted: int = 3
    metabolism: str = "off"
    self_loops: bool = False
    ship_edges: bool = False
    workers: int = 1
    store: str = "memory"
    collation: str = "lean"
    pin_memory: bool | None = None
    prefetch_factor: int | None = None
    start_method: str | None = None
    persistent_workers: bool | None = None
    double_buffer: bool = False
    warmup: int = 2
    allocator: str = "default"
    variant: str = "separate"
    loop: str | None = None
    loss: str | None = None
    clip: float | None = CLIP
    optimizer: str = "fused"
    accumulate: int = 1
    habits: tuple[str, ...] = ()
    no_sync: bool | None = None
    bucket_cap_mb: float | None = None
    find_unused_parameters: bool | None = None
    static_graph: bool | None = None
    compression: str | None = None
    gather_interval: int | None = None
    micro_batch: int | None = None
    checkpoint: bool = False
    compile: bool = False
    hidden: int | None = None
    layers: int | None = None

    def __new__(cls, *_: Any, **given: Any) -> Point:
        """Return a new point; a field that there is not is refused with the nearest there is."""
        for name in set(given) - (known := {field.name for field in fields(cls)}):
            raise unknown("field of a point", name, known)
        return super().__new__(cls)

    def __post_init__(self) -> None:
        model_of(self.model)
        strategy = strategy_of(self.strategy)
        for kind, value, known in (
            ("mode", self.mode, MODES),
            ("device", self.device, DEVICES),
            ("dtype", self.dtype, DTYPES),
            ("metabolism", self.metabolism, METABOLISMS),
            ("allocator", self.allocator, ALLOCATORS),
            ("variant", self.variant, VARIANTS),
            ("loop", self.loop or LOOPS[0], LOOPS),
            ("loss", self.loss or loss_names()[0], loss_names()),
            ("optimizer", self.optimizer, OPTIMIZERS),
            ("store", self.store, STORES),
            ("collation", self.collation, strategy.collations),
        ):
            if value not in known:
                raise unknown(kind, value, known)
        for name, least in (
            ("batch_size", 1),
            ("steps", 1),
            ("ranks", 1),
            ("machines", 1),
            ("deleted", 0),
            ("workers", 0),
            ("warmup", 0),
            ("seed", 0),
            ("accumulate", 1),
            ("micro_batch", 1),
            ("hidden", 2),
            ("layers", 1),
        ):
            value, may_be_none = getattr(self, name), name in ("micro_batch", "hidden", "layers")
            if value is None and may_be_none:
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                or_none = ", or None" if may_be_none else ""
                raise InputError(f"{name} is {value!r}, expected a whole number of at least {least}{or_none}")
        for name in _SWITCHES:
            if not isinstance(getattr(self, name), (bool, type(None))):
                raise InputError(f"{name} is {getattr(self, name)!r}, expected True or False")
        if self.ranks % self.machines:
            raise InputError(f"ranks is {self.ranks}, expected as many on each of {self.machines} machines")
        self._check_workers()
        self._check_exchange()
        if self.ship_edges and not strategy.can_ship_edges:
            raise InputError(f"ship_edges is a switch of the gpu_mask strategies, {self.strategy!r} has none")
        self._check_training()
        if self.graph == "synthetic":
            if not isinstance(self.scale, (int, float)) or isinstance(self.scale, bool) or not self.scale > 0:
                raise InputError(f"scale is {self.scale!r}, expected a number above 0 (1.0 is the real size)")
            object.__setattr__(self, "scale", float(self.scale))
        else:
            if not Path(self.graph).is_dir():
                raise InputError(f"graph is {self.graph!r}, expected 'synthetic' or a folder that exists")
            object.__setattr__(self, "scale", None)
        if isinstance(self.networks, Sequence) and not isinstance(self.networks, (str, tuple)):
            object.__setattr__(self, "networks", tuple(self.networks))
        elif isinstance(self.networks, str):
            object.__setattr__(self, "networks", (self.networks,))
        if self.networks is not None:
            chosen(self.networks, self.network_names())

    def _check_training(self) -> None:
        """Check what belongs to the training step, and make definite what was left open."""
        if self.clip is not None:
            if isinstance(self.clip, bool) or not isinstance(self.clip, (int, float)) or not self.clip > 0:
                raise InputError(f"clip is {self.clip!r}, expected a norm above 0, or None for no clipping")
            object.__setattr__(self, "clip", float(self.clip))
        if self.mode == "empty" and self.loop == "plain":
            raise InputError("loop is 'plain', and mode 'empty' is Lightning's; expected 'lightning' or None")
        if self.loop is None:
            object.__setattr__(self, "loop", "lightning" if self.mode == "empty" else "plain")
        if self.loss is None:
            object.__setattr__(self, "loss", next(iter(self.kind.losses)))
        if not isinstance(self.habits, (str, Sequence)):
            raise InputError(f"habits is {self.habits!r}, expected names of habits")
        object.__setattr__(self, "habits", checked(self.habits))

    def _check_workers(self) -> None:
        if not self.workers:  # there are none to start or keep: null, and one point whatever was asked for
            for name in ("prefetch_factor", "start_method", "persistent_workers"):
                object.__setattr__(self, name, None)
            return
        for name, usual in (
            ("prefetch_factor", 2),
            ("start_method", START_METHODS[0]),
            ("persistent_workers", False),
        ):
            if getattr(self, name) is None:
                object.__setattr__(self, name, usual)
        if self.start_method not in START_METHODS:
            raise unknown("start_method", self.start_method, START_METHODS)
        factor = self.prefetch_factor
        if isinstance(factor, bool) or not isinstance(factor, int) or factor < 1:
            raise InputError(f"prefetch_factor is {factor!r}, expected a whole number of at least 1")

    def _check_exchange(self) -> None:
        """Check how ranks exchange gradients; of one rank all is null, and one point whatever was asked for."""
        interval = self.gather_interval
        if interval is not None and (isinstance(interval, bool) or not isinstance(interval, int) or interval < 1):
            raise InputError(f"gather_interval is {interval!r}, expected a whole number of at least 1, or None")
        usual: dict[str, Any] = {"bucket_cap_mb": BUCKET_MB, "compression": "none", "find_unused_parameters": False}
        usual |= {"static_graph": False, "no_sync": True}
        asked = {name: usual[name] if getattr(self, name) is None else getattr(self, name) for name in usual}
        Exchange(**asked)
        if self.ranks == 1:
            asked = dict.fromkeys([*asked, "gather_interval"])
        elif self.accumulate == 1:
            asked["no_sync"] = None
        for name, value in asked.items():
            object.__setattr__(self, name, float(value) if name == "bucket_cap_mb" and value else value)

    def exchange(self) -> Exchange | None:
        """Return how this point's ranks exchange gradients; `None` for one rank."""
        if self.ranks == 1:
            return None
        assert self.bucket_cap_mb is not None
        assert self.compression is not None
        return Exchange(
            self.bucket_cap_mb,
            bool(self.find_unused_parameters),
            bool(self.static_graph),
            self.compression,
            bool(self.no_sync),
        )

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
        """Return the names of all networks of this point's graph, in order; a folder is read for them."""
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
        for habit in self.habits:
            if habit not in applying(self.kind):
                return f"skipped: {self.model} cannot take on the habit {habit}"
            if self.mode in WITHOUT_MODEL:
                return f"skipped: mode {self.mode} has no model for the habit {habit}"
        if self.machines > 1 and MEETING not in os.environ:
            return f"not run: {self.machines} machines asked for, and this is one; executor='slurm' has more"
        if (self.double_buffer or self.pin_memory) and self.resolved().device != "cuda":
            return f"skipped: {'double_buffer' if self.double_buffer else 'pin_memory'} needs cuda"
        return None

    def resolved(self) -> Point:
        """Return this point with its device and its folder made definite.

        **Raises:** `InputError` for `device="cuda"` where there is none.
        """
        device = device_of(self.device)
        graph = self.graph if self.graph == "synthetic" else str(Path(self.graph).resolve())
        pin_memory = device == "cuda" if self.pin_memory is None else self.pin_memory
        return replace(self, device=device, graph=graph, pin_memory=pin_memory)

    def cell_graph(self) -> CellGraph:
        """Return the graph that this point runs on, on the CPU; the last few are kept."""
        graph = self._whole()
        networks = self.networks
        if networks is None:
            networks = tuple(self.kind.default_networks(list(graph.networks)))
        graph = _variant(graph, networks, self.variant)
        return graph.without_metabolism() if self.metabolism == "off" else graph

    def _whole(self) -> CellGraph:
        return _whole_graph(self.graph, self.scale, self.seed, self.self_loops, folder_stamp(self.graph))

    def to_dict(self) -> dict[str, Any]:
        """Return every field as JSON can hold it."""
        return asdict(self)

    @staticmethod
    def from_dict(fields: dict[str, Any]) -> Point:
        """Return the point of `to_dict`'s fields."""
        read: dict[str, Any] = {n: tuple(v) if isinstance(v, list) else v for n, v in fields.items()}
        return Point(**read)


@lru_cache(maxsize=4)
def _whole_graph(graph: str, scale: float | None, seed: int, self_loops: bool, stamp: object) -> CellGraph:
    if graph == "synthetic":
        assert scale is not None  # checked by Point
        return CellGraph.synthetic(scale, seed, self_loops=self_loops)
    whole = CellGraph.from_folder(graph)
    return whole.with_self_loops() if self_loops else whole


@lru_cache(maxsize=4)
def _variant(graph: CellGraph, networks: int | tuple[str, ...], variant: str) -> CellGraph:
    """Return a variant of some of a graph's networks; kept, and with it what is made of a merged network."""
    return variant_of(graph.select(networks), variant)
