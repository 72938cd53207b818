"""A point set up to run: its loader and its step, on samples made for it."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from tclab.masking import Strategy
from tclab.masking import get as strategy_of
from tclab.masking.calibration import WIDTH
from tclab.perturbation import stored, synthetic_perturbations
from tclab.sweeps.point import Point
from tclab.sweeps.together import Together
from tclab.timing import Ledger, NoLedger
from tclab.training import (
    Batches,
    LoadedBatch,
    Loader,
    Shard,
    Step,
    double_buffered,
    loader,
    run_lightning,
    run_plain,
)

EPOCH = 10  # a schedule is over by then, as it is in nearly all of a published run


@dataclass(frozen=True)
class Rig:
    """A point's own loader and step.

    **Arguments:**

    - `point`: resolved.
    - `data`: its batches, each made when it is asked for.
    - `loads`: an epoch of them by the point's workers, again and again.
    - `step`: what is run on each.
    - `together`: of several ranks, each of which has a rig.
    """

    point: Point
    data: Batches
    loads: Loader
    step: Step
    together: Together | None = None

    def batches(self) -> Iterator[LoadedBatch]:
        """Return an epoch's batches, copied ahead to the device where the point says so."""
        return double_buffered(self.loads, self.point.device) if self.point.double_buffer else iter(self.loads)

    def run(self, batches: Iterable[Any], *, steps: int, ledger: Ledger | NoLedger | None = None) -> list[Tensor]:
        """Run some steps in the point's loop and return their losses, [] each; none in mode `data`."""
        run = run_lightning if self.point.loop == "lightning" else run_plain
        told = ledger if self.together is None else self.together.told(ledger)
        return run(self.step, batches, steps=steps, ledger=told)


def tune(loading: Strategy, point: Point, device: str, *, timing: bool = True) -> None:
    """Have a strategy's half that loads choose what is fastest for a point; see `Strategy.tune`."""
    size = min(point.batch_size, point.micro_batch or point.batch_size)
    loading.tune(size, point.dtype, device, deleted=point.deleted, width=point.hidden or WIDTH, timing=timing)


def _tune_once(loading: Strategy, point: Point, together: Together | None) -> None:
    """Tune for all ranks of a point on the first: others would disturb its clock, and might choose otherwise."""
    if together is None:
        tune(loading, point, point.device)
        return

    def chosen() -> str:
        tune(loading, point, point.device)
        return json.dumps(loading.chosen())

    loading.use(json.loads(together.from_first(chosen)))


@contextmanager
def rig(point: Point, samples: int, together: Together | None = None) -> Iterator[Rig]:
    """Set a resolved point up on so many synthetic samples; what it keeps on disk is gone afterwards.

    **Arguments:**

    - `samples`: for each rank.
    - `together`: this rank among the point's; each trains on its own part of every batch.
    """
    graph = point.cell_graph()
    perturbations = synthetic_perturbations(graph, samples * point.ranks, deleted=point.deleted, seed=point.seed)
    kind = strategy_of(point.strategy)
    loading = kind(graph, ship_edges=point.ship_edges, collation=point.collation)
    _tune_once(loading, point, together)
    viewing = loading.on(graph.to(point.device))
    with _place(together) as place:
        loading.prepare(perturbations, place / "store")
        try:
            read = stored(graph, perturbations, place / "samples", point.store)
            if together is not None and together.local_rank == 0:
                together.from_every(str(place))  # what is kept on disk is whole: the other ranks may open it
            step = Step(
                point.kind,
                viewing,
                mode=point.mode,
                dtype=point.dtype,
                metabolism=point.metabolism,
                seed=point.seed,
                loss=point.loss,
                epoch=EPOCH,
                clip=point.clip,
                optimizer=point.optimizer,
                accumulate=point.accumulate,
                habits=point.habits,
                gather_interval=point.gather_interval,
                exchange=point.exchange(),
                checkpoint=point.checkpoint,
                compile=point.compile,
            )
            shard = Shard() if together is None else Shard(together.rank, together.ranks)
            data = Batches(loading, read, point.batch_size, micro_batch=point.micro_batch, shard=shard)
            loads = loader(
                data,
                workers=point.workers,
                pin_memory=bool(point.pin_memory),
                prefetch_factor=point.prefetch_factor,
                start_method=point.start_method,
                persistent_workers=point.persistent_workers,
            )
            yield Rig(point, data, loads, step, together)
            if together is not None:
                together.meet()  # nobody reads from disk any more
        finally:
            loading.close()


@contextmanager
def _place(together: Together | None) -> Iterator[Path]:
    """Yield a folder for what is kept on disk; of several ranks the first on each node makes it, for all there."""
    if together is None or together.local_rank == 0:
        with tempfile.TemporaryDirectory(prefix="tclab-") as place:
            yield Path(place)
        return
    places = together.from_every("")
    yield Path(places[together.rank - together.local_rank])
