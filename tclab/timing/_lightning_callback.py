"""A Lightning callback that times the training steps of any `Trainer` with a `Ledger`."""

from __future__ import annotations

import importlib
import re
from typing import Any

from tclab.timing._ledger import Ledger

# The first pattern that matches the name of a Lightning profiler action gives its stage. An action without a stage
# belongs to the stage around it, or to `other`.
_STAGES = {
    r".*train_dataloader_next$": "data_wait",
    r".*(batch_to_device|_batch_transfer)$": "transfer",
    r"\[Strategy\].*\.training_step$": "forward",
    r".*\.backward$": "backward",
    r".*\.configure_gradient_clipping$": "clip",
    r"(.*\.)?(optimizer_step|optimizer_zero_grad|lr_scheduler_step)$": "optimizer",
    r".*(validation_step|val_next|on_validation_.*)$": "validation",
    r"\[Callback\].*": "log",
    r"save_checkpoint$": "checkpoint",
}


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

    class LedgerCallback(lightning.Callback):  # type: ignore[misc]
        """Wraps `start` and `stop` of the trainer's profiler while it trains an epoch."""

        def __init__(self) -> None:
            self.entered: list[tuple[str, Any]] = []  # (action, context of its stage), innermost last

        def on_train_epoch_start(self, trainer: Any, module: Any) -> None:
            profiler = trainer.profiler
            start, stop = profiler.start, profiler.stop

            def starting(action: str) -> None:
                self._enter(action)
                start(action)

            def stopping(action: str) -> None:
                stop(action)
                if self.entered and self.entered[-1][0] == action:
                    self.entered.pop()[1].__exit__(None, None, None)

            profiler.start, profiler.stop = starting, stopping

        def _enter(self, action: str) -> None:
            stage = next((stage for pattern, stage in _STAGES.items() if re.match(pattern, action)), None)
            if stage == "data_wait":
                ledger.next_step()
            if stage is not None and ledger.in_step:
                context = ledger.stage(stage)
                context.__enter__()
                self.entered.append((action, context))

        def on_train_epoch_end(self, trainer: Any, module: Any) -> None:
            self._end(trainer, keep=True)

        def on_exception(self, trainer: Any, module: Any, exception: BaseException) -> None:
            self._end(trainer, keep=False)

        def _end(self, trainer: Any, *, keep: bool) -> None:
            for name in ("start", "stop"):
                vars(trainer.profiler).pop(name, None)  # none outside an epoch
            self.entered.clear()
            ledger.end(keep=keep)

    return LedgerCallback()
