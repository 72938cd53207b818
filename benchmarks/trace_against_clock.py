"""Agreement of trace and ledger on each stage of the same steps.

    python benchmarks/trace_against_clock.py [--steps 60] [--strategy node_mask] [--model hetero_cell]

tclab's training step runs under a ledger that marks its stages in the trace, in steps that the profiler records. Each
part of the step in the trace (self time within a stage's marks) is compared with the ledger's sum over these steps.
"""

import argparse
import tempfile
from pathlib import Path

import pandas as pd
import torch

import tclab
from tclab import trace
from tclab.perturbation import synthetic_perturbations
from tclab.timing import Ledger
from tclab.trace._report import Report
from tclab.training._loading import Batches
from tclab.training._step import Step

PARTS = {
    "data_loading": ("data_wait", "transfer"),
    "graph_processing": ("mask",),
    "model_forward": ("forward",),
    "loss_computation": ("loss",),
    "backward": ("backward",),
    "optimizer": ("clip", "optimizer"),
}


def recorded(
    folder: Path, steps: int, model: str, strategy: str, scale: float, device: str
) -> tuple[Path, Ledger, int]:
    """Return the trace, the ledger, and the first step that both saw."""
    kind, masking = tclab.models.get(model), tclab.masking.get(strategy)
    graph = tclab.CellGraph.synthetic(scale, metabolism=False)
    graph = graph.select(tuple(kind.default_networks(list(graph.networks))))
    first, size = 5, 4
    perturbations = synthetic_perturbations(graph, size * (first + steps))
    loading = masking(graph)
    loading.prepare(perturbations, folder / "store")
    batches = Batches(loading, perturbations, size)
    step = Step(kind, masking(graph.to(device)))
    planned = first + steps
    with (
        trace.record(folder, wait=first - 2, warmup=2, active=steps, steps=planned) as recorder,
        Ledger(marks=True) as ledger,
    ):
        for loaded in ledger.steps(batches[number] for number in range(planned)):
            step(loaded.batch, stage=ledger.stage)
            recorder.step()
    assert recorder.path is not None
    return recorder.path, ledger, first


def compare(
    folder: Path,
    *,
    steps: int,
    model: str = "hetero_cell",
    strategy: str = "node_mask",
    scale: float = 0.1,
    device: str = "cpu",
) -> tuple[Report, pd.DataFrame]:
    """Return the report of a trace that is written to a folder, and each part of the step in it and in the ledger."""
    path, ledger, first = recorded(folder, steps, model, strategy, scale, device)
    report = trace.analyze(path)
    account = report.stages.set_index("stage")["self_us"]
    frame = ledger.frame()
    frame = frame[(frame.step >= first) & (frame["timeline"] == "host")]
    seconds = frame.groupby("stage").seconds.sum()
    table = pd.DataFrame(
        {
            "ledger_us": {part: sum(seconds[stage] for stage in stages) * 1e6 for part, stages in PARTS.items()},
            "trace_us": {part: account[part] for part in PARTS},
        }
    )
    table["difference"] = table["trace_us"] / table["ledger_us"] - 1
    table["us_per_step"] = (table["trace_us"] - table["ledger_us"]) / steps
    return report, table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--model", default="hetero_cell")
    parser.add_argument("--strategy", default="node_mask")
    parser.add_argument("--scale", type=float, default=0.1)
    parser.add_argument("--device", default="cpu")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        _, table = compare(Path(folder), **vars(chosen))
    print(table.round(4).to_string())
    print(f"largest difference: {table['difference'].abs().max():.2%} (5 % allowed)")


if __name__ == "__main__":
    main()
