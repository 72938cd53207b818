"""Inside forward and backward: parts get the time that they take, and add up to the stages."""

import re

import pytest
import torch
from clock import Clock

import tclab
from tclab import InputError, Point
from tclab.sweeps import inside, trace_point
from tclab.timing import Ledger
from tclab.timing._layer_marks import mark, mark_scope, watched

pytestmark = pytest.mark.clock

HOW = {"scale": 0.02, "networks": 2, "device": "cpu"}


class Works(torch.autograd.Function):
    """The identity, which takes so many of a clock's seconds in the forward and so many in the backward."""

    @staticmethod
    def forward(ctx, x, clock, forward, backward):
        ctx.work = lambda: clock.work(backward)
        clock.work(forward)
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        ctx.work()
        return gradient, None, None, None


def run(ledger, clock, *, steps=2):
    for _ in ledger.steps(range(steps)):
        x = torch.ones(3, requires_grad=True)
        with ledger.stage("forward"):
            with mark_scope(layer="layer 1"):
                a = mark("update", Works.apply(x, clock, 0.01, 0.03), "first")
                b = mark("update", Works.apply(x, clock, 0.02, 0.015), "second")
                total = mark("aggregation", a + b)
            head = mark("head", Works.apply(total, clock, 0.005, 0.005))
        with ledger.stage("loss"):
            loss = mark("loss", head.sum())
        with ledger.stage("backward"):
            clock.work(0.004)
            loss.backward()


def test_a_part_has_its_own_time_in_both_directions(monkeypatch):
    clock = Clock().set_in(monkeypatch)
    ledger = Ledger(cuda=False)
    with watched(ledger) as parts:
        run(ledger, clock)
    took = {}
    for name, (stage, part) in parts.items():
        took[stage, part.layer, part.network, part.part] = min(ledger.seconds()[name])
    layer = "layer 1"
    expected = {
        ("forward", layer, "first", "update"): 0.01, ("forward", layer, "second", "update"): 0.02,
        ("forward", "", "", "head"): 0.005, ("backward", layer, "first", "update"): 0.03,
        ("backward", layer, "second", "update"): 0.015, ("backward", "", "", "head"): 0.005,
    }  # fmt: skip
    for key, seconds in expected.items():
        assert took[key] == pytest.approx(seconds), key
    for key in (
        ("forward", layer, "", "aggregation"),
        ("backward", layer, "", "aggregation"),
        ("backward", "", "", "loss"),
    ):
        assert took[key] == 0, key
    assert "backward" not in ledger.seconds()  # all of it has its part
    plain = Ledger(cuda=False)
    run(plain, clock)  # marks that nobody watches split nothing
    assert set(plain.seconds()) == {"data_wait", "forward", "loss", "backward", "other", "step"}


@pytest.mark.parametrize(
    ("fields", "copies", "networks"),
    [
        ({"strategy": "edge_mask"}, {"wild type", "samples"}, True),
        ({"strategy": "node_mask"}, {"wild type and samples"}, False),
        ({"strategy": "delta", "metabolism": "used"}, {"wild type and samples"}, False),
        ({"strategy": "edge_mask", "checkpoint": True}, {"wild type", "samples"}, True),
        ({"strategy": "edge_mask", "overheads": "batch_wide_layer_norm"}, {"wild type", "samples"}, True),
        ({"model": "hetero_cell_production", "strategy": "gpu_mask"}, {"wild type", "samples"}, True),
        ({"model": "dango", "strategy": "indices"}, {"wild type"}, True),
    ],
)
def test_every_model_and_view_is_seen_by_layer_and_network(fields, copies, networks):
    point = Point(**HOW, batch_size=3, **fields)
    found = inside(point, steps=2, receipt_seconds=0)
    frame = found.frame
    assert set(frame["copies"]) - {""} == copies
    layers = {"layer 1", "layer 2"} | ({"layer 3"} if point.model != "dango" else set())
    assert set(frame["layer"]) - {""} == layers
    deep = frame[frame["layer"] != ""]
    assert (deep.groupby(["copies", "layer"])["backward"].sum() > 0).all()
    of_sums = deep[deep["part"].isin(["neighbour sum", "neighbour sums", "convolution"])]
    assert (of_sums["network"] != "").all() == networks
    assert frame["share"].sum() == pytest.approx(1)
    assert ((frame["forward"] >= 0) & (frame["backward"] >= 0)).all()
    rest = frame[frame["part"] == "the rest"].iloc[0]
    assert rest["backward"] == 0
    assert rest["forward"] < 0.02 * frame["forward"].sum() + 2e-4
    by_layer = found.by("layer")
    assert by_layer.xs("forward", axis=1, level=1).sum().iloc[0] == pytest.approx(frame["forward"].sum())


def test_two_models_stand_side_by_side_with_what_the_marks_cost():
    hetero = Point(**HOW, batch_size=2)
    dango = Point(**HOW, model="dango", strategy="indices", batch_size=4)
    found = inside(hetero, dango, steps=2, receipt_seconds=0.5)
    shown = str(found)
    assert "hetero_cell · node_mask · batch 2, dango · indices · batch 4" in " ".join(shown.split())
    assert re.search(r"dango +wild type · layer 2 · convolution", shown)
    assert "the ledger's own work is" in shown
    assert max(map(len, shown.splitlines())) < 80
    assert set(found.by("layer").columns.get_level_values(0)) == set(found.frame["point"]) == set(found.receipts)


def test_a_point_is_traced_in_one_call(tmp_path):
    reports = [
        trace_point(Point(**HOW, **fields), tmp_path / name, wait=4, active=2)
        for name, fields in (("a", {"strategy": "edge_mask"}), ("b", {"model": "dango", "strategy": "indices"}))
    ]
    for report in reports:
        assert len(report.steps) == 2
        assert {"model_forward", "backward", "optimizer"} <= set(
            report.categories[report.categories["self_us"] > 0]["category"]
        )
        assert any("unprofiled ones" in finding for finding in report.findings)
    spans = tmp_path / "a" / "rank0.pt.trace.json.gz"
    assert spans.exists()
    (cost,) = (w for w in tclab.trace.compare(*reports).warnings if "ratio without the profiler" in w)
    in_a, in_b, distorted = map(float, re.findall(r"(\d+\.\d+) ×", cost))
    assert distorted == pytest.approx(in_b / in_a, abs=0.02)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"ranks": 2}, "2 ranks asked for"),
        ({"runs": 2}, "2 runs asked for"),
        ({"strategy": "indices"}, "nothing is to be seen inside this point: skipped"),
    ],
)
def test_what_cannot_be_seen_into_is_refused(fields, words):
    with pytest.raises(InputError, match=words):
        trace_point(Point(**{**HOW, **fields}), "traces")


def test_no_point_is_refused():
    with pytest.raises(InputError, match="there are no points"):
        inside()
