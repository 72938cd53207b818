"""What a process that runs points does with one of them: set it up, check its strategy against `subgraph`, time it."""

from __future__ import annotations

import ctypes
import gc
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import lru_cache, partial
from itertools import repeat
from pathlib import Path
from statistics import median
from time import perf_counter, perf_counter_ns
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from tclab._io import TemporaryFolder
from tclab._limits import field_of
from tclab.errors import InputError
from tclab.masking import Strategy
from tclab.masking import get as strategy_of
from tclab.message_passing.kernels._tile_sums import MADE as TILES
from tclab.perturbation._sample_store import stored
from tclab.sweeps._fields import declarations
from tclab.sweeps._overheads import add_overheads, apply_to_model
from tclab.sweeps._point import OVERHEADS, Point
from tclab.sweeps._point_inputs import cell_graph_of, file_stamps, samples_of, screen_of
from tclab.sweeps._ranks import ALONE, Ranks
from tclab.sweeps._rows import columns_of, mean_columns
from tclab.timing import Ledger, syncs
from tclab.timing._environment import conditions
from tclab.timing._ledger import BatchTiming, Timer
from tclab.timing._step_means import cycle_of, steady_state, steps_wait
from tclab.training._equivalence import EquivalenceReference, EquivalenceResult
from tclab.training._loading import Batches, LoadedBatch, Loader
from tclab.training._loops import run_lightning, run_plain
from tclab.training._step import WITHOUT_MODEL, Exchange, Step

# arguments of `Step`
_OF_STEP = ("mode", "dtype", "metabolism", "seed", "loss", "optimizer", "accumulate", "compile", "capture")
SCHEDULE_EPOCH = 10  # a schedule is over by then, as it is in nearly all of a published run


@dataclass(frozen=True)
class Setup:
    """A resolved point's own loader and step."""

    point: Point
    data: Batches  # each made when it is asked for
    loads: Loader  # an epoch of them by the point's workers, again and again
    step: Step  # what is run on each
    ranks: Ranks = ALONE  # of several ranks each has a setup
    store_bytes: int | None = None  # of the files that samples and masks are read from

    def batches(self) -> Iterator[LoadedBatch]:
        """Return an epoch's batches."""
        return iter(self.loads)

    def drain(self, batches: Iterator[LoadedBatch]) -> list[BatchTiming]:
        """Discard the batches that workers made during a pause, and return the timings of all that it takes.

        Steps that wait for their loader seem faster than they are where a pause left batches for them. After one that
        was not ready when it was asked for there is none left; it is trained on, so that the next step begins as every
        W-th one does. Where batches are made faster than they are taken, twice as many are taken as can lie ready.
        This process may be paused, too: where more time has gone by since a batch was ready than one takes, others may
        lie ready, and all this is done once more.
        """
        made: list[BatchTiming] = []
        most = 2 * self.point.workers * self.point.prefetch_factor

        def may_lie_ready() -> bool:
            shortest = min(one.end_ns - one.begin_ns for one in made)
            return perf_counter_ns() - made[-1].end_ns > shortest

        for allowed in (most, 2 * most):
            was_ready, batch = True, None
            while was_ready and len(made) < allowed:
                batch = None  # frees one, which may take a gigabyte
                asked = perf_counter_ns()
                batch = next(batches)
                made.append(batch.timing)
                was_ready = made[-1].end_ns <= asked or may_lie_ready()
            self.run([batch], steps=1)
            if not any(self.ranks.all_gather(may_lie_ready())):  # a step is of all ranks
                break
        return made

    def run(self, batches: Iterable[Any], *, steps: int, ledger: Timer | None = None) -> list[Tensor]:
        """Run some steps in the point's loop and return their losses, [] each; none in mode `data`."""
        run = run_lightning if self.point.loop == "lightning" else run_plain
        return run(self.step, batches, steps=steps, ledger=ledger)


