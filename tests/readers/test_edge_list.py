"""An edge list of anything: its nodes, its columns, what is guessed and refused; `test_cases.py` has the headers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tclab import CellGraph, InputError
from tclab.readers import ReadError, edge_list

NAMES = ["Bern", "Chur", "Olten"]


@pytest.mark.parametrize("separator", ["\t", ",", ";", " ", "   "])
def test_any_separator_is_found(write, separator):
    rows = [("Bern", "Olten", "3"), ("Olten", "Chur", "-2.5"), ("Olten", "Bern", "4"), ("Chur", "Chur", "1")]
    network = edge_list(write("lines.csv", " \n".join(separator.join(row) for row in rows)), NAMES)
    assert network.name == "lines"
    assert network.edge_index.tolist() == [[0, 1, 1], [2, 1, 2]]
    assert network.weight.tolist() == [4, 1, -2.5]
    assert network.report.dropped == {"reverse of an undirected edge": 1}


def test_a_network_says_that_an_undirected_edge_goes_one_way_and_what_was_kept_and_guessed(write):
    path = write("lines.csv", "Olten,Bern\nBern,Olten\nOlten,Chur\n")
    said = " ".join(str(edge_list(path)).split())
    assert "each edge is stored once, and messages pass from its first node to its second" in said
    assert "2 of 3 rows kept; 1 dropped (reverse of an undirected edge); " in said
    assert "guessed: commas between cells, no header" in said
    both = edge_list(path, directed=True, sep=",", header=False, columns=(0, 1))
    assert (both.num_edges, both.report.notes) == (3, ())
    assert "stored once" not in str(both)


def test_a_graph_of_anything_in_three_lines(write):
    path = write("lines.tsv", "# from\tto\nBern\tOlten\nOlten\tChur\nBern\tOlten\n")
    lines = edge_list(path, directed=True, node_type="station")
    names = lines.report.node_names
    graph = CellGraph({"station": len(names)}, {"lines": lines}, "station", {"station": names})
    assert names == ("Bern", "Chur", "Olten")
    assert graph.networks["lines"].edge_index.tolist() == [[0, 2], [2, 1]]
    assert (lines.weight, lines.report.dropped) == (None, {"duplicate edge": 1})


def test_header_and_columns_are_parameters(write):
    path = write("lines.csv", "source,target,km\nBern,Olten,3\n")
    assert edge_list(path, NAMES).report.rows == 1
    assert edge_list(path, NAMES, columns=(0, 1)).weight is None
    assert edge_list(path, NAMES, columns=(0, 1), header=False).report.unknown == ("source", "target")
    turned = edge_list(path, columns=("target", "source", "km"), directed=True)
    assert (turned.edge_index.tolist(), turned.weight.tolist()) == ([[1], [0]], [3])
    with pytest.raises(ReadError, match="no column 'targt' between commas; did you mean 'target'"):
        edge_list(path, columns=("source", "targt"))
    with pytest.raises(ReadError, match="3 columns, expected 8 or more"):
        edge_list(path, columns=(0, 7))
    with pytest.raises(InputError, match="columns is 'source', expected those of source, target"):
        edge_list(path, columns="source")


@pytest.mark.parametrize("first", ["a b", "Quelle Ziel"])
def test_a_first_line_whose_names_come_again_is_an_edge(write, first):
    one, other = first.split()
    network = edge_list(write("edges.txt", f"{first}\n{other} c\nc {one}\n"))
    assert (network.num_edges, network.report.rows) == (3, 3)


@pytest.mark.parametrize(
    "text",
    ["A,B\nC,D\n", "Quelle Ziel\nBern Olten\nOlten Chur\n", "v w\na b\nb c\n", "x,y\na,b\n", "出発\t到着\nZug\tUri\n",
     "Knoten1 Knoten2\nTP53 OCT1\n", "de;vers\nYAL001C;YBR002W\n", "gene1,gene2\ngene3,gene4\n"],
)  # fmt: skip
def test_a_first_line_that_may_be_a_header_or_an_edge_is_asked_about(write, text):
    with pytest.raises(ReadError, match="is a header or an edge: pass header= or columns="):
        edge_list(write("edges.txt", text))
    rows = text.count("\n")
    assert [edge_list(write("edges.txt", text), header=h).num_edges for h in (True, False)] == [rows - 1, rows]


def test_a_header_that_comes_again_is_no_edge(write):
    path = write("joined.csv", "source,target\nA,B\nsource,target\nB,C\n")
    with pytest.raises(ReadError, match="its header comes again as row 2; are these two files"):
        edge_list(path, header=True)


def test_a_first_line_that_is_numbered_as_the_others_is_an_edge_and_a_word_before_numbers_none(write):
    assert edge_list(write("weights.csv", "TF,TG,0.5\nBern,Olten,1\n")).num_edges == 2
    urls = "http://a/1 http://b/2\nhttp://c/3 http://d/4\n"
    for text in ("1 2\n3 4\n", "i i\nj|k i2\n", "YAL001C YBR002W\nYCL003C YDL004W\n", urls):
        assert edge_list(write("edges.txt", text)).num_edges == 2
    for header in ("Quelle Ziel", "u v", "node1 node2"):
        assert edge_list(write("numbers.txt", f"{header}\n1 2\n2 3\n")).report.node_names == ("1", "2", "3")


def test_blanks_around_a_name_are_not_part_of_it(write):
    text = "A, B\nB\xa0, C\n\u200bC ,A\t\n \ufeffA,\u3000B\n"
    for genes in (None, "ABC"):
        network = edge_list(write("ring.csv", text), genes, sep=",")
        assert network.edge_index.tolist() == [[0, 0, 1], [1, 2, 2]]
        assert (network.report.node_names, network.report.unknown) == (None if genes else ("A", "B", "C"), ())


def test_lines_of_comments_come_first(write):
    snap = "# Directed graph: web.txt\n# Nodes: 3 Edges: 3\n# FromNodeId\tToNodeId\n0\t1\n1\t2\n2\t0\n"
    for name, text in (("snap.txt", snap), ("konect.tsv", "% asym unweighted\n\n" + snap.split("ToNodeId\n")[1])):
        for header in (None, True, False):  # True: the header is a comment
            network = edge_list(write(name, text), header=header, directed=True)
            assert network.edge_index.tolist() == [[0, 1, 2], [1, 2, 0]]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("Bern\n", "'Bern', expected two names with a tab, comma, semicolon or space between"),
        ("Bern,Olten\nBern,Olten,3\n", "row 2: Expected 2 columns, got 3"),
        ("Bern,Olten,3\nBern,Olten,far\n", "row 2: the weight is 'far', expected a finite number"),
        ("Bern,Olten,3\nBern,Olten,nan\n", "row 2: the weight is 'nan', expected a finite number"),
        ("Bern,Olten,3\nBern,Olten,\n", "row 2: the weight is '', expected a finite number"),
        ("Bern,Olten\n\nBern,\n", "row 2: column 2 is empty, expected a name"),
        ("A,B\nB,C\n#C,A\n", "row 3: column 1 begins with #: comments are expected before the first edge"),
        ("A,B\nB,C\0\0\0\n", "byte 8 is NUL"),
        ("A,B\n\xa0,C\n", "row 2: column 1 is empty, expected a name"),
        ("source,target\nA,B\nsource,target\nB,C\n", "'source, target', is a header or an edge: pass header="),
        ("source,target\n", "holds no rows after its header"),
        ("A,B,x\nA,C,2\n", "its columns are 'A, B, x': which are source and target"),
        ("A,B,nan\nC,D,2\n", "row 1: the weight is 'nan'"),
    ],
)
def test_what_would_make_another_graph_is_refused(write, text, why):
    for name in ("edges.csv", "edges.csv.gz"):
        with pytest.raises(ReadError, match=rf"{name}: .*{why}.*\(read as an edge list\)"):
            edge_list(write(name, text), None if "A" in text else NAMES)


# any text that ends no cell and no line, is no byte order mark, no comment, and has no quote
CELLS = st.text(
    st.characters(exclude_characters='\0\t\r\n"\u200b\ufeff', exclude_categories=["Cs"]), min_size=1, max_size=6
)
NODES = CELLS.map(str.strip).filter(lambda name: name and not name.startswith(("#", "%", "*", "<", "{", "[", "g", "p")))


@given(rows=st.lists(st.tuples(NODES, NODES, st.integers(-9, 9)), min_size=1), directed=st.booleans())
def test_an_edge_list_is_that_of_a_dictionary(tmp_path, rows, directed):
    path = tmp_path / "edges.tsv"
    path.write_text("".join(f"{a}\t{b}\t{w}\n" for a, b, w in rows), newline="")
    network = edge_list(path, sep="\t", header=False, columns=(0, 1, 2), directed=directed)
    names = network.report.node_names
    assert names == tuple(sorted({name for row in rows for name in row[:2]}))
    expected: dict[tuple[str, ...], int] = {}
    for *ends, weight in rows:
        pair = tuple(ends if directed else sorted(ends))
        expected[pair] = max(weight, expected.get(pair, weight))
    pairs = [(names[one], names[other]) for one, other in network.edge_index.T.tolist()]
    assert dict(zip(pairs, network.weight.tolist(), strict=True)) == expected
    assert network.report.rows == len(rows) == network.report.kept + sum(network.report.dropped.values())
