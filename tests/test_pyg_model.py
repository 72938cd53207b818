"""An unchanged model of PyG's on views: the same as PyG's own subgraph and collation, and errors in sentences."""

import copy
import pickle
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch_geometric.data import Batch, Data
from torch_geometric.nn import GATConv, GCNConv, GINConv, global_add_pool, global_mean_pool
from torch_geometric.utils import subgraph

import tclab
from tclab import InputError, Point, masking, models
from tclab.graph._cell_graph import keep_graph
from tclab.models import PygModel, _model_registry
from tclab.perturbation import Perturbations
from tclab.sweeps import _race_points, race_points
from tclab.sweeps._measure import _equivalence_columns
from tclab.sweeps._point_inputs import resolve
from tclab.sweeps._worker import _status_of
from tclab.training._memory_estimate import estimate_memory, meta_batch
from tclab.training._step import Step

NODES = 60
DELETIONS = [[3, 17, 18], [], [5], [3, 17, 18]]
LOSSES = {"mse": lambda graph: lambda output, targets, *, epoch=0: (output - targets).square().mean()}
WITH_EDGES = ("subgraph", "edge_mask", "gpu_mask_loop", "gpu_mask", "gpu_mask_cached", "gpu_filter")


class Gin(nn.Module):
    def __init__(self, pool=global_add_pool):
        super().__init__()
        self.conv, self.norm = GINConv(nn.Linear(8, 16)), nn.BatchNorm1d(16)
        self.attention, self.out, self.pool = GATConv(16, 16), nn.Linear(16, 1), pool

    def forward(self, x, edge_index, batch):
        x = self.norm(self.conv(x, edge_index)).relu()
        return self.out(self.pool(self.attention(x, edge_index), batch))


class WeightedGcn(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.out = GCNConv(8, 16), nn.Linear(16, 1)

    def forward(self, x, edge_index, edge_weight=None, batch=None):  # in the order of PyG's ready-made models
        return self.out(global_mean_pool(self.conv(x, edge_index, edge_weight).relu(), batch))


class OfData(WeightedGcn):
    def forward(self, data):
        assert data.num_graphs == int(data.batch.max()) + 1
        assert torch.equal(data.ptr.diff(), data.batch.bincount())
        return super().forward(data.x, data.edge_index, data.edge_weight, data.batch)


class OfIds(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.gin = nn.Embedding(NODES, 8), Gin()

    def forward(self, x, edge_index, batch):
        return self.gin(self.embedding(x), edge_index, batch)


@pytest.fixture
def graph():
    draw = torch.Generator().manual_seed(0)
    edges = {name: torch.randint(NODES, (2, 400), generator=draw) for name in ("likes", "knows")}
    return tclab.CellGraph.from_edges(edges, num_nodes=NODES, node_type="person")


def features(rows=NODES):
    return torch.randn(rows, 8, generator=torch.Generator().manual_seed(1))


@pytest.fixture
def weighted(graph):
    """Of two networks, one with weights."""
    draw = torch.Generator().manual_seed(2)
    knows = replace(graph.networks["knows"], weight=torch.rand(400, generator=draw))
    return graph.with_relations({**graph.networks, "knows": knows})


def by_pyg(model, graph, x, networks):
    copies = []
    for deleted in DELETIONS:
        kept = torch.tensor([node for node in range(NODES) if node not in deleted])
        edges = torch.cat([graph.networks[name].edge_index for name in networks], 1)
        ones = torch.ones(400, dtype=torch.float64)
        weight = torch.cat([ones if (own := graph.networks[name].weight) is None else own for name in networks])
        index, weight = subgraph(kept, edges, weight, relabel_nodes=True, num_nodes=NODES)
        copies.append(Data(x=x[kept], edge_index=index, edge_weight=weight))
    batch = Batch.from_data_list(copies)
    if isinstance(model, OfData):
        return model(batch).squeeze(1)
    weight = {"edge_weight": batch.edge_weight} if isinstance(model, WeightedGcn) else {}
    return model(batch.x, batch.edge_index, batch=batch.batch, **weight).squeeze(1)


def assert_as_by_pyg(model, graph, strategy, networks=None):
    expected = by_pyg(model.model, graph, model.features, networks or ["likes", "knows"])
    wanted = torch.autograd.grad(expected.square().sum(), list(model.parameters()))
    with tclab.view(graph, DELETIONS, strategy) as view:
        predicted = model(view)
        gradients = torch.autograd.grad(predicted.square().sum(), list(model.parameters()))
    torch.testing.assert_close(predicted, expected)
    for gradient, other in zip(gradients, wanted, strict=True):
        torch.testing.assert_close(gradient, other)


@pytest.mark.parametrize("strategy", WITH_EDGES)
@pytest.mark.parametrize("networks", [None, ["knows"]])
def test_predictions_and_gradients_are_those_of_pygs_own_batches(strategy, networks, graph):
    """In training: a norm over all rows shows each row that is too many."""
    torch.manual_seed(0)
    model = PygModel(Gin(global_mean_pool).double(), nn.Parameter(features().double()), networks=networks)
    assert_as_by_pyg(model, graph, strategy, networks)


@pytest.mark.parametrize("strategy", WITH_EDGES)
@pytest.mark.parametrize("kind", [WeightedGcn, OfData])
def test_a_model_that_takes_edge_weights_gets_those_of_the_edges_that_are_left(kind, strategy, weighted):
    """And 1 for the network without weights; a model that takes a `Data` finds them there."""
    torch.manual_seed(0)
    assert_as_by_pyg(PygModel(kind().double(), nn.Parameter(features().double())), weighted, strategy)


def test_a_model_that_takes_edge_weights_runs_without_any_and_with_those_of_drawn_edges(graph):
    assert_as_by_pyg(PygModel(WeightedGcn().double(), nn.Parameter(features().double())), graph, "edge_mask")
    seen = []
    model = WeightedGcn()
    model.conv.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[2]))
    for strategy in ("edge_mask", "sampled_edges"):
        with tclab.view(graph, DELETIONS, strategy) as view:
            PygModel(model, features())(view)
    assert seen[0] is None
    torch.testing.assert_close(seen[1], torch.full_like(seen[1], 4.0))  # a quarter of the edges, each for four


