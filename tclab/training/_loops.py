"""The training loops around a `Step`: `run_plain`, and `run_lightning`, which is Lightning's."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from itertools import islice, repeat
from typing import Any, cast

import torch
from torch import Tensor

from tclab.errors import InputError, need
from tclab.masking import Batch
from tclab.timing._ledger import Timer
from tclab.training._loading import LoadedBatch
from tclab.training._step import Step


def _items_for(step: Step, batches: Iterable[LoadedBatch], steps: int) -> Iterator[Any]:
    """Yield one item for each of `steps` steps: the first batches or, in mode `fixed_batch`, the first one repeatedly.

    **Raises:** `InputError` if there are fewer batches than steps.
    """
    if step.mode == "fixed_batch":
        yield from repeat(next(iter(batches)), steps)
        return
    given = 0
    for given, item in enumerate(islice(batches, steps), start=1):  # noqa: B007
        yield item
    if given < steps:
        raise InputError(f"the loader gave {given} batches, expected one for each of {steps} steps")


def run_plain(step: Step, batches: Iterable[LoadedBatch], *, steps: int, ledger: Timer | None = None) -> list[Tensor]:
    """Run a step on each of `steps` batches and return their losses, each [] on the device.

    **Arguments:**

    - `batches`: a loader's items.
    - `ledger`: times every step and stage; nothing is timed by default.

    **Raises:** `InputError` if there are fewer batches than steps.
    """
    timer = Timer() if ledger is None else ledger
    losses = []
    for item in timer.steps(_items_for(step, batches, steps)):
        loss = step(item.batch, stage=timer.stage)
        with timer.stage("transfer"):
            item = None  # unmaps the shared memory of a worker's batch, which takes longer than a small copy
        if loss is not None:
            losses.append(loss)
    return losses


class _Items:
    """An iterator with a length, without which Lightning fetches a batch ahead of each step."""

    def __init__(self, items: Iterator[Any], steps: int) -> None:
        self._items = items
        self._steps = steps

    def __len__(self) -> int:
        return self._steps

    def __iter__(self) -> Iterator[Any]:
        return self._items


def _step_task(step: Step, timer: Timer, items: _Items, losses: list[Tensor]) -> Any:
    """Return a `LightningModule` that runs a step on some items and adds its losses to a list."""
    from lightning.pytorch import LightningModule  # late: it takes seconds

    class StepTask(LightningModule):
        """A `Step` as a LightningModule with manual optimization, as the case study's trainers are."""

        def __init__(self) -> None:
            super().__init__()
            self.automatic_optimization = False
            self.model = step.model

        def transfer_batch_to_device(self, loaded: LoadedBatch, device: torch.device, dataloader_idx: int) -> Batch:
            return step.transfer(loaded.batch, stage=timer.stage)

        def training_step(self, batch: Batch, batch_idx: int) -> None:
            update = None if step.optimizer is None else cast("Any", self.optimizers)().step
            loss = step.run(batch, stage=timer.stage, backward=self.manual_backward, update=update)
            if loss is not None:
                losses.append(loss)

        def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
            if batch_idx + 1 == len(items):
                next(iter(items), None)  # which Lightning does not ask for: by it the ledger ends the last step

        def configure_optimizers(self) -> Any:
            return step.optimizer

    return StepTask()


# what Lightning adds to training unless told otherwise
_OFF = ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary")


def run_lightning(
    step: Step, batches: Iterable[LoadedBatch], *, steps: int, ledger: Timer | None = None
) -> list[Tensor]:
    """Run a step on each of `steps` batches inside Lightning's `Trainer.fit` and return their losses, each [].

    Lightning logs nothing, writes no checkpoint and shows no progress bar. The time that Lightning itself takes,
    between the stages of a step and between steps, is the stage `loop`. The arguments are those of `run_plain`.

    **Raises:** `InputError` if Lightning is not installed, or if there are fewer batches than steps.
    """
    need("the Lightning loop", "lightning", "lightning")
    from lightning.pytorch import Trainer
    from lightning.pytorch.strategies import SingleDeviceStrategy

    timer = Timer() if ledger is None else ledger
    items = _Items(_in_stage_loop(timer, timer.steps(_items_for(step, batches, steps))), steps)
    losses: list[Tensor] = []
    cuda = step.device.type == "cuda"
    device = torch.device("cuda", step.device.index or 0) if cuda else step.device
    options: dict[str, Any] = dict.fromkeys(_OFF, False)
    options |= {"accelerator": "gpu", "devices": [device.index]} if cuda else {"accelerator": "cpu"}
    strategy = SingleDeviceStrategy(device)
    strategy.teardown = lambda: None  # which moves model and optimizer to the CPU: the step goes on
    logger = logging.getLogger("lightning.pytorch")  # it tells of devices, loggers and the end of training
    with warnings.catch_warnings(), ExitStack() as quiet:
        quiet.callback(logger.setLevel, logger.level)
        logger.setLevel(logging.ERROR)
        warnings.filterwarnings("ignore", module="lightning")
        trainer = Trainer(strategy=strategy, max_epochs=1, **options)
        trainer.fit(_step_task(step, timer, items, losses), train_dataloaders=items)
    return losses


def _in_stage_loop(timer: Timer, batches: Iterable[Any]) -> Iterator[Any]:
    """Yield the batches; the time from one to the next is the stage `loop`, less the stages inside."""
    for item in batches:
        held, item = [item], None  # only the loop holds the batch, so that it can free it
        with timer.stage("loop"):
            yield held.pop()
