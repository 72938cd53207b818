"""`tclab.check`: the equivalence check on models, strategies and graphs of the user's."""

import re
import warnings

import pytest
import torch
from torch import nn

import tclab
from tclab import InputError, masking
from tclab.graph import Network
from tclab.message_passing import SharedView
from tclab.message_passing._view import EdgeListView
from tclab.models import HeteroCell
from tclab.perturbation import Deletions
from tclab.training import _check, _equivalence
from tclab.training._equivalence import EquivalenceReference, equivalence_graph

INEXACT = [name for name in masking.names() if not masking.get(name).exact]


class Rumour(nn.Module):
    """Two rounds of telling the neighbours, and a number a sample."""

    def __init__(self, graph, *, batch_norm=False, hears=True):
        super().__init__()
        people = graph.num_nodes[graph.deleted_type]
        self.networks, self.hears = list(graph.networks), hears
        self.own = nn.Embedding(people, 6)
        self.tell = nn.Linear(6, 6)
        self.norm = nn.LayerNorm(6)
        self.batch_norm = batch_norm
        self.score, self.out = nn.Linear(6, 1), nn.Linear(6, 1)
        self.idle = nn.Linear(2, 2)

    def forward(self, view):
        if not self.hears:
            return self.out(self.own.weight.mean(0)).expand(view.size)
        x = view.lift(self.own.weight)
        for _ in range(2):
            x = self.norm(self.tell(x) + sum(view.neighbour_sum(name, x) for name in self.networks)).tanh()
        pooled = view.pool(self.score(x), x)
        if self.batch_norm:
            pooled = pooled - pooled.mean(0)
        return self.out(pooled).squeeze(-1)


def strategy(view):
    """Register the strategy that is called as a function is, which makes its views of itself and a batch."""
    return masking.register(type(view.__name__, (masking.Strategy,), {"name": view.__name__, "view": view}))


@pytest.fixture(scope="module")
def graph():
    generator = torch.Generator().manual_seed(0)
    edges = {name: torch.randint(0, 300, (2, 1000), generator=generator) for name in ("likes", "writes")}
    return tclab.CellGraph.from_edges(edges, num_nodes=300, node_type="person")


def words_of(found):
    return " ".join(str(found).split())


def test_every_exact_strategy_is_tried_on_a_part_of_a_graph_of_people(graph):
    found = tclab.check(Rumour, graph)
    exact = [name for name in masking.names() if masking.get(name).exact and masking.get(name).masks_graph]
    assert list(found.results) == exact
    assert found.passed, str(found)
    assert all(result.nodes == 100 and result.edges > 0 for result in found.results.values())
    assert found.problems == ["Without a gradient: idle.weight, idle.bias."]
    assert "The equivalence check of Rumour, 100 of 300 person nodes" in words_of(found)
    assert "predictions and gradients of 9 samples: passed." in words_of(found)
    texts = {name: text for names, text in found._display().lines for name in names.split(", ")}
    assert sorted(texts) == sorted(exact)
    assert texts["subgraph"] == "the reference"
    assert re.fullmatch(r"passed: error \S+e-1\d in fp64, in fp32 \S+ × subgraph's error", texts["node_mask"])


def test_a_model_that_is_made_already_is_tried_whole_and_left_as_it_was(graph):
    model = Rumour(graph).double().train()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    found = tclab.check(model, graph, strategies="node_mask, delta", deletions=[[1, 2], [], [299]])
    assert found.passed
    assert (found.samples, {result.nodes for result in found.results.values()}) == (3, {300})
    assert model.training
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())


def test_deletions_are_of_the_graph_that_was_given_whatever_the_model_is_made_of(graph):
    """A part of the graph would number its nodes anew."""
    seen = set()

    class Sees(Rumour):
        def forward(self, view):
            if view.size <= 2:
                seen.add(tuple(sorted(view.deleted[0].tolist())))
            return super().forward(view)

    found = tclab.check(lambda g: Sees(g), graph, strategies="node_mask", deletions=[[150, 299], [3]])
    assert found.passed, str(found)
    assert {result.nodes for result in found.results.values()} == {300}
    assert seen == {(150, 299), (3,)}  # together, and each alone
    with pytest.raises(InputError, match="300"):
        tclab.check(Rumour, graph, strategies="node_mask", deletions=[[300]])


