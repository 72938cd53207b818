from __future__ import annotations

import gzip

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


def test_a_network_says_that_an_undirected_edge_goes_one_way_and_what_its_reader_kept(write):
    path = write("lines.csv", "Olten,Bern\nBern,Olten\nOlten,Chur\n")
    said = " ".join(str(edge_list(path)).split())
    assert "each edge is stored once, and messages pass from its first node to its second" in said
    assert "2 of 3 rows kept; 1 dropped (reverse of an undirected edge)" in said
    both = edge_list(path, directed=True)
    assert both.num_edges == 3
    assert "stored once" not in str(both)


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


HEADERS = [
    "source target", "from,to", "Regulator\tTarget", "ORF1 ORF2", "item_id_a,item_id_b", "TF,TG", "bait,prey", "a b",
    "u v", "query array", "source_node target_node", "protein1 protein2", "FromNodeId\tToNodeId", "src,dst",
    "head;tail", "Interactor A,Interactor B", '"gene.1","gene.2"',
    "Systematic Name Interactor A\tSystematic Name Interactor B",
]  # fmt: skip


@pytest.mark.parametrize("header", HEADERS)
@pytest.mark.parametrize("weight", [False, True])
def test_a_usual_header_is_no_edge(write, header, weight):
    separator = next(sign for sign in "\t,; " if sign in header)
    rows = [("YAL001C", "YBR002W"), ("YBR002W", "YCL003C"), ("YCL003C", "YAL001C")]
    lines = [header + weight * f"{separator}score", *(separator.join((*row, *weight * ("2",))) for row in rows)]
    network = edge_list(write("edges.txt", "\n".join(lines)))
    assert network.report.node_names == ("YAL001C", "YBR002W", "YCL003C")
    assert (network.num_edges, network.report.rows, network.weight is not None) == (3, 3, weight)


@pytest.mark.parametrize("first", ["a b", "source target", "Quelle Ziel"])
def test_a_first_line_whose_names_come_again_is_an_edge(write, first):
    one, other = first.split()
    network = edge_list(write("edges.txt", f"{first}\n{other} c\nc {one}\n"))
    assert (network.num_edges, network.report.rows, network.report.notes) == (3, 3, ())


def test_nodes_that_are_letters_are_no_header(write):
    assert edge_list(write("letters.csv", "A,B\nC,D\n")).num_edges == 2
    assert edge_list(write("weights.csv", "TF,TG,0.5\nBern,Olten,1\n")).num_edges == 2


def test_a_header_in_other_words_is_found_by_the_numbers_or_said(write):
    assert edge_list(write("numbers.txt", "Quelle Ziel\n1 2\n2 3\n")).report.node_names == ("1", "2", "3")
    network = edge_list(write("names.txt", "Quelle Ziel\nBern Olten\nOlten Chur\n"))
    assert network.num_edges == 3
    assert "only the first line names Quelle and Ziel: if it is a header, pass has_header=True" in str(network.report)


def test_blanks_around_a_name_are_not_part_of_it(write):
    text = "A, B\nB\xa0, C\n\u200bC ,A\t\n \ufeffA,\u3000B\n"
    for genes in (None, "ABC"):
        network = edge_list(write("ring.csv", text), genes, separator="," if genes else None)
        assert network.edge_index.tolist() == [[0, 0, 1], [1, 2, 2]]
        assert (network.report.node_names, network.report.unknown) == (None if genes else ("A", "B", "C"), 0)


def test_lines_of_comments_come_first(write):
    snap = "# Directed graph: web.txt\n# Nodes: 3 Edges: 3\n# FromNodeId\tToNodeId\n0\t1\n1\t2\n2\t0\n"
    for name, text in (("snap.txt", snap), ("konect.tsv", "% asym unweighted\n\n" + snap.split("ToNodeId\n")[1])):
        for header in (None, True, False):
            network = edge_list(write(name, text), has_header=header, directed=True)
            assert network.report.node_names == ("0", "1", "2")
            assert network.edge_index.tolist() == [[0, 1, 2], [1, 2, 0]]
    both = edge_list(write("both.csv", "# two comments\n# and a header\nsource,target\nBern,Olten\n"))
    assert both.report.node_names == ("Bern", "Olten")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("A,B\nB,C\n#C,A\n", r"line 3: column 1 begins with #: comments are expected before the first edge"),
        ("A,B\nB,C\0\0\0\n", r"byte 8 is NUL: the file has a hole, or is no UTF-8 text"),
        ("A,B\n\xa0,C\n", "line 2: column 1 is empty, expected a name"),
        ("source,target\nA,B\nsource,target\nB,C\n", "line 3: the header, 'source, target', comes again"),
        ("A,B,x\nA,C,2\n", "line 1: column 3 is 'x', expected a number"),
        ("A,B,nan\nC,D,2\n", "line 1: column 3 is"),
    ],
)
def test_what_would_make_another_graph_is_refused(write, text, why):
    for name in ("edges.csv", "edges.csv.gz"):
        with pytest.raises(ReadError, match=why):
            edge_list(write(name, text))


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_the_bytes_around_a_text_make_no_difference(tmp_path, end, mark):
    lines = "# a comment\n\n# from\tto\nsource\ttarget\nBern\tOlten\n\nOlten\tChur\nChur\tBern\n"
    text = mark + lines.replace("\n", end).encode()
    for number, content in enumerate(
        [
            text,
            text.rstrip(),
            gzip.compress(text),
            gzip.compress(text) + bytes(512),
            gzip.compress(text[:20]) + gzip.compress(text[20:]),
            b"".join(gzip.compress(text[place : place + 1]) for place in range(len(text))),
        ]
    ):
        path = tmp_path / f"edges{number}.tsv"
        path.write_bytes(content)
        network = edge_list(path)
        assert network.report.node_names == ("Bern", "Chur", "Olten")
        assert (network.edge_index.tolist(), network.report.rows) == ([[0, 0, 1], [1, 2, 2]], 3)
