"""Under DDP the ledger tells communication that is exposed from what hides, and waiting from exchanging."""

import multiprocessing
import time
from contextlib import nullcontext
from statistics import median

import pytest
import torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel

from tclab import trace
from tclab._child_process import end_with_parent
from tclab.timing import Communication, Ledger

pytestmark = pytest.mark.slow


def train_as_rank(rank, folder):
    """Return what one of two ranks sees, of which the second comes late to each backward."""
    end_with_parent()  # with the tests, if they are killed
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    torch.manual_seed(0)
    layers = torch.nn.Sequential(*[torch.nn.Linear(256, 256) for _ in range(4)])
    model = DistributedDataParallel(layers, bucket_cap_mb=0.3)

    def train(number):
        loss = model(torch.full((8, 256), float(rank + number))).square().mean()
        model.zero_grad()
        if rank == 1:
            time.sleep(0.05)
        with ledger.stage("backward") if ledger.in_step else nullcontext():
            loss.backward()

    with Ledger() as ledger, trace.record(folder / "traces", wait=2, warmup=1, active=2, steps=7) as recorder:
        communication = Communication(model, ledger)
        for number in ledger.steps(range(8)):
            train(number)
            recorder.step()
            if number == 6:
                break  # this step is dropped
        train(7)  # in no step
        for _ in ledger.steps(range(1)):
            with model.no_sync():  # the number of the dropped step, and no exchange
                train(8)
    frame = communication.frame().to_dict("records")  # it ended with its ledger
    uneven = train_unevenly(rank, DistributedDataParallel(torch.nn.Linear(64, 64)))
    model.reducer = None  # the group's last holder would wait for threads that wait for Python (pytorch, issue 56297)
    distributed.destroy_process_group()
    seconds = {name: ledger.seconds()[name] for name in ("communication", "rank_wait", "backward")}
    return {"uneven": uneven, "frame": frame, "late": communication.late, "steps": len(ledger), **seconds}


def train_unevenly(rank, model):
    """Return what `model.join()` lets a rank of three steps, and one of five, see."""
    ledger = Ledger()
    communication = Communication(model, ledger)
    with pytest.raises(RuntimeError, match="call finish"):
        communication.frame()
    with ledger, model.join():
        for _ in ledger.steps(range(3 + 2 * rank)):
            with ledger.stage("backward"):
                model(torch.ones(2, 64)).sum().backward()
    communication.finish()  # again: nothing comes twice
    return communication.frame().to_dict("records"), dict(communication.late)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("ranks")


@pytest.fixture(scope="module")
def ranks(folder):
    with multiprocessing.get_context("forkserver").Pool(2) as pool:
        return pool.starmap_async(train_as_rank, [(0, folder), (1, folder)], chunksize=1).get(300)


@pytest.mark.clock
def test_the_rank_that_is_late_is_named_and_the_other_waits(ranks):
    for rank in ranks:  # in the first bucket of each step, at least; a pause of the other one changes a step or two
        assert rank["late"][1] > rank["late"].get(0, 0)
    waited = [median(step["exposed_rank_wait_seconds"] for step in rank["frame"]) for rank in ranks]
    assert waited[0] > waited[1]


def test_exposed_and_overlapped_land_in_the_ledger_of_completed_steps_alone(ranks):
    for rank in ranks:
        assert rank["steps"] == 7
        assert [step["step"] for step in rank["frame"]] == list(range(6))
        assert all(step["bytes"] == 4 * (256 * 256 + 256) * 4 for step in rank["frame"])
        assert all(step["buckets"] > 1 for step in rank["frame"][1:])  # DDP builds its buckets in the first step
        assert all(step["exposed_seconds"] > 0 and step["overlapped_seconds"] >= 0 for step in rank["frame"])
        exposed = sum(step["exposed_seconds"] for step in rank["frame"])
        waited = sum(step["exposed_rank_wait_seconds"] for step in rank["frame"])
        assert sum(rank["rank_wait"]) == pytest.approx(waited, rel=1e-3, abs=1e-7)
        assert sum(rank["communication"]) == pytest.approx(exposed - waited, rel=1e-3)
        assert all(seconds > 0 for seconds in rank["backward"])
    for step in range(6):
        assert min(rank["frame"][step]["exposed_rank_wait_seconds"] for rank in ranks) == 0.0


def test_each_rank_records_its_trace_and_their_collectives_are_matched(ranks, folder):
    report = trace.analyze(folder / "traces")
    assert report.breakdown["rank"].tolist() == [0, 1]
    assert report.settings["world_size"].tolist() == [2, 2]
    shared = report.collectives.dropna(subset="own_us")
    assert len(shared) == sum(step["buckets"] for rank in ranks for step in rank["frame"][3:5])
    assert (shared.groupby("index")["wait_us"].min() == 0).all()


def test_ranks_of_different_lengths_end_and_are_compared_where_both_had_a_step(ranks):
    for rank, (frame, late) in enumerate(each["uneven"] for each in ranks):
        assert [row["step"] for row in frame] == list(range(3 + 2 * rank))
        assert sum(late.values()) == sum(row["buckets"] for row in frame)
        assert all(row["exposed_rank_wait_seconds"] >= 0 for row in frame)
    frames = [each["uneven"][0] for each in ranks]
    for step in range(5):
        assert min(frame[step]["exposed_rank_wait_seconds"] for frame in frames[step > 2 :]) == 0.0
