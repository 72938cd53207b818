"""A Lightning callback that times the training steps of any `Trainer` with a `Ledger`."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterable
from typing import Any

from tclab.timing._ledger import Ledger

# The first pattern that matches the name of a Lightning profiler action gives its stage. An action without a stage
# belongs to the stage around it, or to `other`.
_STAGES = tuple(
    (re.compile(pattern), stage)
    for pattern, stage in (
        (r".*train_dataloader_next$", "data_wait"),
        (r".*(batch_to_device|_batch_transfer)$", "transfer"),
        (r"\[Strategy\].*\.training_step$", "forward"),
        (r".*\.backward$", "backward"),
        (r".*\.configure_gradient_clipping$", "clip"),
        (r"(.*\.)?(optimizer_step|optimizer_zero_grad|lr_scheduler_step)$", "optimizer"),
        (r".*(validation_step|val_next|on_validation_.*)$", "validation"),
        (r"\[Callback\].*", "log"),
        (r"save_checkpoint$", "checkpoint"),
    )
)


def _first(table: Iterable[tuple[re.Pattern[str], str]], action: str) -> str | None:
    """Return what the first pattern that matches an action stands for; `None` if none does."""
    return next((meaning for pattern, meaning in table if pattern.match(action)), None)


def lightning_callback(ledger: Ledger) -> Any:
    """Return a `lightning.Callback` that times a trainer's training steps with a ledger.

    `Trainer(callbacks=[lightning_callback(ledger)])`. It receives the same actions as Lightning's profilers, so
    `forward` is the module's `training_step` (loss included), and `optimizer` is the optimizer's step without the
    closure that Lightning runs inside it. Stages that the module enters itself, `with ledger.stage("loss")`, are taken
    out of these. A profiler that the trainer already has keeps working.

    **Arguments:**

    - `ledger`: records the steps.

    **Raises:** `ImportError` if neither `lightning` nor `pytorch_lightning` is installed.
    """
    try:
        lightning: Any = importlib.import_module("lightning.pytorch")
    except ImportError:
        lightning = importlib.import_module("pytorch_lightning")

    class StageProfiler(lightning.profilers.Profiler):  # type: ignore[misc]
        """Enters the ledger's stage of each action that has one, and passes every action on."""

        def __init__(self, inner: Any) -> None:
            super().__init__()
            self.inner = inner
            self.training = False
            self.entered: list[tuple[str, Any]] = []

        def start(self, action_name: str) -> None:
            stage = _first(_STAGES, action_name)
            if stage is not None and self.training:
                if stage == "data_wait":
                    ledger.next_step()
                if ledger.in_step:
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
        """Wraps the trainer's profiler in a `StageProfiler` while it trains."""

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
