"""The fields of `Point`: what is derived from their declarations is whole; any value is taken or refused in words."""

import json
from dataclasses import fields, replace
from decimal import Decimal
from pathlib import Path
from typing import get_args

import numpy as np
import pandas as pd
import pytest
import torch

import tclab
from tclab import InputError, Point
from tclab.models._hetero_cell import METABOLISMS
from tclab.perturbation import Deletions, Perturbations
from tclab.readers import read_perturbations
from tclab.sweeps._fields import Options, declarations, option_choices
from tclab.sweeps._measure import setup
from tclab.sweeps._point import ALLOCATORS
from tclab.sweeps._point_inputs import cell_graph_of, resolve, samples_of, screen_of
from tclab.sweeps._rows import SCHEMA, Results, columns_of, point_of, table
from tclab.training._step import DTYPES, MODES, OPTIMIZERS

DECLARED = declarations(Point)
NAMES = [field.name for field in fields(Point)]
FEW = {"gpus": 0, "scale": 0.02, "networks": 1, "models": "hetero_cell", "strategies": "node_mask", "batch_sizes": 1}
# values that differ from the defaults, for each field that can be changed by itself
OTHER = {
    "scale": 0.5, "model": "hetero_cell_production", "strategy": "edge_mask", "batch_size": 2, "networks": 3,
    "mode": "data", "device": "cpu", "ranks": 2, "dtype": "float64", "steps": 1, "warmup": 1, "seed": 1,
    "perturbations": 1, "metabolism": "used", "hidden": 32, "layers": 1, "workers": 2,
    "loader": Options({"prefetch_factor": 3, "multiprocessing_context": "spawn", "pin_memory": True}), "store": "json",
    "allocator": "keep_pages", "loop": "lightning", "loss": "mle_wass_supcr", "optimizer": "plain", "accumulate": 2,
    "overheads": ("print_loss",), "micro_batch": 1, "compile": True, "capture": True,
}  # fmt: skip


def test_every_field_is_declared_whole_and_a_point_may_have_what_the_library_has():
    assert len(NAMES) <= 31
    for name, declared in DECLARED.items():
        assert declared.meaning.endswith("."), name
        assert name in SCHEMA.names
        assert declared.unit or declared.column not in ("whole", "real") or name == "seed"
    for name, known in {"metabolism": METABOLISMS, "dtype": DTYPES, "mode": MODES, "optimizer": OPTIMIZERS,
                        "allocator": ALLOCATORS}.items():  # fmt: skip
        assert sorted(get_args(DECLARED[name].annotation)) == sorted(known)


@pytest.mark.parametrize("name", OTHER)
def test_a_field_goes_through_json_rows_and_grid(name):
    point = Point(**{name: OTHER[name]})
    assert Point(**json.loads(json.dumps(point.to_dict()))) == point
    row = {**dict.fromkeys(SCHEMA.names), **columns_of(point), "network_names": "physical,tflink,regulatory"}
    if name != "networks":
        assert point_of(row) == replace(point, networks=("physical", "tflink", "regulatory"))
    if DECLARED[name].grid == name and name not in ("networks", "device", "ranks"):
        typed = "+".join(OTHER[name]) if name == "overheads" else str(OTHER[name])
        assert {getattr(one, name) for one in tclab.grid(**FEW | {name: typed})} == {OTHER[name]}


# ---- options that a library takes


@pytest.mark.parametrize(
    ("value", "found"),
    [
        ("prefetch_factor:2,4", [{"prefetch_factor": 2}, {"prefetch_factor": 4}]),
        ({"prefetch_factor": [2, 4]}, [{"prefetch_factor": 2}, {"prefetch_factor": 4}]),
        (["none", {"prefetch_factor": 4}], [{}, {"prefetch_factor": 4}]),
        ("prefetch_factor:4, pin_memory:false", [{"prefetch_factor": 4, "pin_memory": False}]),
        ("a:1,2,b:x,y", [{"a": 1, "b": "x"}, {"a": 1, "b": "y"}, {"a": 2, "b": "x"}, {"a": 2, "b": "y"}]),
        ("pin_memory_device:cuda:1", [{"pin_memory_device": "cuda:1"}]),
        ("none", [{}]), (None, [{}]),
    ],
)  # fmt: skip
def test_options_are_written_alike_for_papermill_the_command_python_and_rows(value, found):
    choices = option_choices("loader", value)
    assert choices == found
    assert [option_choices("loader", str(one)) for one in choices] == [[one] for one in found]