def loader_options(point: Point) -> dict[str, Any]:
    """Return the options of a resolved point's `DataLoader`: batches are pinned on CUDA unless the point says not."""
    return {"pin_memory": point.device == "cuda", **point.loader}


def step_of(point: Point, strategy: Strategy) -> Step:
    """Return the training step of a point, for its run and for its memory estimate.

    The strategy's graph says the device.
    """
    arguments = {name: getattr(point, name) for name in _OF_STEP}
    exchange = None if point.ranks == 1 else Exchange.of(point.ddp)
    arguments |= {"epoch": SCHEDULE_EPOCH, "exchange": exchange, "gather_interval": point.ddp.get("gather_interval")}
    step = Step(point.kind, strategy, **arguments)
    if point.overheads:
        add_overheads(step, point.overheads)
    return step


@contextmanager
def setup(point: Point, samples: int, ranks: Ranks = ALONE, *, batches: int | None = None) -> Iterator[Setup]:
    """Set a resolved point up on so many samples, synthetic or of its file; what it keeps on disk is gone afterwards.

    **Arguments:**

    - `samples`: for each rank, at least.
    - `ranks`: this rank among the point's, each of which trains on its own part of every batch.
    - `batches`: of an epoch, in which samples come again after the last; as many as the samples fill unless given.
    """
    graph = cell_graph_of(point)
    reads = (samples if batches is None else batches * point.batch_size) * point.ranks
    held = samples * point.ranks
    perturbations = samples_of(point, held, graph)
    strategy_class = strategy_of(point.strategy)
    loading, viewing = (strategy_class(half, collation=point.collation) for half in (graph, graph.to(point.device)))
    with _place(ranks) as place:
        loading.prepare(perturbations, place / "store")
        try:
            read = stored(graph, perturbations, place / "samples", point.store)
            if ranks.local_rank == 0:
                ranks.all_gather(str(place))  # what is kept on disk is whole: the other ranks may open it
            step = step_of(point, viewing)
            order, shard = np.resize(np.arange(held), reads), (ranks.rank, ranks.ranks)
            data = Batches(loading, read, point.batch_size, order, micro_batch=point.micro_batch, shard=shard)
            store_bytes = sum(file.stat().st_size for file in place.rglob("*") if file.is_file()) or None
            with closing(Loader(data, workers=point.workers, **loader_options(point))) as loads:
                yield Setup(point, data, loads, step, ranks, store_bytes)
                ranks.barrier()  # nobody reads from disk any more
        finally:
            loading.close()


@contextmanager
def _place(ranks: Ranks) -> Iterator[Path]:
    """Yield a folder for what is kept on disk; of several ranks the first on each node makes it, for all there."""
    if ranks.local_rank == 0:
        with closing(TemporaryFolder()) as place:
            yield place.path
    else:
        places = ranks.all_gather(None)
        yield Path(places[ranks.rank - ranks.local_rank])


# ---- the equivalence check, and the clock


@lru_cache(maxsize=8)
def _reference(point: Point, stamp: object) -> EquivalenceReference:
    change = partial(apply_to_model, overheads=point.overheads) if point.overheads else None
    return EquivalenceReference(
        lambda part: point.kind.build(part, point.metabolism).to(point.device).eval(),
        cell_graph_of(point),
        seed=point.seed,
        change=change,
    )


@lru_cache(maxsize=256)
def _compared(point: Point, strategy: str, collation: str, stamp: object, **numerics: Any) -> EquivalenceResult:
    return _reference(point, stamp).compare(strategy, collation, **numerics)


def equivalence_of(point: Point) -> EquivalenceResult:
    """Return how far the point's strategy is from `subgraph`; found once for points that differ in size alone.

    It is tried in fp64 and fp32, and as the point runs it: in its dtype, compiled, in slices. A user's strategy that
    passes is tried on the whole graph, too.
    """
    decides = {name: getattr(point, name) for name, declared in declarations(Point).items() if declared.reference}
    decides["overheads"] = tuple(name for name in point.overheads if OVERHEADS[name].models is not None)
    numerics = {"dtype": point.dtype, "compile": point.compile, "slices": point.micro_batch is not None}
    stamp = tuple(file_stamps(point).items())
    return _compared(Point(**decides), point.strategy, point.collation, stamp, **numerics)


