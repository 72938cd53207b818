"""A point set up to run: its loader and its step, on samples made for it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter_ns
from typing import Any

import numpy as np
from torch import Tensor

from tclab._io import TemporaryFolder
from tclab.masking import Strategy
from tclab.masking import get as strategy_of
from tclab.masking._shared_graph_strategies import WIDTH
from tclab.perturbation._sample_store import stored
from tclab.sweeps.config._point import Point
from tclab.sweeps.config._point_inputs import cell_graph_of, deletions_a_sample, samples_of
from tclab.sweeps.execution._overheads import add_overheads
from tclab.sweeps.execution._ranks import ALONE, Ranks
from tclab.timing import Ledger
from tclab.timing._ledger import BatchTiming, NullLedger
from tclab.training._distributed import Exchange
from tclab.training._loading import Batches, LoadedBatch, Loader
from tclab.training._loops import run_lightning, run_plain
from tclab.training._step import Step

_KEEPS_UP = 0.8  # of a step, in which workers that keep up with ease can give a batch
_OF_STEP = ("mode", "dtype", "metabolism", "seed", "loss", "optimizer", "accumulate", "compile")  # arguments of `Step`
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

    def loader_binds(self, steps: Ledger, made: Sequence[BatchTiming]) -> bool:
        """Return whether steps may wait for their workers: unless these keep up with ease, or where nothing tells.

        **Arguments:**

        - `steps`: some, timed; the shortest without its wait is what a batch must be made in.
        - `made`: how long batches took a worker; the median counts.
        """
        if not self.point.workers or self.point.mode == "fixed_batch":
            return False
        times = steps.seconds("device" if steps.cuda else "host")
        rest = [step - wait for step, wait in zip(times.get("step", []), times.get("data_wait", []), strict=True)]
        binds = True
        if rest and made:
            batch = median(timing.end_ns - timing.begin_ns for timing in made) / 1e9
            binds = batch / self.point.workers > _KEEPS_UP * min(rest)
        return any(self.ranks.all_gather(binds))  # a step is of all ranks

    def drain(self, batches: Iterator[LoadedBatch]) -> list[BatchTiming]:
        """Discard the batches that workers made during a pause, and return the timings of all that it takes.

        Steps that wait for their loader seem faster than they are where a pause left batches for them. After one that
        was not ready when it was asked for there is none left; it is trained on, so that the next step begins as every
        W-th one does. Where batches are made faster than they are taken, twice as many are taken as can lie ready.
        """
        made: list[BatchTiming] = []
        most = 2 * self.point.workers * self.point.prefetch_factor
        asked, batch = 0, None
        while not made or (made[-1].end_ns <= asked and len(made) < most):
            batch = None  # frees one, which may take a gigabyte
            asked = perf_counter_ns()
            batch = next(batches)
            made.append(batch.timing)
        self.run([batch], steps=1)
        return made

    def run(self, batches: Iterable[Any], *, steps: int, ledger: Ledger | NullLedger | None = None) -> list[Tensor]:
        """Run some steps in the point's loop and return their losses, [] each; none in mode `data`."""
        run = run_lightning if self.point.loop == "lightning" else run_plain
        return run(self.step, batches, steps=steps, ledger=ledger)


def strategy_arguments(point: Point, device: str, *, timing: bool = True) -> dict[str, Any]:
    """Return the arguments of both halves of a point's strategy, with what `Strategy.tune` chose."""
    size = min(point.batch_size, point.micro_batch or point.batch_size)
    chosen = strategy_of(point.strategy).tune(
        cell_graph_of(point),
        size,
        point.dtype,
        device,
        deleted=deletions_a_sample(point),
        width=point.hidden or WIDTH,
        timing=timing,
    )
    return {"collation": point.collation, **chosen}


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
    kind = strategy_of(point.strategy)
    # others would disturb the clock of the first rank, and might choose otherwise
    arguments = ranks.broadcast(partial(strategy_arguments, point, point.device))
    loading, viewing = (kind(on, **arguments) for on in (graph, graph.to(point.device)))
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
