"""What overheads cost: intervals, verdicts, points asked for."""

import json
import re

import pytest
from stage_rows import lost, point_rows

from tclab import case_study
from tclab.sweeps.config import in_each_mode, scaling_points, with_each_overhead
from tclab.sweeps.store._rows import frame, table


def rounds_of(overhead, factor, number, drift=0.0, steps=12):
    """Rounds of a point without an overhead and one with it, which takes `factor` times as long, give or take."""
    made = []
    for seed in range(number):
        swing = 1 + drift * (-1) ** seed
        made += point_rows("node_mask", seed=seed, steps=steps, scatter=0.01)
        made += point_rows("node_mask", seed=seed, steps=steps, scatter=0.01, factor=factor * swing, overheads=overhead)
    return made


def costs(made):
    return case_study.overhead_costs(frame(table(made))).set_index("overhead")


@pytest.mark.parametrize(
    ("factor", "rounds", "drift", "verdict"),
    [(1.5, 4, 0.0, "costs"), (0.5, 4, 0.0, "saves"), (1.1, 3, 0.3, "undecided"), (3.0, 1, 0.0, "undecided")],
)
def test_an_overhead_has_its_ratio_and_a_verdict_where_rounds_agree(factor, rounds, drift, verdict):
    made = rounds_of("isnan_checks", factor, rounds, drift)
    alone = point_rows("node_mask", seed=9, factor=50, overheads="isnan_checks")  # without a step to compare with
    found = costs([*made, *alone]).loc["isnan_checks"]
    assert (found["verdict"], found["rounds"]) == (verdict, rounds)
    assert found["ratio"] == pytest.approx(factor, rel=0.01 + drift)
    assert (found["low"] < 1 < found["high"]) == (drift > 0)


def test_the_chart_says_what_is_undecided():
    rows = frame(table([*rounds_of("isnan_checks", 1.5, 3), *rounds_of("item_logging", 1.0, 3, drift=0.2)]))
    rows = rows.drop_duplicates(["seed", "overheads", "stage", "where"])
    chart = case_study.overheads_chart(case_study.overhead_costs(rows), rows)
    text = json.dumps(chart.to_dict(), ensure_ascii=False)
    assert re.search(r"1\.(49|50|51) × costs", text)
    assert "× undecided" in text
    assert "in 3 rounds; " in text
    nothing = frame(table([lost("node_mask", "not run: the budget of 1 s was spent")]))
    assert "No overhead was measured" in str(
        case_study.overheads_chart(case_study.overhead_costs(nothing), nothing).to_dict()
    )


# ---- the points asked for

SMALL = {"scale": 0.02, "gpus": 0, "batch_sizes": 2, "networks": 2, "steps": 4}


def test_each_mode_has_each_model_with_the_strategies_that_serve_it():
    points = in_each_mode(models="hetero_cell,dango", strategies="edge_mask,node_mask", collation="pyg", **SMALL)
    assert len(points) == len(set(points)) == 5 * 3
    assert points[0].mode == "step"
    assert not [point for point in points if point.skipped()]
    assert {(p.strategy, p.collation) for p in points} == {
        ("edge_mask", "pyg"), ("node_mask", "lean"), ("indices", "lean")}  # fmt: skip
    assert {p.steps for p in points if p.mode in ("data", "empty")} == {20}
    assert {p.steps for p in points if p.mode not in ("data", "empty")} == {4}


def test_several_workers_have_six_whole_cycles_in_every_point_of_a_question():
    common = {"scale": 0.02, "networks": 2, "models": "hetero_cell", "strategies": "node_mask", "workers": 4}
    every = in_each_mode(**common, gpus=0, batch_sizes=2, steps=6)
    every += scaling_points("weak", **common, steps=6, ranks=2, batch_size=2)
    assert {(point.mode == "fixed_batch", point.steps) for point in every} == {(False, 24), (True, 6)}


def test_rounds_have_every_overhead_beside_none_and_turn_round():
    points = with_each_overhead(models="hetero_cell,dango", strategies="node_mask", rounds=2, **SMALL)
    assert len(points) == len(set(points))
    first, second = (points[: len(points) // 2], points[len(points) // 2 :])
    assert [(p.model, p.overheads) for p in first] == [(p.model, p.overheads) for p in second[::-1]]
    assert ({p.seed for p in first}, {p.seed for p in second}) == ({0}, {1})


def test_named_overheads_go_to_the_models_that_can_take_them_on():
    points = with_each_overhead(models="hetero_cell,dango", strategies="node_mask", rounds=1,
                                overheads="isnan_checks,second_forward", **SMALL)  # fmt: skip
    assert {(p.model, *p.overheads) for p in points} == {
        ("hetero_cell",), ("hetero_cell", "isnan_checks"), ("dango",), ("dango", "second_forward")}  # fmt: skip
