"""Do trace and clock agree on each stage of a loop that is both timed by perf_counter and profiled?

    python benchmarks/trace_against_clock.py [--steps 30] [--width 768] [--lab node_mask]

A CPU loop whose stages are marked by `record_function` and, just inside the mark, timed by
`time.perf_counter_ns`. The spans are laid into the trace, and each stage's sum over the profiled steps is
compared with the trace's own account of the stage (self time of everything within its mark). `--lab` does so for
the lab's own training step with one of its strategies in place of the plain loop. Setting a mark
takes some microseconds, so stages much shorter than a millisecond agree less well; the last column shows it
per span.
"""

import argparse
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pandas as pd
import torch

import tclab
from tclab import trace
from tclab.perturbation import synthetic_perturbations
from tclab.training import Step

STAGES = {
    "data": "data_loading",
    "graph": "graph_processing",
    "forward": "model_forward",
    "loss": "loss_computation",
    "backward": "backward",
    "optimizer": "optimizer",
}


def recorded_loop(folder: Path, steps: int, width: int) -> tuple[Path, list[tuple[str, int, int]]]:
    model = torch.nn.Sequential(torch.nn.Linear(width, width), torch.nn.ReLU(), torch.nn.Linear(width, width))
    optimizer = torch.optim.Adam(model.parameters())
    held: dict[str, torch.Tensor] = {}

    def data() -> None:
        held["x"] = torch.randn(256, width)

    def forward() -> None:
        held["y"] = model(held["x"])

    def loss() -> None:
        held["loss"] = torch.nn.functional.mse_loss(held["y"], held["x"])

    def backward() -> None:
        torch.autograd.backward(held["loss"])

    def step() -> None:
        optimizer.step()
        optimizer.zero_grad()

    work: dict[str, Callable[[], None]] = {
        "data": data,
        "forward": forward,
        "loss": loss,
        "backward": backward,
        "optimizer": step,
    }
    spans: list[tuple[str, int, int]] = []
    wait = 5
    with trace.record(folder, wait=wait, warmup=2, active=steps, steps=wait + 2 + steps) as recorder:
        for _ in range(wait + 2 + steps):
            for name, run in work.items():
                with torch.profiler.record_function(f"## {name} ##"):
                    begin = time.perf_counter_ns()
                    run()
                    spans.append((name, begin, time.perf_counter_ns()))
            recorder.step()
    assert recorder.path is not None
    print(f"profiled steps took {recorder.overhead_ratio:.3f} × as long as unprofiled ones")
    return recorder.path, spans


def recorded_lab_steps(folder: Path, steps: int, strategy: str) -> tuple[Path, list[tuple[str, int, int]]]:
    """Record HeteroCell's training step, its stages as the sweep times them."""
    graph = tclab.CellGraph.synthetic(0.1, metabolism=False)
    perturbations = synthetic_perturbations(graph, 4)
    kind = tclab.masking.get(strategy)
    loading = kind(graph)
    loading.prepare(perturbations, folder / "store")
    batch = loading.collate([loading.sample(b, perturbations.deletions[b], 0.0) for b in range(4)])
    step = Step(tclab.models.get("hetero_cell"), kind(graph))
    spans: list[tuple[str, int, int]] = []

    @contextmanager
    def stage(name: str) -> Iterator[None]:
        name = {"transfer": "data", "mask": "graph"}.get(name, name)
        with torch.profiler.record_function(f"## {name} ##"):
            begin = time.perf_counter_ns()
            yield
            spans.append((name, begin, time.perf_counter_ns()))

    wait = 3
    with trace.record(folder, wait=wait, warmup=2, active=steps, steps=wait + 2 + steps) as recorder:
        for _ in range(wait + 2 + steps):
            step(batch, stage=stage)
            recorder.step()
    assert recorder.path is not None
    return recorder.path, spans


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--lab", metavar="STRATEGY")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        if chosen.lab:
            path, spans = recorded_lab_steps(Path(folder), chosen.steps, chosen.lab)
        else:
            path, spans = recorded_loop(Path(folder), chosen.steps, chosen.width)
        laid = trace.lay_spans(path, spans, Path(folder) / "laid" / "trace.json.gz")
        report = trace.analyze(laid)
        events = report.traces[0].table()
    clock = events[events["category"] == "ledger"].groupby("name")["duration_us"].sum()
    account = report.stages.set_index("stage")["self_us"]
    stages = {name: category for name, category in STAGES.items() if name in clock.index}
    table = pd.DataFrame({"clock_us": clock[list(stages)], "trace_us": [account[s] for s in stages.values()]})
    table["difference"] = table["trace_us"] / table["clock_us"] - 1
    table["us_per_span"] = (table["trace_us"] - table["clock_us"]) / chosen.steps
    print(table.round(4).to_string())
    print(f"largest difference: {table['difference'].abs().max():.2%} (5 % allowed)")


if __name__ == "__main__":
    main()
