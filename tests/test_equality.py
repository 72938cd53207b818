"""Every exact strategy computes what `subgraph` computes: predictions and gradients, beyond the first sample."""

import re
import warnings
from pathlib import Path

import drawn
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch._inductor import config as inductor

import tclab
from tclab import masking, models
from tclab.masking import Strategy
from tclab.message_passing import SharedView
from tclab.message_passing._view import NeedsEdgesError
from tclab.models import HeteroCell
from tclab.perturbation import Deletions
from tclab.training._equivalence import (
    FP64_TOLERANCE,
    EquivalenceReference,
    Numerics,
    equivalence_reference,
    outcome,
    relative_error,
)

EXACT = [name for name in masking.names() if masking.get(name).exact and masking.get(name).masks_graph]
INEXACT = [name for name in masking.names() if not masking.get(name).exact]
OTHERS = [name for name in EXACT if name != "subgraph"]


def small(graph, **options):
    torch.manual_seed(0)
    kind = graph.deleted_type
    return HeteroCell(graph.num_nodes[kind], list(graph.networks), width=8, layers=2, local_heads=2, **options)


def test_the_readmes_table_has_every_strategy():
    readme = Path(__file__).parents[1].joinpath("README.md").read_text()
    table = [line.split("|")[1] for line in readme.splitlines() if line.startswith("| `")]
    listed = [name for cell in table for name in re.findall(r"`(\w+)`", cell)]
    assert [name for name in masking.names() if name not in listed] == []


@given(data=st.data(), graph=drawn.graphs())
def test_fp64_predictions_and_gradients_are_those_of_subgraph(data, graph):
    samples = data.draw(drawn.deletions(graph))
    aggregation = data.draw(st.sampled_from(["sum", "mean", "cross_attention", "pairwise"]))
    combine = data.draw(st.sampled_from(["global", "fixed", "gate"]))
    used = "used" if graph.metabolism else "off"
    model = small(graph, aggregation=aggregation, combine=combine, metabolism=used).double()
    expected = outcome(model, graph, samples, "subgraph")
    for strategy in OTHERS:
        assert relative_error(outcome(model, graph, samples, strategy), expected) <= FP64_TOLERANCE, strategy


@given(data=st.data(), graph=drawn.graphs())
def test_neighbour_sums_and_degrees_of_every_sample_are_those_of_its_own_graph(data, graph):
    """Against the definition: for each sample alone, loop over its kept edges."""
    samples = data.draw(drawn.deletions(graph))
    strategy = data.draw(st.sampled_from(EXACT))
    generator = torch.Generator().manual_seed(0)
    features = {
        kind: torch.randn(number, 3, generator=generator, dtype=torch.float64)
        for kind, number in graph.num_nodes.items()
    }
    with tclab.view(graph, samples, strategy) as view:
        # each row's own sample and node, found by lifting them as features; samples by what they keep
        ids = {
            k: view.lift(torch.arange(n).double().unsqueeze(1), k).flatten().long() for k, n in graph.num_nodes.items()
        }
        for relation, network in graph.relations.items():
            for transpose in (False, True):
                source, target = network.source, network.target
                if transpose:
                    source, target = target, source
                sums = view.neighbour_sum(relation, view.lift(features[source], source), transpose=transpose)
                degrees = view.degree(relation, transpose=transpose)
                expected = []
                for sample in samples:
                    removed = drawn.removed_one_by_one(graph, sample)
                    for node in range(graph.num_nodes[target]):
                        if node in removed[target]:
                            continue
                        total, count = torch.zeros(3, dtype=torch.float64), 0
                        for e, pair in enumerate(network.edge_index.t().tolist()):
                            a, b = pair[::-1] if transpose else pair
                            if b == node and a not in removed[source]:
                                weight = 1.0 if network.weight is None else network.weight[e]
                                total, count = total + weight * features[source][a], count + 1
                        expected.append((node, count, *total.tolist()))
                keep = view.keep[target]
                found = torch.cat([ids[target].unsqueeze(1), degrees.unsqueeze(1), sums], dim=1)[keep].tolist()
                assert len(found) == len(expected)
                torch.testing.assert_close(
                    torch.tensor(sorted(map(tuple, found))), torch.tensor(sorted(expected)), rtol=1e-10, atol=1e-10
                )


