"""A point set up to run: its loader and its step, on samples made for it."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from tclab.masking import get as strategy_of
from tclab.perturbation import stored, synthetic_perturbations
from tclab.sweeps.point import Point
from tclab.timing import Ledger, NoLedger
from tclab.training import Batches, LoadedBatch, Loader, Step, double_buffered, loader, run_lightning, run_plain

EPOCH = 10  # a schedule is over by then, as it is in nearly all of a published run


@dataclass(frozen=True)
class Rig:
    """A point's own loader and step.

    **Arguments:**

    - `point`: resolved.
    - `data`: its batches, each made when it is asked for.
    - `loads`: an epoch of them by the point's workers, again and again.
    - `step`: what is run on each.
    """

    point: Point
    data: Batches
    loads: Loader
    step: Step

    def batches(self) -> Iterator[LoadedBatch]:
        """Return an epoch's batches, copied ahead to the device where the point says so."""
        return double_buffered(self.loads, self.point.device) if self.point.double_buffer else iter(self.loads)

    def run(self, batches: Iterable[Any], *, steps: int, ledger: Ledger | NoLedger | None = None) -> list[Tensor]:
        """Run some steps in the point's loop and return their losses, [] each; none in mode `data`."""
        run = run_lightning if self.point.loop == "lightning" else run_plain
        return run(self.step, batches, steps=steps, ledger=ledger)


@contextmanager
def rig(point: Point, samples: int) -> Iterator[Rig]:
    """Set a resolved point up on so many synthetic samples; what it keeps on disk is gone afterwards."""
    graph = point.cell_graph()
    perturbations = synthetic_perturbations(graph, samples, deleted=point.deleted, seed=point.seed)
    kind = strategy_of(point.strategy)
    loading = kind(graph, ship_edges=point.ship_edges, collation=point.collation)
    viewing = kind(graph.to(point.device), ship_edges=point.ship_edges)
    for half in (loading, viewing):
        half.tune(min(point.batch_size, point.micro_batch or point.batch_size), point.dtype, point.device)
    with tempfile.TemporaryDirectory(prefix="tclab-") as place:
        loading.prepare(perturbations, Path(place) / "store")
        try:
            read = stored(graph, perturbations, Path(place) / "samples", point.store)
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
                checkpoint=point.checkpoint,
                compile=point.compile,
            )
            data = Batches(loading, read, point.batch_size, micro_batch=point.micro_batch)
            loads = loader(
                data,
                workers=point.workers,
                pin_memory=bool(point.pin_memory),
                prefetch_factor=point.prefetch_factor,
                start_method=point.start_method,
                persistent_workers=point.persistent_workers,
            )
            yield Rig(point, data, loads, step)
        finally:
            loading.close()
