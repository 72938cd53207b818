"""`fastest`: what is timed once in a process is what both halves and all ranks run."""

import pytest

import tclab
from tclab import Point, masking
from tclab.masking import _shared_graph_strategies as calibrating
from tclab.perturbation import synthetic_perturbations
from tclab.sweeps.config._point_inputs import resolve
from tclab.sweeps.execution._ranks import Ranks
from tclab.sweeps.execution._setup import setup, strategy_arguments

GRAPH = tclab.CellGraph.synthetic(0.01, seed=4, metabolism=False).select(["physical", "regulatory"])
SAMPLES = synthetic_perturbations(GRAPH, 3, seed=1)
POINT = Point(strategy="fastest", scale=0.01, networks=2, batch_size=3, workers=0, device="cpu")
Fastest = masking.get("fastest")


@pytest.fixture(autouse=True)
def nothing_is_chosen(monkeypatch):
    monkeypatch.setattr(calibrating, "_CHOSEN", {})
    monkeypatch.setattr(calibrating, "_SPARSEST", float("inf"))  # this graph is small, so sparse


@pytest.fixture
def untimed(monkeypatch):
    """The arms that were asked for; dense products, and differences, come out fastest."""
    asked = []

    def least(arms, rounds):
        asked.append(list(arms))
        return {arm: 1.0 if arm in ("dense", True) else 2.0 for arm in arms}

    monkeypatch.setattr(calibrating, "least_seconds", least)
    return asked


def test_untuned_it_uses_every_kernel_for_the_wild_type_and_the_samples_together():
    strategy = Fastest(GRAPH)
    batch = strategy.batch(SAMPLES)
    assert 0 < len(strategy.dense) < len(GRAPH.networks)
    assert batch.host_values["layers"] > 0
    assert Fastest(GRAPH, delta=False).batch(SAMPLES).host_values["layers"] == 0
    for part in strategy.view(batch).with_wild_type():
        assert part.dense == part.wild_type.dense == strategy.dense


def test_each_network_and_the_differences_are_timed_once_in_a_process_and_the_fastest_run(untimed):
    chosen = {"dense": list(GRAPH.networks), "delta": True}
    for _ in range(2):
        assert Fastest.tune(GRAPH, 3, "float32", "cpu") == chosen
        assert untimed == [["sparse", "dense"]] * 2 + [[True, False]]
    for other in ((GRAPH, 4, "float32", "cpu"), (GRAPH, 3, "float64", "cpu")):
        assert Fastest.tune(*other, timing=False) == {"dense": [], "delta": True}  # the likeliest
    assert masking.get("node_mask").tune(GRAPH, 3, "float32", "cpu") == {}


def test_a_point_is_tuned_once_and_both_its_halves_choose_alike(untimed):
    with setup(resolve(POINT), 3) as here:
        halves = here.data.strategy, here.step.strategy
        assert all((set(half.dense), half.delta) == (set(half.graph.networks), True) for half in halves)
        here.run(here.batches(), steps=1)
    assert untimed.count([True, False]) == 1


def test_ranks_choose_what_the_first_one_does(untimed, monkeypatch):
    chosen = strategy_arguments(POINT, "cpu")
    assert chosen["delta"] is True
    monkeypatch.setattr(Ranks, "broadcast", lambda ranks, make: chosen)
    monkeypatch.setattr(Fastest, "tune", None)  # another rank times nothing
    with setup(POINT, POINT.batch_size, Ranks()) as here:
        here.run(here.batches(), steps=1)
