from __future__ import annotations

import pytest

from tclab import CellGraph
from tclab.readers import ReadError, edge_list

NAMES = ["Bern", "Chur", "Olten"]


@pytest.mark.parametrize("separator", ["\t", ",", ";", " "])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_any_separator_is_found(write, separator, end):
    rows = [("Bern", "Olten", "3"), ("Olten", "Chur", "-2.5"), ("Olten", "Bern", "4"), ("Chur", "Chur", "1")]
    network = edge_list(write("lines.csv", end.join(separator.join(row) for row in rows)), NAMES)
    assert network.name == "lines"
    assert network.edge_index.tolist() == [[0, 1, 1], [2, 1, 2]]
    assert network.weight.tolist() == [4, 1, -2.5]
    assert (network.report.self_loops, network.report.dropped) == (1, {"reverse of an undirected edge": 1})


def test_a_graph_of_anything_in_three_lines(write):
    path = write("lines.tsv", "# from\tto\nBern\tOlten\nOlten\tChur\nBern\tOlten\n")
    lines = edge_list(path, directed=True, node_type="station")
    names = lines.report.node_names
    graph = CellGraph({"station": len(names)}, {"lines": lines}, "station", {"station": names})
    assert names == ("Bern", "Chur", "Olten")
    assert graph.networks["lines"].edge_index.tolist() == [[0, 2], [2, 1]]
    assert lines.weight is None
    assert lines.report.dropped == {"duplicate edge": 1}


def test_the_header_and_the_weight_are_parameters(write):
    path = write("lines.csv", "source,target,km\nBern,Olten,3\n")
    assert edge_list(path, NAMES).report.rows == 1
    assert edge_list(path, NAMES, weighted=False).weight is None
    assert edge_list(path, NAMES, weighted=False, has_header=False).report.unknown == 2
    assert edge_list(path, NAMES, self_loops=False).num_edges == 1


@pytest.mark.parametrize(
    ("text", "line", "why"),
    [
        ("Bern\n", 1, "expected two names with a tab, comma, semicolon or space between"),
        ("Bern,Olten\nBern,Olten,3\n", 2, "3 columns between commas, expected 2"),
        ("Bern,Olten,3\nBern,Olten,far\n", 2, "column 3 is 'far', expected a number"),
        ("Bern,Olten,3\nBern,Olten,nan\n", 2, "column 3 is"),
        ("Bern,Olten,3\nBern,Olten,\n", 2, "column 3 is '', expected a number"),
        ("Bern,Olten\n\nBern,\n", 3, "column 2 is empty, expected a name"),
        ("Bern,Olten\nBern\tChur\n", 2, "1 column between commas"),
    ],
)
def test_a_bad_row_is_an_error_with_file_and_line(write, text, line, why):
    with pytest.raises(ReadError, match=why) as caught:
        edge_list(write("lines.csv", text), NAMES)
    assert f"lines.csv, line {line}:" in str(caught.value)
