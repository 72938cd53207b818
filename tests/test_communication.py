"""Under DDP the ledger tells communication that is exposed from what hides, and waiting from exchanging."""

import json
import os
import subprocess
import sys
import textwrap

import pytest
import torch

pytestmark = pytest.mark.clock

RANK = """
    import json, os, sys, time
    import torch
    from torch import distributed
    from torch.nn.parallel import DistributedDataParallel
    from tclab.timing import Communication, Ledger

    torch.set_num_threads(1)
    rank, folder, late = int(os.environ["RANK"]), sys.argv[1], int(sys.argv[2])
    distributed.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    torch.manual_seed(0)
    layers = torch.nn.Sequential(*[torch.nn.Linear(256, 256) for _ in range(4)])
    model = DistributedDataParallel(layers, bucket_cap_mb=0.3)
    with Ledger() as ledger:
        communication = Communication(model, ledger)
        for number in ledger.steps(range(6)):
            x = torch.full((8, 256), float(rank + number))
            with ledger.stage("forward"):
                loss = model(x).square().mean()
            model.zero_grad()
            if rank == late:
                time.sleep(0.05)
            with ledger.stage("backward"):
                loss.backward()
        gradients = [parameter.grad.sum().item() for parameter in layers.parameters()]
        communication.finish()
    frame = communication.frame()
    print(json.dumps({
        "frame": json.loads(frame.to_json(orient="records")),
        "late": dict(communication.late),
        "communication": ledger.seconds().get("communication"),
        "waiting_stage": ledger.seconds().get("rank_wait"),
        "backward": ledger.seconds()["backward"],
        "closed": ledger.adds_up(),
        "gradients": gradients,
    }))
    distributed.destroy_process_group()
"""


@pytest.fixture(scope="module", params=[pytest.param(late, marks=pytest.mark.slow) for late in (0, 1)])
def ranks(request, root, tmp_path_factory):
    late, folder = request.param, tmp_path_factory.mktemp("ranks")
    command = [sys.executable, "-c", textwrap.dedent(RANK), str(folder), str(late)]
    environment = {**os.environ, "PYTHONPATH": str(root), "WORLD_SIZE": "2"}
    children = [
        subprocess.Popen(command, env={**environment, "RANK": str(rank)}, stdout=subprocess.PIPE, text=True)
        for rank in range(2)
    ]
    try:
        found = [json.loads(child.communicate(timeout=120)[0]) for child in children]
    finally:
        for child in children:
            child.kill()
    return late, found


def test_the_rank_that_is_late_is_named_and_the_other_waits(ranks):
    late, found = ranks
    for rank in found:
        assert rank["late"][str(late)] >= len(rank["frame"])  # the first bucket of each step, at least
    waited = [sum(step["rank_wait_seconds"] for step in rank["frame"]) / len(rank["frame"]) for rank in found]
    assert waited[1 - late] > 0.04
    assert waited[late] < 0.04


def test_exposed_and_overlapped_add_up_and_land_in_the_ledger(ranks):
    _, found = ranks
    for rank in found:
        assert len(rank["frame"]) == 6
        assert all(step["bytes"] == 4 * (256 * 256 + 256) * 4 for step in rank["frame"])
        assert all(step["buckets"] > 1 for step in rank["frame"][1:])  # DDP builds its buckets in the first step
        assert all(step["exposed_seconds"] > 0 and step["overlapped_seconds"] >= 0 for step in rank["frame"])
        exposed = [step["exposed_seconds"] for step in rank["frame"]]
        waited = sum(step["exposed_rank_wait_seconds"] for step in rank["frame"])
        assert sum(rank["waiting_stage"] or []) == pytest.approx(waited, rel=1e-3, abs=1e-7)
        assert sum(rank["communication"]) == pytest.approx(sum(exposed) - waited, rel=1e-3)
    for step in range(6):
        assert min(rank["frame"][step]["exposed_rank_wait_seconds"] for rank in found) == 0.0
    for rank in found:
        assert all(seconds > 0 for seconds in rank["backward"])
        assert rank["closed"]


def test_watching_gives_the_gradient_of_one_process(ranks):
    _, found = ranks
    torch.manual_seed(0)
    layers = torch.nn.Sequential(*[torch.nn.Linear(256, 256) for _ in range(4)])
    for rank in range(2):
        (layers(torch.full((8, 256), float(rank + 5))).square().mean() / 2).backward()
    expected = [parameter.grad.sum().item() for parameter in layers.parameters()]
    assert found[0]["gradients"] == found[1]["gradients"]
    assert found[0]["gradients"] == pytest.approx(expected, rel=1e-3)
