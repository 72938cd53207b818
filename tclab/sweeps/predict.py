"""What a point or an epoch will need before it runs: memory, seconds; and what masking and filtering cost."""

from __future__ import annotations

import gc
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from math import sqrt
from pathlib import Path
from time import perf_counter, process_time
from typing import Annotated, Any

import numpy as np
import pandas as pd
import torch
from msgspec import Meta
from torch import Tensor

from tclab._display import Display, Shown, bytes_text, counted, seconds_text
from tclab._io import atomic_write, writing
from tclab._limits import memory_available_bytes
from tclab.errors import InputError, require
from tclab.graph import Network
from tclab.graph._cell_graph import CellGraph
from tclab.masking import get as strategy_of
from tclab.masking._batch import INLINE_BYTES, shared_memory_free
from tclab.masking._edge_masks import removed_counts
from tclab.message_passing import View
from tclab.perturbation import Deletions, Perturbations
from tclab.perturbation._deletions import TRAINING_SAMPLES, removed_by, steps_per_epoch
from tclab.sweeps._fields import AtLeast1, checked
from tclab.sweeps._grid import Listed, listed
from tclab.sweeps._measure import Setup, check_equivalence, loader_options, setup, step_of
from tclab.sweeps._point import Point
from tclab.sweeps._point_inputs import cell_graph_of, resolve, resolved_alone, samples_of, screen_of
from tclab.sweeps._run import rows_of_task
from tclab.timing import Ledger
from tclab.timing._environment import busy_notes, conditions, contention, environment, gpu_free_bytes
from tclab.timing._step_means import Estimate, cycle_of, mean_step
from tclab.training._loading import Batches, Loader
from tclab.training._memory_estimate import MemoryEstimate, estimate_memory, meta_batch
from tclab.training._step import WITHOUT_MODEL


@dataclass(frozen=True)
class Costs:
    """What a short epoch of a point took, with its own workers.

    **Arguments:**

    - `step_seconds`: [steps] of the timed steps: neither the first, for which workers begin, nor the last, for which
      they have nothing left to make.
    - `wait_share`: the share of these that is waiting for a batch; without workers, making one.
    - `around_seconds`: all else of that epoch: its workers' start and end, and its `around_steps` other steps.
    - `cycle`: steps after which the loop does the same again; see `tclab.timing._step_means`.
    """

    step_seconds: Sequence[float]
    wait_share: float
    around_seconds: float
    around_steps: int
    cycle: int = 1


@dataclass(frozen=True)
class Prediction:
    """How long an epoch of some steps will take; `low` to `high` holds nine in ten, as far as measured steps tell."""

    seconds: float
    low: float
    high: float
    steps: int


@dataclass(frozen=True, repr=False)
class Epoch(Shown):
    """An epoch that was predicted and then run.

    **Arguments:**

    - `point`: whose batches and step the epoch ran.
    - `costs`: what it was predicted from.
    - `predicted`: the prediction that was written to disk before the epoch began.
    - `full`: the prediction for all training samples; validation and checkpoints are not in it.
    - `measured_seconds`: from the request for the first batch until the last worker has ended.
    - `written_at`: when the prediction was made; UTC, ISO 8601.
    - `record`: the file with the measurement.
    - `busy_percent`: percentage of the time in which something waited for a processor, where the machine was busy;
      `None` where not, or not known.
    """

    point: Point
    costs: Costs
    predicted: Prediction
    full: Prediction
    measured_seconds: float
    written_at: str
    record: Path
    busy_percent: float | None = None

    @property
    def ratio(self) -> float:
        """Predicted over measured."""
        return self.predicted.seconds / self.measured_seconds

    def _display(self) -> Display:
        point = self.point
        lines = [("measured", seconds_text(self.measured_seconds), "", f"{self.predicted.steps:,}")]
        for name, one in (("predicted", self.predicted), ("a full epoch, predicted", self.full)):
            nine_in_ten = f"{seconds_text(one.low, one.high).split()[0]} to {seconds_text(one.high)}"
            lines.append((name, seconds_text(one.seconds, one.high), nine_in_ten, f"{one.steps:,}"))
        title = f"{point.model} by {point.strategy}, mode {point.mode}, {counted(point.workers, 'worker')}"
        waits = f"{self.costs.wait_share:.0%} of a step is the wait for its batch"
        notes = [f"predicted over measured {self.ratio:.3f}; {waits}", *busy_notes(self.busy_percent)]
        return Display(title, ("epoch", "time", "nine in ten", "steps"), lines, notes)


