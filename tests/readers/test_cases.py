"""Edge lists as people bring them, by their kind: read as plain Python reads them, or refused in a sentence."""

from __future__ import annotations

import pytest

from tclab.readers import ReadError, biogrid, edge_list

YEAST_PAIR = {("A", "B"), ("B", "C")}
WEIGHTED = {("A", "B", 0.5), ("B", "C", 1)}


def edges_of(network):
    """Return the edges by the nodes' names, with the weight where there is one."""
    names = network.report.node_names
    weights = [] if network.weight is None else [network.weight.tolist()]
    ends = [[names[node] for node in nodes] for nodes in network.edge_index.tolist()]
    return set(zip(*ends, *weights, strict=True))


# The header, the rows, and the edges. Found in public bug reports, and others of their kinds.
READ = [
    ("id,node1,node2,weight", "7,A,B,0.5 8,B,C,1", WEIGHTED),
    ("weight,node1,node2", "0.5,A,B 1,B,C", WEIGHTED),
    ("weight,source,target", "0.5,A,B 1,B,C", WEIGHTED),
    ("Quelle,Ziel,weight", "A,B,0.5 B,C,1", WEIGHTED),
    ("target,weight,source", "B,0.5,A C,1,B", WEIGHTED),
    ("index;gene_a;gene_b;score", "0;A;B;0.5 1;B;C;1", WEIGHTED),
    ("time,u,v,w", "1,A,B,0.5 2,B,C,1", WEIGHTED),
    ("interactor_1,interactor_2,confidence", "A,B,0.5 B,C,1", WEIGHTED),
    ("protein1,protein2,fusion,combined_score", "A,B,9,0.5 B,C,9,1", WEIGHTED),
    ("id,to,x,from,w", "1,B,7,A,0.5 2,C,7,B,1", WEIGHTED),
    ('"source","target","w"', '"A","B",0.5 "B","C",1', WEIGHTED),
    (",source,target", "0,A,B 1,B,C", YEAST_PAIR),  # a pandas index
    (",node1,node2", "0,A,B 1,B,C", YEAST_PAIR),
    ("Unnamed: 0,source,target", "0,A,B 1,B,C", YEAST_PAIR),  # and once more
    ('"","from","to"', '"1",A,B "2",B,C', YEAST_PAIR),  # R's row names
    ("edge_id,source,target", "100,A,B 101,B,C", YEAST_PAIR),
    ("label,node_1,node_2", "x,A,B y,B,C", YEAST_PAIR),
    ("target,source", "B,A C,B", YEAST_PAIR),
    ("source,target,timestamp", "A,B,1577836800 B,C,1577836801", YEAST_PAIR),
    ("node_id_1,node_id_2,year", "A,B,2001 B,C,2002", YEAST_PAIR),
    ("parent\tchild", "A\tB B\tC", YEAST_PAIR),
    ("ORF\tName", "A\tB B\tC", YEAST_PAIR),
    ("source,target", '"A",B B,"C"', YEAST_PAIR),
    ('"Bern;CH","Olten"', '"Ol""ten",Bern;CH', {("Bern;CH", "Olten"), ('Ol"ten', "Bern;CH")}),
]


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize(("header", "rows", "edges"), READ)
def test_a_header_decides_which_column_is_which(write, header, rows, edges, end):
    text = end.join([header, *rows.split(" ")])
    for content in (text, "\ufeff" + text + end, "# a comment" + end + text):
        assert edges_of(edge_list(write("edges.csv", content), directed=True)) == edges


HEADERS = [
    "ORF1 ORF2", "u v", "query array", "from,to", "item_id_a,item_id_b", "TF,TG", "bait,prey", '"gene.1","gene.2"',
    "Regulator\tTarget", "FromNodeId\tToNodeId", "head;tail",
    "Systematic Name Interactor A\tSystematic Name Interactor B",
]  # fmt: skip


