"""What a budget covers: simulated sweeps on a clock of their own, by a model of a machine's times."""

import json
from dataclasses import replace

import pytest
from test_notebooks import FOLDER, defaults

import tclab
from tclab import Point
from tclab.sweeps._progress import Progress, print_progress
from tclab.sweeps._rows import columns_of, not_measured, table
from tclab.sweeps._sweep import Foresight

# Seconds a sample of all networks: two quiet cores at scale 0.1; an H100 at full size, by its recording in docs/gpu.md
CPU = {"node_mask": 0.02, "delta": 0.02, "edge_mask": 0.06, "subgraph": 0.1, "indices": 0.03}
GPU = {"node_mask": 0.002, "delta": 0.005, "edge_mask": 0.02, "subgraph": 0.06, "indices": 0.001}
KEY = {"node_mask", "delta", "edge_mask", "subgraph"}


class Machine:
    """Runs points in no time, while its clock goes on as a machine's would."""

    def __init__(self, monkeypatch, seconds, start, check, around):
        self.now, self.seconds, self.ran = 0.0, seconds, []
        self.start, self.check, self.around = start, check, around
        monkeypatch.setattr("tclab.sweeps._sweep.monotonic", lambda: self.now)
        monkeypatch.setattr("tclab.sweeps._sweep.point_rows", self.rows)

    def rows(self, point, **_):
        networks = columns_of(point)["networks"]
        share = networks / (9 if point.model == "hetero_cell" else 6)
        step = point.batch_size * share * self.seconds.get(point.strategy, 2 * max(self.seconds.values()))
        new = point.strategy not in [one.strategy for one in self.ran]
        took = self.around + self.check * new + self.start * (not self.ran)
        self.now += took + (point.warmup + 1 + point.steps) * step
        self.ran.append(point)
        more = {"networks": networks, "edges": 1000 * networks, "mean_seconds": step, "status": "ok", "stage": "step"}
        return table([{**columns_of(point), **more}])


def default_budget():
    return defaults(json.loads((FOLDER / "sweep.ipynb").read_text())["cells"])["budget_seconds"]


def covered(rows):
    """Return strategy → batch sizes at the most networks, and numbers of networks, that have a time."""
    ok = rows[rows["status"] == "ok"]
    most = ok.groupby("model")["networks"].transform("max")
    sizes = ok[ok["networks"] == most].groupby("strategy")["batch_size"].nunique()
    return {name: (int(sizes.get(name, 0)), int(one["networks"].nunique())) for name, one in ok.groupby("strategy")}


def test_by_its_defaults_two_minutes_on_two_cores_answer_all_three_axes(tmp_path, monkeypatch):
    machine = Machine(monkeypatch, CPU, start=6, check=1.5, around=2.2)
    points = tclab.grid(gpus=0)
    rows = tclab.sweep(points, results=tmp_path, budget_seconds=default_budget(), progress=None)
    found = covered(rows)
    assert all(sizes >= 3 and networks >= 3 for sizes, networks in map(found.get, KEY))
    assert found["indices"][0] >= 3  # DANGO's
    assert machine.now <= default_budget()
    again = tclab.sweep(points, results=tmp_path, budget_seconds=default_budget(), progress=None)
    served = {point.strategy for point in points}
    assert set(covered(again)) == served  # the same command goes on: every strategy at one size


def test_by_its_defaults_the_sweep_answers_on_gpus_at_full_size(tmp_path, monkeypatch):
    monkeypatch.setattr("tclab.sweeps._point.gpu_count", lambda: 4)
    Machine(monkeypatch, GPU, start=25, check=4, around=4)
    points = tclab.grid(gpus=4)
    assert {(p.ranks, p.device, p.scale) for p in points} == {(4, "cuda", 1.0)}
    rows = tclab.sweep(points, results=tmp_path, budget_seconds=default_budget(), progress=None)
    answer = rows[(rows["status"] == "ok") & (rows["batch_size"] == 28)]
    assert set(answer[answer["networks"] == 9]["strategy"]) == KEY
    assert {"dango"} < set(answer["model"])
    assert covered(rows)["node_mask"][1] == 3  # numbers of networks


