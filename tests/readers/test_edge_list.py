"""An edge list of anything: its nodes, its header, its columns, what is guessed and what is refused."""

from __future__ import annotations

import gzip
import zipfile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tclab import CellGraph, InputError
from tclab.readers import ReadError, edge_list

NAMES = ["Bern", "Chur", "Olten"]


def edges_of(network):
    """Return the edges by the nodes' names, with the weight where there is one."""
    names = network.report.node_names
    weights = [] if network.weight is None else [network.weight.tolist()]
    ends = [[names[node] for node in nodes] for nodes in network.edge_index.tolist()]
    return set(zip(*ends, *weights, strict=True))


@pytest.mark.parametrize("separator", ["\t", ",", ";", " "])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_any_separator_is_found(write, separator, end):
    rows = [("Bern", "Olten", "3"), ("Olten", "Chur", "-2.5"), ("Olten", "Bern", "4"), ("Chur", "Chur", "1")]
    network = edge_list(write("lines.csv", end.join(separator.join(row) for row in rows)), NAMES)
    assert network.name == "lines"
    assert network.edge_index.tolist() == [[0, 1, 1], [2, 1, 2]]
    assert network.weight.tolist() == [4, 1, -2.5]
    assert (network.report.self_loops, network.report.dropped) == (1, {"reverse of an undirected edge": 1})


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
    assert edge_list(path, NAMES, columns=(0, 1), header=False).report.unknown == 2
    assert edges_of(edge_list(path, columns=("target", "source", "km"), directed=True)) == {("Olten", "Bern", 3)}
    with pytest.raises(ReadError, match="no column 'targt' between commas; did you mean 'target'"):
        edge_list(path, columns=("source", "targt"))
    with pytest.raises(ReadError, match="3 columns, expected 8 or more"):
        edge_list(path, columns=(0, 7))
    with pytest.raises(InputError, match="columns is 'source', expected those of source, target"):
        edge_list(path, columns="source")


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
    assert (network.num_edges, network.report.rows) == (3, 3)
    assert "if it is a header" not in str(network.report)


def test_a_first_line_that_may_be_either_is_said_or_asked(write):
    assert edge_list(write("letters.csv", "A,B\nC,D\n")).num_edges == 2
    assert edge_list(write("weights.csv", "TF,TG,0.5\nBern,Olten,1\n")).num_edges == 2
    assert edge_list(write("numbers.txt", "Quelle Ziel\n1 2\n2 3\n")).report.node_names == ("1", "2", "3")
    network = edge_list(write("names.txt", "Quelle Ziel\nBern Olten\nOlten Chur\n"))
    assert network.num_edges == 3
    assert "only the first line names Quelle and Ziel: if it is a header, pass header=True" in str(network.report)
    with pytest.raises(ReadError, match="'target,source', is a header or an edge: pass header="):
        edge_list(write("either.txt", "target,source\nsource,Bern\n"))


# found in public bug reports; the right values are of plain Python
@pytest.mark.parametrize(
    ("text", "edges"),
    [
        (",source,target\n0,10,11\n1,11,12\n2,12,10\n", {("10", "11"), ("11", "12"), ("12", "10")}),  # pandas' index
        ('"","from","to"\n"1",10,11\n"2",11,12\n', {("10", "11"), ("11", "12")}),  # R's row names
        ("edge_id,source,target\n100,1,2\n101,2,3\n", {("1", "2"), ("2", "3")}),
        ("weight,source,target\n0.5,1,2\n0.7,2,3\n", {("1", "2", 0.5), ("2", "3", 0.7)}),
        ("id,to,x,from,w\n1,B,7,A,0.5\n", {("A", "B", 0.5)}),
        ("target,source\nBern,Olten\nOlten,Chur\n", {("Olten", "Bern"), ("Chur", "Olten")}),
        ('"source","target","w"\n"A","B",0.5\n"B","C",1\n', {("A", "B", 0.5), ("B", "C", 1)}),
        ('source,target\n"A 1",B\nB,"A 1"\nA 1,C\n', {("A 1", "B"), ("B", "A 1"), ("A 1", "C")}),
        ('"Bern, CH","Olten"\n"Ol""ten",Chur\n', {("Bern, CH", "Olten"), ('Ol"ten', "Chur")}),
        ("Bern    Olten   1\nOlten   Chur    2\n", {("Bern", "Olten", 1), ("Olten", "Chur", 2)}),  # aligned
        ("Bern Olten \nOlten Chur \n", {("Bern", "Olten"), ("Olten", "Chur")}),
    ],
)  # fmt: skip
def test_what_people_bring_is_read_as_its_header_and_quotes_say(write, text, edges):
    assert edges_of(edge_list(write("edges.csv", text), directed=True)) == edges


def test_blanks_around_a_name_are_not_part_of_it(write):
    text = "A, B\nB\xa0, C\n\u200bC ,A\t\n \ufeffA,\u3000B\n"
    for genes in (None, "ABC"):
        network = edge_list(write("ring.csv", text), genes, sep=",")
        assert network.edge_index.tolist() == [[0, 0, 1], [1, 2, 2]]
        assert (network.report.node_names, network.report.unknown) == (None if genes else ("A", "B", "C"), 0)