def test_what_cannot_be_is_one_clear_line():
    for options, words in (
        ({"loader": {"pin_memory": 1}}, "pin_memory of loader is 1, expected True or False"),
        ({"ddp": {"bucket_cap_mb": -1}}, "bucket_cap_mb of ddp is -1, expected MiB above 0"),
        ({"loader": "prefetchfactor:4"}, "unknown option of loader 'prefetchfactor'; did you mean 'prefetch_factor'"),
        ({"loader": "prefetch_factor:0"}, "prefetch_factor of loader is 0, expected a whole number of at least 1"),
        ({"loader": "prefetch_factor:2,4"}, "loader is 'prefetch_factor:2,4', expected one value for each option"),
        ({"loader": "4"}, "loader is '4', expected a name before each value"),
        ({"loader": {"multiprocessing_context": "spwn"}}, "unknown multiprocessing_context of loader 'spwn'; did you"),
        ({"networks": ("physcal",)}, "unknown network 'physcal'; did you mean 'physical'"),
        ({"networks": 12}, "networks is 12, expected 1 to 9"),
        ({"collation": "edges"}, "unknown collation 'edges'"),
        ({"mode": "empty", "loop": "plain"}, "mode 'empty' is Lightning's; expected 'lightning' or None"),
        ({"overheads": ("isnan",)}, "unknown overhead 'isnan'; did you mean 'isnan_checks'"),
        ({"batch_size": -1}, "batch_size is -1, expected a whole number of at least 1"),
        ({"scale": -1}, "scale is -1, expected a number above 0"),
    ):
        with pytest.raises(InputError, match=words) as error:
            Point(**options)
        assert "\n" not in str(error.value)


ODD = [
    None, "", "x" * 5000, "a\0b", "\ud800", b"step", 0, -1, 1.5, float("nan"), float("inf"), 10**5000, True, 1j,
    Decimal("1.5"), [], [None], [1, 2], ["x", ["y"]], {}, {"a": 1}, {1}, iter([1]), object(), int, Path("."),
    np.int64(3), np.array([1, 2]), np.str_("step"), torch.tensor(1), pd.NA, pd.NaT,
]  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_any_value_of_a_field_makes_a_point_or_a_sentence(name):
    sentences = []
    for value in ODD:
        try:
            point = Point(**{name: value})
        except InputError as error:
            sentences.append(str(error))
            continue
        assert Point(**json.loads(json.dumps(point.to_dict()))) == point  # a worker can be asked for it
        assert len({point}) == 1
        assert len(table([columns_of(point)])) == 1  # and its row be kept
    assert len(sentences) > len(ODD) // 2
    assert all(name.removesuffix("s") in sentence and "\n" not in sentence for sentence in sentences)


def test_what_a_point_leaves_open_is_made_definite_and_numbers_of_numpys_are_numbers():
    assert (Point().loop, Point().loss, Point(mode="empty").loop) == ("plain", "log_cosh", "lightning")
    assert (Point(model="dango").loss, Point(loss="log_cosh")) == ("dango", Point())
    listed, whole = Point(overheads=["print_loss", "item_logging"]), Point(overheads=("item_logging", "print_loss"))
    assert listed == whole
    assert type(Point(batch_size=np.int64(3)).batch_size) is int
    options = {"prefetch_factor": 4, "multiprocessing_context": "spawn", "persistent_workers": True}
    assert Point(workers=0, loader=options) == Point(workers=0)  # without workers nothing is said of them
    assert (Point().prefetch_factor, Point(loader=options).prefetch_factor) == (2, 4)
    ddp = {"bucket_cap_mb": 5, "compression": "fp16", "no_sync": True, "gather_interval": 3}
    assert Point(ranks=1, ddp=ddp) == Point()
    assert Point(ranks=2, accumulate=1, ddp={"no_sync": True}) == Point(ranks=2)
    assert Point(ranks=2, ddp="broadcast_buffers:false,init_sync:true").ddp["broadcast_buffers"] is False


# ---- a screen's deletions and scores, in place of synthetic ones


@pytest.fixture
def on_a_screen(root):
    """A point on a made-up file in the format of Kuzmin et al. 2018."""
    file = root / "data_samples" / "cell" / "aao1729_data_s1.tsv"
    return Point(
        scale=0.02, networks=1, batch_size=2, workers=0, steps=2, warmup=0, device="cpu", perturbations=str(file)
    )


def test_the_files_deletions_and_scores_are_what_is_trained_on(on_a_screen):
    screen = screen_of(on_a_screen)

    def rows(samples):
        return [(*samples.deletions[i].tolist(), float(samples.scores[i])) for i in range(len(screen))]

    with setup(resolve(on_a_screen), 2 * len(screen)) as here:  # more than the file has: it is gone through again
        read = rows(here.data.samples.read(range(len(screen))))
    assert sorted(read) == sorted(rows(screen))
    graph = cell_graph_of(on_a_screen)
    again = samples_of(on_a_screen, 2 * len(screen), graph)
    assert again.deletions[len(screen)].tolist() == again.deletions[0].tolist()
    other, same = (samples_of(one, len(screen), graph).scores for one in (replace(on_a_screen, seed=1), on_a_screen))
    assert not torch.equal(other, same)


# ---- deletions and targets of one's own

OWN = pd.DataFrame({"sample": ["a", "b", "b", "c"], "node": [3, None, 5, 17], "target": [0.5, -1.0, -1.0, 0.25]})
OWN.loc[1, "node"] = 17  # so that the column is of floats, with a gap below
OWN.loc[3, "node"] = None


