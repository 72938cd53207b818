"""The plain training loop, `run_plain`, and the batches that it and Lightning's loop run on."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice, repeat
from typing import Any

from torch import Tensor

from tclab.errors import InputError
from tclab.masking import Batch
from tclab.timing import Ledger
from tclab.timing._ledger import NullLedger
from tclab.training._step import Step

LOOPS = ("plain", "lightning")


def raw_batch(item: Any) -> Batch:
    """Return the `Batch` of a loader's item, which is the batch itself or a `LoadedBatch` with it as `batch`."""
    batch: Batch = item if isinstance(item, Batch) else item.batch
    return batch


def items_for(step: Step, batches: Iterable[Any], steps: int) -> Iterator[Any]:
    """Yield one item for each of `steps` steps: the first batches or, in mode `fixed_batch`, the first one repeatedly.

    **Raises:** `InputError` if there are fewer batches than steps.
    """
    if step.mode == "fixed_batch":
        yield from repeat(raw_batch(next(iter(batches))), steps)
        return
    number = 0
    for number, item in enumerate(islice(batches, steps), start=1):  # noqa: B007
        yield item
    if number < steps:
        raise InputError(f"the loader gave {number} batches, expected one for each of {steps} steps")


def run_plain(
    step: Step, batches: Iterable[Any], *, steps: int, ledger: Ledger | NullLedger | None = None
) -> list[Tensor]:
    """Run a step on each of `steps` batches and return their losses, each [] on the device.

    **Arguments:**

    - `batches`: a loader's items; each a `Batch` or a `LoadedBatch`.
    - `ledger`: times every step and stage; nothing is timed by default.

    **Raises:** `InputError` if there are fewer batches than steps, or for mode `empty`, which measures Lightning's
    loop.
    """
    if step.mode == "empty":
        raise InputError("mode 'empty' is Lightning's loop with nothing in it; run it with run_lightning")
    timer = NullLedger() if ledger is None else ledger
    losses = []
    for item in timer.steps(items_for(step, batches, steps)):
        loss = step(raw_batch(item), stage=timer.stage)
        with timer.stage("transfer"):
            item = None  # unmaps the shared memory of a worker's batch, which takes longer than a small copy
        if loss is not None:
            losses.append(loss)
    return losses