def test_what_would_not_end_in_time_is_left_and_what_is_shorter_is_run(tmp_path, monkeypatch):
    machine = Machine(monkeypatch, CPU, start=0, check=0, around=1)
    fixed = {"scale": 0.02, "device": "cpu", "warmup": 0, "steps": 7}
    sizes = [Point(**fixed, batch_size=size) for size in (4, 400, 5)]  # 1.6 s, 65 s, 1.8 s
    told = []
    rows = tclab.sweep(sizes, results=tmp_path, budget_seconds=10, progress=told.append)
    assert rows["status"].tolist() == ["ok", "not run: the budget of 10 s was spent", "ok"]
    assert [point.batch_size for point in machine.ran] == [4, 5]
    assert told[0].seconds_left == pytest.approx(1 + 9 * 0.1, abs=0.2)  # what is left to run, not of the budget
    tclab.sweep(sizes, results=tmp_path, budget_seconds=10, progress=None)  # kept rows foretell, too
    assert [point.batch_size for point in machine.ran] == [4, 5]
    assert len(list(tmp_path.glob("*.parquet"))) == 2  # what was left is not kept
    tclab.sweep(sizes, results=tmp_path, budget_seconds=0, progress=None)  # no limit
    assert [point.batch_size for point in machine.ran] == [4, 5, 400]
    rows = tclab.sweep([*sizes, Point(**fixed, batch_size=6)], results=tmp_path, budget_seconds=1e-9, progress=None)
    assert rows["status"].str.startswith("not run: the budget").tolist() == [False] * 3 + [True]  # others are read


def test_every_file_is_looked_for_before_the_first_is_run_and_lines_name_what_varies(tmp_path, monkeypatch, capsys):
    machine = Machine(monkeypatch, CPU, start=0, check=0, around=1)
    fixed = {"scale": 0.02, "device": "cpu", "networks": 1}
    with pytest.raises(tclab.InputError, match="no/such"):
        tclab.sweep([Point(**fixed), Point(**fixed, perturbations="no/such")], results=tmp_path)
    assert not machine.ran
    modes = [Point(**fixed, mode=mode, overheads=slow) for mode in ("step", "model") for slow in ((), "print_loss")]
    tclab.sweep([*modes, Point(scale=0.02, device="cpu", model="dango", strategy="indices")], results=tmp_path)
    lines = capsys.readouterr().err.splitlines()
    assert ", mode step, overheads none: " in lines[0]
    assert ", mode model, overheads print_loss: " in lines[3]
    assert "loss" not in lines[0].replace("print_loss", "")  # each model has its own
    assert "dango indices batch 4 networks 6" in lines[4]
    assert lines[0].startswith("[1/5] hetero_cell")  # a script says how far it is
    print_progress(Progress(1, 3, modes[0], not_measured(modes[0], "not run"), kept=False, seconds_left=130.0))
    assert capsys.readouterr().err.endswith("not run · about 0:02:10 left\n")


def test_options_of_a_sweep_may_be_text_and_a_wrong_one_is_a_sentence(tmp_path, monkeypatch):
    machine = Machine(monkeypatch, CPU, start=0, check=0, around=1)
    point = Point(scale=0.02, device="cpu", networks="1")
    as_text = {"retry": "false", "budget_seconds": "30", "hang_seconds": "none", "repeats": "2"}
    assert len(tclab.sweep(point, results=tmp_path, progress=None, **as_text)) == len(machine.ran) == 2
    for name, value in (("hang_seconds", -5), ("hang_seconds", 0), ("budget_seconds", "x"), ("budget_seconds", -1),
                        ("retry", "maybe"), ("repeats", 1.5)):  # fmt: skip
        with pytest.raises(tclab.InputError, match=f"{name} is .*expected") as error:
            tclab.sweep(point, results=tmp_path, **{name: value})
        assert error.value.name == name


def test_networks_that_are_all_a_model_reads_are_one_point(tmp_path, monkeypatch):
    machine = Machine(monkeypatch, CPU, start=0, check=0, around=1)
    every = [Point(scale=0.02, device="cpu", networks=networks) for networks in (9, "all", None, "9")]
    every += [Point(scale=0.02, device="cpu", model="dango", strategy="indices", networks=n) for n in (6, None)]
    rows = tclab.sweep(every, results=tmp_path, progress=None)
    assert len(machine.ran) == 2
    assert rows["networks"].tolist() == [9, 9, 6, 6]  # of the field "all" and None are one value, as 9 and "9" are


def test_a_time_is_foretold_from_the_edges_of_the_settings_own_scale():
    foresight, point = Foresight(), Point(scale=0.1, device="cpu", networks=9)
    row = {**columns_of(point), "networks": 9, "edges": 1000, "mean_seconds": 1.0, "stage": "step"}
    foresight.learn(point, table([row]), 10.0)
    at_twice = foresight.seconds(replace(point, scale=0.2)) - foresight.seconds(point)
    assert at_twice == pytest.approx(3 * (point.warmup + point.steps + 2))  # four times the edges
