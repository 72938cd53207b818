"""Four projects' code over a shared graph, and PyG's attention: times and peak memory of both ways, as one table.

    python benchmarks/ports.py                     # two sizes of each: some twenty minutes of two quiet cores
    python benchmarks/ports.py --sizes natural     # as each project has it
    python benchmarks/ports.py --scale 0.05        # with a twentieth of the nodes and edges

The natural size is one that the project itself would have, the large one 10,000 nodes, 500,000 edges and 64 samples,
with 8 features, as the originals keep a row for each edge, sample and feature. What is raced are the functions `arms`
of the notebooks in notebooks/ports/; for attention PyG's GATv2Conv on `Batch.from_data_list` of the subgraphs, forward
and backward, with 4 samples at the large size: its copies of 64 would need some 20 GB.

Both ways first give the same to 1e-4 (fp32). A race gets the seconds of ten rounds of four blocks, each as long as a
call of the slower way: a verdict needs eight, one for each part of the race. Memory is the most that torch has
allocated at once in a call, beyond what was there before.
"""

import argparse
import json
from itertools import accumulate, product
from pathlib import Path
from time import perf_counter

import pandas as pd
import torch
from torch.profiler import ProfilerActivity, profile
from torch_geometric.data import Batch, Data
from torch_geometric.nn import GATv2Conv
from torch_geometric.utils import subgraph

from tclab import SharedGraph, timing
from tclab.message_passing import SharedGATv2Conv
from tclab.timing._environment import environment
from tclab.timing._verdict import explain

PORTS = Path(__file__).resolve().parents[1] / "notebooks" / "ports"
# nodes, directed edges, samples, features
LARGE = (10_000, 500_000, 64, 8)
SIZES = {
    "pdgrapher": {"natural": (10_000, 300_000, 8, 16), "large": LARGE},
    "dig_subgraphx": {"natural": (30, 64, 256, 64), "large": LARGE},
    "shapiq": {"natural": (10, 20, 1024, 32), "large": LARGE},
    "smoothing": {"natural": (2_000, 16_000, 64, 16), "large": LARGE},
    "gatv2": {"natural": (2_700, 10_600, 16, 16), "large": (10_000, 500_000, 4, 8)},
}
ROUNDS, LEAST_SECONDS = 10, 20.0  # of a race
WORDS = {"SLOWER": "faster", "FASTER": "slower", "SAME": "as fast"}  # the original is …: the shared graph is …
HEAD = "| port | nodes, edges, samples, features | own, shared: ms | ratio of times, 95 % | own, shared: MiB | ratio |"


def arms_of(name):
    """Return the function `arms` of a notebook, or that of attention."""
    if name == "gatv2":
        return attention_arms
    cells = json.loads((PORTS / f"{name}.ipynb").read_text())["cells"]
    here = {"__name__": name}
    for cell in cells:
        if cell["id"] in ("imports", "original", "shared"):
            source = "".join(cell["source"]).partition("\nlab.check_parameters()")[0]  # from there on, for a notebook
            exec(compile(source, f"{name}.ipynb: {cell['id']}", "exec"), here)
    return here["arms"]


def attention_arms(nodes, edges, size, width):
    """Return GATv2 on copies and over a shared graph, of samples that delete a twentieth of the nodes."""
    generator = torch.Generator().manual_seed(0)
    edge_index = torch.randint(nodes, (2, edges), generator=generator)
    keep = torch.rand(nodes, size, generator=generator) >= 0.05
    x = torch.randn(nodes, size, width, generator=generator, requires_grad=True)
    copied, conv, shared = GATv2Conv(width, width), SharedGATv2Conv(width, width), SharedGraph(edge_index, nodes)
    conv.load_state_dict(copied.state_dict())

    def step(out, model):
        return out, *torch.autograd.grad(out.square().mean(), [x, *model.parameters()])

    def on_copies():
        samples = []
        for b in range(size):
            left, _ = subgraph(keep[:, b], edge_index, relabel_nodes=True, num_nodes=nodes)
            samples.append(Data(x=x[keep[:, b], b], edge_index=left))
        batch = Batch.from_data_list(samples)
        return step(copied(batch.x, batch.edge_index), copied)

    def over_shared_graph():
        return step(conv(x, shared, keep).transpose(0, 1)[keep.t()], conv)

    return {"original": on_copies, "shared": over_shared_graph}


def peak_mebibytes(call):
    """Return the most that torch has allocated at once during a call, MiB."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        call()
    events = seen.profiler.kineto_results.events()
    changes = sorted((event.start_ns(), event.nbytes()) for event in events if event.name() == "[memory]")
    return max(accumulate(change for _, change in changes)) / 2**20


def measure(name, size):
    """Return a line of the table: the ratio of times with its interval and verdict, and the ratio of peaks."""
    made = arms_of(name)(*size)
    arms = {arm: made[arm] for arm in ("original", "shared")}
    found, seconds = {}, {}
    for arm, call in arms.items():
        begin = perf_counter()
        found[arm] = call()
        seconds[arm] = perf_counter() - begin
    for one, other in zip(*found.values(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)
    del found, one, other
    budget = max((4 + 4 * ROUNDS) * max(seconds.values()), LEAST_SECONDS)  # with a warm-up and a calibration
    race = timing.race(arms, budget_seconds=budget)
    pair, milliseconds = race.pair(*arms), pd.DataFrame(race.samples()).groupby("arm")["seconds"].median() * 1e3
    verdict = WORDS.get(pair.verdict, f"{pair.verdict}: {explain(pair)}")
    if pair.interval is not None:
        verdict = f"{pair.ratio:.3g} × [{pair.interval[0]:.3g}, {pair.interval[1]:.3g}], {verdict}"
    times = ", ".join(f"{milliseconds[arm]:,.1f}" if arm in milliseconds else "–" for arm in arms)
    peaks = [peak_mebibytes(call) for call in arms.values()]
    memory = f"{peaks[0]:,.2f}, {peaks[1]:,.2f} | {peaks[0] / peaks[1]:.3g} ×"
    return f"| {name} | {', '.join(f'{number:,}' for number in size)} | {times} | {verdict} | {memory} |"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ports", nargs="+", default=list(SIZES), choices=list(SIZES))
    parser.add_argument("--sizes", nargs="+", default=["natural", "large"], choices=["natural", "large"])
    parser.add_argument("--scale", type=float, default=1.0, help="of the nodes and edges")
    given = parser.parse_args()
    torch.set_num_threads(2)
    print(environment(), HEAD, "|---" * 6 + "|", sep="\n", flush=True)
    for name, kind in product(given.ports, given.sizes):
        nodes, edges, *rest = SIZES[name][kind]
        scaled = (max(int(nodes * given.scale), 2), max(int(edges * given.scale), 2), *rest)
        print(measure(name, scaled), flush=True)


if __name__ == "__main__":
    main()