def predict_epoch(costs: Costs, steps: int) -> Prediction:
    """Predict an epoch: what a short one took around its timed steps, and the mean of these for each further step.

    The interval is Student's, of the mean of the timed steps and of that of the epoch's own. An epoch that has fewer
    steps than the short one had around those that were timed is predicted as long as these.
    """
    mean = mean_step(costs.step_seconds, costs.cycle)
    further = max(steps - costs.around_steps, 0)
    seconds = costs.around_seconds + further * mean.value
    # of the sum of `further` steps to come, from the error of the mean of those that were timed
    error = None if mean.error is None else mean.error * sqrt(further * (further + len(costs.step_seconds)))
    low, high = Estimate(seconds, error, mean.freedom).interval(0.90) or (seconds, seconds)
    return Prediction(seconds, low, high, steps)


def full_steps(point: Point) -> int:
    """Return the steps of an epoch of all training samples, by a point's batch and ranks.

    Those of the published dataset, or of the point's own file of perturbations: 80 % of it are for training.
    """
    screen = screen_of(point)
    samples = TRAINING_SAMPLES if screen is None else len(screen) - 2 * (len(screen) // 10)
    return steps_per_epoch(point.batch_size, point.ranks, samples)


def run_epoch(point: Point, steps: int, record: str | Path) -> Epoch:
    """Measure what an epoch's prediction needs, write the prediction to disk, then run the epoch.

    It runs in a child process, after the equivalence check. `point.steps` steps of a short epoch are timed, with the
    same workers, after `point.warmup`; the epoch has `steps`. It begins with its workers' start and ends with their
    end, also where they are persistent.

    **Arguments:**

    - `point`: what is run. `steps`: of the epoch.
    - `record`: a folder. The complete prediction, with its time, point, costs and machine, is written there before
      the epoch begins; a second file, with the measurement, afterwards.

    `OMP_NUM_THREADS` of this process is that of the one that trains: on few cores leave some to the workers.

    **Raises:** `InputError` for a point that has no epoch; `RuntimeError` where it could not be run: its strategy is
    wrong, memory ran out, its process died.
    """
    point, steps = resolved_alone(point, "an epoch"), checked("steps", steps, AtLeast1)
    if point.mode == "fixed_batch":
        raise InputError("mode is 'fixed_batch', which loads one batch and has no epoch; expected another")
    folder = Path(record).expanduser().resolve()
    with writing("record", record):
        folder.mkdir(parents=True, exist_ok=True)
    (answer,) = rows_of_task(point, predicted_and_measured, steps=steps, folder=str(folder))
    return read_epoch(Path(answer["record"]))


def read_epoch(path: Path) -> Epoch:
    """Return an epoch from its record, `….measured.json`."""
    found: dict[str, Any] = json.loads(path.read_text())
    found |= {name: Prediction(**found[name]) for name in ("predicted", "full")}
    return Epoch(**{**found, "point": Point(**found["point"]), "costs": Costs(**found["costs"]), "record": path})


# ---- in the child process


def predicted_and_measured(point: Point, steps: int, folder: str) -> list[dict[str, Any]]:
    """Predict an epoch, write the prediction, run the epoch, write the measurement; return the record's path."""
    check_equivalence(point)
    with setup(point, steps * point.batch_size) as here:
        before, costs = conditions(), costs_of(here)
        written = datetime.now(UTC)
        record: dict[str, Any] = {
            "written_at": written.isoformat(),
            "point": point.to_dict(),
            "costs": asdict(costs),
            "predicted": asdict(predict_epoch(costs, steps)),
            "full": asdict(predict_epoch(costs, full_steps(point))),
        }
        name = f"{written:%Y%m%dT%H%M%S%f}-{point.model}-{point.strategy}-{point.workers}workers"
        machine = {"environment": environment(), "conditions": before}
        atomic_write(Path(folder, f"{name}.prediction.json"), json.dumps(record | machine, indent=1))
        record["measured_seconds"] = _seconds(here, steps)
        record["busy_percent"] = contention(before, conditions()).busy_percent
        measured = Path(folder, f"{name}.measured.json")
        atomic_write(measured, json.dumps(record, indent=1))
        return [{"status": "ok", "record": str(measured)}]


def costs_of(here: Setup) -> Costs:
    """Run a short epoch with the point's own workers, `point.steps` of whose steps are timed; return what it took.

    Before these come `point.warmup` steps, and at least as many as the workers have batches ahead, which they make
    while nobody takes any; after these as many again, for which the workers have nothing left to make.
    """
    point, options = here.point, {**loader_options(here.point), "persistent_workers": False}
    warmup = Loader(_first(here.data, point.warmup + 1), workers=0, pin_memory=options["pin_memory"])
    here.run(warmup, steps=point.warmup + 1)  # what is compiled, tuned or allocated once
    ahead = point.workers * point.prefetch_factor
    lead, cycle = max(point.warmup, ahead), cycle_of(1, point.workers, point.accumulate)
    timed = -(-point.steps // cycle) * cycle
    loads = Loader(_first(here.data, lead + timed + ahead), workers=point.workers, **options)
    with Ledger(cuda=point.device == "cuda") as ledger:
        whole = _seconds(replace(here, loads=loads), lead + timed + ahead, ledger)
    times = ledger.seconds("device" if ledger.cuda else "host")
    own = times["step"][lead : lead + timed]
    waits = times.get("data_wait", [0.0] * len(times["step"]))[lead : lead + timed]
    return Costs(own, sum(waits) / sum(own), max(whole - sum(own), 0.0), lead + ahead, cycle)


def _seconds(here: Setup, steps: int, ledger: Ledger | None = None) -> float:
    """Run an epoch; return its seconds from the request for a batch until its workers have ended.

    A GPU has nothing left to do at either end.
    """
    wait = torch.cuda.synchronize if here.point.device == "cuda" else lambda: None
    gc.collect()
    wait()
    begin = perf_counter()
    batches = here.batches()
    here.run(batches, steps=steps, ledger=ledger)
    wait()
    del batches  # ends the workers
    return perf_counter() - begin


def _first(data: Batches, steps: int) -> Batches:
    """Return the first `steps` of the batches, from the start again where there are fewer."""
    order = np.concatenate([data.order[i % len(data) * data.size :][: data.size] for i in range(steps)])
    return Batches(data.strategy, data.samples, data.size, order, micro_batch=data.micro_batch)


# ---- memory

# What a process holds that has imported everything and run a point of no size: measured on Linux, torch 2.13,
# CPU. One that has started CUDA holds more on the host: how much has not been measured, and is in no sum here.
PROCESS_BYTES = 495 * 1024**2
# How much more than what it holds glibc's heap takes, where tensors of many sizes come and go: chosen by
# benchmarks/memory.py, so that the whole process is within 15 % of what it was. Blocks that are mapped one by one, as
# large ones are, leave no holes.
HEAP_SHARE = 0.7
_NOT_COUNTED = (
    "not counted: memory of compiled code, networks stacked on CUDA, DDP, all-gathers, NCCL, CUDA on the host, "
    "Lightning, workers"
)
_PARTS = {"process": "imports", "graph": "graph", "model": "weights", "kept": "state", "step": "step", "heap": "unused"}


@dataclass(frozen=True, repr=False)
class Fits(Shown):
    """The memory that a point needs, in bytes, and the memory that is available.

    **Arguments:**

    - `batch`: what travels with a batch. `shared`: what all ranks' workers hold ready in shared memory.
    - `process`: the training process before it has a point, and without CUDA.
    - `graph`: the graph's edges, and the lookups of a process that makes its own batches.
    - `model`: the weights. `kept`: what else stays on the device from step to step, including the optimizer's
      state. `step`: the peak of one step on top of all these, including its gradients.
    - `heap`: what the host's allocator keeps on top of that, of blocks that were freed.
    - `ranks`: processes; all but `shared` is one rank's. `on_host`: the model and the steps are on the CPU.
    - `host_limit`, `shared_limit`, `device_limit`: the available memory; `None` where the system does not report it.
    """

    batch: int
    graph: int
    model: int
    kept: int
    step: int
    heap: int
    shared: int
    ranks: int
    on_host: bool
    process: int = PROCESS_BYTES
    host_limit: int | None = None
    shared_limit: int | None = None
    device_limit: int | None = None

    @property
    def host(self) -> int:
        """The resident set of a training process, bytes; a batch from a worker is among it while it is read."""
        trains = self.model + self.kept + self.step if self.on_host else 0
        return self.process + self.graph + self.batch + self.heap + trains

    @property
    def device(self) -> int | None:
        """What a CUDA device holds, bytes; `None` on the CPU."""
        return None if self.on_host else self.model + self.kept + self.step + self.batch

    @property
    def _needs(self) -> list[tuple[str, int, int | None]]:
        """What the point needs in all: its name, bytes, and how many are available."""
        found = [
            ("shared memory", self.shared, self.shared_limit),
            ("host memory", self.host * self.ranks + self.shared, self.host_limit),
        ]
        return found if self.device is None else [*found, ("device memory", self.device, self.device_limit)]

    @property
    def refusal(self) -> str | None:
        """Why the point cannot run, with both numbers; `None` where it can."""
        for what, needed, limit in self._needs:
            if limit is not None and needed > limit:
                return f"needs {bytes_text(needed)} of {what}, and there are {bytes_text(limit)}"
        return None

    def _display(self) -> Display:
        lines = [
            (name, bytes_text(number), "" if limit is None else bytes_text(limit))
            for name, number, limit in [("a batch", self.batch, None), *self._needs]
        ]
        parts = [f"{part} {bytes_text(getattr(self, name))}" for name, part in _PARTS.items() if getattr(self, name)]
        outcome = "fits" if self.refusal is None else f"does not fit: {self.refusal}"
        notes = [f"each process holds {', '.join(parts)}", _NOT_COUNTED, outcome]
        return Display(columns=("memory", "needed", "available"), lines=lines, notes=notes)


def fits(point: Point, *, memory_bytes: int | None = None) -> Fits:
    """Estimate the memory of a point, without running it.

    The batch is that of the point's own first samples: of 8 or fewer to the byte, of more extrapolated from them.
    What a step holds is counted on tensors that have shapes and no values: on a CPU that is what torch's allocator
    hands out. `benchmarks/memory.py` compares it with the resident set of processes that ran.

    Not counted: what `compile` changes, DDP's buckets (the size of the gradients) and a compression's state, the rows
    that ranks gather for a loss, NCCL's buffers, Lightning's objects, worker processes except for the batches that they
    hold ready, the host memory that CUDA uses, the masks that mode `empty` makes.

    **Arguments:**

    - `point`: not run, and not changed.
    - `memory_bytes`: limit of the training process; the memory that is free now unless given.
    """
    require("point", point, Point, "a tclab.Point")
    point = resolve(point)
    whole = cell_graph_of(point)  # and with it the lookups that this process has made
    graph = whole.with_relations({name: copy(network) for name, network in whole.relations.items()})
    kind = strategy_of(point.strategy)
    loading = kind(graph, collation=point.collation)
    samples = samples_of(point, point.batch_size, graph)
    own = _bytes_in(graph)
    batch = meta_batch(loading, samples, micro_batch=point.micro_batch)
    if not point.workers or loading.stores:  # workers look up what they encode in copies of their own
        own = _bytes_in(graph)
    held = MemoryEstimate(0, 0, 0, 0)
    if point.mode not in WITHOUT_MODEL:
        # an eager step of one process: see what is not counted
        eager = replace(point, device="cpu", ranks=1, compile=False, capture=False)
        step = step_of(eager, kind(graph, collation=point.collation))
        own += _bytes_in(step.loss)
        held = estimate_memory(step, batch, device=point.device)
    on_host = point.device == "cpu"
    share = HEAP_SHARE if on_host and point.allocator != "map_each" else 0.0
    in_flight = point.ranks * point.workers * point.prefetch_factor
    return Fits(
        batch=batch.bytes,
        graph=own,
        model=held.model,
        kept=held.kept,
        step=held.peak,
        heap=int(share * held.in_heap),
        shared=0 if batch.bytes <= INLINE_BYTES else in_flight * batch.bytes,
        ranks=point.ranks,
        on_host=on_host,
        host_limit=memory_available_bytes() if memory_bytes is None else memory_bytes,
        shared_limit=shared_memory_free(),
        device_limit=None if on_host else gpu_free_bytes(),
    )


def _bytes_in(value: Any) -> int:
    """Return the bytes of the tensors that something holds, at any depth."""
    if isinstance(value, Tensor):
        return value.nbytes
    if isinstance(value, (CellGraph, Network)) or type(value).__module__.startswith("tclab.models"):
        value = getattr(value, "__dict__", None)
    if isinstance(value, Mapping):
        value = list(value.values())
    return sum(map(_bytes_in, value)) if isinstance(value, (list, tuple)) else 0


__all__ = ["cells", "fit_costs", "measure_cells", "removed_share"]
__dir__ = __all__.copy  # completion offers these

_MEANINGS = {
    "alpha": ("α", "masking an edge"),
    "alpha_width": ("α′", "masking a feature of a message"),
    "beta": ("β", "a feature of a message, both ways"),
    "gamma": ("γ", "finding whether an edge is kept"),
    "delta": ("δ", "writing an edge that is kept"),
}
_CALLS = ("mask", "sum", "find", "write")  # that are timed
_SIZES = ["edges", "width", "batch_size", "removed"]  # of a cell
_ENDS = (0.025, 0.975)  # of a 95 % interval
_DEGREE = 40  # edges a node, about as in a mid-sized network of the graph that this lab was made for
_DRAWS = 400  # of the bootstrap
_Share = Annotated[float, Meta(ge=0, lt=1, description="a share from 0 to below 1")]


def least_seconds(calls: Mapping[str, Callable[[], object]], device: str, rounds: int) -> dict[str, float]:
    """Return the least seconds of each call in `rounds`; in turns, as another process may be at work.

    On one CPU thread they are of processor time, which other processes do not add to.
    """
    clock = process_time if device == "cpu" and torch.get_num_threads() == 1 else perf_counter
    seconds = dict.fromkeys(calls, float("inf"))
    for _ in range(rounds):
        for name, call in calls.items():
            begin = clock()
            call()
            if device == "cuda":
                torch.cuda.synchronize()
            seconds[name] = min(seconds[name], clock() - begin)
    return seconds


# ---- what masking and filtering cost


def cells(edges: Listed, widths: Listed, batch_sizes: Listed, removed: Listed) -> pd.DataFrame:
    """Return a row for each combination of sizes: columns `edges`, `width`, `batch_size`, `removed`.

    Each is one number, a list of them, or a text with commas between: "64,128".

    **Arguments:**

    - `edges`: E of one sample. `widths`: H. `batch_sizes`: B. `removed`: p, the share of edges that is removed.

    **Raises:** `InputError` for what is no size.
    """
    sizes = zip(_SIZES, (edges, widths, batch_sizes, removed), (*[AtLeast1] * 3, _Share), strict=True)
    found = [[checked(name, one, kind) for one in listed(name, value)] for name, value, kind in sizes]
    return pd.MultiIndex.from_product(found, names=_SIZES).to_frame(index=False)


def removed_share(graph: CellGraph, *, deleted: int, samples: int = 64) -> float:
    """Return the share of a graph's edges that the deletion of some random nodes removes, on average."""
    removed = removed_by(graph, Perturbations.synthetic(graph, samples, deleted=deleted).deletions)
    counts = [each.sum() for network in graph.networks.values() for each in removed_counts(network, removed).values()]
    return float(sum(counts) / (samples * graph.num_edges))


def measure_cells(
    wanted: pd.DataFrame, *, device: str = "cpu", rounds: int = 5, allocator: str = "default"
) -> pd.DataFrame:
    """Measure each cell in a child process and return a row a cell, with the seconds of each call, and of both ways.

    `mask_seconds` are those of a sum with a mask, `sum_seconds` of one without over the edges that are left, both
    forward and backward; `find_seconds` decide which edges are left, `write_seconds` copy them; `filter_seconds` are
    the last three together. The minimum over `rounds` counts, as another process can only add to a time. Nodes are
    drawn at random: `removed` is the share of edges that their deletion removed. `busy_percent` is the percentage of
    the time of all cells in which something waited for a processor, where the machine was busy; else missing.

    **Arguments:**

    - `wanted`: as `cells` returns them. `rounds`: that are timed.
    - `device`, `allocator`: of `tclab.Point`. glibc reads an allocator's settings when a process starts.

    **Raises:** `InputError` for an unknown device or allocator; `RuntimeError` where the process failed.
    """
    fields: dict[str, Any] = {"device": device, "allocator": allocator}
    sizes = wanted[_SIZES].to_dict("records")
    rows = rows_of_task(resolve(Point(**fields)), rows_of_cells, sizes=sizes, rounds=rounds)
    return pd.DataFrame(rows)[[*_SIZES, *(f"{name}_seconds" for name in (*_CALLS, "filter")), "busy_percent"]]


def rows_of_cells(point: Point, sizes: list[dict[str, Any]], rounds: int) -> list[dict[str, Any]]:
    """Measure cells in this process, which was started with the point's allocator."""
    before, rows = conditions(), []
    for size in sizes:
        calls, removed = _calls(**size, device=point.device)
        for call in calls.values():
            call()  # to warm up
        took = least_seconds(calls, point.device, rounds)
        took["filter"] = took["find"] + took["write"] + took["sum"]
        seconds = {f"{name}_seconds": one for name, one in took.items()}
        rows.append({"status": "ok", **size, "removed": removed, **seconds})
    busy = contention(before, conditions()).busy_percent
    return [row | {"busy_percent": busy} for row in rows]


def _calls(
    edges: int, width: int, batch_size: int, removed: float, device: str
) -> tuple[dict[str, Callable[[], object]], float]:
    """Return the calls to time, by name, and the share of edges that is removed."""
    generator = torch.Generator().manual_seed(0)
    nodes = max(edges // _DEGREE, 2)
    one = torch.randint(nodes, (2, edges), generator=generator)
    # an edge is removed with either of its ends: nodes are drawn so that this share of the edges is
    gone = torch.rand(batch_size, nodes, generator=generator) < 1 - (1 - removed) ** 0.5
    deletions = Deletions.of([row.nonzero().flatten() for row in gone], num_nodes=nodes)
    graph = CellGraph.from_edges({"edges": one}, num_nodes=nodes)
    samples = Perturbations(deletions, torch.zeros(batch_size))
    ways = {name: strategy_of(name) for name in ("edge_mask", "gpu_filter")}  # all edges with a mask; those left
    views = {name: way(graph.to(device)).view(way(graph).batch(samples).to(device)) for name, way in ways.items()}
    edge_index = torch.cat([one + b * nodes for b in range(batch_size)], dim=1).to(device)
    rows = gone.flatten().nonzero().flatten().to(device)
    kept = _kept(edge_index, rows)
    x = torch.randn(batch_size * nodes, width, generator=generator).to(device).requires_grad_()
    calls: dict[str, Callable[[], object]] = {
        "mask": lambda: _both_ways(views["edge_mask"], x),
        "sum": lambda: _both_ways(views["gpu_filter"], x),
        "find": lambda: _kept(edge_index, rows),
        "write": lambda: edge_index[:, kept],
    }
    return calls, 1 - kept.double().mean().item()


def _kept(edge_index: Tensor, removed: Tensor) -> Tensor:
    return ~(torch.isin(edge_index[0], removed) | torch.isin(edge_index[1], removed))


def _both_ways(view: View, x: Tensor) -> None:
    x.grad = None
    out = view.neighbour_sum("edges", x)
    out.backward(torch.ones_like(out))


@dataclass(frozen=True, repr=False)
class CostModel(Shown):
    """The five costs of masking and filtering, in seconds an edge (α′, β: an edge and feature).

    With E edges in all samples together, H features and p the share of edges that deletions remove:

        T_mask   = (α' + β)·E·H + α·E
        T_filter = (γ + δ)·E + β·(1 - p)·E·H

    β: a message's feature, gathered and added up, forward and backward. α: an edge's mask; α': what it costs for each
    feature, as every message is multiplied by it and kept for the backward. γ: finding out whether an edge is kept. δ:
    writing the edges that are. The case study's formulas have no α'. Filtering pays from
    p = (γ + δ - α - α'·H) / (β·H) on.

    Where an allocator gives large tensors' pages back, α' and β are mostly page faults: costs of cells whose messages
    are small hold for no large one, and those of one allocator for no other. A call's own overhead is in none of the
    costs: it matters where there are few edges.

    **Arguments:**

    - `costs`: [1 + draws, 5], columns alpha, alpha_width, beta, gamma, delta: the fit, then those of a bootstrap.
    - `most`: E·H of the largest cell that they were fitted to.
    - `busy_percent`: as `measure_cells` returns it; `None` where the machine was not busy, or that is not known.
    """

    costs: pd.DataFrame
    most: float = float("nan")
    busy_percent: float | None = None

    def _display(self) -> Display:
        lines = []
        for name, (symbol, meaning) in _MEANINGS.items():
            best, low, high = (f"{1e9 * one:.3g}" for one in _with_interval(self.costs[name]))
            lines.append((symbol, meaning, f"{best} [{low}, {high}]"))
        shares = {width: "{:.2%} [{:.2%}, {:.2%}]".format(*self.break_even(width)) for width in (8, 64, 256)}
        pays = ", ".join(f"{share} at {width} features" for width, share in shares.items())
        notes = [f"filtering pays where deletions remove more edges than {pays}", *busy_notes(self.busy_percent)]
        return Display("", ("cost", "of", "ns [95 % interval]"), lines, notes)

    def break_even(self, width: int) -> tuple[float, float, float]:
        """Return the p from which on filtering pays at H features, and its 95 % interval.

        Above 1 it never does; below 0 always. Where a feature costs nothing in the fit (beta is 0), p is infinite, or
        undefined (NaN) where both ways cost the same, and so is then the interval.
        """
        one = self.costs
        once = one["gamma"] + one["delta"] - one["alpha"] - one["alpha_width"] * width
        with np.errstate(divide="ignore", invalid="ignore"):
            return _with_interval(np.divide(once.to_numpy(float), one["beta"].to_numpy(float) * width))

    def predict(self, wanted: pd.DataFrame) -> pd.DataFrame:
        """Return each cell with the seconds that both ways are predicted to take.

        `filter_over_mask` is their ratio, `low` and `high` its 95 % interval, and `faster` "undecided" where that
        holds 1. `extrapolated` is how many times larger, by E·H, the cell is than the largest that was measured; 1 for
        a smaller one.

        **Arguments:**

        - `wanted`: as `cells` returns them, before they run; or as `measure_cells` does, to compare with.
        """
        seconds = {call: factors @ self.costs.to_numpy(float).T for call, factors in _factors(wanted).items()}
        mask, filtered = seconds["mask"], seconds["find"] + seconds["write"] + seconds["sum"]  # [cells, 1 + draws]
        ratio = filtered / mask
        low, high = np.quantile(ratio[:, 1:], _ENDS, axis=1)
        size = wanted["edges"] * wanted["batch_size"] * wanted["width"]
        return wanted.assign(
            predicted_mask_seconds=mask[:, 0],
            predicted_filter_seconds=filtered[:, 0],
            filter_over_mask=ratio[:, 0],
            low=low,
            high=high,
            faster=np.select([low > 1, high < 1], ["masking", "filtering"], "undecided"),
            extrapolated=np.maximum(size / self.most, 1.0),
        )


def _with_interval(values: Iterable[float]) -> tuple[float, float, float]:
    """Return a fit's value, and the ends of the 95 % interval of its draws; infinities among these have no mean."""
    best, *draws = values
    low, high = np.quantile(draws, _ENDS, method="inverted_cdf").tolist()
    return best, low, high


def fit_costs(measured: pd.DataFrame) -> CostModel:
    """Return the model of some measured cells, by least squares of relative errors with no cost below 0.

    The intervals are those of a bootstrap over cells.

    **Raises:** `InputError` for fewer than six cells.
    """
    if len(measured) < 6:
        raise InputError(f"{len(measured)} cells were measured, expected at least 6 to fit five costs to")
    generator = np.random.default_rng(0)
    drawn = [measured.iloc[generator.integers(len(measured), size=len(measured))] for _ in range(_DRAWS)]
    costs = pd.DataFrame([_solved(rows) for rows in (measured, *drawn)], columns=list(_MEANINGS))
    most = float((measured["edges"] * measured["batch_size"] * measured["width"]).max())
    return CostModel(costs, most, max(measured["busy_percent"].dropna(), default=None))


def _factors(sizes: pd.DataFrame) -> dict[str, np.ndarray]:
    """Return call → what each of the five costs is multiplied by in its time, [cells, 5]."""
    edges = (sizes["edges"] * sizes["batch_size"]).to_numpy(float)
    features, none = edges * sizes["width"].to_numpy(float), np.zeros_like(edges)
    kept = features * (1 - sizes["removed"].to_numpy(float))
    every = {  # α, α′, β, γ, δ
        "mask": (edges, features, features, none, none),
        "sum": (none, none, kept, none, none),
        "find": (none, none, none, edges, none),
        "write": (none, none, none, none, edges),
    }
    return {call: np.stack(factors, axis=1) for call, factors in every.items()}


def _solved(measured: pd.DataFrame) -> np.ndarray:
    """Return the costs that fit the four calls of each cell best, [5]."""
    from scipy.optimize import nnls  # late, as no child that runs a point needs it

    # relative errors: a small cell counts as much as a large one
    every = _factors(measured).items()
    matrix = np.concatenate([factors / measured[f"{call}_seconds"].to_numpy(float)[:, None] for call, factors in every])
    scale = matrix.max(axis=0)
    found, _ = nnls(matrix / scale, np.ones(len(matrix)))
    return np.asarray(found / scale)
