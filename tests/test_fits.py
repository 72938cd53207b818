"""What a point will hold, before it runs: batches to the byte, and what torch's allocator hands out."""

from dataclasses import replace

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

import tclab
from tclab import Point, masking
from tclab import run as run_point
from tclab.models import _layers
from tclab.sweeps.config._point_inputs import cell_graph_of, resolve
from tclab.sweeps.execution._measure import setup
from tclab.sweeps.predict import _fits as fitting
from tclab.sweeps.predict._fits import fits

SMALL = {"scale": 0.05, "networks": 2, "workers": 0, "device": "cpu", "warmup": 0, "steps": 2}


def point_of(strategy, **more):
    model = {} if masking.get(strategy).masks_graph else {"model": "dango"}
    return resolve(Point(strategy=strategy, **{"batch_size": 4, **SMALL, **model, **more}))


def batch_bytes(point):
    with setup(point, point.batch_size) as here:
        return next(here.batches()).batch.bytes


MORE = {"metabolism": "carried", "perturbations": 2, "micro_batch": 3}


@pytest.mark.parametrize(
    ("strategy", "more"),
    [
        *((name, MORE) for name in masking.names()),
        *((name, {}) for name in ("edge_mask", "node_mask", "delta")),
        *((name, {"collation": "edges"}) for name in masking.names() if "edges" in masking.get(name).collations),
    ],
)
def test_a_batch_carries_the_bytes_that_were_said(strategy, more):
    point = point_of(strategy, mode="data", **more)
    real = batch_bytes(point)
    said = fits(point).batch
    assert said == (pytest.approx(real, rel=0.01) if strategy == "sampled_edges" else real)  # which draws by position


@pytest.mark.parametrize("strategy", masking.names())
def test_a_larger_batch_is_told_from_two_small_ones(strategy):
    """To the byte where each sample adds the same; else within a few samples' luck."""
    point = point_of(strategy, mode="data", scale=0.1, batch_size=26, perturbations=2)
    exact = not issubclass(masking.get(strategy), masking.get("subgraph"))
    by_luck = 0.3 if strategy in ("delta", "fastest") or "khop" in strategy else 0.0 if exact else 0.02
    assert fits(point).batch == pytest.approx(batch_bytes(point), rel=by_luck)


def handed_out(point):
    """Return the most bytes that torch's allocator had handed out during a second step, beyond those before it."""
    with setup(point, 2 * point.batch_size) as here:
        batches = here.batches()
        here.run(batches, steps=1)
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as found:
            here.run(batches, steps=1)
    events = [event for event in found.profiler.kineto_results.events() if event.name() == "[memory]"]
    now = most = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        now += event.nbytes()
        most = max(most, now)
    return most


@pytest.mark.parametrize(
    ("strategy", "more"),
    [
        ("fastest", {}),
        ("delta", {"networks": 3}),
        ("edge_mask", {}),
        ("dense", {}),
        ("subgraph", {}),
        ("node_mask", {"micro_batch": 1}),
        ("indices", {}),
    ],
)
def test_a_step_holds_what_was_said(strategy, more):
    point = point_of(strategy, **{"scale": 0.1, "networks": 1, **more})
    held = handed_out(point)  # first: `fits` estimates `fastest` by what a run has chosen, and times nothing itself
    found = fits(point)
    assert found.step + found.batch == pytest.approx(held, rel=0.1)


@pytest.mark.slow
def test_gradients_that_are_added_up_are_held_while_a_step_runs_and_the_optimizers_state_stays():
    one, two, many = (fits(point_of("node_mask", networks=1, accumulate=number)) for number in (1, 2, 7))
    assert one.kept == two.kept == many.kept > 2 * one.model  # AdamW's two averages, and what the strategy keeps
    assert many.step == two.step
    assert one.step < two.step <= one.step + 1.1 * one.model  # beside the next batch's activations


def test_sizes_that_depend_on_values_are_refused():
    class Repeats(masking.get("node_mask")):
        name = "test_repeats"

        def view(self, batch):
            torch.repeat_interleave(torch.ones(batch.size, dtype=torch.int64))
            return super().view(batch)

    masking.register(Repeats)
    with pytest.raises(tclab.InputError, match="the sizes of its tensors depend on values"):
        fits(point_of("test_repeats"))


@pytest.mark.slow
def test_a_gpu_keeps_norms_in_float32_under_autocast(monkeypatch):
    """CUDA's autocast runs torch's layer_norm in float32, a CPU's as it comes; nothing else tells them apart here."""
    monkeypatch.setattr(_layers.LayerNorm, "forward", torch.nn.LayerNorm.forward)
    held = {}
    for dtype in ("float32", "bfloat16"):
        for device in ("cpu", "cuda"):
            held[dtype, device] = fitting._estimate(replace(point_of("node_mask", dtype=dtype), device=device), ()).step
    assert held["float32", "cuda"] == held["float32", "cpu"]
    assert held["bfloat16", "cpu"] < held["bfloat16", "cuda"] < held["float32", "cuda"]


def test_shared_memory_is_ranks_times_workers_times_prefetch_times_batch():
    found = fits(point_of("edge_mask", workers=3, loader={"prefetch_factor": 4}, ranks=2, mode="data"))
    assert found.shared == 2 * 3 * 4 * found.batch
    small = fits(point_of("node_mask", workers=3, mode="data"))
    assert small.shared == 0  # such a batch goes through the pipe itself


def test_a_point_that_cannot_fit_is_refused_with_both_numbers():
    refusal = fits(point_of("node_mask"), memory_bytes=10_000_000).refusal
    assert refusal.startswith("needs ")
    assert "of host memory, and there are 10 MB" in refusal


def test_what_it_says_can_be_read():
    found = fits(point_of("edge_mask"), memory_bytes=10**12)
    assert found.refusal is None
    assert str(found).splitlines()[-1] == "fits"
    assert str(replace(found, host_limit=1000)).splitlines()[-1].startswith("does not fit: needs ")


def test_weighing_leaves_no_mark_on_the_graph_that_runs():
    point = point_of("dense")
    fits(point)
    for network in cell_graph_of(point).networks.values():
        assert type(network.dense(dtype=torch.float32)) is torch.Tensor
        assert network.dense(dtype=torch.float32).sum() > 0


@pytest.mark.slow
def test_a_process_holds_about_what_was_said_where_each_tensor_has_its_own_pages():
    options = {**SMALL, "allocator": "map_each"}
    small = run_point(Point(**{**options, "scale": 0.005, "batch_size": 1}), fresh=True)
    point = Point(**{**options, "scale": 0.1, "batch_size": 32})
    large = run_point(point, fresh=True)
    held = [int(rows[rows["stage"] == "step"]["peak_bytes"].iloc[0]) for rows in (small, large)]
    found = tclab.fits(point)
    assert found.host - found.process == pytest.approx(held[1] - held[0], rel=0.15)


@pytest.mark.slow  # processes of its own
def test_a_points_peak_is_its_own_and_not_an_earlier_points():
    small = Point(scale=0.05, networks=1, batch_size=1, steps=2, warmup=0, workers=0, device="cpu")

    def peak(point):
        return run_point(point)["peak_bytes"].dropna().max()

    run_point(small)
    before = peak(small)
    large = peak(replace(small, scale=0.15, networks=None, strategy="edge_mask", batch_size=4))
    assert large > before + 100e6
    assert peak(small) < before + 40e6