def test_the_check_of_a_model_that_takes_edge_weights_passes_and_leaves_nothing_out(weighted):
    report = tclab.check(PygModel(WeightedGcn(), features()), weighted, strategies="subgraph,edge_mask,gpu_filter")
    assert report.passed
    assert report.problems == []
    report = tclab.check(PygModel(OfData(), features()), weighted, strategies="edge_mask")
    assert report.passed
    assert report.problems == ["Left out: edge weights, unless the PyG model reads data.edge_weight."]
    assert PygModel(OfData(), features(), networks=["likes"]).left_out(weighted) is None
    assert PygModel(torch.compile(WeightedGcn()), features()).left_out(weighted) is None
    assert PygModel(torch.compile(Gin()), features()).left_out(weighted) is not None


@pytest.mark.parametrize("strategy", ["subgraph", "edge_mask"])
def test_features_may_be_an_id_for_each_node(strategy, graph):
    torch.manual_seed(0)
    model = PygModel(OfIds().double(), torch.randperm(NODES))
    assert_as_by_pyg(model, graph, strategy)
    assert tclab.check(model, graph, strategies=strategy).passed
    assert_as_by_pyg(PygModel(model.model, torch.randperm(NODES).int()), graph, strategy)


@pytest.mark.parametrize("given", [features(), nn.Buffer(features()), torch.arange(NODES)])
def test_features_are_data_that_nothing_done_to_a_module_changes(given, graph):
    torch.manual_seed(0)
    model = PygModel(OfIds() if given.dim() == 1 else Gin(), given).eval()
    wanted = given.clone()

    def predicted(model):
        with tclab.view(graph, DELETIONS, "edge_mask") as view, torch.no_grad():
            return model(view)

    before = predicted(model)
    averaged = torch.optim.swa_utils.AveragedModel(model, use_buffers=True)
    for _ in range(3):
        averaged.update_parameters(model)
    torch.testing.assert_close(predicted(averaged), before)  # an id i became i - 1 as a buffer
    assert "features" not in {*dict(model.named_buffers()), *model.state_dict(), *dict(model.named_parameters())}
    model.double()
    with torch.inference_mode():
        predicted(model)
    assert predicted(model).dtype == torch.float64
    with tclab.view(graph, DELETIONS, "edge_mask") as view:
        model(view).sum().backward()  # what inference mode made could not be kept for it
    assert predicted(model.to(torch.bfloat16)).dtype == torch.bfloat16
    model.float().zero_grad()
    for again in (
        model,
        copy.deepcopy(model),
        pickle.loads(pickle.dumps(model)),
        model.to("meta").to_empty(device="cpu"),
    ):
        torch.testing.assert_close(again.features, wanted, rtol=0, atol=0)
        assert again.features.dtype == wanted.dtype