def test_a_strategy_of_ones_own_that_is_wrong_fails_in_words_and_the_others_go_on(graph):
    @strategy
    def forgets(self, batch):
        removed = {kind: Deletions.nothing(batch.size) for kind in self.graph.num_nodes}
        return SharedView(self.graph, removed)

    @strategy
    def falls(self, batch):
        raise ValueError("fell over\nbadly")

    @strategy
    def lacks(self, batch):
        return SharedView(self.graph, {})

    @strategy
    def packs(self, batch):
        raise AssertionError

    packs.pack = lambda self, removed, encoded: {}
    found = tclab.check(Rumour, graph, strategies=[forgets, falls, lacks, packs, "node_mask", "khop_1"])
    assert not found.passed
    assert not found.results["forgets"].passed
    assert found.results["node_mask"].passed
    assert re.fullmatch(r"ValueError: fell over, at test_check.py:\d+", found.broken["falls"])
    assert re.search(r"falls FAILED with ValueError: fell over, at test_check.py:\d+", words_of(found))
    assert "removed['person'] is None, expected Deletions, as of every node type" in found.broken["lacks"]
    assert "`pack` of strategy 'packs' returns is {}, expected two dicts" in found.broken["packs"]
    assert "khop_1 inexact by design" in words_of(found)
    assert tclab.check(Rumour, graph, strategies="node_mask,khop_1").passed  # an inexact one is not held to it


def test_a_strategy_that_keeps_what_a_batch_before_deleted_fails(graph):
    @strategy
    def stale(self, batch):
        vars(self).setdefault("kept", {}).setdefault(batch.size, batch.deletions)
        return SharedView(self.graph, self.kept[batch.size])

    for deletions in (None, [[3, 17]], [[3], [3]]):
        assert not tclab.check(Rumour, graph, strategies=[stale], deletions=deletions).passed


def test_what_fails_names_the_sample_and_what_it_removes_or_the_parameter(graph):
    @strategy
    def loses_twins(self, batch):
        nodes = batch.deletions["person"]
        seen = {str(nodes[i].tolist()): i for i in reversed(range(batch.size))}
        kept = [nodes[i].tolist() if seen[str(nodes[i].tolist())] == i else [] for i in range(batch.size)]
        return SharedView(self.graph, {"person": Deletions.of(kept, num_nodes=self.graph.num_nodes["person"])})

    class NoGradient(SharedView):
        def lift(self, features, *kind):
            return super().lift(features.detach(), *kind)

    @strategy
    def detached(self, batch):
        return NoGradient(self.graph, batch.deletions)

    found = tclab.check(Rumour, graph, strategies=[loses_twins, detached], deletions=[[3], [], [17, 200], [17, 200]])
    twins, gradients = (found.results[name].where for name in ("loses_twins", "detached"))
    assert "1 of 4 predictions are off; worst: sample 3, which removes 17, 200, by " in twins
    assert gradients.startswith("in float64, 0 of 4 predictions are off; worst: the gradient of own.weight, by 1.0")
    assert "worst: sample 3, which removes 17, 200, by" in words_of(found)


def test_a_strategy_of_ones_own_is_compared_on_the_whole_graph_too(monkeypatch, graph):
    @strategy
    def ids_in_a_byte(self, batch):  # right up to 256 nodes
        nodes = batch.deletions["person"]
        return SharedView(self.graph, {"person": Deletions(nodes.nodes.to(torch.uint8).long(), nodes.ptr, nodes.most)})

    @strategy
    def ids_of_any_size(self, batch):
        return SharedView(self.graph, batch.deletions)

    found = tclab.check(Rumour, graph, strategies=[ids_in_a_byte, ids_of_any_size, "node_mask"])
    wrong, right, ours = found.results.values()
    assert [one.passed for one in (wrong, right, ours)] == [False, True, True]
    assert [one.full_size for one in (wrong, right, ours)] == ["failed", "passed", None]
    assert wrong.nodes == 100
    assert wrong.fp64_error < 1e-10  # on the part
    assert re.match("on the whole graph in float64, 2 of 2 predictions are off; worst: sample [01], ", wrong.where)
    assert "ids_in_a_byte FAILED: on the whole graph in float64, 2 of 2" in words_of(found)
    assert "subgraph's error; on the whole graph passed" in words_of(found)
    induced = tclab.CellGraph.induced

    def runs_out(graph, nodes):
        if not nodes:
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes")
        return induced(graph, nodes)

    monkeypatch.setattr(tclab.CellGraph, "induced", runs_out)
    found = tclab.check(Rumour, graph, strategies="ids_of_any_size")
    assert found.passed
    assert "on the whole graph not compared: memory ran out" in words_of(found)