@pytest.mark.parametrize(
    ("name", "metabolism"),
    [
        ("hetero_cell", "used"),
        pytest.param("hetero_cell_production", "off", marks=pytest.mark.slow),
        pytest.param("hetero_cell", "off", marks=pytest.mark.slow),
        pytest.param("hetero_cell_production", "used", marks=pytest.mark.slow),
    ],
)
def test_every_strategy_passes_the_check_in_fp64_and_fp32(name, metabolism):
    graph = tclab.CellGraph.synthetic(0.02, seed=1)
    if metabolism == "off":
        graph = graph.without_metabolism()
    reference = equivalence_reference(
        models.get(name), graph.select(["physical", "tflink", "string12_0_coexpression"]), metabolism=metabolism
    )
    for strategy in EXACT:
        found = reference.compare(strategy)
        assert found.passed, found


@pytest.mark.parametrize("strategy", INEXACT)
def test_an_inexact_strategy_has_an_error_and_is_never_called_equal(strategy):
    graph = tclab.CellGraph.synthetic(0.02, seed=1).without_metabolism().select(["regulatory", "physical"])
    reference = equivalence_reference(models.get("hetero_cell"), graph)
    found = reference.compare(strategy)
    assert not found.exact
    assert not found.passed
    assert 0.0 < found.fp64_error < float("inf")


def test_three_hops_of_a_small_dense_graph_are_all_of_it_and_still_not_called_equal():
    graph = tclab.CellGraph.from_edges({"likes": torch.tensor([[0, 1, 2, 3], [1, 2, 3, 0]])}, num_nodes=4)
    found = EquivalenceReference(HeteroCell.profiling(graph), graph, [[0], [2]]).compare("khop_3")
    assert found.fp64_error <= FP64_TOLERANCE
    assert not found.passed


def test_dango_is_the_same_by_sharing_and_by_edges():
    graph = tclab.CellGraph.synthetic(0.03, metabolism=False)
    found = equivalence_reference(models.get("dango"), graph).compare("indices")
    assert found.passed, found


def test_dango_refuses_to_be_given_no_graph_it_could_read():
    graph = tclab.CellGraph.synthetic(0.02, metabolism=False)
    with pytest.raises(tclab.InputError, match="'indices' makes no node-deleted graph"):
        HeteroCell.profiling(graph)(tclab.view(graph, [[1]], "indices"))


class MaskOnceView(SharedView):
    """Zeroes deleted nodes at the first layer alone: biases bring them back to life at the second."""

    def _sums(self, relations, x, transpose, weights):
        rows = self._rows
        if getattr(self, "seen", False):
            self._rows = {kind: ids[:0] for kind, ids in rows.items()}
        self.seen = True
        try:
            return super()._sums(relations, x, transpose, weights)
        finally:
            self._rows = rows


class WrongSampleView(SharedView):
    """Deletes the right nodes from the wrong samples: only the first and last are swapped."""

    def __init__(self, graph, removed):
        swapped = {}
        for kind, deletions in removed.items():
            sets = [deletions[b].tolist() for b in range(len(deletions))]
            sets[1:] = sets[1:][::-1]
            swapped[kind] = Deletions.of(sets, num_nodes=graph.num_nodes[kind])
        super().__init__(graph, swapped)


def nearly(wrong):
    """Register the strategy `nearly`, whose samples are views of a wrong kind and whose wild type is right."""

    class Nearly(Strategy):
        name = "nearly"

        def view(self, batch):
            view = wrong(self.graph, batch.deletions)
            view.with_wild_type = lambda: [view.wild_type, view]
            return view

    masking.register(Nearly)


