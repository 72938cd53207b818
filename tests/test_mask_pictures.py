"""The pictures of the strategies say what their batches and views hold."""

import pytest

import tclab
from tclab import InputError, masking
from tclab.lab.reports._mask_tensors import small_graph, tensors_of

lab = pytest.importorskip("tclab.lab")
GRAPH = small_graph(10)
EDGES = GRAPH.networks["interacts"].edge_index.t().tolist()
DELETIONS = [[0], [3, 4], []]
MASKED = [name for name in masking.names() if masking.get(name).masks_graph]


@pytest.mark.parametrize("strategy", MASKED)
def test_each_strategy_is_drawn_from_what_it_holds(strategy):
    _, drawings, entries, _ = tensors_of(GRAPH, DELETIONS, strategy)
    drawn = lab.charts.mask_picture(GRAPH, DELETIONS, strategy).to_dict()
    assert drawn["title"]["text"] == strategy
    assert f"{entries} entries of edge lists and matrices in memory for 3 samples" in drawn["title"]["subtitle"][1]
    assert "`" not in str(drawn["title"]["subtitle"])
    states = [state for *_, states in drawings for state in states]
    assert sum(state.startswith("deleted") for state in states) == 3
    shown = {state for _, edges, _ in drawings for *_, state in edges} | set(states)
    edges, _, nodes = (layer["encoding"] for layer in drawn["hconcat"][0]["layer"])
    assert set(edges["color"]["scale"]["domain"]) == shown  # the legend lists nothing else
    looks = zip(edges["color"]["scale"]["range"], nodes["shape"]["scale"]["range"], strict=True)
    assert len(set(looks)) == len(shown)


def test_what_copies_holds_every_sample_s_edges_and_what_shares_a_matrix_and_its_transpose():
    counts = {name: tensors_of(GRAPH, DELETIONS, name)[2] for name in MASKED}
    left = sum(not {a, b} & set(deleted) for deleted in DELETIONS for a, b in EDGES)
    assert counts["edge_mask"] == counts["gpu_mask"] == counts["stored_mask"] == 3 * len(EDGES)
    assert counts["subgraph"] == left < 3 * len(EDGES)
    assert counts["gpu_filter"] == left + 3 * len(EDGES)  # what it filters from stays
    assert counts["node_mask"] == 2 * len(EDGES)
    assert counts["dense"] == 10 * 10
    assert counts["delta"] == counts["fastest"] > counts["node_mask"]  # the differences, beside what is shared


def test_an_edge_is_dashed_where_an_end_is_deleted_and_delta_colours_who_hears_from_one():
    masked, differs = (
        {title: (edges, states) for title, edges, states in tensors_of(GRAPH, DELETIONS, name)[1]}
        for name in ("edge_mask", "delta")
    )
    for sample, deleted in enumerate(DELETIONS):
        for a, b, state in masked[f"sample {sample}"][0]:
            assert (state == "summed") == (a not in deleted and b not in deleted)
        hears = {b for a, b in EDGES if a in deleted} - set(deleted)
        states = differs[f"sample {sample}"][1]
        assert {node for node, state in enumerate(states) if state.startswith("differs")} == hears


def test_what_cannot_be_drawn_says_so():
    for call, words in (
        (lambda: tensors_of(tclab.CellGraph.synthetic(0.02, metabolism=False), [[0]], "node_mask"), "too much to"),
        (lambda: tensors_of(GRAPH, DELETIONS, "indices"), "makes no masked graph"),
        (lambda: small_graph(3), "expected 4 to 30"),
    ):
        with pytest.raises(InputError, match=words):
            call()