def test_features_of_more_digits_than_the_model_lose_none_in_the_check_and_new_ones_are_read(graph):
    model = PygModel(Gin().eval(), features().double() + 1e-12)
    with tclab.view(graph, DELETIONS, "edge_mask") as view:
        first = model(view)
        assert first.dtype == torch.float32
        model.features = features().double() + 1
        assert not torch.equal(model(view), first)
        torch.testing.assert_close(model(view), PygModel(model.model, features() + 1)(view))
        asked = features().double().requires_grad_()
        PygModel(model.model, asked)(view).sum().backward()
        assert asked.grad.abs().sum() > 0


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
    for shape in ((), (NODES, 2, 8)):
        with pytest.raises(InputError, match=r"features is \[.*\], expected \[N\] or \[N, F\], a row for each node"):
            PygModel(Gin(), torch.zeros(shape))
    wide = Gin()
    wide.out = nn.Linear(16, 2)
    with pytest.raises(InputError, match=r"Gin gives \[\d+, 2\] for \d+ copies of the graph, expected \[\d+\]"):
        tclab.check(PygModel(wide, features()), graph)


@pytest.mark.parametrize("strategy", WITH_EDGES)
def test_a_graph_without_networks_has_nodes_to_give_and_one_with_two_types_no_edges_between_them(strategy):
    alone = tclab.CellGraph({"person": NODES}, {}, "person")
    with tclab.view(alone, DELETIONS, strategy) as view:
        assert PygModel(Gin(global_mean_pool), features())(view).isfinite().all()
    cell = tclab.CellGraph.synthetic(0.01)
    with tclab.view(cell, [[1]], strategy) as view, pytest.raises(InputError, match="unknown network 'gpr'"):
        PygModel(Gin(), features(cell.num_nodes["gene"]), networks=["gpr"])(view)


def test_a_forward_with_other_arguments_is_refused_with_those_that_are_expected():
    class OfAttributes(Gin):
        def forward(self, x, edge_index, edge_attr, batch):
            raise AssertionError

    sentence = (
        r"OfAttributes\.forward has other arguments \(.*'edge_attr'\), expected x, edge_index, batch and.*edge_weight"
    )
    with pytest.raises(InputError, match=sentence):
        PygModel(OfAttributes(), features())
    with pytest.raises(
        InputError, match=r"GCNConv\.forward has other arguments \(.*\), expected .*; or one called data"
    ):
        PygModel(GCNConv(8, 1), features())


def test_it_is_trained_and_its_memory_is_not_known(graph):
    kind = models.ModelKind("own_gin", lambda graph, metabolism: PygModel(Gin(), nn.Parameter(features())), LOSSES)
    samples, loading = Perturbations.synthetic(graph, 4), masking.get("edge_mask")(graph)
    step = Step(kind, loading)
    assert step(loading.batch(samples)).isfinite()
    with pytest.raises(InputError, match="the memory of own_gin cannot be estimated: the sizes of its tensors depend"):
        estimate_memory(step, meta_batch(loading, samples))
