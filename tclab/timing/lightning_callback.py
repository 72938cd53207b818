"""A ledger around somebody's Lightning trainer, by one callback."""

from __future__ import annotations

import importlib
import re
from typing import Any

from tclab.timing.ledger import Ledger

# The first pattern that the name of a Lightning action begins with says its stage. What has none belongs to the
# action around it, and what has none around it is `other`.
_STAGES = tuple(
    (re.compile(pattern), stage)
    for pattern, stage in (
        (r".*train_dataloader_next$", "wait"),
        (r".*(batch_to_device|_batch_transfer)$", "transfer"),
        (r"\[Strategy\].*\.training_step$", "forward"),
        (r".*\.backward$", "backward"),
        (r".*\.configure_gradient_clipping$", "clip"),
        (r"(.*\.)?(optimizer_step|optimizer_zero_grad|lr_scheduler_step)$", "optimizer"),
        (r".*(validation_step|val_next|on_validation_.*)$", "validation"),
        (r"\[Callback\].*", "log"),
        (r"save_checkpoint$", "log"),
    )
)


def stage_of(action: str) -> str | None:
    """Return the stage of a Lightning profiler's action, or `None`."""
    return next((stage for pattern, stage in _STAGES if pattern.match(action)), None)


def lightning_callback(ledger: Ledger) -> Any:
    """Return a `lightning.Callback` that keeps a ledger of a trainer's training steps.

    `Trainer(callbacks=[lightning_callback(ledger)])`. It listens where Lightning's own profilers do, so `forward`
    is the module's `training_step` (loss included), and `optimizer` the step without the closure that Lightning
    runs inside it. Stages that the module enters itself, `with ledger.stage("loss")`, are taken out of them. Any
    profiler that the trainer has goes on working.

    **Raises:** `ImportError` where neither `lightning` nor `pytorch_lightning` is installed.
    """
    try:
        lightning: Any = importlib.import_module("lightning.pytorch")
    except ImportError:
        lightning = importlib.import_module("pytorch_lightning")

    class StageProfiler(lightning.profilers.Profiler):  # type: ignore[misc]
        """Enters a stage of the ledger with each action that has one."""

        def __init__(self, inner: Any) -> None:
            super().__init__()
            self.inner = inner
            self.training = False
            self.entered: list[tuple[str, Any]] = []

        def start(self, action_name: str) -> None:
            stage = stage_of(action_name)
            if stage is not None and self.training:
                if stage == "wait":
                    ledger.next_step()
                context = ledger.stage(stage)
                context.__enter__()
                self.entered.append((action_name, context))
            self.inner.start(action_name)

        def stop(self, action_name: str) -> None:
            self.inner.stop(action_name)
            if self.entered and self.entered[-1][0] == action_name:
                self.entered.pop()[1].__exit__(None, None, None)

        def setup(self, *args: Any, **kwargs: Any) -> None:
            self.inner.setup(*args, **kwargs)

        def summary(self) -> str:
            return str(self.inner.summary())

        def describe(self) -> None:
            self.inner.describe()

        def teardown(self, *args: Any, **kwargs: Any) -> None:
            self.inner.teardown(*args, **kwargs)

    class LedgerCallback(lightning.Callback):  # type: ignore[misc]
        """Puts a `StageProfiler` around the trainer's own profiler while it trains."""

        def on_train_epoch_start(self, trainer: Any, module: Any) -> None:
            if not isinstance(trainer.profiler, StageProfiler):
                trainer.profiler = StageProfiler(trainer.profiler)
            trainer.profiler.training = True

        def on_train_epoch_end(self, trainer: Any, module: Any) -> None:
            self._end(trainer)

        def on_exception(self, trainer: Any, module: Any, exception: BaseException) -> None:
            self._end(trainer, keep=False)

        def on_train_end(self, trainer: Any, module: Any) -> None:
            self._end(trainer)
            if isinstance(trainer.profiler, StageProfiler):
                trainer.profiler = trainer.profiler.inner

        def _end(self, trainer: Any, keep: bool = True) -> None:
            if isinstance(trainer.profiler, StageProfiler):
                trainer.profiler.training = False
                trainer.profiler.entered.clear()
            ledger.end(keep=keep)

    return LedgerCallback()