@pytest.mark.parametrize("header", HEADERS)
@pytest.mark.parametrize("weight", [False, True])
def test_a_usual_header_is_no_edge(write, header, weight):
    sign = next(sign for sign in "\t,; " if sign in header)
    lines = [sign.join([line, *[cell] * weight]) for line, cell in ((header, "score"), (f"P1{sign}P2", "2"))]
    network = edge_list(write("edges.txt", "\n".join(lines)), directed=True)
    assert edges_of(network) == {("P1", "P2", *[2] * weight)}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("source_id,source_name,target_id,target_name\n1,A,2,B\n", "which are source and target. pass columns="),
        ("gewicht,Quelle,Ziel\n3,1,2\n4,2,3\n", "its columns are 'gewicht, Quelle, Ziel': .* pass columns="),
        ("Quelle,Ziel,km\nBern,Olten,3\n", "pass columns="),
        (",Quelle,Ziel,km\n0,Bern,Olten,3\n", "pass columns="),
        ("src_ip,dst_ip,bytes\n1.1.1.1,2.2.2.2,9\n", "pass columns="),
        ("weight,Quelle,Ziel\n3,1,2\n4,2,3\n", "pass columns="),
        ("1577836800,5,6\n1577836801,6,7\n", "the third column has names of the second: pass columns="),
        ("x,5,6\ny,6,7\nx,7,5\n", "the third column has names of the second"),
        ("1 2 1 1217567877\n2 3 1 1217567878\n", "which are source and target. pass columns="),
        ("0,10,11\n1,11,12\n2,12,10\n", "the first column counts the rows: pass columns="),
        ("1\t7\t8\n2\t8\t9\n3\t9\t7\n", "the first column counts the rows: pass columns="),
        ("gene1,gene2\ngene3,gene4\n", "'gene1, gene2', is a header or an edge: pass header="),
        ("target,source\nsource,Bern\n", "'source, target', is a header or an edge: pass header="),
        ("A;B;0,5\nB;C;1,5\n", "has commas and semicolons: pass sep="),
        ("source;target;weight\nA;B;0,5\n", "the weight is '0,5'"),  # a decimal comma
        ("%%MatrixMarket matrix coordinate real general\n4 4 1\n2 1 0.5\n", "MatrixMarket: scipy.io.mmread"),
        ("*Vertices 2\n1 a\n", "Pajek: networkx.read_pajek"),
        ("*network x\n*Vertices 2\n", "Pajek"),
        ('Creator "x"\ngraph\n[\n', "GML: networkx.read_gml"),
        ("graph [\n", "GML"),
        ('<?xml version="1.0"?>\n', "GraphML: networkx.read_graphml"),
        ("<graphml>\n", "GraphML"),
        ('{"nodes": []}', "JSON"),
        ("[[1, 2], [2, 3]]", "JSON"),
        ("digraph G {\n a -> b;\n}\n", "DOT"),
        ("graph { a -- b }\n", "DOT"),
        ("dl n=3 format=edgelist1\ndata:\n1 2\n", "UCINET"),
        ("DL N = 3\nDATA:\n1 2\n", "UCINET"),
        ("nodedef>name VARCHAR,label VARCHAR\nA,x\n", "GDF"),
        (">seq1 x\nACGT ACG\n", "FASTA"),
        (";A;B;C\nA;1.1;4.3;0.0\nB;1.4;2.0;1.1\nC;1.0;0.0;3.1\n", "which are source and target"),  # a matrix
        (",A,B\nA,0,1\nB,1,0\n", "which are source and target"),
        ("gene\tx\ty\nx\t0\t1\ny\t1\t0\n", "which are source and target"),
        ("Id,Label\n1,Bern\n2,Olten\n", "nodes and their names, or edges"),
        ("ORF\tName\nYAL001C\tTFC3\nYBR002W\tRER2\n", "nodes and their names, or edges"),
        ("gene,protein\ng1,P1\ng2,P2\n", "nodes and their names, or edges"),
        ("1,SMP1\n2,TFC3\n3,RER2\n", "nodes and their names, or edges"),
        ("3 2\n1 2\n2 3\n", "begin with its numbers of nodes and edges"),
        ("4 3\n0 1\n1 2\n2 3\n", "begin with its numbers of nodes and edges"),
        ("0 -- 1\t12\n", "is a header or an edge"),
        ("0 -- 1\n1 -- 2\n", "the second column is a relation"),
        ("a -> b\nb -> c\n", "which are source and target"),
        ("A B 0,5\nB C 1,5\n", "has a decimal comma"),
        ("A|B |C\nB|C |D\n", "has bars and spaces: pass sep="),
        ("c made by hand\np edge 3 2\ne 1 2\ne 2 3\n", "DIMACS"),
        ("p sp 3 2\na 1 2 5\n", "DIMACS"),
        ("a 1 2\na 2 3\na 3 4\n", "the third column has names of the second|header or an edge"),
        ("3 3\n2 3\n1 3\n1 2\n", "METIS"),
        ("4 6 0\n2 3 4\n1 3 4\n1 2 4\n1 2 3\n", "METIS|the first column counts"),
        ("1 pp 2\n2 pp 3\n3 pp 1\n", "relation|header or an edge"),
        ("n1 pd 2\nn2 pp 3\n", "the second column is a relation, as in SIF"),
    ],
)
def test_what_cannot_be_known_is_asked_for_and_another_format_is_named(write, text, why):
    with pytest.raises(ReadError, match=rf"edges\.txt: .*{why}"):
        edge_list(write("edges.txt", text))


