"""The ledger, and the times of loaders, around a Lightning trainer that knows nothing of them.

The clock is the test's own: each hook takes a time of its own, whole seconds of training and hundreds of validation.
"""

import pytest
import torch
from clock import Clock
from torch.utils.data import DataLoader, IterableDataset

lightning = pytest.importorskip("lightning.pytorch", reason="lightning is an extra: pip install 'tclab[lightning]'")

from tclab.timing import Ledger, lightning_callback, loader_times  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")
TRAINING = {"transfer": 1, "forward": 2, "loss": 4, "backward": 8, "optimizer": 16, "log": 32, "data_wait": 64}


class Module(lightning.LightningModule):
    fails_at = None

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
        if index == self.fails_at:
            raise ValueError("no")
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


class Manual(Module):
    """Two optimizers, stepped by hand."""

    automatic_optimization = property(lambda self: False, lambda self, value: None)

    def training_step(self, batch, index):
        for optimizer in self.optimizers():
            optimizer.zero_grad()
            self.manual_backward(self.shared_step(batch))
            optimizer.step()


class Failing(Module):
    fails_at = 2


class Thrice(Module):
    """An optimizer that asks for each batch's loss three times."""

    def configure_optimizers(self):
        return torch.optim.LBFGS(self.layer.parameters(), lr=1e-3, max_iter=3)


class Stream(IterableDataset):
    """Four samples that nobody counts."""

    def __iter__(self):
        return iter(torch.ones(4, 4))


@pytest.fixture
def trained(monkeypatch):
    """A function that trains a module on four batches, and returns its ledger, stage → seconds, and the trainer."""

    def train(kind=Module, fit=True, stream=None, **options):
        clock, ledger = Clock().set_in(monkeypatch), Ledger()

        def slow(rows):
            clock.work(64)
            return torch.stack(rows)

        works = lightning.callbacks.LambdaCallback(on_train_batch_end=lambda *given: clock.work(32))
        quiet = dict.fromkeys(("logger", "enable_progress_bar", "enable_model_summary", "enable_checkpointing"), False)
        options = {"max_epochs": 1, "accelerator": "cpu", "callbacks": [works, lightning_callback(ledger)], **options}
        trainer, rows = lightning.Trainer(**quiet | options), list(torch.ones(4, 4))
        module = kind(ledger, clock)
        try:
            if fit:
                trainer.fit(module, DataLoader(stream or rows, collate_fn=slow), DataLoader(rows[:2], num_workers=1))
            else:
                trainer.test(module, DataLoader(rows), verbose=False)
        finally:
            assert not ledger.muted
            assert not vars(trainer.profiler).keys() & {"start", "stop"}  # put back
        return ledger, {stage: [round(s) for s in seconds] for stage, seconds in ledger.seconds().items()}, trainer

    return train


@pytest.mark.parametrize(
    ("options", "validation"),
    [
        ({"num_sanity_val_steps": 0}, [1400]),  # after the last step: two batches of 100 + 200 + 400
        ({"val_check_interval": 0.5, "num_sanity_val_steps": 2}, [1400, 1400]),
        ({"val_check_interval": 1, "limit_val_batches": 1, "num_sanity_val_steps": 1}, [700] * 4),
        ({"limit_val_batches": 0}, []),
    ],
)
def test_validation_within_an_epoch_takes_no_time_from_the_stages_of_training(trained, options, validation):
    ledger, seconds, _ = trained(**options)
    assert {name: seconds[name] for name in TRAINING} == {name: [took] * 4 for name, took in TRAINING.items()}
    assert seconds.get("validation", []) == validation
    assert len(ledger) == 4
    assert sum(seconds["step"]) == 4 * sum(TRAINING.values()) + sum(validation)


def test_every_second_of_two_epochs_is_on_a_stage_and_each_loader_has_its_times(trained):
    with loader_times() as found:
        ledger, seconds, trainer = trained(max_epochs=2, gradient_clip_val=1.0, profiler="simple")
    assert len(ledger) == len(seconds["clip"]) == 8
    assert ledger.adds_up()
    assert ledger.begins == [0, 4]  # an epoch is one block
    assert trainer.profiler.recorded_durations["run_training_batch"]  # the trainer's own went on
    validating, training = found.by_loader()  # a sanity check comes first
    rows = {loader: of_worker[:3] for loader, *of_worker in found.rows()}
    assert (rows[training][:2], rows[validating]) == ([None, 8], [0, 6, 3])
    again = found.restarts()[validating]
    assert [(each.workers, each.training) for each in again] == [(1, False)] * 2
    assert found.by_loader()[training][0].training


def test_a_stream_without_a_length_and_a_closure_that_is_called_thrice(trained):
    ledger, seconds, _ = trained(stream=Stream())
    assert (len(ledger), {name: seconds[name][0] for name in TRAINING}) == (4, TRAINING)
    _, seconds, _ = trained(Thrice, limit_val_batches=0)
    assert [seconds[name] for name in ("forward", "loss", "backward")] == [[6] * 4, [12] * 4, [24] * 4]


def test_two_optimizers_stepped_by_hand_and_accumulated_gradients_are_on_their_stages(trained):
    _, seconds, _ = trained(Manual)
    assert (seconds["forward"], seconds["loss"]) == ([4] * 4, [8] * 4)
    assert (seconds["backward"], seconds["optimizer"]) == ([16] * 4, [32] * 4)
    ledger, seconds, _ = trained(accumulate_grad_batches=2)
    assert (seconds["backward"], [*filter(None, seconds["optimizer"])], len(ledger)) == ([8] * 4, [16] * 2, 4)


def test_a_step_that_fails_is_no_step_and_a_test_without_training_is_not_timed(trained, monkeypatch):
    ledger = Ledger()
    monkeypatch.setattr(f"{__name__}.Ledger", lambda: ledger)
    with pytest.raises(ValueError, match="no"):
        trained(Failing)
    assert len(ledger) == 2
    monkeypatch.undo()
    ledger, seconds, _ = trained(fit=False)
    assert (len(ledger), seconds) == (0, {})
