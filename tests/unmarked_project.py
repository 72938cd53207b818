"""A Lightning project as its authors would write it, with no mark in it: records are JSON that its dataset decodes."""

import json
import time

import lightning.pytorch as pl
import torch
from torch.utils.data import DataLoader, Dataset, RandomSampler

WIDTH = 400


class Records(Dataset):
    def __init__(self, number=64):
        notes = {f"key {name}": "text " * 8 for name in range(300)}
        self.texts = [json.dumps({"targets": [float(key)] * WIDTH, "notes": notes}) for key in range(number)]

    def __len__(self):
        return len(self.texts)

    def __getitem__(self, index):
        return torch.tensor(json.loads(self.texts[index])["targets"])


class Slow:
    """A worker's own imports, as seconds."""

    def __init__(self, seconds):
        self.seconds = seconds

    def __call__(self, worker):
        time.sleep(self.seconds)


class Model(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(WIDTH, WIDTH)

    def decode(self, output):
        return [sum(value.item() for value in row) for row in output]

    def training_step(self, batch, index):
        output = self.layer(batch)
        return output.square().mean() + 0 * sum(self.decode(output.detach()))

    def validation_step(self, batch, index):
        return self.layer(batch).mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=1e-3)


def trainer_of(*, epochs=2, callbacks=()):
    quiet = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
    return pl.Trainer(max_epochs=epochs, accelerator="cpu", num_sanity_val_steps=0, callbacks=list(callbacks), **quiet)


def train(*, epochs=2, callbacks=(), start_seconds=0.2, passes=4, persistent=False):
    data = Records()
    sampler = RandomSampler(data, num_samples=passes * len(data), replacement=True)
    loader = DataLoader(data, batch_size=8, sampler=sampler, num_workers=0)
    validation = DataLoader(
        data, batch_size=32, num_workers=1, worker_init_fn=Slow(start_seconds), persistent_workers=persistent
    )
    trainer_of(epochs=epochs, callbacks=callbacks).fit(Model(), loader, validation)