def test_a_model_that_cannot_be_compared_does_not_pass_and_the_report_says_why(graph):
    class Noisy(Rumour):
        def forward(self, view):
            return super().forward(view) + torch.rand(view.size)

    for model, words in (
        (lambda g: Rumour(g, hears=False), "any strategy would pass"),
        (Noisy, "The model is not deterministic"),
        (lambda g: Rumour(g, batch_norm=True), "depends on the other samples of the batch"),
    ):
        found = tclab.check(model, graph, strategies="node_mask")
        assert words in words_of(found)
        assert not found.passed or "other samples" in words  # that one may still be compared


def test_registered_models_are_checked_by_name_with_the_strategies_that_serve_them(monkeypatch, capsys):
    monkeypatch.setattr(_check, "_SAID_APART_SECONDS", -1.0)
    graph = tclab.CellGraph.synthetic(0.02, metabolism=False)
    dango = tclab.check("dango", graph)
    assert list(dango.results) == ["indices"]
    assert dango.passed
    with pytest.raises(InputError, match="'indices' makes no node-deleted graph"):
        HeteroCell.profiling(graph)(tclab.view(graph, [[1]], "indices"))
    assert tclab.check("hetero_cell", graph.select(2), strategies="edge_mask").passed
    assert capsys.readouterr().err == "checking indices, 1 of 1\nchecking edge_mask, 1 of 1\n"


def test_what_cannot_be_checked_is_said_in_one_line(graph):
    class Wide(Rumour):
        def forward(self, view):
            return super().forward(view).unsqueeze(1)

    for model, strategies, words in (
        (lambda g: nn.ReLU(), "node_mask", "ReLU has no parameters"),
        (lambda g: "none", "node_mask", "what model makes of the graph is 'none', expected an nn.Module"),
        (lambda g: nn.Linear(2, 2), "node_mask", "Linear cannot run on a view of 9 samples: TypeError"),
        (Wide, "auto", r"Wide gives \[9, 1\] for 9 samples, expected \[9\]"),
        (Rumour, "nodemask", "unknown strategy 'nodemask'; did you mean 'node_mask'"),
    ):
        with pytest.raises(InputError, match=words):
            tclab.check(model, graph, strategies=strategies)
    with pytest.raises(InputError, match="graph is a Tensor, expected a tclab"):
        tclab.check(Rumour, torch.zeros(2, 3))


def test_an_inexact_strategy_has_an_error_and_is_never_called_equal():
    graph = tclab.CellGraph.synthetic(0.02, seed=1).without_metabolism().select(["regulatory", "physical"])
    found = tclab.check("hetero_cell", graph, strategies=INEXACT)
    assert not found.passed
    assert list(found.results) == INEXACT
    assert all(not result.exact and 0.0 < result.fp64_error < float("inf") for result in found.results.values())
    ring = tclab.CellGraph.from_edges({"likes": torch.tensor([[0, 1, 2, 3], [1, 2, 3, 0]])}, num_nodes=4)
    found = tclab.check(HeteroCell.profiling(ring), ring, strategies="khop_3", deletions=[[0], [2]])
    assert not found.passed  # though three hops of so small a graph are all of it


# ---- what is wrong only compiled; in bfloat16 alone: test_mutants.py


def test_what_is_wrong_only_compiled_fails_the_check_so(monkeypatch, graph):
    compiling = torch.compile
    monkeypatch.setattr(torch, "compile", lambda forward: compiling(forward, backend="eager"))

    class WrongCompiled(SharedView):
        def neighbour_sum(self, *given, **how):
            return super().neighbour_sum(*given, **how) * (1.3 if torch.compiler.is_compiling() else 1.0)

    @strategy
    def nearly(self, batch):
        return WrongCompiled(self.graph, batch.deletions)

    reference = EquivalenceReference(lambda part: Rumour(part).eval(), graph)
    before = reference.compare("nearly")
    assert before.passed
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the compiler's own imports
        assert not reference.compare("nearly", compile=True).passed
        assert reference.compare("edge_mask", compile=True).passed
    assert reference.compare("nearly") == before


# ---- what is compared: weights off 0, a part with neighbourhoods, gradients, every model that is right


def sparse(nodes=2000, edges=3000, seed=0):
    generator = torch.Generator().manual_seed(seed)
    roads = torch.randint(0, nodes, (2, edges), generator=generator)
    return tclab.CellGraph.from_edges({"roads": roads}, num_nodes=nodes, node_type="person")


