"""Lightning's loop around a `Step`; Lightning is imported when the loop is first run, never before."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch import Tensor

from tclab.errors import InputError
from tclab.masking import Batch
from tclab.timing import Ledger, NoLedger
from tclab.training.loops import feed, raw
from tclab.training.step import Step


class _Feed:
    """The batches as Lightning asks for them: with a length, so that it never fetches ahead of a step.

    Lightning does not ask for a batch after the last, so nothing would tell the ledger that the last step is
    over; `finish` does.
    """

    def __init__(self, batches: Iterator[Any], steps: int) -> None:
        self._batches = batches
        self._steps = steps
        self._left = steps

    def __len__(self) -> int:
        return self._steps

    def __iter__(self) -> Iterator[Any]:
        return self._batches

    def batch_is_through(self) -> None:
        self._left -= 1
        if self._left == 0:
            for _ in self._batches:
                raise AssertionError("a batch was left")


@cache
def _task() -> type:
    try:
        from lightning.pytorch import LightningModule
    except ModuleNotFoundError:
        raise InputError("the Lightning loop needs the package lightning: pip install 'tclab[lightning]'") from None

    class StepTask(LightningModule):
        """A `Step` as a LightningModule with manual optimization, as the original team's trainers are."""

        def __init__(self, step: Step, ledger: Ledger | NoLedger) -> None:
            super().__init__()
            self.automatic_optimization = False
            self.training_stages = step
            self.model = step.model
            self.losses: list[Tensor] = []
            self._ledger = ledger

        def transfer_batch_to_device(self, batch: Any, device: torch.device, dataloader_idx: int) -> Batch:
            return self.training_stages.transfer(raw(batch), stage=self._ledger.stage)

        def training_step(self, batch: Batch, batch_idx: int) -> None:
            optimizer: Any = self.optimizers() if self.training_stages.optimizer is not None else None
            loss = self.training_stages.run(
                batch,
                stage=self._ledger.stage,
                backward=self.manual_backward,
                update=None if optimizer is None else optimizer.step,
            )
            if loss is not None:
                self.losses.append(loss)

        def configure_optimizers(self) -> Any:
            return self.training_stages.optimizer

        def cpu(self) -> Any:
            return self  # the trainer would take the model off the device when it is through; the step goes on

    return StepTask


def lightning_module(step: Step, *, ledger: Ledger | NoLedger | None = None) -> Any:
    """Return a `LightningModule` that runs a step, for a `Trainer` of your own.

    Its batches are raw ones, or things that carry one as `batch`; they are moved in Lightning's batch transfer,
    and views are made inside the training step and closed after its backward.

    **Raises:** `InputError` where Lightning is not installed.
    """
    return _task()(step, NoLedger() if ledger is None else ledger)


def _inside(watched: Ledger | NoLedger, batches: Iterable[Any]) -> Iterator[Any]:
    """Yield batch after batch; from one to the next is the stage `loop`, but for the stages that lie inside."""
    for item in batches:
        held, item = [item], None  # so that the loop alone holds it, and can let it go
        with watched.stage("loop"):
            yield held.pop()


def run_lightning(
    step: Step, batches: Iterable[Any], *, steps: int, ledger: Ledger | NoLedger | None = None
) -> list[Tensor]:
    """Run a step over `steps` batches inside Lightning's `Trainer.fit` and return each one's loss.

    As `run_plain`, with all that Lightning does around each step. It logs nothing, keeps no checkpoint and shows
    no bar. What Lightning does itself, between the stages of the step and between steps, is the stage `loop`.

    **Raises:** `InputError` where Lightning is not installed, or there are fewer batches than steps.
    """
    watched = NoLedger() if ledger is None else ledger
    module = lightning_module(step, ledger=ledger)
    from lightning.pytorch import Callback, Trainer

    given = _Feed(_inside(watched, watched.steps(feed(step, batches, steps))), steps)

    class LastStep(Callback):
        def on_train_batch_end(self, *args: Any, **kwargs: Any) -> None:
            given.batch_is_through()

    with _quiet():
        trainer = Trainer(
            accelerator="gpu" if step.device.type == "cuda" else "cpu",
            devices=[step.device.index or 0] if step.device.type == "cuda" else 1,
            max_epochs=1,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            num_sanity_val_steps=0,
            callbacks=[LastStep()],
        )
        try:
            trainer.fit(module, train_dataloaders=given)
        finally:
            _bring_back(step)
    found: list[Tensor] = module.losses
    return found


def _bring_back(step: Step) -> None:
    """Put the optimizer's state back beside its parameters: the trainer leaves it on the CPU."""
    if step.optimizer is not None:
        for parameter, state in step.optimizer.state.items():
            for name, value in state.items():
                if name != "step":  # AdamW keeps it where it wants it, and the trainer leaves it there
                    state[name] = value.to(parameter.device)


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep Lightning from saying which devices there are, what it does not log, and that it stopped."""
    logger = logging.getLogger("lightning.pytorch")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", module="lightning")
            yield
    finally:
        logger.setLevel(level)