@pytest.mark.parametrize("wrong", [MaskOnceView, WrongSampleView])
def test_a_strategy_that_is_nearly_right_fails_the_check(wrong):
    nearly(wrong)
    graph = tclab.CellGraph.synthetic(0.02, seed=1, metabolism=False).select(["physical", "tflink"])
    found = equivalence_reference(models.get("hetero_cell"), graph).compare("nearly")
    assert not found.passed
    assert found.fp64_error > 1e-6


class WrongInBfloat16(SharedView):
    """Loses what is small, in bfloat16 alone."""

    def neighbour_sums(self, relations, x, *, self_weights):
        factor = 1.3 if torch.is_autocast_enabled("cpu") else 1.0
        return [summed * factor for summed in super().neighbour_sums(relations, x, self_weights=self_weights)]


class WrongInSlices(SharedView):
    """Deletes nothing from a batch of few samples."""

    def __init__(self, graph, removed):
        few = len(removed[graph.deleted_type]) <= 3
        super().__init__(graph, {k: Deletions.nothing(len(d)) if few else d for k, d in removed.items()})


class WrongCompiled(SharedView):
    def neighbour_sums(self, relations, x, *, self_weights):
        factor = 1.3 if torch.compiler.is_compiling() else 1.0
        return [summed * factor for summed in super().neighbour_sums(relations, x, self_weights=self_weights)]


@pytest.fixture
def quick_compiler(monkeypatch):
    compiling = torch.compile
    monkeypatch.setattr(torch, "compile", lambda forward: compiling(forward, backend="eager"))


@pytest.mark.parametrize(
    ("wrong", "numerics"),
    [
        (WrongInBfloat16, Numerics("bfloat16")),
        (WrongInSlices, Numerics("float32", slices=True)),
        (WrongInSlices, Numerics("float64", slices=True, checkpoint=True)),
        (WrongCompiled, Numerics("float32", compile=True)),
    ],
)
def test_what_is_wrong_only_as_it_is_run_fails_the_check_so(wrong, numerics, quick_compiler):
    nearly(wrong)
    graph = tclab.CellGraph.synthetic(0.01, seed=1, metabolism=False).select(["physical"])
    reference = equivalence_reference(models.get("hetero_cell").sized(hidden=8, layers=1), graph)
    assert reference.compare("nearly").passed
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the compiler's own imports
        found = reference.compare("nearly", numerics=numerics)
    assert not found.passed
    assert reference.compare("nearly") == reference.compare("nearly", numerics=Numerics("float64"))  # as it was before


@pytest.mark.parametrize(
    "numerics",
    [
        pytest.param(Numerics("bfloat16", checkpoint=True, slices=True), marks=pytest.mark.slow),
        Numerics("float64", checkpoint=True, slices=True),
    ],
)
def test_strategies_pass_the_check_as_they_are_run(numerics):
    graph = tclab.CellGraph.synthetic(0.01, seed=1, metabolism=False).select(["physical", "tflink"])
    reference = equivalence_reference(models.get("hetero_cell").sized(hidden=16, layers=2), graph)
    for strategy in ("edge_mask", "gpu_mask_cached", "gpu_filter", "dense", "delta"):
        found = reference.compare(strategy, numerics=numerics)
        assert found.passed, found


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["node_mask", "edge_mask"])
def test_a_strategy_passes_the_check_compiled_by_the_whole_compiler(strategy):
    """Of two networks by edges Inductor read sums before they were made; see `message_passing/rows.py`."""
    graph = tclab.CellGraph.synthetic(0.01, seed=1, metabolism=False).select(2)
    reference = equivalence_reference(models.get("hetero_cell").sized(hidden=16, layers=1), graph)
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the compiler's own imports
        with inductor.patch(compile_threads=1):  # in this process
            found = reference.compare(strategy, numerics=Numerics(compile=True))
    assert found.passed, found
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] >= 1


def test_the_check_leaves_the_model_as_it_was():
    graph = tclab.CellGraph.synthetic(0.02, metabolism=False).select(2)
    model = HeteroCell.profiling(graph)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    reference = EquivalenceReference(model, graph, [[1], [2, 3]])
    reference.compare("node_mask")
    reference.compare("node_mask", numerics=Numerics("float64", checkpoint=True))
    assert model.checkpoint is False
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert all(p.dtype == torch.float32 for p in model.parameters())


