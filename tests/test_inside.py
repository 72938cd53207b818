"""Inside forward and backward: parts get the time that they take, and add up to the stages."""

import re
from types import SimpleNamespace

import pytest
import torch
from clock import Clock

import tclab
from tclab import InputError, Point
from tclab.message_passing import SharedView
from tclab.sweeps import inside, loop_of
from tclab.sweeps.analysis._inside import Part, timed_parts
from tclab.timing import Ledger

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


class Takes(torch.nn.Module):
    """A module that takes so many of a clock's seconds in the forward, and in the backward."""

    def __init__(self, clock, forward, backward, network=None):
        super().__init__()
        self.times = clock, forward, backward
        if network is not None:
            self.network = network

    def forward(self, x):
        return Works.apply(x, *self.times)


class Layer(torch.nn.Module):
    def __init__(self, clock):
        super().__init__()
        self.convs = torch.nn.ModuleList([Takes(clock, 0.01, 0.03, "first"), Takes(clock, 0.02, 0.015, "second")])
        self.clock = clock

    def forward(self, view, x):
        total = sum(conv(view.lift(x)) for conv in self.convs)
        self.clock.work(0.001)  # of the layer, in none of its parts
        return total


class Model(torch.nn.Module):
    def __init__(self, clock):
        super().__init__()
        self.layers = torch.nn.ModuleList([Layer(clock)])
        self.head = Takes(clock, 0.005, 0.006)

    def forward(self, view, x):
        return self.head(self.layers[0](view, x))


class Lifts(SharedView):
    def __init__(self, clock):
        self.clock = clock

    def lift(self, x):
        return Works.apply(x, self.clock, 0.002, 0.003)

    def close(self):
        pass


class Strategy:
    def __init__(self, clock):
        self.clock = clock

    def view(self, batch):
        return Lifts(self.clock)


def run(step, ledger, clock, *, steps=2):
    for batch in ledger.steps(range(steps)):
        x = torch.ones(3, requires_grad=True)
        with step.strategy.view(batch) as view:
            with ledger.stage("forward"):
                clock.work(0.007)
                out = step.model(view, x)
            with ledger.stage("loss"):
                loss = out.sum()
            with ledger.stage("backward"):
                clock.work(0.004)
                loss.backward()


def test_a_part_has_its_own_time_in_both_directions_and_the_rest_is_the_rest(monkeypatch):
    clock = Clock().set_in(monkeypatch)
    step = SimpleNamespace(model=Model(clock), strategy=Strategy(clock))
    ledger = Ledger(cuda=False)
    with timed_parts(step, ledger) as parts:
        run(step, ledger, clock)
    seconds = ledger.seconds()
    took = {}
    for name, (stage, part) in parts.items():
        took.setdefault(part, {})[stage] = min(seconds[name])
    layer = Part("samples", "layer 1")
    assert took[Part(part="head")] == pytest.approx({"forward": 0.005, "backward": 0.006})
    assert took[layer._replace(network="first", part="convs")] == pytest.approx({"forward": 0.01, "backward": 0.03})
    assert took[layer._replace(network="second", part="convs")] == pytest.approx({"forward": 0.02, "backward": 0.015})
    assert took[layer._replace(part="lift")] == pytest.approx({"forward": 2 * 0.002, "backward": 2 * 0.003})
    assert took[layer._replace(part="Layer")]["forward"] == pytest.approx(0.001)
    assert min(seconds["forward"]) == pytest.approx(0.007)  # in no part
    assert min(seconds["backward"]) == pytest.approx(0.004)
    plain = Ledger(cuda=False)
    run(step, plain, clock)  # hooks that are gone split nothing
    assert set(plain.seconds()) == {"data_wait", "forward", "loss", "backward", "other", "step"}
    for stage in ("forward", "backward"):  # parts and the rest are the stage
        whole = min(plain.seconds()[stage])
        assert min(seconds[stage]) + sum(one.get(stage, 0.0) for one in took.values()) == pytest.approx(whole)


@pytest.mark.parametrize(
    ("fields", "copies", "networks"),
    [
        ({"strategy": "edge_mask"}, {"wild type", "samples"}, True),
        ({"strategy": "node_mask"}, {"wild type and samples"}, False),
        ({"model": "hetero_cell_production", "strategy": "gpu_mask"}, {"wild type", "samples"}, True),
        ({"model": "dango", "strategy": "indices"}, {"wild type"}, True),
    ],
)
def test_every_model_and_view_is_seen_by_layer_and_network(fields, copies, networks):
    point = Point(**HOW, batch_size=3, **fields)
    frame = inside(point, steps=2).frame
    assert set(frame["copies"]) - {""} == copies
    assert set(frame["layer"]) - {"", "layer 3"} == {"layer 1", "layer 2"}
    deep = frame[frame["layer"] != ""]
    assert (deep.groupby(["copies", "layer"])["backward"].sum() > 0).all()
    of_sums = deep[deep["part"].isin(["neighbour sum", "neighbour sums", "convolve sum"])]
    assert len(of_sums)
    assert (of_sums["network"] != "").all() == networks
    assert frame["share"].sum() == pytest.approx(1)
    assert ((frame["forward"] >= 0) & (frame["backward"] >= 0)).all()
    convolutions = deep[deep["part"].isin(["convolutions", "SAGE"])]
    assert (convolutions["network"] != "").all()
    assert (convolutions["backward"] > 0).all()


def test_two_models_stand_side_by_side():
    dango = Point(**HOW, model="dango", strategy="indices", batch_size=4)
    found = inside(Point(**HOW, batch_size=2), dango, steps=2)
    assert re.search(r"dango +wild type · layer 2 · SAGE", str(found))
    assert set(found.by("layer").columns.get_level_values(0)) == set(found.frame["point"])


def test_a_points_steps_are_traced_around_its_loop(tmp_path):
    point = Point(**HOW, strategy="edge_mask")
    ledger = Ledger(marks=True)
    with loop_of(point, steps=1) as loop, tclab.trace.record(tmp_path, wait=4, active=2, steps=7) as recorder:
        for _ in range(7):
            loop(ledger)
            recorder.step()
    report = tclab.trace.analyze(recorder.path)
    seen = report.categories[report.categories["self_us"] > 0]["category"]
    assert {"model_forward", "backward", "optimizer"} <= set(seen)


def test_what_cannot_be_seen_into_is_refused():
    with pytest.raises(InputError, match="nothing is to be seen inside this point: skipped"):
        inside(Point(**HOW, strategy="indices"))
    with pytest.raises(InputError, match="there are no points"):
        inside()
