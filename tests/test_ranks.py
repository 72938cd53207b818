"""Ranks train as one process does: the same losses and parameters, however batches are shared out.

Each rank runs `main` of this file, which trains case after case by DDP; ranks by torchrun: test_launched.py.
"""

import multiprocessing
import os
from dataclasses import replace

import pytest
import torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel

from tclab import CellGraph, InputError, SharedGraph, masking, models
from tclab._child_process import end_with_parent
from tclab.message_passing import ChangedRows, SharedGATv2Conv, SharedSAGEConv
from tclab.models import MleWassSupCR
from tclab.models._hetero_cell import HeteroCellOutput
from tclab.perturbation import Deletions, Perturbations
from tclab.sweeps._run import threads_of
from tclab.training._loading import Batches, Loader
from tclab.training._loops import run_plain
from tclab.training._step import Exchange, Step

STEPS, BATCH = 3, 2
EXACT = [n for n in masking.names() if masking.get(n).exact and n != "indices"]
HETERO = {"model": "hetero_cell", "strategy": "node_mask"}
# name → what is trained
CASES = {
    **{f"strategy {name}": {"model": "hetero_cell", "strategy": name} for name in EXACT},
    "production": {**HETERO, "model": "hetero_cell_production"},
    "dango": {"model": "dango", "strategy": "indices", "epoch": 3},
    "some delete nothing": {**HETERO, "some_delete_nothing": True},
    "sliced, accumulated": {**HETERO, "micro_batch": 1, "accumulate": 3},
    "exchanged each time": {**HETERO, "accumulate": 3, "ddp": {"no_sync": False, "bucket_cap_mb": 0.05}},
    "unused, looked for": {**HETERO, "model": "with_unused", "ddp": {"find_unused_parameters": True}},
    "unused, static graph": {**HETERO, "model": "with_unused", "ddp": {"static_graph": True}},
}
# not equal to one process
LOSSY = {name: {**HETERO, "ddp": {"compression": name}} for name in ("fp16", "bf16")}
# of each kind one, for the tests that run each time
FEW = ("strategy node_mask", "dango", "sliced, accumulated", "unused, looked for")


def with_unused(graph, metabolism):
    """HeteroCell with a layer that its output does not depend on."""
    model = models.HeteroCell.profiling(graph)
    model.idle = torch.nn.Linear(4, 4)
    return model


def samples_of(graph, case, ranks):
    samples = Perturbations.synthetic(graph, STEPS * BATCH * ranks)
    if not case.get("some_delete_nothing"):
        return samples
    rows = [samples.deletions[i].tolist() if i % 3 else [] for i in range(len(samples))]
    return Perturbations(Deletions.of(rows, num_nodes=graph.num_nodes["gene"]), samples.scores)


def train(case, rank, ranks, folder, *, together=True):
    """Train a case on this rank's shard, or alone on batches of all; return losses and parameters, each in a row."""
    if "with_unused" not in models.names():
        models.register(replace(models.get("hetero_cell"), name="with_unused", build=with_unused))
    graph = CellGraph.synthetic(0.01).without_metabolism().select(2)
    samples = samples_of(graph, case, ranks)
    loading = masking.get(case["strategy"])(graph)
    folder.mkdir(parents=True, exist_ok=True)
    loading.prepare(samples, folder / f"store-{rank}-{together}")
    exchange = Exchange.of(case.get("ddp", {})) if together else None
    step = Step(
        models.get(case["model"]), masking.get(case["strategy"])(graph), dtype="float64",
        epoch=case.get("epoch", 0), accumulate=case.get("accumulate", 1),
        learning_rate=1e-2, clip=0.5, exchange=exchange,
    )  # fmt: skip
    shard, size = ((rank, ranks), BATCH) if together else ((0, 1), BATCH * ranks)
    micro_batch = case.get("micro_batch") if together else None  # one process goes through the batch as a whole
    data = Batches(loading, samples, size, shard=shard, micro_batch=micro_batch)
    losses = torch.stack(run_plain(step, Loader(data, workers=0), steps=len(data)))
    loading.close()
    return losses.double(), torch.cat([p.detach().flatten() for p in step.model.parameters()])


def gathered(rank, ranks):
    """Whether the loss remembers the batches of all ranks each gather interval, and its own in between."""
    for interval, of_all in ((1, (0, 1, 2)), (2, (0, 2)), (None, ())):
        loss, expected = MleWassSupCR(gather_interval=interval), []
        for step in range(3):
            mark = torch.tensor([10.0 * step + rank])
            loss(HeteroCellOutput(mark, mark.unsqueeze(1)), mark)
            expected += [10.0 * step + other for other in (range(ranks) if step in of_all else [rank])]
        if sorted(loss.remembered["targets"].tolist()) != expected:
            return False
    return True


class OfChangedRows(torch.nn.Module):
    """Features, two layers of the rows that differ, and a loss that is a mean over samples."""

    def __init__(self):
        super().__init__()
        self.x = torch.nn.Parameter(torch.randn(200, 4))
        self.convs = torch.nn.ModuleList([SharedSAGEConv(4, 4), SharedGATv2Conv(4, 4)])

    def forward(self, shared, failed):
        rows = ChangedRows(self.x, failed)
        for conv in self.convs:
            rows = conv(rows, shared).map(torch.tanh)
        assert rows.keys is not None
        return rows.mean().square().mean()


