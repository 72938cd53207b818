"""`fastest`: every mix of kernels is right, what calibration finds is kept, and a choice by hand goes before it."""

import json
from types import SimpleNamespace

import pytest
import torch

import tclab
from tclab import Point, masking
from tclab.masking import calibration
from tclab.masking._fastest import Fastest
from tclab.masking.calibration import Choice, cache_path, keep_choice, kept_choice, print_choices
from tclab.models import HeteroCell
from tclab.perturbation import synthetic_perturbations
from tclab.sweeps.execution._setup import _tune_once, setup
from tclab.training._equivalence import norm_error

pytestmark = pytest.mark.clock

GRAPH = tclab.CellGraph.synthetic(0.01, seed=4, metabolism=False).select(["physical", "regulatory"])
SAMPLES = synthetic_perturbations(GRAPH, 3, seed=1)


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TCLAB_CACHE", str(tmp_path))
    return tmp_path


def outcome(view):
    torch.manual_seed(0)
    model = HeteroCell(GRAPH.num_nodes["gene"], list(GRAPH.networks), width=8, layers=3).double()
    predictions = model(view)
    (predictions * torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)).sum().backward()
    return predictions.detach(), [parameter.grad for parameter in model.parameters()]


@pytest.mark.parametrize("delta", [False, True])
@pytest.mark.parametrize("dense", [(), ("physical",), ("regulatory",), ("physical", "regulatory")])
def test_every_mix_of_kernels_gives_what_subgraph_gives(dense, delta):
    expected = outcome(masking.get("subgraph")(GRAPH).view(masking.get("subgraph")(GRAPH).batch(SAMPLES)))
    strategy = Fastest(GRAPH, choice=Choice(dense, delta))
    batch = strategy.batch(SAMPLES)
    assert batch.host_values["layers"] > 0 if delta else batch.host_values["layers"] == 0
    assert norm_error(outcome(strategy.view(batch)), expected) <= 1e-12


@pytest.mark.parametrize("strategy", ["dense", "fastest"])
def test_dense_sums_are_dense_for_the_wild_type_and_the_samples_together(strategy):
    here = masking.get(strategy)(GRAPH)
    for part in here.view(here.batch(SAMPLES)).with_wild_type():
        assert part.dense
        assert part.wild_type.dense


def test_a_calibration_is_made_once_and_kept(monkeypatch, capsys):
    monkeypatch.setattr("tclab.masking.calibration._SPARSEST", float("inf"))  # this graph is small, so sparse
    first = Fastest(GRAPH)
    first.tune(3, "float32", "cpu")
    assert {"physical sparse", "physical dense", "delta", "shared"} <= set(first.choice.seconds)
    assert str(first.choice).endswith("(timed)")
    monkeypatch.setattr("tclab.masking._fastest.timed", None)  # nothing is timed again
    second = Fastest(GRAPH)
    second.tune(3, "float32", "cpu")
    assert second.choice == first.choice
    print_choices()
    assert "batch 3, float32, cpu: " in capsys.readouterr().out


def test_a_choice_by_hand_goes_before_what_would_be_found():
    wanted = Choice(("physical",), delta=False)
    keep_choice(GRAPH, 3, "float32", "cpu", wanted)
    strategy = Fastest(GRAPH)
    strategy.tune(3, "float32", "cpu")
    assert strategy.choice == wanted
    assert kept_choice(GRAPH, 4, "float32", "cpu") is None
    assert kept_choice(GRAPH, 3, "float32", "cpu", deleted=1) is None
    assert kept_choice(GRAPH, 3, "float32", "cpu", width=8) is None
    given = Fastest(GRAPH, choice=Choice())
    given.tune(3, "float32", "cpu")
    assert given.choice == Choice()


def test_a_spoilt_or_foreign_file_is_made_again(cache):
    keep_choice(GRAPH, 3, "float32", "cpu", Choice())
    assert kept_choice(GRAPH, 3, "float32", "cpu") is not None
    every = json.loads(cache_path().read_text())
    cache_path().write_text(json.dumps({"another machine": next(iter(every.values()))}))
    assert kept_choice(GRAPH, 3, "float32", "cpu") is None
    (machine,) = every
    newer = {asked: {**choice, "more": 1} for asked, choice in every[machine].items()}
    for other in (newer, {asked: [] for asked in newer}, []):
        cache_path().write_text(json.dumps({machine: other}))
        assert kept_choice(GRAPH, 3, "float32", "cpu") is None
        print_choices()
    cache_path().write_text("[]")
    assert kept_choice(GRAPH, 3, "float32", "cpu") is None
    cache_path().write_text('{"half')
    assert kept_choice(GRAPH, 3, "float32", "cpu") is None


def test_what_is_timed_is_what_runs(monkeypatch):
    timed = []

    def least(arms, rounds):  # dense products, and differences, come out fastest
        return {name: 1.0 if name.endswith("dense") or name == "delta" else 2.0 for name in arms}

    monkeypatch.setattr(calibration, "_SPARSEST", float("inf"))
    monkeypatch.setattr(calibration, "least_seconds", least)
    monkeypatch.setattr(calibration, "_both_ways", lambda forward, x: timed.extend(forward.args))
    strategy = Fastest(GRAPH, depth=1)
    strategy.tune(3, "float32", "cpu")
    runs = strategy.view(strategy.batch(SAMPLES))
    differences, shared = timed[-2:]
    assert set(differences.dense) == set(shared.dense) == set(runs.dense) == set(GRAPH.networks)
    assert type(differences) is type(runs)
    assert len(differences._layers) == len(runs._layers) == 1


POINT = Point(strategy="fastest", scale=0.01, networks=2, batch_size=3, workers=0, device="cpu")


def test_a_point_is_tuned_once_and_both_its_halves_choose_alike(monkeypatch):
    tuned = []
    tune = Fastest.tune
    monkeypatch.setattr(Fastest, "tune", lambda *given, **more: (tuned.append(given), tune(*given, **more)))
    with setup(POINT.resolved(), 3) as here:
        assert here.data.strategy.choice == here.step.strategy.choice
        here.run(here.batches(), steps=1)
    assert len(tuned) == 1


def test_ranks_choose_what_the_first_one_does(monkeypatch):
    said = []

    def first(text):
        said.append(text())
        return said[0]

    _tune_once(loading := Fastest(GRAPH), POINT, SimpleNamespace(broadcast=first))
    assert loading.choice.seconds
    monkeypatch.setattr("tclab.masking._fastest.timed", None)  # another rank times nothing, and has no file of its own
    cache_path().unlink()
    _tune_once(other := Fastest(GRAPH), POINT, SimpleNamespace(broadcast=lambda text: said[0]))
    assert other.choice == loading.choice