def declared_exact(point: Point) -> bool:
    """Return whether the point's strategy and overheads claim to compute what `subgraph` does."""
    return strategy_of(point.strategy).exact and all(OVERHEADS[name].exact for name in point.overheads)


def check_equivalence(point: Point) -> None:
    """Check that the point computes what `subgraph` does, does not claim to, or has no model.

    **Raises:** `InputError` where it does not, with what is off.
    """
    if point.mode not in WITHOUT_MODEL and declared_exact(point) and not (result := equivalence_of(point)).passed:
        raise InputError(
            f"strategy {point.strategy!r} does not compute what 'subgraph' computes, so it is not timed: {result.where}"
        )


def _train_and_time(point: Point, ranks: Ranks) -> RankMeasurement:
    """Warm up, count what one step asks of the device, then time `steps` steps."""
    fixed = point.mode == "fixed_batch"
    number = 1 if fixed else point.warmup + 1 + point.steps
    # a framework's loop takes a while to start: a cycle of steps before those that count, while its workers go on
    lead = point.workers if point.loop == "lightning" and ranks is ALONE and not fixed else 0
    ahead = point.workers * point.prefetch_factor
    # `drain` takes four times as many at most, and as many are left, so that workers make batches until the last step
    epoch = None if fixed or not point.workers else number + lead + 5 * ahead
    with setup(point, number * point.batch_size, ranks, batches=epoch) as here:
        batches = here.batches()
        try:
            begin = perf_counter()
            first = next(batches)  # one more than `warmup`: the cold start
            here.run([first], steps=1)
            if point.device == "cuda":
                torch.cuda.synchronize()
            cold = perf_counter() - begin
            demands = _demands(here.step, first)
            largest: dict[str, float | None] = {"first_step_seconds": cold, "batch_bytes": first.batch.bytes}
            largest |= {"edge_bytes": first.batch.bytes_of("edge"), "mask_bytes": first.batch.bytes_of("edge_mask")}
            given = repeat(first) if fixed else batches
            del first  # or it would lie beside every later batch
            gc.collect()
            if point.warmup:
                here.run(given, steps=point.warmup)
            ledger, largest["peak_bytes"], around = _timed(here, given, lead)
        finally:
            del batches  # ends the workers
        largest["store_bytes"] = here.store_bytes
    return RankMeasurement(timelines(ledger, lead), demands, ledger.accounted, largest, around)


def _timed(here: Setup, batches: Iterator[LoadedBatch], lead: int) -> tuple[Ledger, int | None, list[dict[str, Any]]]:
    """Time the point's steps, after `lead` others, and after draining the loader.

    Returns the ledger, the peak of memory in bytes, and the machine's conditions before and after.
    """
    cuda, exchanges = here.point.device == "cuda", here.step.communication
    before = conditions()  # workers make batches ahead meanwhile
    if here.point.workers > 0 and here.point.mode != "fixed_batch":  # some batches are made ahead of their steps
        here.drain(batches)
    peak_bytes = _peak_bytes_from_now(cuda=cuda)
    with Ledger(cuda=cuda) as ledger:
        if exchanges is not None:
            exchanges.watch(ledger)  # until the ledger's end
        here.ranks.barrier()  # else the first step waits for whoever comes last
        here.run(batches, steps=lead + here.point.steps, ledger=ledger)
    peak = None if here.point.capture else peak_bytes()  # what lies in the pool of CUDA graphs is not counted
    return ledger, peak, [before, conditions()]


