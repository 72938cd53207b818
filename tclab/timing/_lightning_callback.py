"""A Lightning callback that times the training steps of any `Trainer` with a `Ledger`."""

from __future__ import annotations

import importlib
import re
from contextlib import ExitStack
from typing import Any
from unittest.mock import patch

from tclab.timing._ledger import Ledger

# The first pattern that matches the name of a Lightning profiler action gives its stage. An action without a stage
# belongs to the stage around it, or to `other`.
_STAGES = {
    r".*train_dataloader_next$": "data_wait",
    r".*(batch_to_device|_batch_transfer)$": "transfer",
    r"\[Strategy\].*\.training_step$": "forward",
    r".*\.configure_gradient_clipping$": "clip",
    r"(.*\.)?(optimizer_step|optimizer_zero_grad|lr_scheduler_step)$": "optimizer",
    r"\[Callback\].*": "log",
    r"save_checkpoint$": "checkpoint",
}


def lightning_callback(ledger: Ledger) -> Any:
    """Return a `lightning.Callback` that times a trainer's training steps with a ledger.

    `Trainer(callbacks=[lightning_callback(ledger)])`. It receives the same actions as Lightning's profilers, so
    `forward` is the module's `training_step` (loss included), and `optimizer` is the optimizer's step without the
    closure that Lightning runs inside it. Stages that the module enters itself, `with ledger.stage("loss")`, are taken
    out of these. `validation` is a whole run of the validation loop between two steps, its transfers, the start of its
    workers and the module's own stages in it included; checkpoints that are saved in it are `checkpoint`. What is
    validated, tested or predicted outside an epoch, such as Lightning's sanity check, is not timed, and the module's
    own stages do nothing there. A profiler that the trainer already has keeps working.

    **Arguments:**

    - `ledger`: records the steps.

    **Raises:** `ImportError` if neither `lightning` nor `pytorch_lightning` is installed.
    """
    try:
        lightning: Any = importlib.import_module("lightning.pytorch")
    except ImportError:
        lightning = importlib.import_module("pytorch_lightning")

    class LedgerCallback(lightning.Callback):  # type: ignore[misc]
        """Wraps methods of the trainer's profiler, strategy and validation loop while it trains an epoch."""

        def __init__(self) -> None:
            self.entered: list[tuple[str, Any]] = []  # (action, context of its stage), innermost last
            self.wrapped = ExitStack()

        def setup(self, trainer: Any, module: Any, stage: str) -> None:
            ledger.muted = True  # but within steps

        def teardown(self, trainer: Any, module: Any, stage: str) -> None:
            ledger.muted = False

        def on_train_epoch_start(self, trainer: Any, module: Any) -> None:
            profiler, strategy, loop = trainer.profiler, trainer.strategy, trainer.fit_loop.epoch_loop.val_loop
            start, stop, backward, run = profiler.start, profiler.stop, strategy.backward, loop.run

            def starting(action: str) -> None:
                stage = next((stage for pattern, stage in _STAGES.items() if re.match(pattern, action)), None)
                if stage == "data_wait":
                    ledger.next_step()
                    ledger.muted = False
                if stage is not None:
                    in_validation = stage == "checkpoint" and ledger.in_step
                    with patch.object(ledger, "muted", ledger.muted and not in_validation):
                        context = ledger.stage(stage)
                    context.__enter__()
                    self.entered.append((action, context))
                start(action)

            def stopping(action: str) -> None:
                stop(action)
                if self.entered and self.entered[-1][0] == action:
                    self.entered.pop()[1].__exit__(None, None, None)

            def going_back(*given: Any, **options: Any) -> Any:  # also by hand, which is no action
                with ledger.stage("backward"):
                    return backward(*given, **options)

            def validating() -> Any:
                with ledger.stage("validation"), patch.object(ledger, "muted", True):
                    return run()

            self.wrapped.enter_context(patch.multiple(profiler, start=starting, stop=stopping))
            self.wrapped.enter_context(patch.object(strategy, "backward", going_back))
            self.wrapped.enter_context(patch.object(loop, "run", validating))

        def on_train_epoch_end(self, trainer: Any, module: Any) -> None:
            self._end(keep=True)

        def on_exception(self, trainer: Any, module: Any, exception: BaseException) -> None:
            self._end(keep=False)
            ledger.muted = False

        def _end(self, *, keep: bool) -> None:
            self.wrapped.close()
            self.entered.clear()
            ledger.end(keep=keep)
            ledger.muted = True

    return LedgerCallback()
