"""Inside forward and backward: parts get the time that they take, and add up to the stages."""

import pytest
import torch
from clock import Clock

from tclab import InputError, Point
from tclab.message_passing import SharedView
from tclab.sweeps import inside
from tclab.sweeps._race_points import timed_parts
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

    def __init__(self, clock, forward, backward):
        super().__init__()
        self.times = clock, forward, backward

    def forward(self, x):
        return Works.apply(x, *self.times)


class Model(torch.nn.Module):
    def __init__(self, clock):
        super().__init__()
        self.convs = torch.nn.ModuleList([Takes(clock, 0.01, 0.03), Takes(clock, 0.02, 0.015)])
        self.head = Takes(clock, 0.005, 0.006)

    def forward(self, view, x):
        for conv in self.convs:
            x = conv(view.lift(x))
        return self.head(x)


class Lifts(SharedView):
    def __init__(self, clock):
        self.clock = clock

    def lift(self, x):
        return Works.apply(x, self.clock, 0.002, 0.003)


def run(model, ledger, clock):
    for _ in ledger.steps(range(2)):
        x = torch.ones(3, requires_grad=True)
        with ledger.stage("forward"):
            clock.work(0.007)
            out = model(Lifts(clock), x)
        with ledger.stage("loss"):
            loss = out.sum()
        with ledger.stage("backward"):
            clock.work(0.004)
            loss.backward()


def test_a_part_has_its_own_time_in_both_directions_and_the_rest_is_the_rest(monkeypatch):
    clock = Clock().set_in(monkeypatch)
    model, ledger = Model(clock), Ledger(cuda=False)
    with timed_parts(model, ledger):
        run(model, ledger, clock)
    took = {name: min(seconds) for name, seconds in ledger.seconds().items()}
    expected = {"head": (0.005, 0.006), "convs": (0.03, 0.045), "view.lift": (2 * 0.002, 2 * 0.003)}
    for part, times in expected.items():
        for stage, seconds in zip(("forward", "backward"), times, strict=True):
            assert took.get(f"{stage}: {part}", 0.0) == pytest.approx(seconds, abs=1e-9)
    rest = [took.get(stage, 0.0) + took.get(f"{stage}: the rest", 0.0) for stage in ("forward", "backward")]
    assert rest == pytest.approx([0.007, 0.004])
    plain = Ledger(cuda=False)
    run(model, plain, clock)  # hooks that are gone split nothing
    assert set(plain.seconds()) == {"data_wait", "forward", "loss", "backward", "other", "step"}
    for stage in ("forward", "backward"):  # parts and the rest are the stage
        parts = sum(seconds for name, seconds in took.items() if name.partition(":")[0] == stage)
        assert parts == pytest.approx(min(plain.seconds()[stage]))


@pytest.mark.parametrize(
    ("fields", "parts"),
    [
        ({"strategy": "edge_mask"}, {"view.neighbour_sum", "layers.convolutions", "view.pool", "preprocessor"}),
        ({"strategy": "delta"}, {"view.neighbour_sums", "view.convolve", "layers.convolutions"}),
        ({"model": "hetero_cell_production", "strategy": "gpu_mask"}, {"view.neighbour_sum", "layers.aggregation"}),
        ({"model": "dango", "strategy": "indices"}, {"view.neighbour_sum", "convolutions", "hyper_sagnn"}),
    ],
)
def test_every_model_and_view_is_seen_part_by_part(fields, parts):
    frame = inside(Point(**HOW, batch_size=3, **fields), steps=2).set_index("part")
    assert parts <= set(frame.index)
    assert (frame.loc[sorted(parts), ["forward", "backward"]] > 0).all(axis=None)
    assert frame["share"].sum() == pytest.approx(1)
    assert (frame[["forward", "backward"]] >= 0).all(axis=None)


def test_what_cannot_be_seen_into_is_refused():
    with pytest.raises(InputError, match="skipped: indices makes no masked graph"):
        inside(Point(**HOW, strategy="indices"))
    with pytest.raises(InputError, match="there are no settings"):
        inside()
