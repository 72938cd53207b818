"""A whole training step of `edge_mask` against `node_mask` and `delta` on the real size, under two allocators.

    python benchmarks/step_of_two_strategies.py [--scale 1.0] [--batch-size 2] [--rounds 7]

HeteroCell's profiling configuration on the CPU, the same samples, weights and predictions. Most of the first
ratio is the default allocator giving pages back and faulting them in again, so both allocators are shown: only
together are they honest. A step makes its view, from a batch that was loaded before. Beside it: a `node_mask` and
a `delta` step against their own sparse sums and matrix products alone (the very calls of one step, replayed),
`edge_mask` and `delta` steps compiled, and `edge_mask`'s layer against PyG's `GINConv` with a mask in its message.
Everything that is compared runs in one process, in alternating order; ratios are medians over rounds, and the
blocks of the short arms are means of five calls.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable
from time import perf_counter
from typing import Any

from tqdm import trange

from tclab.sweeps.config._point import ALLOCATORS

MIN_ROUNDS = 2  # that have quartiles


def measure(scale: float, batch_size: int, rounds: int) -> dict[str, Any]:
    """Return the medians, and the ratios' medians and quartiles, under the allocator of this process."""
    import torch
    from torch import nn
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch_geometric.nn import GINConv

    import tclab
    from tclab.message_passing.kernels import _spmm
    from tclab.models._layers import GINUpdate
    from tclab.models._losses import log_cosh
    from tclab.perturbation import synthetic_perturbations
    from tclab.training._step import compiled_forward

    torch.manual_seed(0)
    graph = tclab.CellGraph.synthetic(scale).without_metabolism()
    perturbations = synthetic_perturbations(graph, batch_size)
    deletions = [perturbations.deletions[b] for b in range(batch_size)]
    model = tclab.models.HeteroCell.profiling(graph)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    strategies = {name: tclab.masking.get(name)(graph) for name in ("edge_mask", "node_mask", "delta")}
    batches = {name: strategy.batch(perturbations) for name, strategy in strategies.items()}

    def plain(model: nn.Module, view: tclab.message_passing.View) -> torch.Tensor:
        predictions: torch.Tensor = model(view)
        return predictions

    compiled = {name: compiled_forward(plain) for name in ("edge_mask", "delta")}

    def step(name: str, forward: Callable[..., torch.Tensor] = plain) -> None:
        with strategies[name].view(batches[name]) as view:
            loss = log_cosh(forward(model, view), perturbations.scores)
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    with torch.no_grad():
        predicted = {name: model(tclab.view(graph, deletions, name)) for name in strategies}
        apart = max((p - predicted["edge_mask"]).abs().max().item() for p in predicted.values())

    calls: dict[str, list[tuple[Any, tuple[Any, ...], dict[str, Any]]]] = {"node_mask": [], "delta": []}
    products = {"mm", "addmm", "bmm", "baddbmm", "_sparse_mm", "_sparse_mm_reduce_impl", "_embedding_bag_forward_only"}
    inner = {
        torch.ops.tclab.spmm.default: _spmm._spmm._init_fn,
        torch.ops.tclab.spmm_sum.default: _spmm._spmm_sum._init_fn,
    }

    class Record(TorchDispatchMode):
        def __init__(self, calls: list[Any]) -> None:
            super().__init__()
            self.calls = calls

        def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if op._schema.name.removeprefix("aten::") in products:
                self.calls.append((op, args, kwargs or {}))
            if op in inner:  # what it calls counts, not what it does besides
                with self:
                    return inner[op](*args, **(kwargs or {}))
            return op(*args, **(kwargs or {}))

    for name, recorded in calls.items():
        with Record(recorded):
            step(name)

    def replay(name: str) -> None:
        with torch.no_grad():
            for op, args, kwargs in calls[name]:
                op(*args, **kwargs)

    class MaskedGINConv(GINConv):
        def forward(self, x: torch.Tensor, edge_index: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            # propagate_type: (x: Tensor, mask: Tensor)
            return self.nn(self.propagate(edge_index, x=x, mask=mask) + (1 + self.eps) * x)

        def message(self, x_j: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            return x_j * mask.unsqueeze(-1).to(x_j.dtype)

    def block() -> nn.Sequential:
        return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64))

    view = strategies["edge_mask"].view(batches["edge_mask"])
    x = torch.randn(batch_size * graph.num_nodes["gene"], 64, requires_grad=True)
    theirs = {name: MaskedGINConv(block(), train_eps=True) for name in graph.networks}
    ours = {name: GINUpdate(name, 64, mlp_layers=2, dropout=0.0) for name in graph.networks}
    edges = {name: view.edges(name) for name in graph.networks}
    norms = nn.ModuleList(nn.Sequential(nn.LayerNorm(64), nn.ReLU()) for _ in graph.networks)

    def layer_of_pyg() -> None:
        parts = [norm(conv(x, *edges[name])) for norm, (name, conv) in zip(norms, theirs.items(), strict=True)]
        torch.stack(parts).sum().backward()

    def layer_of_ours() -> None:
        parts = [conv(view.neighbour_sum(name, x, self_weight=conv.self_weight)) for name, conv in ours.items()]
        torch.stack(parts).sum().backward()

    arms: dict[str, Callable[[], None]] = {
        "edge_mask step": lambda: step("edge_mask"),
        "node_mask step": lambda: step("node_mask"),
        "its sums and products": lambda: replay("node_mask"),
        "delta step": lambda: step("delta"),
        "delta's sums and products": lambda: replay("delta"),
        "delta step, compiled": lambda: step("delta", compiled["delta"]),
        "edge_mask step, compiled": lambda: step("edge_mask", compiled["edge_mask"]),
        "edge_mask layer": layer_of_ours,
        "PyG GINConv layer": layer_of_pyg,
    }
    # A block of the short arms is several calls: the first one pays for the pages and caches that a step of
    # `edge_mask` has just taken, which is not what a training run of one strategy would pay.
    calls_of = dict.fromkeys(list(arms)[1:6], 5)
    for name, forward in compiled.items():
        step(name, forward)  # the first call is not compiled
        step(name, forward)
    seconds: dict[str, list[float]] = {name: [] for name in arms}
    for number in trange(rounds + 2, desc="rounds", leave=False):
        order = list(arms) if number % 2 == 0 else list(arms)[::-1]
        for name in order:
            number_of_calls = calls_of.get(name, 1)
            begin = perf_counter()
            for _ in range(number_of_calls):
                arms[name]()
            if number >= 2:  # the first two rounds warm up
                seconds[name].append((perf_counter() - begin) / number_of_calls)

    def ratio(a: str, b: str) -> list[float]:
        ratios = [p / q for p, q in zip(seconds[a], seconds[b], strict=True)]
        return [statistics.median(ratios), *statistics.quantiles(ratios, n=4)[::2]]

    return {
        "edges": graph.num_edges,
        "apart": apart,
        "seconds": {name: statistics.median(times) for name, times in seconds.items()},
        "edge_mask : node_mask": ratio("edge_mask step", "node_mask step"),
        "edge_mask : delta": ratio("edge_mask step", "delta step"),
        "node_mask : delta": ratio("node_mask step", "delta step"),
        "node_mask : its own sums and products": ratio("node_mask step", "its sums and products"),
        "delta : its own sums and products": ratio("delta step", "delta's sums and products"),
        "edge_mask : delta, compiled": ratio("edge_mask step", "delta step, compiled"),
        "edge_mask, compiled : delta, compiled": ratio("edge_mask step, compiled", "delta step, compiled"),
        "delta, compiled : its own sums and products": ratio("delta step, compiled", "delta's sums and products"),
        "edge_mask layer : PyG's GINConv with a mask": ratio("edge_mask layer", "PyG GINConv layer"),
    }


def main() -> None:
    """Measure under each allocator in a process of its own, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--batch-size", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--here", action="store_true", help="measure in this process, print JSON")
    options = parser.parse_args()
    if options.rounds < MIN_ROUNDS:
        parser.error(f"--rounds {options.rounds}: quartiles need at least {MIN_ROUNDS}")
    if options.here:
        print(json.dumps(measure(options.scale, options.batch_size, options.rounds)))
        return
    for allocator in ("default", "keep_pages"):
        child = subprocess.run(
            [sys.executable, __file__, "--here", *sys.argv[1:]],
            env={**os.environ, **ALLOCATORS[allocator]},
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        measured = json.loads(child.stdout)
        print(f"\nallocator: {allocator}; {measured.pop('edges'):,} edges, batch {options.batch_size}, CPU")
        print(f"  predictions apart by at most {measured.pop('apart'):.1e}")
        for name, value in measured.pop("seconds").items():
            print(f"  {name:<45} {value:8.3f} s")
        for name, (median, low, high) in measured.items():
            print(f"  {name:<45} {median:8.2f} × [quartiles {low:.2f}, {high:.2f}]")


if __name__ == "__main__":
    main()
