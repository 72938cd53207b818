"""An unchanged model of PyG's on views: the same as PyG's own subgraph and collation, and errors in sentences."""

import pytest
import torch
from torch import nn
from torch_geometric.data import Batch, Data
from torch_geometric.nn import GATConv, GINConv, global_add_pool, global_mean_pool
from torch_geometric.utils import subgraph

import tclab
from tclab import InputError
from tclab.models import PygModel

NODES = 60
DELETIONS = [[3, 17, 18], [], [5], [3, 17, 18]]
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
    assert {"node_mask", "delta", "dense"} <= set(found.broken)
    assert all(why.startswith("skipped: the model needs single edges") for why in found.broken.values())


def test_features_that_are_no_parameter_are_kept_with_the_model_and_not_trained():
    fixed, trained = PygModel(Gin(), features()), PygModel(Gin(), nn.Parameter(features()))
    assert "features" in fixed.state_dict()
    assert "features" not in dict(fixed.named_parameters())
    assert "features" in dict(trained.named_parameters())


def test_what_is_wrong_is_a_sentence(graph):
    with pytest.raises(InputError, match=r"Gin cannot run on a view .*runs as tclab\.models\.PygModel"):
        tclab.check(Gin(), graph)
    with pytest.raises(InputError, match=r"features has 59 rows, expected one for each of the 60 person nodes"):
        tclab.check(PygModel(Gin(), features(NODES - 1)), graph)
    wide = Gin()
    wide.out = nn.Linear(16, 2)
    with pytest.raises(InputError, match=r"Gin gives \[\d+, 2\] for \d+ copies of the graph, expected \[\d+\]"):
        tclab.check(PygModel(wide, features()), graph)
    with pytest.raises(InputError, match=r"features is \[1\], expected a tensor"):
        PygModel(Gin(), [1])
    with pytest.raises(InputError, match=r"model is 'gin', expected an nn\.Module"):
        PygModel("gin", features())


@pytest.mark.slow  # a worker process
def test_it_is_swept_and_its_memory_is_not_known(graph, tmp_path):
    (tmp_path / "own_gin.py").write_text(
        "import torch\nfrom torch_geometric.nn import GINConv, global_add_pool\nfrom tclab import models\n\n"
        "class Gin(torch.nn.Module):\n"
        "    def __init__(self):\n        super().__init__()\n"
        "        self.conv, self.out = GINConv(torch.nn.Linear(8, 16)), torch.nn.Linear(16, 1)\n"
        "    def forward(self, x, edge_index, batch):\n"
        "        return self.out(global_add_pool(self.conv(x, edge_index).relu(), batch))\n\n"
        "def build(graph, metabolism):\n"
        "    return models.PygModel(Gin(), torch.nn.Parameter(torch.randn(graph.num_nodes[graph.deleted_type], 8)))\n\n"
        "models.register(models.ModelKind('own_gin', build,\n"
        "    {'mse': lambda graph: lambda output, targets, *, epoch=0: (output - targets).square().mean()}))\n"
    )
    tclab.lab.import_file(tmp_path / "own_gin.py")
    points = tclab.grid(
        graph=graph, models="own_gin", strategies="edge_mask,gpu_filter,node_mask", batch_sizes=2, networks="all",
        steps=2, workers=0, gpus=0,
    )  # fmt: skip
    rows = tclab.sweep(points, results=tmp_path / "rows", progress=None, refuse=True)
    status = rows.groupby("strategy")["status"].first()
    assert status["edge_mask"] == status["gpu_filter"] == "ok"
    assert status["node_mask"] == "skipped: needs edges"
    with pytest.raises(InputError, match="the memory of own_gin cannot be estimated: the sizes of its tensors depend"):
        tclab.fits(points[0])
