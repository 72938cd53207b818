"""The ledger, and the times of loaders, around a Lightning trainer that knows nothing of them."""

import time

import pytest
import torch

lightning = pytest.importorskip("lightning.pytorch", reason="lightning is an extra: pip install 'tclab[lightning]'")

from tclab.timing import Ledger, lightning_callback, loader_times  # noqa: E402


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

    def validation_step(self, batch, index):
        return self.layer(batch).mean()

    def backward(self, loss):
        time.sleep(0.005)
        loss.backward()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def slow(rows):
    time.sleep(0.005)
    return torch.stack(rows)


def starting(worker):
    time.sleep(0.2)


def trained(module, **options):
    quiet = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
    sleeps = lightning.callbacks.LambdaCallback(on_train_batch_end=lambda *given: time.sleep(0.002))
    callbacks = [sleeps, lightning_callback(module.ledger)]
    trainer = lightning.Trainer(
        max_epochs=2, accelerator="cpu", num_sanity_val_steps=0, callbacks=callbacks, **quiet, **options
    )
    rows = list(torch.ones(8, 4))
    training = torch.utils.data.DataLoader(rows, batch_size=2, collate_fn=slow)
    trainer.fit(module, training, torch.utils.data.DataLoader(rows, num_workers=1, worker_init_fn=starting))
    return trainer


pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.mark.clock
def test_each_stage_of_a_trainer_and_each_worker_of_its_loaders_is_where_its_time_went():
    ledger = Ledger()
    with loader_times() as found:
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
    parts = ledger.frame().query("stage != 'step'").groupby("step").seconds.sum()
    assert parts.tolist() == pytest.approx(seconds["step"])  # nothing counts twice
    assert ledger.adds_up()
    assert ledger.begins == [0, 4]  # an epoch is one block
    assert not vars(trainer.profiler).keys() & {"start", "stop"}  # put back, and it went on
    assert trainer.profiler.recorded_durations["run_training_batch"]
    training, validating = found.by_loader()
    rows = {loader: of_worker[:3] for loader, *of_worker in found.rows()}
    assert (rows[training][:2], rows[validating]) == ([None, 8], [0, 16, 2])
    (again,) = found.restarts()[validating]
    assert (again.workers, again.training, found.by_loader()[training][0].training) == (1, False, True)
    assert again.starts[0] > 0.2  # what a worker does before its first sample
    waited = sum(one.wait_seconds for one in found.by_loader()[training])
    assert 8 * 0.005 <= waited <= sum(seconds["data_wait"])  # at least what `slow` takes, and a part of the stage


def test_a_step_that_fails_is_no_step():
    ledger = Ledger()
    with pytest.raises(ValueError, match="no"):
        trained(Module(ledger, fails_at=2))
    assert len(ledger) == 2
