"""The loops that run a step over batches: a plain one, and Lightning's. Both run the same `Step`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice, repeat
from typing import Any

from torch import Tensor

from tclab.errors import InputError
from tclab.masking import Batch
from tclab.timing import Ledger, NoLedger
from tclab.training.step import Step

LOOPS = ("plain", "lightning")


def raw(item: Any) -> Batch:
    """Return the raw batch that a loader gives, by itself or as the attribute `batch` of what tells its story."""
    batch: Batch = item if isinstance(item, Batch) else item.batch
    return batch


def feed(step: Step, batches: Iterable[Any], steps: int) -> Iterator[Any]:
    """Yield what a loop runs on: the first batches, or in mode `fixed_batch` the very first one over and over.

    **Raises:** `InputError` where there are fewer batches than steps.
    """
    if step.mode == "fixed_batch":
        yield from repeat(raw(next(iter(batches))), steps)
        return
    found = 0
    for found, item in enumerate(islice(batches, steps), start=1):  # noqa: B007
        yield item
    if found < steps:
        raise InputError(f"the loader gave {found} batches, expected one for each of {steps} steps")


def run_plain(
    step: Step, batches: Iterable[Any], *, steps: int, ledger: Ledger | NoLedger | None = None
) -> list[Tensor]:
    """Run a step over `steps` batches, one after the other, and return each one's loss, [] on the device.

    **Arguments:**

    - `batches`: raw batches, or things that carry one as `batch`.
    - `ledger`: told of every step and stage.

    **Raises:** `InputError` where there are fewer batches than steps, or for mode `empty`, which is Lightning's.
    """
    if step.mode == "empty":
        raise InputError("mode 'empty' is Lightning's loop with nothing in it; run it with run_lightning")
    watched = NoLedger() if ledger is None else ledger
    losses = []
    for item in watched.steps(feed(step, batches, steps)):
        loss = step(raw(item), stage=watched.stage)
        with watched.stage("transfer"):
            item = None  # unmaps memory that is shared with a worker, which takes longer than a small copy
        if loss is not None:
            losses.append(loss)
    return losses
