"""A small loop in plain PyTorch, recorded: something to look at before there is a trace of one's own."""

import tempfile
from pathlib import Path

from tclab.trace.record import record


def example(folder: str | Path | None = None, *, width: int = 256, steps: int = 12) -> Path:
    """Train a small perceptron for some steps under `record` and return the folder with its trace.

    `folder` is made where it does not exist; without one a temporary folder is made, which stays.
    """
    import torch
    from torch.profiler import record_function

    folder = Path(folder or tempfile.mkdtemp(prefix="tclab-trace-"))
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = torch.nn.Sequential(torch.nn.Linear(64, width), torch.nn.ReLU(), torch.nn.Linear(width, 1)).to(device)
    optimizer = torch.optim.Adam(model.parameters())
    features, targets = torch.randn(2048, 64), torch.randn(2048, 1)
    with record(folder, wait=5, warmup=2, active=4, steps=steps, memory=True, shapes=True) as recorder:
        for _ in range(steps):
            with record_function("## data_load ##"):
                rows = torch.randperm(len(features))[:512]
                batch, wanted = features[rows].to(device), targets[rows].to(device)
            with record_function("## forward ##"):
                predicted = model(batch)
            with record_function("## loss ##"):
                loss = torch.nn.functional.mse_loss(predicted, wanted)
            with record_function("## backward ##"):
                torch.autograd.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            recorder.step()
    return folder
