"""The pictures of the strategies say what their batches and views hold."""

import pytest

import tclab
from tclab import InputError, masking
from tclab.lab.reports._mask_drawings import mask_drawing, small_graph

lab = pytest.importorskip("tclab.lab")
GRAPH = small_graph(10)
DELETIONS = [[0], [3, 4], []]
MASKED = [name for name in masking.names() if masking.get(name).masks_graph]


@pytest.mark.parametrize("strategy", MASKED)
def test_each_strategy_is_drawn_from_what_it_holds(strategy):
    found = mask_drawing(GRAPH, DELETIONS, strategy)
    drawn = lab.charts.mask_picture(GRAPH, DELETIONS, strategy).to_dict()
    assert drawn["title"]["text"] == strategy
    assert (
        f"{found.entries} entries of edge lists and matrices in memory for 3 samples" in drawn["title"]["subtitle"][1]
    )
    states = [state for _, states in found.drawings.values() for state in states]
    assert sum(state.startswith("deleted") for state in states) == 3
    if strategy == "khop_1" or masking.get(strategy).exact:
        assert ("left out, no row" in states) == (strategy == "khop_1")  # what no sample deletes
    assert "`" not in str(drawn["title"]["subtitle"])
    ways = {state for edges, _ in found.drawings.values() for *_, state in edges}
    edges, _, nodes = (layer["encoding"] for layer in drawn["hconcat"][0]["layer"])
    assert set(edges["color"]["scale"]["domain"]) == ways | set(states)  # the legend lists nothing else
    looks = zip(edges["color"]["scale"]["range"], nodes["shape"]["scale"]["range"], strict=True)
    assert len(set(looks)) == len(ways | set(states))


def test_an_arrow_points_from_the_source_to_the_target():
    drawn = lab.charts.mask_picture(4, [[]], "subgraph").to_dict()
    (lines,) = [drawn["datasets"][layer["data"]["name"]] for layer in drawn["hconcat"][0]["layer"][:1]]
    right, down = lines[:2]  # node 0 is at the top, 1 at the right, 2 at the bottom
    assert (round(right["x"]), round(right["y2"]), round(right["angle"])) == (0, 0, 135)
    assert round(down["angle"]) == 180
    assert right["head_x"] == pytest.approx(0.7)


def test_what_copies_holds_every_sample_s_edges_and_what_shares_a_matrix_and_its_transpose():
    edges = GRAPH.num_edges
    counts = {name: mask_drawing(GRAPH, DELETIONS, name).entries for name in MASKED}
    for name in ("edge_mask", "gpu_mask", "stored_mask"):
        assert counts[name] == 3 * edges
    left = sum(
        int(not {a, b} & set(deleted))
        for deleted in DELETIONS
        for a, b in GRAPH.networks["interacts"].edge_index.t().tolist()
    )
    assert counts["subgraph"] == left < 3 * edges
    assert counts["gpu_filter"] == left + 3 * edges  # what it filters from stays
    assert counts["node_mask"] == 2 * edges
    assert counts["dense"] == 10 * 10
    table = lab.reports.sharing_table(GRAPH, DELETIONS, MASKED)
    assert dict(table["entries in memory"]) == counts


def test_differences_are_held_beside_the_matrix_they_are_from():
    shared = mask_drawing(GRAPH, DELETIONS, "node_mask")
    with tclab.view(GRAPH, DELETIONS, "delta") as view:
        links = [
            link
            for layer in view._layers
            for link in (layer.changes, *layer.start.values(), *layer.edges.values(), *layer.spread.values())
        ]
    own = sum(csr.col.numel() for link in links for csr in link)
    assert own > 0
    assert mask_drawing(GRAPH, DELETIONS, "delta").entries == shared.entries + own
    assert mask_drawing(GRAPH, DELETIONS, "fastest").entries == shared.entries + own  # untuned, it carries them


def test_an_edge_is_dashed_exactly_where_an_end_is_deleted():
    for sample, deleted in enumerate(DELETIONS):
        edges, _ = mask_drawing(GRAPH, DELETIONS, "edge_mask").drawings[f"sample {sample}"]
        for a, b, state in edges:
            assert (state == "summed") == (a not in deleted and b not in deleted)


def test_delta_colours_the_nodes_that_hear_from_a_deleted_one():
    found = mask_drawing(GRAPH, DELETIONS, "delta")
    source, target = GRAPH.networks["interacts"].edge_index
    for sample, deleted in enumerate(DELETIONS):
        _, states = found.drawings[f"sample {sample}"]
        hears = {t for s, t in zip(source.tolist(), target.tolist(), strict=True) if s in deleted} - set(deleted)
        assert {node for node, state in enumerate(states) if state.startswith("differs")} == hears


def test_what_cannot_be_drawn_says_so():
    with pytest.raises(InputError, match="too much to draw"):
        mask_drawing(tclab.CellGraph.synthetic(0.02, metabolism=False), [[0]], "node_mask")
    with pytest.raises(InputError, match="makes no masked graph"):
        mask_drawing(GRAPH, DELETIONS, "indices")
    with pytest.raises(InputError, match="expected 4 to 30"):
        small_graph(3)


def test_what_is_inexact_stands_with_its_error_beside_its_time():
    from tclab.sweeps.store._rows import frame, table

    def row(strategy, error, seconds, status="ok", equivalence="inexact"):
        fields = {"strategy": strategy, "stage": "step", "where": "host", "status": status, "equivalence": equivalence}
        return fields | {"equivalence_fp64_error": error, "mean_seconds": seconds}

    rows = [
        row("node_mask", 1e-14, 0.2, equivalence="passed"),
        row("khop_1", 0.4, 0.1),
        row("khop_2", 0.1, None, "oom"),
    ]
    found = lab.reports.errors_and_times(frame(table([*rows, rows[0] | {"where": "rank 0"}])))
    assert list(found.index) == ["khop_1", "khop_2", "node_mask"]
    assert found["equivalence"].tolist() == ["inexact", "inexact", "passed"]
    assert found["seconds a step"].isna().tolist() == [False, True, False]