def _peak_bytes_from_now(*, cuda: bool) -> Callable[[], int | None]:
    """Begin to measure the peak of memory anew, and return what tells it; `None` where it is not known.

    On CUDA it is the most that torch's allocator had allocated at once (`torch.cuda.max_memory_allocated`). On the CPU
    it is the largest resident set of the process, including what it held before, and needs Linux.
    """
    if cuda:
        torch.cuda.reset_peak_memory_stats()
        return torch.cuda.max_memory_allocated
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")  # resets VmHWM to what is resident now
        return lambda: int(1024 * (field_of("/proc/self/status", "VmHWM:") or 0)) or None
    return lambda: None


def _demands(step: Step, loaded: LoadedBatch) -> dict[str, dict[str, int]]:
    """Run a step, and return stage → what it asks of the device; `step` is the sum. Empty where nothing is run."""
    if step.mode == "data":
        return {}
    ledger = Ledger(cuda=False)
    with syncs(ledger) as counted:
        for batch in ledger.steps([loaded.batch]):
            step(batch, stage=ledger.stage)
    waits = counted.stages
    waits.pop("optimizer", None)  # AdamW's own counters live on the host, and are no waits
    return {stage: {"host_syncs": waits[stage]} for stage in ledger.seconds()} | {"step": {"host_syncs": waits.total()}}


def _equivalence_columns(point: Point, exact: bool) -> dict[str, Any]:
    result = equivalence_of(point)
    figures = ("fp64_error", "fp32_ratio", "nodes", "edges", "full_size", "left_out")
    return {
        "equivalence": ("passed" if result.passed else "failed") if exact else "inexact",
        **{f"equivalence_{name}": getattr(result, name) for name in figures},
        "status": f"wrong: {result.where}" if result.where else None,
    }


def measure(point: Point, ranks: Ranks = ALONE) -> list[dict[str, Any]]:
    """Return the rows of a resolved point: its stages, or one row that says why there are none; on each rank all."""
    graph = cell_graph_of(point)
    exact, screen = declared_exact(point), screen_of(point)
    every: dict[str, Any] = {
        **columns_of(point),
        "networks": len(graph.networks),
        "network_names": ",".join(graph.networks),
        "edges": graph.num_edges,
        "nodes": graph.num_nodes[graph.deleted_type],
        "exact": exact,
        "samples_report": None if screen is None else str(screen.report),
    }
    if point.mode not in WITHOUT_MODEL:
        every |= ranks.broadcast(partial(_equivalence_columns, point, exact))  # ranks would share the cores
        if every["equivalence"] == "failed":
            return [{**every, "stage": "step"}]
    gc.collect()
    with suppress(OSError, TypeError, AttributeError):  # only glibc gives the pages of freed memory back
        ctypes.CDLL(None).malloc_trim(0)  # or the point's peak would hold what the check and earlier points freed
    if point.device == "cuda":
        torch.cuda.empty_cache()
    if point.compile:
        torch.compiler.reset()  # what earlier points compiled counts against what this one may
    try:
        measurement = _train_and_time(point, ranks)
    finally:
        if point.device == "cuda":  # or the next point's peak would count this one's matrices, too
            TILES.clear()
            graph.release(point.device)
            gc.collect()
            torch.cuda.empty_cache()
    return rows_of_ranks(point, every, [RankMeasurement(**one) for one in ranks.all_gather(asdict(measurement))])


# ---- the rows of a measured point, made from what each process that ran it saw

Timelines = dict[str, dict[str, list[float]]]  # where → stage → seconds in each step, NaN where it did not occur


@dataclass(frozen=True)
class RankMeasurement:
    """What one process saw: all that its rows are made of, as JSON can hold it."""

    timelines: Timelines
    demands: dict[str, dict[str, int]]  # stage → what it asked of the device
    accounted: dict[str, float]  # timeline → share of its clock
    # column → value, of which rows have the worst of all ranks: the cold start, and bytes of a batch, of memory, of
    # the files that are read from; `None` where it is not known, or there are none
    largest: dict[str, float | None]
    conditions: list[dict[str, Any]]  # before and after