@pytest.mark.parametrize("seed", range(4))
def test_the_part_of_a_sparse_graph_has_hubs_with_their_neighbours_and_as_many_edges_as_nodes(seed):
    graph = sparse(seed=seed)
    part = equivalence_graph(graph)
    assert part.num_nodes == {"person": 100}
    assert part.num_edges >= 100
    degree = part.relations["roads"].edge_index.flatten().bincount(minlength=100)
    assert degree.max() >= 8
    assert (degree >= 5).sum() >= 4
    again = equivalence_graph(graph)
    assert torch.equal(part.relations["roads"].edge_index, again.relations["roads"].edge_index)


@pytest.mark.parametrize("scale", [0.02, 0.1])
def test_the_part_of_a_cell_has_edges_of_every_relation_and_is_small(scale):
    part = equivalence_graph(tclab.CellGraph.synthetic(scale, seed=1))
    assert {kind: min(nodes, 100) for kind, nodes in part.num_nodes.items()} == part.num_nodes
    assert all(network.num_edges > 0 for network in part.relations.values())
    assert part.num_edges < 4000


@pytest.mark.parametrize("kinds", [(0, 0), (5, 0), (300, 3), (3, 300)])
def test_a_part_is_made_of_graphs_without_edges_and_of_small_types(kinds):
    nodes, others = 250, dict(zip(("road", "town"), kinds, strict=True))
    empty = torch.zeros(2, 0, dtype=torch.int64)
    relations = {
        "knows": Network("knows", empty, "person", "person", nodes, nodes),
        "walks": Network("walks", empty, "person", "road", nodes, others["road"]),
        "leads": Network("leads", empty, "road", "town", others["road"], others["town"]),
    }
    graph = tclab.CellGraph({"person": nodes, **others}, relations, "person")
    part = equivalence_graph(graph)
    assert part.num_nodes == {kind: min(number, 100) for kind, number in graph.num_nodes.items()}
    assert tclab.check(Rumour, graph, strategies="node_mask, edge_mask, delta").passed


def test_a_gradient_that_is_missing_on_a_large_graph_alone_is_found_unless_it_is_too_large(monkeypatch):
    class NoGradient(SharedView):
        def lift(self, features, *kind):
            return super().lift(features.detach() if len(features) > 2500 else features, *kind)

    @strategy
    def detached_in_large(self, batch):
        return NoGradient(self.graph, batch.deletions)

    graph = sparse(nodes=3000, edges=4000)
    (result,) = tclab.check(Rumour, graph, strategies=[detached_in_large]).results.values()
    assert (result.passed, result.full_size) == (False, "failed")
    assert result.where.startswith(
        "on the whole graph in float64, 0 of 2 predictions are off; worst: the gradient of own"
    )
    monkeypatch.setattr(_equivalence, "_SIZE_FOR_GRADIENTS", 6999)
    assert tclab.check(Rumour, graph, strategies=[detached_in_large]).passed


def test_a_reference_that_is_wrong_in_bfloat16_does_not_pass_itself_and_a_right_strategy_does(monkeypatch, graph):
    right = EdgeListView.pool

    def pool(view, scores, values):
        wrong = torch.is_autocast_enabled("cpu") and view._rows is not None  # only rows that are left have a list
        return right(view, scores, values) * (2.0 if wrong else 1.0)

    monkeypatch.setattr(EdgeListView, "pool", pool)
    reference = EquivalenceReference(lambda part: Rumour(part).eval(), graph)
    for name in ("subgraph", "node_mask"):
        assert reference.compare(name).passed
    reference_result, right_result = (reference.compare(name, dtype="bfloat16") for name in ("subgraph", "node_mask"))
    assert not reference_result.passed
    assert reference_result.where.startswith("in bfloat16, ")
    assert reference_result.fp32_ratio > 2
    assert right_result.passed, right_result.where


class Residual(Rumour):
    """What a right model may look like: a branch that begins with 0, a root of a weight, a weight alone, a mask."""

    def __init__(self, graph):
        super().__init__(graph)
        self.gate, self.power = nn.Parameter(torch.zeros(())), nn.Parameter(torch.zeros(6))
        self.fixed = nn.Parameter(torch.eye(6), requires_grad=False)
        self.register_buffer("places", torch.arange(6.0))
        nn.init.zeros_(self.out.weight)
        nn.init.zeros_(self.out.bias)

    def forward(self, view):
        assert torch.equal(self.fixed.detach(), torch.eye(6, dtype=self.fixed.dtype))
        x = view.lift(self.own.weight @ self.fixed)[:, self.places.long()]
        summed = sum(view.neighbour_sum(name, x) for name in self.networks)
        x = x + self.gate * self.norm(summed) * (self.power + 1e-9).sqrt()
        return self.out(view.pool(self.score(x), x)).squeeze(-1)