def test_what_is_asked_for_is_taken(write):
    named = write("named.csv", "source_id,source_name,target_id,target_name\n1,A,2,B\n")
    assert edges_of(edge_list(named, columns=("source_name", "target_name"))) == {("A", "B")}
    counted = write("counted.csv", "0,10,11\n1,11,12\n2,12,10\n")
    assert edge_list(counted, columns=(1, 2)).num_edges == edge_list(counted, columns=(0, 1, 2)).num_edges == 3
    assert edges_of(edge_list(write("x.sif", "A pp B\nB pp A\n"), columns=(0, 2))) == {("A", "B")}
    with pytest.raises(ReadError, match="by its name, SIF"):
        edge_list(write("x.sif", "A pp B\n"))


TOWNS = {("Bern", "Olten"), ("Olten", "Chur")}
FILES = {  # of ../shared/cases → edges, or why they are refused
    "f01_matrixmarket/*": "MatrixMarket",
    "f03_columns/*": {("10", "11"), ("11", "12"), ("12", "10"), ("1", "2"), ("2", "3"), ("3", "1")},
    "f06_quotes/*": {*TOWNS, ("St. Gallen", "Bern"), ("Bern", "St. Gallen"), ("St. Gallen", "Olten")},
    "f07_header_order/*": {("Olten", "Bern"), ("Chur", "Olten")},
    "f20_messages/trail.txt": TOWNS,
    "f20_messages/aligned.txt": TOWNS,
    "f20_messages/quoted.csv": {("Bern, Switzerland", "Olten"), ("Olten", "Chur")},
}


@pytest.mark.parametrize("files", FILES)
def test_the_files_of_public_reports_have_their_right_value(files, public):
    right = FILES[files]
    for path in sorted(public("../cases").glob(files)):
        if isinstance(right, str):
            with pytest.raises(ReadError, match=right):
                edge_list(path)
        else:
            assert {edge[:2] for edge in edges_of(edge_list(path, directed=True))} <= right


@pytest.mark.parametrize("first", ["1 2 1082040961", "source\ttarget\tvalue\n1\t2\t1577836800", "1,2,1.6e9"])
def test_times_in_place_of_weights_are_noted(write, first):
    sign = next(sign for sign in "\t, " if sign in first)
    text = f"{first}\n{sign.join(['3', '4', '1577836801'])}\n{sign.join(['1', '4', '1577836801'])}\n"
    assert "may be times" in str(edge_list(write("edges.txt", text)).report)


def test_a_table_of_another_organism_is_refused_with_its_taxon(write):
    ends = "Systematic Name Interactor {0}\tOrganism ID Interactor {0}"
    header = f"{ends.format('A')}\t{ends.format('B')}\tExperimental System Type\n"
    path = write("BIOGRID-ORGANISM-x-4.4.tab3.txt", header + "A\t9606\tB\t9606\tphysical\n")
    with pytest.raises(ReadError, match="none of its rows is of organism 559292, but of 9606; organism= takes"):
        biogrid(path, "AB")
    assert biogrid(path, "AB", organism=9606).num_edges == 1
