"""The ledger, and the times of loaders, around a Lightning trainer that knows nothing of them."""

import time

import pytest
import torch
from clock import Clock

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


# ---- by a clock of the test's own: each second is on its stage


class Counted(lightning.LightningModule):
    """Each hook takes a time of its own: whole seconds of training, hundreds of validation."""

    def __init__(self, ledger, clock):
        super().__init__()
        self.layer, self.other = torch.nn.Linear(4, 1), torch.nn.Linear(4, 1)
        self.ledger, self.clock = ledger, clock

    def transfer_batch_to_device(self, batch, device, dataloader_idx):
        self.clock.work(1 if self.trainer.training else 100)
        return batch

    def shared_step(self, batch):
        self.clock.work(2 if self.trainer.training else 200)
        with self.ledger.stage("loss"):
            self.clock.work(4 if self.trainer.training else 400)
        return self.layer(batch).square().mean()

    def training_step(self, batch, index):
        return self.shared_step(batch)

    def validation_step(self, batch, index):
        self.log("loss", self.shared_step(batch))

    test_step = validation_step

    def backward(self, loss, *given, **options):
        self.clock.work(8)
        loss.backward()

    def configure_optimizers(self):
        clock = self.clock

        class Slow(torch.optim.SGD):
            def step(self, closure=None):
                found = super().step(closure)
                clock.work(16)
                return found

        made = [Slow(part.parameters(), lr=0.1) for part in (self.layer, self.other)]
        return made if not self.automatic_optimization else made[0]


class Manual(Counted):
    """Two optimizers, stepped by hand."""

    automatic_optimization = property(lambda self: False, lambda self, value: None)

    def training_step(self, batch, index):
        for optimizer in self.optimizers():
            optimizer.zero_grad()
            self.manual_backward(self.shared_step(batch))
            optimizer.step()


def counted(monkeypatch, kind=Counted, fit=True, **options):
    clock, ledger = Clock().set_in(monkeypatch), Ledger()
    module = kind(ledger, clock)
    quiet = dict.fromkeys(("logger", "enable_progress_bar", "enable_model_summary", "enable_checkpointing"), False)
    trainer = lightning.Trainer(
        **quiet | {"max_epochs": 1, "accelerator": "cpu", "callbacks": [lightning_callback(ledger)], **options}
    )
    loader = torch.utils.data.DataLoader(list(torch.ones(4, 4)))
    if fit:
        trainer.fit(module, loader, torch.utils.data.DataLoader(list(torch.ones(2, 4))))
    else:
        trainer.test(module, loader, verbose=False)
    assert "stage" not in vars(ledger)
    return ledger, {stage: [round(s) for s in seconds] for stage, seconds in ledger.seconds().items()}


@pytest.mark.parametrize(
    ("options", "validation"),
    [
        ({"num_sanity_val_steps": 0}, [1400]),  # after the last step: two batches of 100 + 200 + 400
        ({"val_check_interval": 0.5, "num_sanity_val_steps": 2}, [1400, 1400]),
        ({"val_check_interval": 1, "limit_val_batches": 1, "num_sanity_val_steps": 1}, [700] * 4),
        ({"limit_val_batches": 0}, []),
    ],
)
def test_validation_within_an_epoch_takes_no_time_from_the_stages_of_training(monkeypatch, options, validation):
    ledger, seconds = counted(monkeypatch, **options)
    training = {name: seconds[name] for name in ("transfer", "forward", "loss", "backward", "optimizer")}
    assert training == {name: [took] * 4 for name, took in zip(training, (1, 2, 4, 8, 16), strict=True)}
    assert seconds.get("validation", []) == validation
    assert len(ledger) == 4
    assert sum(seconds["step"]) == 4 * 31 + sum(validation)


def test_two_optimizers_stepped_by_hand_and_accumulated_gradients_are_on_their_stages(monkeypatch):
    _, seconds = counted(monkeypatch, Manual)
    assert (seconds["forward"], seconds["loss"]) == ([4] * 4, [8] * 4)
    assert (seconds["backward"], seconds["optimizer"]) == ([16] * 4, [32] * 4)
    ledger, seconds = counted(monkeypatch, accumulate_grad_batches=2)
    assert (seconds["backward"], [*filter(None, seconds["optimizer"])], len(ledger)) == ([8] * 4, [16] * 2, 4)


def test_a_test_without_training_is_not_timed_and_the_modules_own_stages_do_no_harm(monkeypatch):
    ledger, seconds = counted(monkeypatch, fit=False)
    assert (len(ledger), seconds) == (0, {})