@pytest.mark.parametrize(("model", "strategy"), [("hetero_cell", "delta"), ("dango", "indices")])
def test_a_table_of_ones_own_trains_as_the_same_deletions_by_hand(model, strategy, tmp_path, monkeypatch):
    monkeypatch.setenv("TCLAB_CACHE", str(tmp_path))
    fields = {"scale": 0.02, "networks": 1, "batch_size": 3, "workers": 0, "device": "cpu"}
    fields |= {"model": model, "strategy": strategy}
    OWN.to_parquet(tmp_path / "own.parquet")
    OWN.to_csv(tmp_path / "own.tsv", index=False, sep="\t")
    points = [Point(**fields, perturbations=own) for own in (OWN, tmp_path / "own.parquet", tmp_path / "own.tsv")]
    assert points[0] == Point(**json.loads(json.dumps(points[0].to_dict()))) == eval(repr(points[0]), {"Point": Point})

    def losses(point):
        with setup(resolve(point), 3) as here:
            return [loss.item() for loss in here.run(here.batches(), steps=1)]

    by_table = [losses(point) for point in points]
    hand = Perturbations(Deletions.of([[3], [5, 17], []], num_nodes=100), torch.tensor([0.5, -1.0, 0.25]))
    order = np.random.default_rng(0).permutation(3).tolist()
    monkeypatch.setattr("tclab.sweeps._measure.samples_of", lambda *_: hand.read(order))
    assert by_table == [losses(Point(**fields))] * 3
    assert "3 samples of your own, which delete 0 to 2 nodes" in str(screen_of(points[0]).report)
    assert Results.name(resolve(points[0])) != Results.name(resolve(Point(**fields, perturbations=OWN[:3])))


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ("a,Bern,1\na,Thon,1", "row 2: node 'Thon' is not a station node of the graph, expected 0 to 2, or a name such "
         "as 'Bern'; did you mean 'Thun'?"),
        ("a,3,1", "row 1: node '3' is not a station node"),
        ("a,Bern,1\na,Bern,1", "row 2: sample 'a' has node 'Bern' already, expected each node once"),
        ("a,Bern,1\na,,1", "row 2: sample 'a' has a row without a node beside other rows, expected it alone"),
        ("a,Bern,1\na,Thun,2", "row 2: sample 'a' has another target in its first row, expected one target"),
        ("a,Bern,1\nb,Thun,", "row 2: sample 'b' has no target, expected a number"),
        ("a,Bern,inf", "row 1: target is inf"),
        (",Bern,1", "row 1: the sample has no name"),
    ],
)  # fmt: skip
def test_a_table_of_ones_own_that_cannot_be_is_refused_with_its_row(rows, words, tmp_path):
    line = torch.tensor([[0, 1], [1, 2]])
    graph = tclab.CellGraph.from_edges({"lines": line}, num_nodes=3, node_type="station")
    graph = replace(graph, node_names={"station": ["Bern", "Thun", "Chur"]})
    (tmp_path / "own.csv").write_text(f"sample,node,target\n{rows}\n")
    with pytest.raises(InputError) as refused:
        read_perturbations(tmp_path / "own.csv", graph)
    assert words in str(refused.value)
    (tmp_path / "own.csv").write_text('sample,node,target\na,"Bern",1\na,Chur,1\nb,,2\n')
    assert read_perturbations(tmp_path / "own.csv", graph).deletions.nodes.tolist() == [0, 2]
    (tmp_path / "own.csv").write_text("sample;node;target\na;Bern;1\na;Chur;1\nb;;2\n")
    assert read_perturbations(tmp_path / "own.csv", graph).deletions.nodes.tolist() == [0, 2]
    (tmp_path / "own.csv").write_text("sample,node\na,Bern\n")
    with pytest.raises(InputError, match="no column 'target'"):
        read_perturbations(tmp_path / "own.csv", graph)


def test_numbers_that_are_names_are_never_positions_and_a_named_index_is_a_column(tmp_path, monkeypatch):
    """Beside a gap pandas writes the name 1 as 1.0."""
    monkeypatch.setenv("TCLAB_CACHE", str(tmp_path))
    graph = tclab.CellGraph.from_edges({"lines": torch.tensor([[0, 1], [1, 2]])}, num_nodes=3, node_type="station")
    graph = replace(graph, node_names={"station": ["1", "2", "10"]})
    own = pd.DataFrame({"sample": ["a", "b", "c"], "node": [1, 10, None], "target": 0.5}).set_index("sample")
    own.to_parquet(tmp_path / "own.parquet")
    for each in (own, tmp_path / "own.parquet"):
        samples = screen_of(Point(graph=graph, perturbations=each))
        assert [samples.deletions[i].tolist() for i in range(3)] == [[0], [2], []]
    own["node"] = 0
    with pytest.raises(InputError, match=r"row 1: node '0' is not a .*, expected a name such as '1'"):
        screen_of(Point(graph=graph, perturbations=own))
    for names in ([1, 2, 10], ["1", "1", "2"], ["1", "2"]):
        with pytest.raises(InputError, match="station names, expected a text of its own for each node"):
            replace(graph, node_names={"station": names})