def test_a_batch_changes_no_prediction_of_its_members():
    """The case study's norm ran over the whole mini-batch, so a prediction depended on its neighbours."""
    graph = tclab.CellGraph.synthetic(0.02, metabolism=False)
    model = HeteroCell.profiling(graph).double()
    together = model(tclab.view(graph, [[3, 17], [5], []]))
    for sample, alone in enumerate(([3, 17], [5], [])):
        torch.testing.assert_close(model(tclab.view(graph, [alone]))[0], together[sample], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("strategy", EXACT)
def test_rows_of_deleted_nodes_reach_nothing(strategy):
    """Whatever a deleted row holds, neither a sum nor the pool may see it."""
    graph = tclab.CellGraph.synthetic(0.02, metabolism=False)
    with tclab.view(graph, [[0, 4], [7]], strategy) as view:
        x = view.lift(torch.ones(graph.num_nodes["gene"], 2))
        poisoned = x.masked_fill(~view.keep["gene"].unsqueeze(1), 1e6)
        for name in graph.networks:
            kept = view.keep["gene"]
            assert torch.equal(view.neighbour_sum(name, x)[kept], view.neighbour_sum(name, poisoned)[kept])
        scores = torch.zeros(len(x), 1)
        torch.testing.assert_close(view.pool(scores, poisoned), torch.ones(2, 2))


@pytest.mark.parametrize("strategy", EXACT)
def test_a_sample_with_nothing_left_pools_to_zero(strategy):
    graph = tclab.CellGraph.from_edges({"likes": torch.tensor([[0, 1], [1, 2]])}, num_nodes=3)
    with tclab.view(graph, [[1], [0, 1, 2]], strategy) as view:
        x = view.lift(torch.ones(3, 2)).requires_grad_()
        pooled = view.pool(x[:, :1], x)
        assert pooled.tolist() == [[1.0, 1.0], [0.0, 0.0]]
        pooled.sum().backward()
        assert torch.isfinite(x.grad).all()


def test_single_edges_are_there_or_refused():
    graph = tclab.CellGraph.synthetic(0.02, metabolism=False)
    edge_index, mask = tclab.view(graph, [[3], [4]], "edge_mask").edges("physical")
    assert edge_index.shape == (2, len(mask))
    with pytest.raises(NeedsEdgesError):
        tclab.view(graph, [[3], [4]], "node_mask").edges("physical")


def test_double_backward_through_the_shared_sum_is_refused():
    graph = tclab.CellGraph.synthetic(0.02, metabolism=False)
    view = tclab.view(graph, [[3]])
    x = view.lift(torch.randn(graph.num_nodes["gene"], 2)).requires_grad_()
    (gradient,) = torch.autograd.grad(view.neighbour_sum("physical", x).square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.sum().backward()


def test_both_cpu_kernels_give_the_same():
    from tclab.message_passing.kernels._spmm import _by_aten, _by_library

    matrix = drawn.csr_matrix(tclab.CellGraph.synthetic(0.05).networks["physical"], torch.float32)
    x = torch.randn(matrix.size(1), 24)
    base = torch.randn(matrix.size(0), 24)
    for add in (False, True):
        results = [kernel(matrix, x, base.clone(), add) for kernel in (_by_aten, _by_library)]
        torch.testing.assert_close(*results)
    torch.testing.assert_close(*[kernel(matrix, x, None, False) for kernel in (_by_aten, _by_library)])


def test_bfloat16_is_close_under_autocast():
    graph = tclab.CellGraph.synthetic(0.02, metabolism=False)
    model = HeteroCell.profiling(graph)
    for strategy in ("edge_mask", "node_mask"):
        exact = model(tclab.view(graph, [[3], [4, 5]], strategy))
        with torch.autocast("cpu", torch.bfloat16):
            rough = model(tclab.view(graph, [[3], [4, 5]], strategy))
        rough.sum().backward()
        torch.testing.assert_close(rough.float(), exact, rtol=0.1, atol=0.02)
