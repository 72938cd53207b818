"""Deletions on a sparse graph: training steps over rows that differ, over whole samples, and by PyG, as one table.

    python benchmarks/sparse.py                    # a power grid of 2,000 stations: three minutes of one quiet core
    python benchmarks/sparse.py --large            # only 200,000 nodes, 600,000 lines; PyG takes 4 of the 64 samples
    python benchmarks/sparse.py --share            # by lines per station and failures: where rows that differ pay
    python benchmarks/sparse.py --features         # nothing deleted, other features in each sample

Three SAGE layers of width 64, the mean over all stations, a linear layer; each sample deletes one to three stations.
The grid is made here: a ring with short chords. Before a race the ways' losses and gradients are compared, in fp64.
Memory is the most that torch has allocated at once in a step, beyond what was there before. Times of steps of different
numbers of samples are compared per sample.
"""

import argparse
from functools import partial
from time import perf_counter

import pandas as pd
import torch
import torch_geometric.nn as pyg
from ports import peak_mebibytes
from torch_geometric.data import Batch, Data
from torch_geometric.utils import subgraph

from tclab import SharedGraph, timing
from tclab.message_passing import ChangedRows, SharedSAGEConv, _changed_rows
from tclab.sweeps.predict import least_seconds
from tclab.timing._environment import environment

WIDTH, LAYERS = 64, 3
HEAD = "| nodes, lines, samples | {0} | median ms | as fast as {1} | peak MiB |"


def grid(nodes, lines, seed=0):
    """Return the edges of a made-up grid, both ways, [2, 2 * lines]: a ring, and chords to stations up to 60 away."""
    generator = torch.Generator().manual_seed(seed)
    ring, chord = torch.arange(nodes), torch.randint(nodes, (lines - nodes,), generator=generator)
    away = torch.randint(2, 60, chord.shape, generator=generator)
    ends = torch.stack([torch.cat([ring, chord]), torch.cat([ring + 1, chord + away]) % nodes])
    return torch.cat([ends, ends.flip(0)], dim=1)


def failures(nodes, size, most=3, seed=1):
    """Return for each sample the one to `most` stations that it deletes."""
    generator = torch.Generator().manual_seed(seed)
    numbers = torch.randint(1, most + 1, (size,), generator=generator).tolist()
    return [torch.randint(nodes, (n,), generator=generator).unique() for n in numbers]


class Model(torch.nn.Module):
    """SAGE layers of a kind, and what is read out of the mean of their rows."""

    def __init__(self, kind):
        super().__init__()
        self.convs = torch.nn.ModuleList([kind(WIDTH, WIDTH) for _ in range(LAYERS)])
        self.head = torch.nn.Linear(WIDTH, 1)


class Ways:
    """The ways to compute a training step over the same samples; each returns the loss and leaves gradients."""

    def __init__(self, nodes, lines, samples, dtype=torch.float32):
        self.edge_index, self.samples = grid(nodes, lines), samples
        self.x, self.y = torch.randn(nodes, WIDTH, dtype=dtype), torch.randn(len(samples), 1, dtype=dtype)
        self.shared = SharedGraph(self.edge_index, nodes)
        self.theirs, self.ours = Model(pyg.SAGEConv).to(dtype), Model(SharedSAGEConv).to(dtype)
        self.ours.load_state_dict(self.theirs.state_dict())

    def changed_rows(self):
        """Compute the wild type once, and of each sample the rows that differ."""
        rows = ChangedRows(self.x, self.samples)
        for conv in self.ours.convs:
            rows = conv(rows, self.shared).map(torch.relu)
        return self._loss(self.ours, rows.mean())

    def whole_samples(self):
        """Compute every row of every sample by the shared layers."""
        keep = torch.ones(len(self.x), len(self.samples), dtype=torch.bool)
        for b, deleted in enumerate(self.samples):
            keep[deleted, b] = False
        x = self.x.unsqueeze(1).expand(-1, len(self.samples), -1)
        for conv in self.ours.convs:
            x = conv(x, self.shared, keep).relu()
        return self._loss(self.ours, x.sum(0) / keep.sum(0).unsqueeze(1))

    def pyg_batch(self, size=None):
        """Compute PyG's batch of the samples' subgraphs, or of the first `size` where all are too large."""
        data = []
        for deleted in self.samples[:size]:
            keep = torch.ones(len(self.x), dtype=torch.bool).index_fill_(0, deleted, False)
            left, _ = subgraph(keep, self.edge_index, relabel_nodes=True, num_nodes=len(self.x))
            data.append(Data(x=self.x[keep], edge_index=left))
        batch = Batch.from_data_list(data)
        x = batch.x
        for conv in self.theirs.convs:
            x = conv(x, batch.edge_index).relu()
        return self._loss(self.theirs, pyg.global_mean_pool(x, batch.batch))

    def _loss(self, model, pooled):
        model.zero_grad()
        loss = (model.head(pooled) - self.y[: len(pooled)]).square().mean()
        loss.backward()
        return loss.detach()


def compare(nodes, lines, size):
    """Raise an AssertionError where the ways' losses and gradients in fp64 are not the same to 1e-10."""
    ways = Ways(nodes, lines, failures(nodes, size), torch.float64)
    found = []
    for way, model in ((ways.pyg_batch, ways.theirs), (ways.whole_samples, ways.ours), (ways.changed_rows, ways.ours)):
        found.append([way(), *(p.grad.clone() for p in model.parameters())])
    for exact, *others in zip(*found, strict=True):
        for other in others:
            torch.testing.assert_close(other, exact, rtol=1e-10, atol=1e-10)


