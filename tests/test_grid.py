"""The points of a sweep from its parameters: which, in which order, and what is refused."""

import pytest

import tclab
from tclab import InputError
from tclab.sweeps._grid import grid
from tclab.sweeps._point import applicable_overheads, ranks_of
from tclab.sweeps._point_inputs import cell_graph_of
from tclab.sweeps.config import in_each_mode, scaling_points, with_each_overhead
from tclab.timing._step_means import MIN_OBSERVATIONS
from tclab.training._step import MODES


def test_auto_pairs_each_model_with_the_strategies_that_serve_it():
    points = grid(scale=0.02, gpus=0)
    assert len(points) == len(set(points))
    assert not [point for point in points if point.skipped()]
    exact = {name for name in tclab.masking.names() if tclab.masking.get(name).exact}
    pairs = {(point.model, point.strategy) for point in points}
    assert pairs == {("dango", "indices")} | {("hetero_cell", name) for name in exact - {"indices"}}
    assert all(point.steps >= MIN_OBSERVATIONS for point in points)  # enough for a verdict
    (point,) = grid(scale=0.02, gpus=0, models="dango", strategies="edge_mask", batch_sizes=1, networks=3)
    assert point.skipped() == "skipped: dango reads no masked graph"  # asked for by name: its row says why


def test_the_answer_comes_first_then_networks_then_batch_sizes_then_all_other_strategies():
    points = grid(scale=0.02, gpus=0, batch_sizes="[1, 2, 4]")  # as papermill's -p may carry a list
    key = ["node_mask", "delta", "edge_mask", "subgraph"]
    exact = [name for name in tclab.masking.names() if tclab.masking.get(name).exact]
    sizes = [(p.strategy, p.batch_size, p.networks) for p in points]
    answer = [*((name, 2, 9) for name in key[:3]), ("indices", 2, None), (key[3], 2, 9)]
    assert sizes[:5] == answer
    networks = [(name, 2, count) for count in (1, 3) for name in key]
    batches = [(name, size, count) for size in (1, 4) for name, _, count in answer]
    assert sizes[5 : 5 + 8 + 10] == networks + batches
    rest = {(name, 2, 9) for name in exact if name not in (*key, "indices")}
    assert set(sizes[23 : 23 + len(rest)]) == rest
    named = grid(scale=0.02, gpus=0, models="hetero_cell", strategies="dense,edge_mask", networks="1,9")
    assert [p.strategy for p in named[:4]] == ["dense", "edge_mask"] * 2  # those that are named come first
    assert [p.networks for p in named[:4]] == [9, 9, 1, 1]


def small_grid(**parameters):
    fixed = {"scale": 0.02, "gpus": 0, "strategies": "node_mask", "batch_sizes": 2, "networks": 3}
    return grid(**{**fixed, "models": "hetero_cell", **parameters})


def test_several_values_of_a_field_are_an_axis_and_names_of_networks_are_one_choice():
    points = small_grid(loop="plain,lightning", mode="data,step", hidden="none,8", loader="prefetch_factor:2,4")
    assert len(points) == len({(p.loop, p.mode, p.hidden, p.prefetch_factor) for p in points}) == 16
    assert {p.hidden for p in points} == {None, 8}
    assert [p.collation for p in small_grid(strategies="gpu_mask", collation="lean,edges")] == ["lean", "edges"]
    (point,) = small_grid(networks="tflink,physical")
    assert point.networks == ("tflink", "physical")
    hetero, dango = small_grid(networks="all"), small_grid(networks="all", models="dango", strategies="indices")
    assert [len(cell_graph_of(one[0]).networks) for one in (hetero, dango)] == [9, 6]  # those that each reads
    (few,) = small_grid(networks=2, models="dango", strategies="indices")
    assert list(cell_graph_of(few).networks) == ["string12_0_neighborhood", "string12_0_fusion"]


