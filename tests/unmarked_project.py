"""A Lightning project as its authors would write it, with no mark in it."""

import json
import os
import time
from functools import cache

import lightning.pytorch as pl
import lmdb
import torch
from pydantic import BaseModel
from torch.utils.data import DataLoader, Dataset


class Record(BaseModel):
    genes: list[str]
    fitness: float
    targets: list[float]
    notes: dict[str, str]


def write_records(folder, number=64, targets=400):
    with lmdb.open(str(folder), map_size=1 << 26) as env, env.begin(write=True) as txn:
        for key in range(number):
            record = {
                "genes": [f"YAL{gene:03d}W" for gene in range(400)],
                "fitness": key / number,
                "targets": [float(value) for value in range(targets)],
                "notes": {f"key {name}": "text " * 8 for name in range(60)},
            }
            txn.put(str(key).encode(), json.dumps(record).encode())


@cache  # a process opens a file once
def opened(folder, process):
    return lmdb.open(folder, readonly=True, lock=False)


class Records(Dataset):
    def __init__(self, folder, number=64):
        self.folder = str(folder)
        self.number = number
        self.env = None

    def __len__(self):
        return self.number

    def __getitem__(self, index):
        if self.env is None:
            self.env = opened(self.folder, os.getpid())
        with self.env.begin() as txn:
            raw = txn.get(str(index).encode())
        fields = json.loads(raw)
        record = Record(**fields)
        return torch.tensor(record.targets), torch.tensor(record.fitness)


class Slow:
    """A worker's own imports, as seconds."""

    def __init__(self, seconds):
        self.seconds = seconds

    def __call__(self, worker):
        time.sleep(self.seconds)


class Model(pl.LightningModule):
    def __init__(self, width=400):
        super().__init__()
        self.layer = torch.nn.Linear(width, width)

    def decode(self, output):
        decoded = []
        for row in output:
            total = 0.0
            for value in row:
                total += value.item()
            decoded.append(total)
        return decoded

    def training_step(self, batch, index):
        inputs, _ = batch
        output = self.layer(inputs)
        decoded = self.decode(output.detach())
        return output.square().mean() + 0 * sum(decoded)

    def validation_step(self, batch, index):
        return self.layer(batch[0]).mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=1e-3)


def trainer_of(*, epochs=2, callbacks=()):
    return pl.Trainer(
        max_epochs=epochs,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        callbacks=list(callbacks),
    )


def train(folder, *, epochs=2, callbacks=(), start_seconds=0.2, passes=4, persistent=False):
    data = Records(folder)
    samples = torch.utils.data.RandomSampler(data, num_samples=passes * len(data), replacement=True)
    loader = DataLoader(data, batch_size=8, sampler=samples, num_workers=0)
    validation = DataLoader(
        data, batch_size=32, num_workers=1, worker_init_fn=Slow(start_seconds), persistent_workers=persistent
    )
    trainer = trainer_of(epochs=epochs, callbacks=callbacks)
    trainer.fit(Model(), loader, validation)
    return trainer
