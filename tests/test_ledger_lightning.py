"""The ledger around a Lightning trainer that knows nothing of it."""

import time

import pytest
import torch

lightning = pytest.importorskip("lightning.pytorch", reason="lightning is an extra: pip install 'tclab[lightning]'")

from tclab.timing import Ledger, lightning_callback  # noqa: E402


class Module(lightning.LightningModule):
    def __init__(self, ledger, fails_at=None):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
        self.ledger, self.fails_at = ledger, fails_at

    def training_step(self, batch, index):
        if index == self.fails_at:
            raise ValueError("no")
        time.sleep(0.004)
        output = self.layer(batch)
        with self.ledger.stage("loss"):
            time.sleep(0.003)
            return output.square().mean()

    def backward(self, loss):
        time.sleep(0.005)
        loss.backward()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


class Sleeper(lightning.Callback):
    def on_train_batch_end(self, *args):
        time.sleep(0.002)


def slow(rows):
    time.sleep(0.002)
    return torch.stack(rows)


def trained(module, **options):
    quiet = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
    callbacks = [Sleeper(), lightning_callback(module.ledger)]
    trainer = lightning.Trainer(max_epochs=2, accelerator="cpu", callbacks=callbacks, **quiet, **options)
    trainer.fit(module, torch.utils.data.DataLoader(list(torch.ones(8, 4)), batch_size=2, collate_fn=slow))
    return trainer


pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.mark.clock
def test_each_stage_of_a_trainer_is_where_its_time_went():
    ledger = Ledger()
    trainer = trained(Module(ledger), gradient_clip_val=1.0, profiler="simple")
    assert len(ledger) == 8  # two epochs of four batches
    seconds = ledger.seconds()
    least = {"data_wait": 0.002, "forward": 0.004, "loss": 0.003, "backward": 0.005, "log": 0.002}
    for stage, slept in least.items():  # the module's own stage is taken out of `forward`
        assert len(seconds[stage]) == 8
        assert min(seconds[stage]) >= slept, stage
    assert len(seconds["clip"]) == len(seconds["optimizer"]) == 8
    # the closure that runs inside the optimizer's step, forward and backward, is not in it
    assert min(seconds["optimizer"]) < min(seconds["backward"])
    for step in range(8):  # nothing counts twice
        assert sum(s[step] for name, s in seconds.items() if name != "step") == pytest.approx(seconds["step"][step])
    assert ledger.adds_up()
    assert type(trainer.profiler).__name__ == "SimpleProfiler"  # put back, and it went on
    assert trainer.profiler.recorded_durations["run_training_batch"]


def test_a_step_that_fails_is_no_step():
    ledger = Ledger()
    with pytest.raises(ValueError, match="no"):
        trained(Module(ledger, fails_at=2))
    assert len(ledger) == 2
