import pytest

import tclab
from tclab import InputError
from tclab.lab import Panel
from tclab.sweeps.config import in_each_mode, scaling_points
from tclab.sweeps.config._gpus import ranks_of
from tclab.sweeps.config._grid import grid, listed
from tclab.sweeps.config._overhead_names import applicable_overheads
from tclab.sweeps.config._point_inputs import cell_graph_of
from tclab.timing._statistics import MIN_OBSERVATIONS
from tclab.training._step import MODES


@pytest.mark.parametrize(
    ("value", "found"),
    [("1,2,4", [1, 2, 4]), ("[1, 2]", [1, 2]), (4, [4]), ("4", [4]), ([1, 2], [1, 2]), ("a, b", ["a", "b"])],
)
def test_lists_are_taken_as_papermill_carries_them(value, found):
    assert listed("batch_sizes", value) == found


def test_auto_pairs_each_model_with_the_strategies_that_serve_it():
    points = grid(scale=0.02, gpus=0)
    assert len(points) == len(set(points))
    assert not [point for point in points if point.skipped()]
    pairs = {(point.model, point.strategy) for point in points}
    exact = {name for name in tclab.masking.names() if tclab.masking.get(name).exact}
    assert pairs == {("dango", "indices")} | {("hetero_cell", name) for name in exact - {"indices"}}
    assert "khop_1" not in exact  # inexact ones are run when they are asked for
    assert {point.model for point in grid(scale=0.02, gpus=0, strategies="node_mask,delta")} == {"hetero_cell"}
    for state in (points, Panel(gpus=0).points()):  # steps enough for a verdict
        assert all(point.steps >= MIN_OBSERVATIONS for point in state)


def test_pairs_asked_for_by_name_are_kept_though_they_cannot_be():
    (point,) = grid(scale=0.02, gpus=0, models="dango", strategies="edge_mask", batch_sizes=1, networks=3)
    assert point.skipped() == "skipped: dango reads no masked graph"


def test_the_charts_lines_come_first():
    points = grid(scale=0.02, gpus=0, models="hetero_cell", batch_sizes="1,2,4", networks="1,3,9")
    exact = [name for name in tclab.masking.names() if tclab.masking.get(name).exact and name != "indices"]
    assert len(points) == len(exact) * 3 * 3
    assert [(p.strategy, p.batch_size, p.networks) for p in points[:4]] == [
        ("edge_mask", 2, 9), ("node_mask", 2, 9), ("edge_mask", 1, 9), ("edge_mask", 2, 1)
    ]  # fmt: skip
    first = [*points[:2], *points[4 : len(exact) + 2]]
    assert {(point.batch_size, point.networks) for point in first} == {(2, 9)}
    assert sorted(point.strategy for point in first) == sorted(exact)
    lines = [(p.batch_size, p.networks) for p in points[len(exact) + 2 : len(exact) * 3]]
    assert set(lines) == {(1, 9), (4, 9)}  # batch sizes before fewer networks
    # a sweep that is cut short has run the copies and what is shared
    assert {point.strategy for point in grid(scale=0.02, gpus=0, models="hetero_cell")[:5]} == {
        "edge_mask", "node_mask", "delta"
    }  # fmt: skip


@pytest.mark.parametrize("gpus", [0, 4])
def test_the_first_points_hold_both_models_two_strategies_two_batch_sizes_and_two_numbers_of_networks(gpus):
    points = grid(gpus=gpus, device="cpu")
    first = points[: points.first]
    assert len(first) == 6
    assert {point.ranks for point in first} == {max(gpus, 1)}
    for model, strategies in (("hetero_cell", {"edge_mask", "node_mask"}), ("dango", {"indices"})):
        own = [point for point in first if point.model == model]
        assert {point.strategy for point in own} == strategies
        assert len({point.batch_size for point in own}) == 2
    assert {point.networks for point in first if point.model == "hetero_cell"} == {1, 9}


def test_names_of_networks_are_one_choice():
    (point,) = grid(scale=0.02, gpus=0, models="hetero_cell", strategies="node_mask", batch_sizes=1,
                    networks="tflink,physical")  # fmt: skip
    assert point.networks == ("tflink", "physical")


def small_grid(**parameters):
    fixed = {"scale": 0.02, "gpus": 0, "strategies": "node_mask", "batch_sizes": 2, "networks": 3}
    return grid(**{**fixed, "models": "hetero_cell", **parameters})


def test_several_values_of_a_field_are_an_axis():
    points = small_grid(loop="plain,lightning", mode="data,step", hidden="none,8", seed="3,4")
    assert len(points) == len(set(points)) == 16
    assert {(p.loop, p.mode, p.hidden, p.seed) for p in points} == {
        (loop, mode, hidden, seed)
        for loop in ("plain", "lightning")
        for mode in ("data", "step")
        for hidden in (None, 8)
        for seed in (3, 4)
    }
    assert [p.collation for p in small_grid(strategies="gpu_mask", collation="lean,edges")] == ["lean", "edges"]


def test_what_does_this_overhead_cost_me_is_an_axis():
    assert [p.overheads for p in small_grid()] == [()]
    alone = small_grid(overheads="none,item_logging,item_logging+print_loss")
    assert [p.overheads for p in alone] == [(), ("item_logging",), ("item_logging", "print_loss")]
    for model, strategy in (("hetero_cell", "node_mask"), ("dango", "indices")):
        points = small_grid(overheads="all", models=model, strategies=strategy)
        assert points[0].overheads == ()
        assert [p.overheads for p in points[1:]] == [(name,) for name in applicable_overheads(model)]
        assert not [p for p in points if p.skipped()]