def test_lines_of_comments_come_first(write):
    snap = "# Directed graph: web.txt\n# Nodes: 3 Edges: 3\n# FromNodeId\tToNodeId\n0\t1\n1\t2\n2\t0\n"
    for name, text in (("snap.txt", snap), ("konect.tsv", "% asym unweighted\n\n" + snap.split("ToNodeId\n")[1])):
        for header in (None, True, False):  # True: the header is a comment
            network = edge_list(write(name, text), header=header, directed=True)
            assert edges_of(network) == {("0", "1"), ("1", "2"), ("2", "0")}
    both = edge_list(write("both.csv", "# two comments\n# and a header\nsource,target\nBern,Olten\n"))
    assert both.report.node_names == ("Bern", "Olten")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("Bern\n", "'Bern', expected two names with a tab, comma, semicolon or space between"),
        ("Bern,Olten\nBern,Olten,3\n", "row 1: Expected 2 columns, got 3"),
        ("Bern,Olten,3\nBern,Olten,far\n", "column column 3: row 1: .* invalid value 'far'"),
        ("Bern,Olten,3\nBern,Olten,nan\n", "row 1: column 3 is nan, expected a finite number"),
        ("Bern,Olten,3\nBern,Olten,\n", "column column 3: row 1: .* invalid value ''"),
        ("Bern,Olten\n\nBern,\n", "row 1: column 2 is empty, expected a name"),
        ("Bern,Olten\nBern\tChur\n", "row 1: Expected 2 columns, got 1"),
        ("A,B\nB,C\n#C,A\n", "row 2: column 1 begins with #: comments are expected before the first edge"),
        ("A,B\nB,C\0\0\0\n", "byte 8 is NUL"),
        ("A,B\n\xa0,C\n", "row 1: column 1 is empty, expected a name"),
        ("source,target\nA,B\nsource,target\nB,C\n", "the header, 'source, target', comes again as row 2"),
        ("source,target\n", "holds no rows after its header"),
        ("A,B,x\nA,C,2\n", "the weight in the first line is 'x', expected a finite number"),
        ("A,B,nan\nC,D,2\n", "the weight in the first line is 'nan'"),
        ("%%MatrixMarket matrix coordinate real general\n4 4 1\n2 1 0.5\n", "scipy.io.mmread reads that format"),
        ("*Vertices 2\n1 a\n", "networkx.read_pajek"),
        ("graph [\n", "networkx.read_gml"),
        ('<?xml version="1.0"?>\n', "networkx.read_graphml"),
    ],
)
def test_what_would_make_another_graph_is_refused(write, text, why):
    for name in ("edges.csv", "edges.csv.gz"):
        with pytest.raises(ReadError, match=rf"{name}: .*{why}.*\(read as an edge list\)"):
            edge_list(write(name, text), None if "A" in text else NAMES)


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_the_bytes_around_a_text_make_no_difference(tmp_path, end, mark):
    lines = "# a comment\n\n# from\tto\nsource\ttarget\nBern\tOlten\n\nOlten\tChur\nChur\tBern\n"
    text = mark + lines.replace("\n", end).encode()
    pieces = b"".join(gzip.compress(text[i : i + 1]) for i in range(len(text)))
    path = tmp_path / "edges.tsv"
    for content in (text, text.rstrip(), gzip.compress(text), gzip.compress(text) + bytes(512), pieces):
        path.write_bytes(content)
        network = edge_list(path)
        assert (network.edge_index.tolist(), network.report.rows) == ([[0, 0, 1], [1, 2, 2]], 3)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("edges.tsv", text)
    assert edge_list(path).report.node_names == ("Bern", "Chur", "Olten")


ONE_OF = st.sampled_from(["A", "B", "C", "D", "E"])


@given(rows=st.lists(st.tuples(ONE_OF, ONE_OF, st.integers(-9, 9)), min_size=1), end=st.sampled_from(["\n", "\r\n"]))
def test_an_edge_list_is_that_of_a_dictionary(tmp_path, rows, end):
    path = tmp_path / "edges.tsv"
    path.write_text("".join(f"{a}\t{b}\t{w}{end}" for a, b, w in rows), newline="")
    network = edge_list(path, "ABCDE", sep="\t", header=False)
    expected: dict[tuple[int, ...], int] = {}
    for one, other, weight in rows:
        pair = tuple(sorted(("ABCDE".index(one), "ABCDE".index(other))))
        expected[pair] = max(weight, expected.get(pair, weight))
    pairs = map(tuple, network.edge_index.T.tolist())
    assert dict(zip(pairs, network.weight.tolist(), strict=True)) == expected
    assert network.report.rows == len(rows) == network.report.kept + sum(network.report.dropped.values())


# any text that ends no cell and no line, is no byte order mark, no comment, and has no quote
CELLS = st.text(
    st.characters(exclude_characters='\0\t\r\n"\u200b\ufeff', exclude_categories=["Cs"]), min_size=1, max_size=6
)
NODES = CELLS.map(str.strip).filter(lambda name: name and not name.startswith(("#", "%")))


@given(rows=st.lists(st.tuples(NODES, NODES), min_size=1))
def test_every_name_of_a_file_becomes_a_node(tmp_path, rows):
    path = tmp_path / "edges.tsv"
    path.write_text("".join(f"{a}\t{b}\n" for a, b in rows), newline="")
    if not path.read_text().lower().startswith(("*vertices", "graph [", "<", '{"')):
        assert edges_of(edge_list(path, sep="\t", header=False, directed=True)) == set(rows)
