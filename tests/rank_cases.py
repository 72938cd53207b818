"""What each rank of test_ranks.py runs: training by DDP, case after case, in one launch of torchrun."""

import json
import os
import sys
from pathlib import Path

import torch
from torch import distributed

import tclab
from tclab import CellGraph, InputError, masking
from tclab._child_process import end_with_parent
from tclab.models import MleWassSupCR, ModelKind
from tclab.models._hetero_cell import HeteroCellOutput
from tclab.perturbation import Deletions, Perturbations, synthetic_perturbations
from tclab.training._distributed import Exchange
from tclab.training._loading import Batches, Loader
from tclab.training._loops import run_plain
from tclab.training._step import Step

STEPS, BATCH = 3, 2
EXACT = [n for n in masking.names() if masking.get(n).exact and n != "indices"]
HETERO = {"model": "hetero_cell", "strategy": "node_mask"}
DANGO = {"model": "dango", "strategy": "indices"}
# name → what is trained
CASES = {
    **{f"strategy {name}": {"model": "hetero_cell", "strategy": name} for name in EXACT},
    "production": {**HETERO, "model": "hetero_cell_production"},
    "dango": DANGO,
    "dango in the middle": {**DANGO, "epoch": 3},
    "nothing deleted": {**HETERO, "deleted": 0},
    "some delete nothing": {**HETERO, "deleted": "some"},
    "accumulated": {**HETERO, "accumulate": 3},
    "accumulated, exchanged each time": {**HETERO, "accumulate": 3, "ddp": {"no_sync": False}},
    "sliced": {**HETERO, "micro_batch": 1},
    "sliced, accumulated": {**HETERO, "micro_batch": 1, "accumulate": 3},
    "small buckets": {**HETERO, "ddp": {"bucket_cap_mb": 0.05}},
    "unused, looked for": {**HETERO, "model": "with_unused", "ddp": {"find_unused_parameters": True}},
    "unused, static graph": {**HETERO, "model": "with_unused", "ddp": {"static_graph": True}},
}
# not equal to one process: how much they may differ
LOSSY = {
    "fp16": {**HETERO, "ddp": {"compression": "fp16"}},
    "bf16": {**HETERO, "ddp": {"compression": "bf16"}},
}
DIFFERENT = {"with a buffer": {**HETERO, "loss": "mle_wass_supcr"}}
# of each kind one, for the tests that run each time
FEW = ("strategy node_mask", "dango", "sliced, accumulated", "unused, looked for",
       "unused, static graph", "with a buffer")  # fmt: skip


class WithUnused(torch.nn.Module):
    """HeteroCell with a layer that its output does not depend on."""

    def __init__(self, graph):
        super().__init__()
        self.cell = tclab.models.HeteroCell.profiling(graph)
        self.idle = torch.nn.Linear(4, 4)

    def output(self, view):
        return self.cell.output(view)

    def forward(self, view):
        return self.cell(view)


def register():
    if "with_unused" not in tclab.models.names():
        losses = tclab.models.get("hetero_cell").losses
        kind = ModelKind("with_unused", lambda g, m: WithUnused(g), losses, forward=lambda m, v: m.output(v))
        tclab.models.register(kind)


def samples_of(graph, case, ranks):
    whole = STEPS * BATCH * ranks
    if case.get("deleted") == "some":
        rows = [[i % 7, 8 + i % 5] if i % 3 else [] for i in range(whole)]
        scores = torch.linspace(-0.2, 0.3, whole)
        return Perturbations(Deletions.of(rows, num_nodes=graph.num_nodes["gene"]), scores)
    return synthetic_perturbations(graph, whole, deleted=case.get("deleted", 2))


def train(case, rank, ranks, folder, *, together=True):
    """Train a case on this rank's shard, or alone on batches of all; return losses and parameters."""
    register()
    graph = CellGraph.synthetic(0.01).without_metabolism().select(2)
    samples = samples_of(graph, case, ranks)
    loading = masking.get(case["strategy"])(graph)
    Path(folder).mkdir(parents=True, exist_ok=True)
    loading.prepare(samples, Path(folder) / f"store-{rank}-{together}")
    exchange = Exchange.of(case.get("ddp", {})) if together else None
    step = Step(
        tclab.models.get(case["model"]), masking.get(case["strategy"])(graph), dtype="float64",
        loss=case.get("loss"), epoch=case.get("epoch", 0), accumulate=case.get("accumulate", 1),
        learning_rate=1e-2, clip=0.5, exchange=exchange,
    )  # fmt: skip
    shard, size = ((rank, ranks), BATCH) if together else ((0, 1), BATCH * ranks)
    micro_batch = case.get("micro_batch") if together else None  # one process goes through the batch as a whole
    data = Batches(loading, samples, size, shard=shard, micro_batch=micro_batch)
    losses = torch.stack(run_plain(step, Loader(data, workers=0), steps=len(data)))
    loading.close()
    return losses.tolist(), [p.detach() for p in step.model.parameters()]


def gathered(rank, ranks):
    """Whether the loss remembers the batches of all ranks each gather interval, and its own in between."""
    for interval in (1, 2, None):
        loss = MleWassSupCR(gather_interval=interval)
        expected = []
        for step in range(3):
            mark = torch.tensor([10.0 * step + rank])
            loss(HeteroCellOutput(mark, mark.unsqueeze(1)), mark)
            of_all = interval is not None and step % interval == 0
            expected += [10.0 * step + other for other in (range(ranks) if of_all else [rank])]
        remembered = loss.remembered
        if sorted(remembered["targets"].tolist()) != expected:
            return False
        if not torch.equal(remembered["z_p"][:, 0], remembered["targets"]):
            return False
    return True


def main(folder, chosen):
    end_with_parent()  # torchrun, which a test that takes too long kills
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.set_num_threads(1)
    distributed.init_process_group("gloo")
    found = {}
    for name, case in {**CASES, **LOSSY, **DIFFERENT}.items():
        if chosen == "few" and name not in FEW:
            continue
        place = Path(folder) / name.replace(" ", "_")
        losses, parameters = train(case, rank, ranks, place)
        flat = torch.cat([p.flatten() for p in parameters])
        every = [torch.empty_like(flat) for _ in range(ranks)]
        distributed.all_gather(every, flat)
        curve = torch.tensor(losses, dtype=torch.float64)
        distributed.all_reduce(curve)
        if rank == 0:
            torch.save(flat, Path(folder) / f"{name}.pt")
        found[name] = {
            "losses": (curve / ranks).tolist(),
            "alike": all(torch.equal(flat, other) for other in every),
        }
    try:
        train({**HETERO, "model": "with_unused"}, rank, ranks, Path(folder) / "refused")
        found["refused"] = "no"
    except InputError as error:
        found["refused"] = str(error)
    found["gathered"] = [None] * ranks
    distributed.all_gather_object(found["gathered"], gathered(rank, ranks))
    if rank == 0:
        (Path(folder) / "found.json").write_text(json.dumps(found))
    distributed.barrier()
    distributed.destroy_process_group()
    os._exit(0)  # the DDP that was refused still holds the group, whose threads can abort a process that ends by itself


if __name__ == "__main__":
    main(*sys.argv[1:])