def test_all_networks_are_those_that_a_model_reads():
    hetero, dango = small_grid(networks="all"), small_grid(networks="all", models="dango", strategies="indices")
    assert len(cell_graph_of(hetero[0]).networks) == 9
    assert len(cell_graph_of(dango[0]).networks) == 6


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ({"overheads": "isnan_cheks"}, "unknown overhead 'isnan_cheks'; did you mean 'isnan_checks'"),
        ({"loop": "plane"}, "unknown loop 'plane'; did you mean 'plain'"),
        ({"lop": "plain"}, "unknown field of a point 'lop'; did you mean 'loop'"),
        ({"strategy": "node_mask"}, "unknown parameter of a grid 'strategy'; did you mean 'strategies'"),
        ({"mode": "dta,step"}, "unknown mode 'dta'; did you mean 'data'"),
        ({"strategies": "nodemask"}, "unknown strategy 'nodemask'; did you mean 'node_mask'"),
        ({"models": "dngo"}, "unknown model 'dngo'; did you mean 'dango'"),
        ({"networks": "phys"}, "unknown network 'phys'"),
        ({"batch_sizes": "0"}, "batch_size is 0"),
        *(({"batch_sizes": size}, f"batch_sizes is '{size}', expected a whole number") for size in ("two", "²", "--5")),
        *(
            ({"gpus": gpus}, "gpus is .*, expected 'auto' or a number from 0 up")
            for gpus in (-1, "four", 1.5, True, None)
        ),
        *(({"batch_sizes": sizes}, "batch_sizes is .*, expected one value or several") for sizes in ("", "1,,2", [])),
        ({"batch_sizes": "hetero_cell:28"}, "expected one for dango, too"),
        ({"batch_sizes": "hetero_cell:28,64"}, "expected a model before each number: 'hetero_cell:28,dango:64'"),
        ({"batch_sizes": "hetero_cell:28,dango:many"}, "expected a model before each number"),
        ({"batch_sizes": "dango:²"}, "expected a model before each number"),
        ({"networks": "²"}, "unknown network '²'"),
        ({"batch_sizes": "hetero_cell:28,dangoo:64"}, "unknown model 'dangoo'; did you mean 'dango'"),
        ({"scale": "large"}, "scale is 'large'"),
        ({"scale": [0.02]}, r"scale is \[0.02\]"),
        ({"overheads": [3]}, "unknown overhead '3'"),
        ({"graph": "x" * 5000}, "expected 'synthetic' or a folder or file that exists"),
        ({"graph": "nowhere"}, "graph is 'nowhere', expected 'synthetic' or a folder or file that exists"),
        ({"steps": "many"}, "steps is 'many'"),
    ],
)
def test_bad_parameters_are_one_clear_line(parameters, words):
    with pytest.raises(InputError, match=words):
        grid(**{"scale": 0.02, "gpus": 0, **parameters})


def test_each_model_has_batch_sizes_of_its_own():
    points = grid(scale=0.02, gpus=0, networks=1, strategies="node_mask,indices", models="hetero_cell,dango",
                  batch_sizes="hetero_cell:28, dango:32,dango:64")  # fmt: skip
    run = {(point.model, point.batch_size) for point in points if point.skipped() is None}
    assert run == {("hetero_cell", 28), ("dango", 32), ("dango", 64)}
    modes = in_each_mode(models="hetero_cell,dango", strategies="node_mask", batch_sizes="hetero_cell:7,dango:16",
                         scale=0.02, gpus=0)  # fmt: skip
    assert {(p.mode, p.model, p.batch_size) for p in modes} == {
        (mode, *pair) for mode in MODES for pair in (("hetero_cell", 7), ("dango", 16))
    }
    ranks = scaling_points("strong", ranks="1,2", batch_size="hetero_cell:6,dango:16", scale=0.02, device="cpu")
    assert {(p.model, p.ranks, p.batch_size) for p in ranks} == {
        ("hetero_cell", 1, 6), ("hetero_cell", 2, 3), ("dango", 1, 16), ("dango", 2, 8)
    }  # fmt: skip


def test_the_grid_counts_the_gpus_of_the_nodes():
    (point, *_) = tclab.grid(models="hetero_cell", strategies="node_mask", networks=1, gpus_per_node="a100:4")
    assert (point.device, point.ranks) == ("cuda", 4)


@pytest.mark.parametrize(
    ("asked", "device_and_ranks"),
    [
        (("auto", 4), ("cuda", 4)),
        (("auto", "a100:2"), ("cuda", 2)),
        ((3, 4), ("cuda", 3)),
        (("2", "4"), ("cuda", 2)),
        ((0, 4), ("cpu", 1)),
        (("0", 4), ("cpu", 1)),
        (("auto", 0), ("cpu", 1)),
        ((2, 4, "cpu"), ("cpu", 2)),
    ],
)
def test_ranks_are_counted_on_the_machines_of_a_cluster(asked, device_and_ranks):
    gpus, per_node, *device = asked
    assert ranks_of(gpus, *device, gpus_per_node=per_node) == device_and_ranks


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        (("auto", "many"), "gpus_per_node is 'many', expected a number"),
        ((9, 4), "gpus is 9, and there are 4; expected fewer"),
        ((-1, 4), "gpus is -1, expected 'auto' or a number"),
        ((2, 0, "cuda"), "device is 'cuda', and there is none, or none was asked for"),
        (("²", 4), "gpus is '²', expected 'auto' or a number"),
        (("auto", "a100:²"), "gpus_per_node is 'a100:²', expected a number"),
    ],
)
def test_gpus_that_a_cluster_was_not_asked_for_are_refused(asked, words):
    gpus, per_node, *device = asked
    with pytest.raises(InputError, match=words):
        ranks_of(gpus, *device, gpus_per_node=per_node)
