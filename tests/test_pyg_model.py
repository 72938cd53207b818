"""An unchanged model of PyG's on views: the same as PyG's own subgraph and collation, and errors in sentences."""

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch_geometric.data import Batch, Data
from torch_geometric.nn import GATConv, GINConv, global_add_pool, global_mean_pool
from torch_geometric.utils import subgraph

import tclab
from tclab import InputError, Point, masking, models
from tclab.graph._cell_graph import keep_graph
from tclab.models import PygModel, _model_registry
from tclab.perturbation import Perturbations
from tclab.sweeps import race_points
from tclab.sweeps.analysis import _race_points
from tclab.sweeps.config._point_inputs import resolve
from tclab.sweeps.execution._measure import _equivalence_columns
from tclab.sweeps.execution._worker import _status_of
from tclab.training._memory_estimate import estimate_memory, meta_batch
from tclab.training._step import Step

NODES = 60
DELETIONS = [[3, 17, 18], [], [5], [3, 17, 18]]
LOSSES = {"mse": lambda graph: lambda output, targets, *, epoch=0: (output - targets).square().mean()}
WITH_EDGES = ("subgraph", "edge_mask", "gene_mask_cache", "gpu_mask_loop", "gpu_mask", "gpu_mask_cached", "gpu_filter")


class Gin(nn.Module):
    def __init__(self, pool=global_add_pool):
        super().__init__()
        self.conv, self.norm = GINConv(nn.Linear(8, 16)), nn.BatchNorm1d(16)
        self.attention, self.out, self.pool = GATConv(16, 16), nn.Linear(16, 1), pool

    def forward(self, x, edge_index, batch):
        x = self.norm(self.conv(x, edge_index)).relu()
        return self.out(self.pool(self.attention(x, edge_index), batch))


@pytest.fixture
def graph():
    draw = torch.Generator().manual_seed(0)
    edges = {name: torch.randint(NODES, (2, 400), generator=draw) for name in ("likes", "knows")}
    return tclab.CellGraph.from_edges(edges, num_nodes=NODES, node_type="person")


def features(rows=NODES):
    return torch.randn(rows, 8, generator=torch.Generator().manual_seed(1))


def by_pyg(model, graph, x, networks):
    copies = []
    for deleted in DELETIONS:
        kept = torch.tensor([node for node in range(NODES) if node not in deleted])
        edges = torch.cat([graph.networks[name].edge_index for name in networks], 1)
        index, _ = subgraph(kept, edges, relabel_nodes=True, num_nodes=NODES)
        copies.append(Data(x=x[kept], edge_index=index))
    batch = Batch.from_data_list(copies)
    return model(batch.x, batch.edge_index, batch.batch).squeeze(1)


@pytest.mark.parametrize("strategy", WITH_EDGES)
@pytest.mark.parametrize("networks", [None, ["knows"]])
def test_predictions_and_gradients_are_those_of_pygs_own_batches(strategy, networks, graph):
    """In training: a norm over all rows shows each row that is too many."""
    torch.manual_seed(0)
    model = PygModel(Gin(global_mean_pool).double(), nn.Parameter(features().double()), networks=networks)
    expected = by_pyg(model.model, graph, model.features, networks or ["likes", "knows"])
    wanted = torch.autograd.grad(expected.square().sum(), list(model.parameters()))
    with tclab.view(graph, DELETIONS, strategy) as view:
        found = model(view)
        got = torch.autograd.grad(found.square().sum(), list(model.parameters()))
    torch.testing.assert_close(found, expected)
    for one, other in zip(got, wanted, strict=True):
        torch.testing.assert_close(one, other)


def test_the_check_passes_and_skips_what_has_no_edges(graph):
    found = tclab.check(PygModel(Gin(), features()), graph)
    assert found.passed
    assert set(found.results) >= set(WITH_EDGES)
    assert {"node_mask", "delta", "dense"} <= set(found.skipped)
    assert all(why.startswith("the model needs single edges") for why in found.skipped.values())
    shown = found._display().lines
    ((names, _),) = [line for line in shown if "needs single edges" in line[1]]  # one reason for several
    assert names.split(", ") == list(found.skipped)
    assert sorted(name for line in shown for name in line[0].split(", ")) == sorted([*found.results, *found.skipped])
    assert found.problems == []


def test_that_weights_of_edges_are_not_passed_on_is_said_once_by_the_check_and_in_a_points_rows(graph, tmp_path):
    weighted = {name: replace(one, weight=torch.ones(one.num_edges)) for name, one in graph.networks.items()}
    graph = graph.with_relations(weighted)
    found = tclab.check(PygModel(Gin(), features()), graph, strategies="subgraph,edge_mask")
    assert found.passed
    assert "Left out: edge weights are not passed on to a PyG model." in found.problems
    assert len(found.problems) == len(set(found.problems))
    assert not [
        text for text in tclab.check("hetero_cell", graph, strategies="edge_mask").problems if "weights" in text
    ]
    kind = models.ModelKind("weighted_gin", lambda graph, metabolism: PygModel(Gin(), features()), LOSSES)
    point = tclab.Point(
        graph=keep_graph(graph, tmp_path), model=models.register(kind).name, strategy="edge_mask", device="cpu"
    )
    row = _equivalence_columns(resolve(point), exact=True)
    assert (row["equivalence"], row["status"]) == ("passed", None)
    assert row["equivalence_left_out"] == "edge weights are not passed on to a PyG model"


def test_a_sweep_and_a_race_say_what_would_let_it_run_and_a_race_makes_no_arm_before(monkeypatch):
    def build(graph, metabolism):
        return PygModel(Gin(), torch.randn(graph.num_nodes[graph.deleted_type], 8))

    monkeypatch.setitem(_model_registry._MODELS, "raced_gin", models.ModelKind("raced_gin", build, LOSSES))
    monkeypatch.setattr(_race_points, "setup", None)  # of an arm
    point = Point(model="raced_gin", scale=0.01, networks=1, workers=0, device="cpu")
    points = {name: replace(point, strategy=name) for name in ("edge_mask", "node_mask")}
    with pytest.raises(InputError, match=r"the model needs single edges; .*SharedGINConv for GINConv") as refused:
        race_points(points, budget_seconds=1, processes=None)
    assert _status_of(refused.value) == f"skipped: {refused.value}"


def test_what_is_wrong_is_a_sentence(graph):
    with pytest.raises(InputError, match=r"Gin cannot run on a view .*runs as tclab\.models\.PygModel"):
        tclab.check(Gin(), graph)
    with pytest.raises(InputError, match=r"features has 59 rows, expected one for each of the 60 person nodes"):
        tclab.check(PygModel(Gin(), features(NODES - 1)), graph)
    wide = Gin()
    wide.out = nn.Linear(16, 2)
    with pytest.raises(InputError, match=r"Gin gives \[\d+, 2\] for \d+ copies of the graph, expected \[\d+\]"):
        tclab.check(PygModel(wide, features()), graph)


def test_it_is_trained_and_its_memory_is_not_known(graph):
    kind = models.ModelKind("own_gin", lambda graph, metabolism: PygModel(Gin(), nn.Parameter(features())), LOSSES)
    samples, loading = Perturbations.synthetic(graph, 4), masking.get("edge_mask")(graph)
    step = Step(kind, loading)
    assert step(loading.batch(samples)).isfinite()
    with pytest.raises(InputError, match="the memory of own_gin cannot be estimated: the sizes of its tensors depend"):
        estimate_memory(step, meta_batch(loading, samples))