class OneWeight(nn.Module):
    """One weight in all, and one feature a node, which is no parameter."""

    def __init__(self, graph):
        super().__init__()
        self.register_buffer("degree", torch.arange(graph.num_nodes[graph.deleted_type]) % 7 + 1.0)
        self.weight = nn.Parameter(torch.tensor(0.3))

    def forward(self, view):
        x = view.lift(self.degree.unsqueeze(1))
        summed = sum(view.neighbour_sum(name, x) for name in view.graph.networks)
        return view.pool(self.weight * x, (self.weight * summed).sin()).squeeze(1)


@pytest.mark.parametrize("model", [Residual, OneWeight])
@pytest.mark.parametrize("nodes", [1, 30, 300])
def test_models_and_graphs_that_are_right_pass(model, nodes):
    generator = torch.Generator().manual_seed(nodes)
    edges = torch.randint(0, nodes, (2, 3 * nodes), generator=generator)
    network = Network(
        "likes", edges, "person", "person", nodes, nodes, weight=torch.randn(3 * nodes, generator=generator)
    )
    graph = tclab.CellGraph({"person": nodes}, {"likes": network}, "person")
    for seed in range(2):
        found = tclab.check(model, graph, strategies="subgraph, edge_mask, node_mask, delta", seed=seed)
        assert found.passed, str(found)
        assert found.comparable


def test_a_gradient_that_is_not_finite_is_said_of_the_model_and_of_no_strategy(graph):
    class Rooted(Rumour):
        def forward(self, view):
            return super().forward(view) + (0.0 * self.out.bias).sqrt()

    with pytest.raises(
        InputError, match=r"Rooted with subgraph: not finite is the gradient of out\.bias; expected finite"
    ):
        tclab.check(Rooted, graph, strategies="node_mask")


def test_a_check_whose_strategies_were_all_skipped_compared_nothing(graph):
    class Edges(Rumour):
        def forward(self, view):
            view.edges("likes")
            return super().forward(view)

    found = tclab.check(Edges, graph, strategies="node_mask, delta")
    assert not found.passed
    assert (found.results, found.broken, list(found.skipped)) == ({}, {}, ["node_mask", "delta"])
    assert "every strategy was skipped." in words_of(found)
    assert "node_mask, delta skipped: the model needs single edges" in words_of(found)
    assert tclab.check(Edges, graph, strategies="node_mask, edge_mask").passed


@pytest.mark.parametrize(
    ("nodes", "degree"), [(2, 1), (5, 1), (20, 0), (150, 10), (300, 100), (2000, 12), (6000, 3000)]
)
def test_right_strategies_pass_at_a_hub_in_bfloat16_on_graphs_of_every_size(nodes, degree):
    """A gradient in which much cancels would be off by more than rounding, and by chance."""
    spokes = torch.arange(1, degree + 1)
    star = tclab.CellGraph.from_edges({"knows": torch.stack([spokes, 0 * spokes])}, num_nodes=nodes)
    reference = EquivalenceReference(lambda part: Rumour(part).eval(), star)
    for name in ("subgraph", "edge_mask", "node_mask", "delta"):
        hub = reference._hub()
        for dtype, allowed in _equivalence._AT_HUB.items():
            (finding,) = hub._differences({_equivalence.Variant(name, dtype=dtype): allowed / 2})
            assert finding.where == "", name


@pytest.mark.parametrize("seed", [1, 13])
def test_a_model_with_torchs_own_layer_norm_passes_in_bfloat16(seed):
    """torch adds up the gradients of its weight and bias in bfloat16 where rows are, as they are for `node_mask`."""
    generator = torch.Generator().manual_seed(seed)
    edges = {name: torch.randint(0, 150, (2, 300), generator=generator) for name in ("likes", "writes")}
    people = tclab.CellGraph.from_edges(edges, num_nodes=150, node_type="person")
    reference = EquivalenceReference(lambda part: Rumour(part).eval(), people, seed=seed)
    for name in ("subgraph", "edge_mask", "node_mask", "delta"):
        result = reference.compare(name, dtype="bfloat16")
        assert result.passed, result.where