def test_what_does_this_overhead_cost_me_is_an_axis():
    assert [p.overheads for p in small_grid()] == [()]
    alone = small_grid(overheads="none,item_logging,item_logging+print_loss")
    assert [p.overheads for p in alone] == [(), ("item_logging",), ("item_logging", "print_loss")]
    for model, strategy in (("hetero_cell", "node_mask"), ("dango", "indices")):
        points = small_grid(overheads="all", models=model, strategies=strategy)
        assert [p.overheads for p in points] == [(), *((name,) for name in applicable_overheads(model))]
        assert not [p for p in points if p.skipped()]


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ({"lop": "plain"}, "unknown parameter of a grid 'lop'; did you mean 'loop'"),
        ({"strategy": "node_mask"}, "unknown parameter of a grid 'strategy'; did you mean 'strategies'"),
        *(({"batch_sizes": size}, f"batch_sizes is '{size}', expected a whole number") for size in ("two", "²", "--5")),
        *(({"gpus": gpus}, "gpus is .*, expected 'auto' or a number from 0 up") for gpus in (-1, "four", "²", True)),
        *(({"batch_sizes": sizes}, "batch_sizes is .*, expected one value or several") for sizes in ("", "1,,2", [])),
        ({"batch_sizes": "hetero_cell:28"}, "expected one for dango, too"),
        ({"batch_sizes": "hetero_cell:28,dangoo:64"}, "unknown model 'dangoo'; did you mean 'dango'"),
        ({"scale": "large"}, "scale is 'large'"),
        ({"gpus": 0, "device": "cuda"}, "device is 'cuda', and there is none, or none was asked for"),
    ],
)  # fmt: skip
def test_bad_parameters_are_one_clear_line(parameters, words):
    with pytest.raises(InputError, match=words) as error:
        grid(**{"scale": 0.02, "gpus": 0, **parameters})
    (*_, name) = parameters
    assert error.value.name in (name, name.removesuffix("s"), "model", "parameter of a grid")


def test_each_model_has_batch_sizes_of_its_own():
    common = {"models": "hetero_cell,dango", "scale": 0.02, "gpus": 0}
    points = grid(networks=1, strategies="node_mask,indices", batch_sizes="hetero_cell:28, dango:32,64", **common)
    assert {(p.model, p.batch_size) for p in points} == {("hetero_cell", 28), ("dango", 32), ("dango", 64)}
    modes = in_each_mode(strategies="node_mask", batch_sizes="hetero_cell:7,dango:16", **common)
    sizes = {(mode, *pair) for mode in MODES for pair in (("hetero_cell", 7), ("dango", 16))}
    assert {(p.mode, p.model, p.batch_size) for p in modes} == sizes


@pytest.mark.parametrize(
    ("gpus", "asked", "device_and_ranks"),
    [
        (3, ("auto",), ("cuda", 3)), (3, ("2",), ("cuda", 2)), (3, (0,), ("cpu", 1)), (3, (2, "cpu"), ("cpu", 2)),
        (0, ("auto",), ("cpu", 1)),
        (0, (4, "cuda"), ("cuda", 4)),  # for a cluster's nodes, from one without GPUs
        (3, (4,), "4 ranks need 4 GPUs, and this machine has 3 GPUs; expected fewer"),
        (0, ("auto", "cuda"), "device is 'cuda', and there is none"),
    ],
)  # fmt: skip
def test_gpus_become_device_and_ranks(gpus, asked, device_and_ranks, monkeypatch):
    monkeypatch.setattr("tclab.sweeps._point.gpu_count", lambda: gpus)
    if isinstance(device_and_ranks, tuple):
        assert ranks_of(*asked) == device_and_ranks
    else:
        with pytest.raises(InputError, match=device_and_ranks):
            ranks_of(*asked)


# ---- the points of a question

FEW = {"scale": 0.02, "gpus": 0, "batch_sizes": 2, "networks": 2, "steps": 4}


def test_each_mode_has_each_model_with_the_strategies_that_serve_it():
    points = in_each_mode(models="hetero_cell, dango", strategies="edge_mask,node_mask", collation="pyg", **FEW)
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


def test_rounds_have_the_overheads_that_a_model_can_take_on_beside_none_and_turn_round():
    some = {"rounds": 2, "overheads": "isnan_checks,second_forward"}
    points = with_each_overhead(models="hetero_cell,dango", strategies="node_mask", **some, **FEW)
    assert len(points) == len(set(points))
    assert {(p.model, *p.overheads) for p in points} == {
        ("hetero_cell",), ("hetero_cell", "isnan_checks"), ("dango",), ("dango", "second_forward")}  # fmt: skip
    first, second = (points[: len(points) // 2], points[len(points) // 2 :])
    assert [(p.model, p.overheads) for p in first] == [(p.model, p.overheads) for p in second[::-1]]
    assert ({p.seed for p in first}, {p.seed for p in second}) == ({0}, {1})