def race(calls, title, size_words, rounds, samples=None):
    """Print a line a way: its median, and how many times as fast the first is.

    `samples` has the number of a step of each way where they differ; medians and ratios are then per sample.
    """
    seconds, peaks = {}, {}
    for name, call in calls.items():
        call()
        begin = perf_counter()
        call()
        seconds[name] = perf_counter() - begin
        peaks[name] = peak_mebibytes(call)
    best, per = next(iter(calls)), samples or dict.fromkeys(calls, 1)
    if samples:
        steps_of = ", ".join(f"{name} at {number} samples a step" for name, number in samples.items())
        print(f"Times are per sample; {steps_of}.\n")
    print(HEAD.format(title, best), "|---" * 5 + "|", sep="\n")
    budget = max(rounds * 4 * sum(seconds.values()), 10.0)
    raced = timing.race(calls, budget_seconds=budget)
    medians = pd.DataFrame(raced.samples()).groupby("arm")["seconds"].median() * 1e3
    for name in calls:
        words = "–"
        if name != best:
            pair, factor = raced.pair(name, best), per[best] / per[name]
            ratio, low, high = (factor * (bound or float("nan")) for bound in (pair.ratio, *(pair.interval or (0, 0))))
            words = f"{best}: {ratio:.3g} × as fast [{low:.3g}, {high:.3g}]"
        median = medians.get(name, float("nan")) / per[name]
        print(f"| {size_words} | {name} | {median:,.1f} | {words} | {peaks[name]:,.1f} |", flush=True)


def steps(nodes, lines, size, rounds=10):
    """Race the ways at a size."""
    ways = Ways(nodes, lines, failures(nodes, size))
    calls = {"changed rows": ways.changed_rows, "PyG's batch": ways.pyg_batch, "whole samples": ways.whole_samples}
    race(calls, "way", f"{nodes:,}, {lines:,}, {size}", rounds)


def large(nodes, size=64, theirs=4):
    """Race changed rows and PyG's batch of fewer samples, as all would need too much memory, per sample."""
    ways = Ways(nodes, 3 * nodes, failures(nodes, size))
    calls = {"changed rows": ways.changed_rows, "PyG's batch": partial(ways.pyg_batch, theirs)}
    samples = dict(zip(calls, (size, theirs), strict=True))
    race(calls, "way", f"{nodes:,}, {3 * nodes:,}, {size}", 7, samples)


def share(nodes=2_000, size=16):
    """Print how much faster rows that differ are, by lines per station and failures; see `_changed_rows.WHOLE`."""
    print(
        "| lines per station | most failures | rows that differ | changed rows: ms | whole samples ÷ it | PyG ÷ it |",
        "|---" * 6 + "|",
        sep="\n",
    )
    sizes = [(1.5, most) for most in (3, 10, 30, 60, 100, 150, 250, 400)] + [(lines, 3) for lines in (3, 6, 12, 24)]
    for lines, most in sizes:
        ways = Ways(nodes, int(lines * nodes), failures(nodes, size, most))
        rows, limit = ChangedRows(ways.x, ways.samples), _changed_rows.WHOLE
        _changed_rows.WHOLE = float("inf")
        for conv in ways.ours.convs:
            rows = conv(rows, ways.shared)
        differing = len(rows.keys) / (size * nodes)
        calls = {"changed": ways.changed_rows, "whole": ways.whole_samples, "pyg": ways.pyg_batch}
        times = list(least_seconds(calls, "cpu", rounds=6).values())
        _changed_rows.WHOLE = limit
        ratios = " | ".join(f"{time / times[0]:.2f}" for time in times[1:])
        print(f"| {lines:g} | {most} | {differing:.2f} | {times[0] * 1e3:.1f} | {ratios} |", flush=True)


def features(nodes=2_000, lines=3_000, size=64):
    """Race a step whose samples differ in features alone: shared layers, PyG's batch, PyG's static graph."""
    edge_index, x = grid(nodes, lines), torch.randn(nodes, size, WIDTH, requires_grad=True)
    shared, ours, theirs = SharedGraph(edge_index, nodes), Model(SharedSAGEConv), Model(pyg.SAGEConv)
    ours.load_state_dict(theirs.state_dict())
    copies = (edge_index.unsqueeze(2) + nodes * torch.arange(size)).flatten(1)

    def step(model, rows, *graph, pool):
        for conv in model.convs:
            rows = conv(rows, *graph).relu()
        model.head(pool(rows)).square().mean().backward()

    calls = {
        "shared graph": partial(step, ours, x, shared, pool=lambda rows: rows.mean(0)),
        "PyG's batch": lambda: step(
            theirs, x.transpose(0, 1).reshape(-1, WIDTH), copies, pool=lambda rows: rows.view(size, nodes, -1).mean(1)
        ),
        # [B, N, F]: PyG sums along dimension -2, over one edge list
        "PyG's static graph": lambda: step(theirs, x.transpose(0, 1), edge_index, pool=lambda rows: rows.mean(1)),
    }
    race(calls, "way", f"{nodes:,}, {lines:,}, {size}", 10)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--large", action="store_true", help="only 200,000 nodes and 600,000 lines")
    parser.add_argument("--nodes", type=int, default=200_000, help="of --large")
    parser.add_argument("--share", action="store_true", help="only the table by lines and failures")
    parser.add_argument("--features", action="store_true", help="only samples that differ in features")
    given = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    print(environment())
    if given.share:
        return share()
    if given.features:
        return features()
    compare(500, 750, 8)
    if given.large:
        return large(given.nodes)
    steps(2_000, 3_000, 64)


if __name__ == "__main__":
    main()