class Weighed(torch.nn.Module):
    """A parameter times the sums over a graph that the module holds."""

    def __init__(self, shared):
        super().__init__()
        self.scale, self.shared = torch.nn.Parameter(torch.ones(1)), shared

    def forward(self, x):
        return self.shared(x) * self.scale


def sums_over_its_own_graph(rank):
    """Return what DDP computes of a graph that is another on each rank: it broadcasts buffers before each forward."""
    ring = torch.tensor([[0, 1, 2], [1, 2, 0]])
    shared = SharedGraph(ring.flip(0) if rank % 2 else ring, 3, weight=torch.full((3,), rank + 1.0))
    model = DistributedDataParallel(Weighed(shared))
    for _ in range(2):
        out = model(torch.tensor([1.0, 2.0, 4.0]).view(3, 1, 1))
        out.sum().backward()
    return out.flatten().tolist()


def gradients_of_changed_rows(rank, ranks):
    """Whether DDP's gradients are those of one process with all ranks' samples, whose numbers of rows differ."""
    torch.manual_seed(0)
    model, shared = OfChangedRows().double(), SharedGraph(torch.randint(200, (2, 240)), 200)
    failed = [[*range(b)] for b in range(2 * ranks)]  # the first fails nothing
    expected = torch.autograd.grad(model(shared, failed), list(model.parameters()))
    together = DistributedDataParallel(model)
    together(shared, failed[2 * rank : 2 * rank + 2]).backward()
    torch.testing.assert_close([p.grad for p in model.parameters()], [*expected], rtol=1e-10, atol=1e-12)
    return True


def main(rank, ranks, folder, names):
    """Return of each case whether all ranks have the same parameters, what is refused, and what is gathered."""
    end_with_parent()  # with the tests, if they are killed
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=ranks)
    found = {}
    for name in names:
        losses, parameters = train({**CASES, **LOSSY}[name], rank, ranks, folder / name)
        every = [torch.empty_like(parameters) for _ in range(ranks)]
        distributed.all_gather(every, parameters)
        distributed.all_reduce(losses)
        if rank == 0:
            torch.save((losses / ranks, parameters), folder / f"{name}.pt")
        found[name] = all(torch.equal(parameters, other) for other in every)
    found |= {"own graph": sums_over_its_own_graph(rank), "changed rows": gradients_of_changed_rows(rank, ranks)}
    try:
        train({**HETERO, "model": "with_unused"}, rank, ranks, folder / "refused")
    except InputError as error:
        found["refused"] = str(error)
    distributed.barrier()
    return found | {"gathered": gathered(rank, ranks)}


@pytest.fixture(
    scope="module",
    params=[(2, FEW), pytest.param((4, (*CASES, *LOSSY)), marks=pytest.mark.slow)],
    ids=lambda given: f"{given[0]} ranks, {len(given[1])} cases",
)
def trained(request, tmp_path_factory):
    """The folder with what ranks made of the cases, and what each of them found.

    They are forked from a process in which nothing has trained. They are ended: the DDP that was refused still holds
    the group, whose threads can abort a process that ends by itself.
    """
    ranks, names = request.param
    folder = tmp_path_factory.mktemp(f"ranks-{ranks}")
    context = multiprocessing.get_context("forkserver")
    with context.Pool(ranks) as pool:
        given = [(rank, ranks, folder, names) for rank in range(ranks)]
        return folder, pool.starmap_async(main, given, chunksize=1).get(900)


def test_ranks_train_as_one_process_with_batches_of_all(trained, tmp_path):
    folder, found = trained
    for name in [name for name in {**CASES, **LOSSY} if name in found[0]]:
        losses, parameters = train({**CASES, **LOSSY}[name], 0, len(found), tmp_path / name, together=False)
        assert all(of_rank[name] for of_rank in found), f"{name}: ranks have other parameters than one another"
        together = torch.load(folder / f"{name}.pt")
        if name in CASES:
            torch.testing.assert_close(together[0], losses, rtol=1e-8, atol=1e-10, msg=name)
            torch.testing.assert_close(together[1], parameters, rtol=1e-6, atol=1e-8, msg=name)
        else:  # something was compressed
            torch.testing.assert_close(together[0], losses, rtol=0.2, atol=0.0, msg=name)
            assert not torch.equal(together[1], torch.load(folder / "strategy node_mask.pt")[1])


def test_unused_parameters_are_refused_changed_rows_averaged_and_batches_of_other_ranks_remembered(trained):
    for found in trained[1]:
        assert found["refused"].startswith("idle.weight, idle.bias: no gradient, and DDP waits for one of every")
        assert "find_unused_parameters, or static_graph" in found["refused"]
        assert found["gathered"]
        assert found["changed rows"]


def test_each_rank_sums_over_the_graph_that_its_module_holds(trained):
    for rank, found in enumerate(trained[1]):
        assert found["own graph"] == [(rank + 1) * x for x in ((4.0, 1.0, 2.0), (2.0, 4.0, 1.0))[rank % 2]]


def test_ranks_share_the_cores(monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    for limit, expected in ((None, [8, 4, 2, 1]), (2.0, [2, 1, 1, 1])):
        monkeypatch.setattr("tclab._limits.cpu_limit_cores", lambda limit=limit: limit)
        assert [threads_of(ranks) for ranks in (1, 2, 3, 8)] == expected
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert threads_of(1) == 1
