import pytest

import tclab
from tclab import InputError
from tclab.sweeps.grids import grid, listed, ranks_of


@pytest.mark.parametrize(
    ("value", "found"),
    [("1,2,4", [1, 2, 4]), ("[1, 2]", [1, 2]), (4, [4]), ("4", [4]), ([1, 2], [1, 2]), ("a, b", ["a", "b"])],
)
def test_lists_are_taken_as_papermill_carries_them(value, found):
    assert listed("batch_sizes", value) == found


@pytest.mark.parametrize("value", ["", "1,,2", []])
def test_an_empty_list_is_refused(value):
    with pytest.raises(InputError, match="batch_sizes is"):
        listed("batch_sizes", value)


@pytest.mark.parametrize("gpus", [-1, "four", 1.5, True, "-2", None])
def test_a_number_of_gpus_that_is_none_is_refused(gpus):
    with pytest.raises(InputError, match=r"gpus is .*, expected 'auto' or a number from 0 up"):
        ranks_of(gpus, 0)


def test_gpus_become_device_and_ranks():
    assert ranks_of("auto", 0) == ("cpu", 1)
    assert ranks_of("auto", 4) == ("cuda", 1)
    assert ranks_of(0, 4) == ("cpu", 1)
    assert ranks_of("2", 4) == ranks_of(2, 4) == ("cuda", 2)
    assert ranks_of(4, 0) == ("cpu", 4)


def test_auto_pairs_each_model_with_the_strategies_that_serve_it():
    points = grid(scale=0.02, gpus=0)
    assert len(points) == len(set(points))
    assert not [point for point in points if point.skipped()]
    pairs = {(point.model, point.strategy) for point in points}
    assert ("dango", "indices") in pairs
    assert len(pairs) == 10


def test_pairs_asked_for_by_name_are_kept_though_they_cannot_be():
    (point,) = grid(scale=0.02, gpus=0, models="dango", strategies="edge_mask", batch_sizes=1, networks=3)
    assert point.skipped() == "skipped: dango reads no masked graph"


def test_the_charts_lines_come_first():
    points = grid(scale=0.02, gpus=0, models="hetero_cell", batch_sizes="1,2,4", networks="1,3,9")
    assert len(points) == 9 * 3 * 3
    first = points[:9]
    assert {(point.batch_size, point.networks) for point in first} == {(2, 9)}
    assert len({point.strategy for point in first}) == 9
    lines = {(p.batch_size, p.networks) for p in points[: 9 * 5]}
    assert lines == {(2, 9), (1, 9), (4, 9), (2, 1), (2, 3)}


def test_names_of_networks_are_one_choice():
    (point,) = grid(scale=0.02, gpus=0, models="hetero_cell", strategies="node_mask", batch_sizes=1,
                    networks="tflink,physical")  # fmt: skip
    assert point.networks == ("tflink", "physical")


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ({"strategies": "nodemask"}, "unknown strategy 'nodemask'; did you mean 'node_mask'"),
        ({"models": "dngo"}, "unknown model 'dngo'; did you mean 'dango'"),
        ({"networks": "phys"}, "unknown network 'phys'"),
        ({"batch_sizes": "0"}, "batch_size is 0"),
        ({"batch_sizes": "two"}, "batch_sizes is 'two', expected a whole number"),
        ({"gpus": "four"}, "gpus is 'four'"),
        ({"scale": "large"}, "scale is 'large'"),
        ({"graph": "nowhere"}, "graph is 'nowhere', expected 'synthetic' or a folder that exists"),
        ({"steps": "many"}, "steps is 'many'"),
    ],
)
def test_bad_parameters_are_one_clear_line(parameters, words):
    with pytest.raises(InputError, match=words):
        grid(**{"scale": 0.02, "gpus": 0, **parameters})


def test_the_contract_is_at_the_top():
    assert tclab.grid is grid
    assert callable(tclab.sweep)
    assert callable(tclab.run)
