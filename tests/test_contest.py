"""Points raced: behind their gates, from processes that leave nothing, with errors that say what to do."""

import os
import tempfile

import pytest

import tclab
from tclab import InputError, Point
from tclab.command import main
from tclab.message_passing import SharedView
from tclab.perturbation import Deletions
from tclab.sweeps import inside, loop_of, race_points
from tclab.timing import verdicts_of
from tclab.training._loading import Batches


def tiny(**fields):
    return Point(**{"scale": 0.01, "networks": 1, "batch_size": 2, "workers": 0, "device": "cpu", **fields})


def test_points_are_raced_in_this_process_and_the_record_gives_the_verdicts_again(tmp_path):
    points = {name: tiny(strategy=name) for name in ("node_mask", "stored_mask")}
    race = race_points(points, budget_seconds=3, processes=None, record=tmp_path / "race.jsonl")
    assert {sample["arm"] for sample in race.samples()} == set(points)
    again = verdicts_of(tmp_path / "race.jsonl")
    assert again == race.pairs
    others = {name: tiny(strategy=name, seed=1) for name in points}
    with pytest.raises(InputError, match="is the record of another race"):
        race_points(others, budget_seconds=3, processes=None, record=tmp_path / "race.jsonl")


@pytest.mark.slow
def test_points_are_raced_in_a_process_of_their_own_and_nothing_is_left(monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    points = {name: tiny(strategy=name, allocator="keep_pages") for name in ("edge_mask", "stored_index")}
    race = race_points(points, budget_seconds=15, processes=2)
    assert {sample["process"] for sample in race.samples()} == {0, 1}
    assert race.settings["environment"]["MALLOC_MMAP_MAX_"] == "0"
    assert "TMPDIR" not in race.settings["environment"]  # a race goes on although its files were elsewhere
    assert os.listdir(tmp_path) == []


def test_a_strategy_that_is_wrong_is_not_raced():
    class Wrong(tclab.masking.get("node_mask")):
        name = "wrong"

        def view(self, batch):
            return SharedView(self.graph, {kind: Deletions.nothing(batch.size) for kind in self.graph.num_nodes})

    tclab.masking.register(Wrong)
    refused = "strategy 'wrong' does not compute what 'subgraph' computes, so it is not timed: in float64, 8 of 9 pred"
    with pytest.raises(InputError, match=refused):
        race_points({"right": tiny(), "wrong": tiny(strategy="wrong")}, budget_seconds=1, processes=None)


def test_points_that_no_race_can_have_are_named():
    with pytest.raises(InputError, match=r"'b'. cannot be run: skipped: dango reads no masked graph"):
        race_points({"a": tiny(), "b": tiny(model="dango", strategy="node_mask")}, budget_seconds=1)
    with pytest.raises(InputError, match=r"allocator is 'default' and 'keep_pages', expected one"):
        race_points({"a": tiny(), "b": tiny(allocator="keep_pages")}, budget_seconds=1)
    with pytest.raises(InputError, match=r"loop is 'lightning', which starts a Trainer for each step of a race"):
        race_points({"a": tiny(), "b": tiny(loop="lightning")}, budget_seconds=1)
    kept = tiny(allocator="keep_pages")  # this process has glibc's own
    for call in (lambda: race_points({"a": kept}, budget_seconds=1, processes=None), lambda: inside(kept),
                 lambda: loop_of(kept, steps=1).__enter__()):  # fmt: skip
        with pytest.raises(InputError, match=r"allocator 'keep_pages' asked for, which only a fresh process has"):
            call()


def test_an_arm_in_mode_fixed_batch_loads_one_batch(monkeypatch):
    load, loaded = Batches.__getitem__, []
    monkeypatch.setattr(Batches, "__getitem__", lambda self, i: loaded.append(i) or load(self, i))
    points = {name: tiny(mode="fixed_batch", strategy=name) for name in ("node_mask", "edge_mask")}
    race = race_points(points, budget_seconds=1, processes=None)
    assert len(loaded) == 2 < len(race.samples())


def test_a_setting_that_is_named_twice_is_not_raced_against_itself_unnoticed(capsys):
    assert main(["race", "node_mask", "node_mask", "edge_mask", "--scale", "0.01"]) == 2
    assert "node_mask is there twice, expected settings that differ" in capsys.readouterr().err