def timelines(ledger: Ledger, first: int = 0) -> Timelines:
    """Return where → stage → [steps] seconds, from step `first` on; the workers of a loader together are a place."""
    frame = ledger.frame().astype({"seconds": float}).dropna()
    frame["timeline"] = frame["timeline"].str.partition(" ")[0]
    made: Timelines = {}
    for where, seconds in frame[frame["step"] >= first].groupby("timeline", sort=False):
        stages = seconds.pivot_table("seconds", "step", "stage", "sum", sort=False)
        if ledger.cuda and where == "host":  # on CUDA the step is the device's
            stages = stages.drop(columns="step")
        made[str(where)] = {str(stage): took.tolist() for stage, took in stages.items()}
    return made


def rows_of_ranks(point: Point, every: dict[str, Any], ranks: Sequence[RankMeasurement]) -> list[dict[str, Any]]:
    """Return a point's rows, from what each of its ranks saw.

    A stage's seconds are, step by step, the mean over ranks, so that stages add up to the step. Where there are
    several ranks, each has rows of its own besides: `where` is "rank 0", …, the stages are those of its own step,
    which is called `whole`. `every` has the columns of all rows.
    """
    clock = "device" if point.device == "cuda" else "host"
    means = {}  # where → [steps, stages] seconds, the mean over ranks
    for where in ranks[0].timelines:
        each = [pd.DataFrame(rank.timelines[where], dtype=float) for rank in ranks if where in rank.timelines]
        means[where] = pd.concat(each).groupby(level=0).mean()
    on_clock = means.get(clock, pd.DataFrame())  # of a loop that ended before a timed step: none
    waits, whole = (np.asarray(on_clock.get(stage, [0.0]), dtype=float) for stage in ("data_wait", "step"))
    workers = point.workers if steps_wait(waits, whole) else 0
    cycle = cycle_of(workers, point.accumulate, "gather" in on_clock and point.ddp.get("gather_interval"))
    rows = []
    for where, stages in means.items():
        for stage, seconds in stages.items():
            row = {**every, **_spread(where, str(stage), seconds, cycle)}
            if where == clock:
                row |= ranks[0].demands.get(str(stage), {})
            if stage == "step":
                row |= _step_columns(point, ranks, row)
            rows.append(row)
    for rank, measured in enumerate(ranks if len(ranks) > 1 else ()):
        for stage, seconds in pd.DataFrame(measured.timelines.get(clock, {})).rename(columns={"step": "whole"}).items():
            rows.append({**every, **_spread(f"rank {rank}", str(stage), seconds, cycle)})
    return rows


def _spread(where: str, stage: str, seconds: pd.Series, cycle: int) -> dict[str, Any]:
    """Return a row's columns on the seconds of one stage.

    The mean is over all counted steps, those without the stage included, so that stages add up to the step; the median
    is of the steps that had it. Nobody knows what a worker did before its first batch: `idle` is of the others.
    """
    samples = seconds.dropna().tolist()
    full = samples if stage == "idle" else seconds.fillna(0.0).tolist()
    return {
        "stage": stage,
        "where": where,
        "n": len(samples),
        **mean_columns(full, 1 if stage == "idle" else cycle),
        "median_seconds": median(samples),
        "samples_seconds": samples,
        "status": "ok",
    }


def _step_columns(point: Point, ranks: Sequence[RankMeasurement], step: Mapping[str, Any]) -> dict[str, Any]:
    """Return the columns that are of the whole step: of several ranks the worst."""
    largest = {name: [measured.largest[name] for measured in ranks] for name in ranks[0].largest}
    accounted = {line: [measured.accounted[line] for measured in ranks] for line in ranks[0].accounted}
    return {
        "samples_per_second": point.batch_size * point.ranks / step["mean_seconds"],
        **{name: max((one for one in each if one is not None), default=None) for name, each in largest.items()},
        **{f"{line}_accounted": max(each, key=lambda share: abs(share - 1.0)) for line, each in accounted.items()},
        "steady": steady_state(step["samples_seconds"], step["cycle_steps"]).verdict,
        "conditions": json.dumps(ranks[0].conditions),
    }
