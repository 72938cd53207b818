"""Edge lists as people bring them, by their kind: read as plain Python reads them, or refused in a sentence."""

from contextlib import nullcontext

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tclab import CellGraph, InputError
from tclab.readers import ReadError, edge_list

pytestmark = pytest.mark.filterwarnings("ignore:.* were dropped")
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
    ("Quelle,Ziel,weight", "A,B,0.5 B,C,1", WEIGHTED),
    ("target,weight,source", "B,0.5,A C,1,B", WEIGHTED),
    ("index;gene_a;gene_b;score", "0;A;B;0.5 1;B;C;1", WEIGHTED),
    ("time,u,v,w", "1,A,B,0.5 2,B,C,1", WEIGHTED),
    ("interactor_1,interactor_2,confidence", "A,B,0.5 B,C,1", WEIGHTED),
    ("protein1,protein2,fusion,combined_score", "A,B,9,0.5 B,C,9,1", WEIGHTED),
    ("id,to,x,from,w", "1,B,7,A,0.5 2,C,7,B,1", WEIGHTED),
    ('"source","target","w"', '"A","B",0.5 "B","C",1', WEIGHTED),
    (",source,target", "0,A,B 1,B,C", YEAST_PAIR),  # a pandas index
    ("Unnamed: 0,source,target", "0,A,B 1,B,C", YEAST_PAIR),  # and once more
    ('"","from","to"', '"1",A,B "2",B,C', YEAST_PAIR),  # R's row names
    ("edge_id,source,target", "100,A,B 101,B,C", YEAST_PAIR),
    ("label,node_1,node_2", "x,A,B y,B,C", YEAST_PAIR),
    ("target,source", "B,A C,B", YEAST_PAIR),
    ("node_id_1,node_id_2,year", "A,B,2001 B,C,2002", YEAST_PAIR),
    ("parent\tchild", "A\tB B\tC", YEAST_PAIR),
    ("ORF\tName", "A\tB B\tC", YEAST_PAIR),
    ("source,target", "NA,nan nan,None", {("NA", "nan"), ("nan", "None")}),
    ("source,target", "1,8237827382738273827382", {("1", "8237827382738273827382")}),
    ("source,target", '"A",B B,"C"', YEAST_PAIR),
    ('"Bern;CH","Olten"', '"Ol""ten",Bern;CH', {("Bern;CH", "Olten"), ('Ol"ten', "Bern;CH")}),
    ('"Bern,CH","Olten"', '"Olten","Chur"', {("Bern,CH", "Olten"), ("Olten", "Chur")}),
    *((header, "A,B B,C", YEAST_PAIR) for header in (
        "from,to", "item_id_a,item_id_b", "TF,TG", "bait,prey", '"gene.1","gene.2"', "query,array", "ORF1,ORF2")),
    *((header, "A\tB\t0.5 B\tC\t1", WEIGHTED) for header in (
        "Regulator\tTarget\tscore", "FromNodeId\tToNodeId\tscore", "head\ttail\tscore",
        "Systematic Name Interactor A\tSystematic Name Interactor B\tscore")),
]  # fmt: skip


@pytest.mark.parametrize(("header", "rows", "edges"), READ)
def test_a_header_decides_which_column_is_which(write, header, rows, edges):
    for first, end, last in (("", "\n", ""), ("\ufeff", "\r\n", "\r\n"), ("# a comment\r", "\r", "")):
        content = first + end.join([header, *rows.split(" ")]) + last
        assert edges_of(edge_list(write("edges.csv", content), directed=True)) == edges


# What is said, and the texts of which it is said.
REFUSED = {
    "which are source and target. pass columns=": [
        "source_id,source_name,target_id,target_name\n1,A,2,B\n", "Quelle,Ziel,km\nBern,Olten,3\n",
        ",Quelle,Ziel,km\n0,Bern,Olten,3\n", "src_ip,dst_ip,bytes\n1.1.1.1,2.2.2.2,9\n",
        "weight,Quelle,Ziel\n3,1,2\n4,2,3\n", "1 2 1 1217567877\n2 3 1 1217567878\n", "a -> b\nb -> c\n",
        ";A;B;C\nA;1.1;4.3;0.0\nB;1.4;2.0;1.1\nC;1.0;0.0;3.1\n", ",A,B\nA,0,1\nB,1,0\n",
        "gene\tx\ty\nx\t0\t1\ny\t1\t0\n", "(1, 2) (3, 4)\n(3, 4) (5, 6)\n", "1 2 {}\n2 3 {}\n"],
    "its columns are 'gewicht, Quelle, Ziel': .* pass columns=": ["gewicht,Quelle,Ziel\n3,1,2\n4,2,3\n"],
    "the third column has names of the second": ["1577836800,5,6\n1577836801,6,7\n", "x,5,6\ny,6,7\nx,7,5\n"],
    "the first column counts the rows: pass columns=": [
        "0,10,11\n1,11,12\n2,12,10\n", "1\t7\t8\n2\t8\t9\n3\t9\t7\n"],
    "is a header or an edge": [
        "gene1,gene2\ngene3,gene4\n", "target,source\nsource,Bern\n", "0 -- 1\t12\n"],
    "has commas and semicolons: pass sep=": ["A;B;0,5\nB;C;1,5\n"],
    "the weight is '0,5'": ["source;target;weight\nA;B;0,5\n"],  # a decimal comma
    "has a decimal comma": ["A B 0,5\nB C 1,5\n"],
    "has bars and spaces: pass sep=": ["A|B |C\nB|C |D\n"],
    "has bars and commas: pass sep=": ["A|B|1,5\nB|C|2,5\n", "Node12|Node2|1,5e-07|0|0\n", "A|B|1,000,000|x|y\n"],
    "nodes and their names, or edges": [
        "Id,Label\n1,Bern\n2,Olten\n", "ORF\tName\nYAL001C\tTFC3\nYBR002W\tRER2\n", "gene,protein\ng1,P1\ng2,P2\n",
        "1,SMP1\n2,TFC3\n3,RER2\n"],
    "begin with its numbers of nodes and edges": ["3 2\n1 2\n2 3\n", "4 3\n0 1\n1 2\n2 3\n"],
    "the second column is a relation": [
        "0 -- 1\n1 -- 2\n", "n1 pd 2\nn2 pp 3\n", "1 pp 2\n2 pp 3\n3 pp 1\n"],
    "MatrixMarket: scipy.io.mmread": ["%%MatrixMarket matrix coordinate real general\n4 4 1\n2 1 0.5\n"],
    "Pajek: networkx.read_pajek": ["*Vertices 2\n1 a\n", "*network x\n*Vertices 2\n"],
    "GML: networkx.read_gml": ['Creator "x"\ngraph\n[\n', "graph [\n"],
    "GraphML: networkx.read_graphml": ['<?xml version="1.0"?>\n', "<graphml>\n"],
    "JSON": ['{"nodes": []}', "[[1, 2], [2, 3]]"],
    "DOT": ["digraph G {\n a -> b;\n}\n", "graph { a -- b }\n"],
    "UCINET": ["dl n=3 format=edgelist1\ndata:\n1 2\n", "DL N = 3\nDATA:\n1 2\n"],
    "GDF": ["nodedef>name VARCHAR,label VARCHAR\nA,x\n"],
    "FASTA": [">seq1 x\nACGT ACG\n"],
    "DIMACS|names of the second|header or an edge": [
        "c made by hand\np edge 3 2\ne 1 2\ne 2 3\n", "p sp 3 2\na 1 2 5\n", "a 1 2\na 2 3\na 3 4\n"],
    "METIS|the first column counts": ["3 3\n2 3\n1 3\n1 2\n", "4 6 0\n2 3 4\n1 3 4\n1 2 4\n1 2 3\n"],
}  # fmt: skip


@pytest.mark.parametrize(("text", "why"), [(text, why) for why, texts in REFUSED.items() for text in texts])
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


@pytest.mark.parametrize("first", ["1 2 1082040961", "source\ttarget\tvalue\n1\t2\t1577836800", "1,2,1.6e9"])
def test_times_in_place_of_weights_are_noted(write, first):
    sign = next(sign for sign in "\t, " if sign in first)
    text = f"{first}\n{sign.join(['3', '4', '1577836801'])}\n{sign.join(['1', '4', '1577836801'])}\n"
    assert "may be times" in str(edge_list(write("edges.txt", text)).report)


# ---- nodes, columns, and what is guessed

NAMES = ["Bern", "Chur", "Olten"]


@pytest.mark.parametrize("separator", ["\t", ",", ";", " ", "   "])
def test_any_separator_is_found(write, separator):
    text = "Bern,Olten,3 \nOlten,Chur,-2.5 \nOlten,Bern,4 \nChur,Chur,1"
    network = edge_list(write("lines.csv", text.replace(",", separator)), NAMES)
    assert network.name == "lines"
    assert (network.edge_index.tolist(), network.weight.tolist()) == ([[0, 1, 1], [2, 1, 2]], [4, 1, -2.5])
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


def test_the_edges_of_an_undirected_network_go_both_ways_with_their_weights(write):
    path = write("lines.csv", "source,target,km\nOlten,Bern,3\nBern,Olten,5\nOlten,Chur,0.5\nChur,Chur,7\n")
    once = edge_list(path)
    assert "To pass them both ways, with an edge's weight on each: in_both_directions()" in " ".join(str(once).split())
    both = once.in_both_directions()
    expected = {("Bern", "Olten"): 5, ("Olten", "Bern"): 5, ("Olten", "Chur"): 0.5, ("Chur", "Olten"): 0.5,
                ("Chur", "Chur"): 7}  # fmt: skip
    ends = [[NAMES[node] for node in side] for side in both.edge_index.tolist()]
    assert dict(zip(zip(*ends, strict=True), both.weight.tolist(), strict=True)) == expected
    assert both.num_edges == 5
    assert (both.report.node_names, "stored once" in str(both)) == (tuple(NAMES), False)
    assert edge_list(path, columns=(0, 1)).in_both_directions().weight is None
    with pytest.raises(InputError, match="network 'lines' is directed"):
        both.in_both_directions()


def test_a_graph_of_anything_in_three_lines(write):
    path = write("lines.tsv", "# from\tto\nBern\tOlten\nOlten\tChur\nBern\tOlten\n")
    lines = edge_list(path, directed=True, node_type="station")
    graph = CellGraph({"station": 3}, {"lines": lines}, "station", {"station": lines.report.node_names})
    assert graph.node_names == {"station": ("Bern", "Chur", "Olten")}
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


@pytest.mark.parametrize(
    "text",
    ["A,B\nC,D\n", "Quelle Ziel\nBern Olten\nOlten Chur\n", "v w\na b\nb c\n", "x,y\na,b\n", "出発\t到着\nZug\tUri\n",
     "Knoten1 Knoten2\nTP53 OCT1\n", "de;vers\nYAL001C;YBR002W\n"],
)  # fmt: skip
def test_a_first_line_that_may_be_a_header_or_an_edge_is_asked_about(write, text):
    with pytest.raises(ReadError, match="is a header or an edge: pass header= or columns="):
        edge_list(write("edges.txt", text))
    rows = text.count("\n")
    assert [edge_list(write("edges.txt", text), header=h).num_edges for h in (True, False)] == [rows - 1, rows]


def test_a_first_line_that_is_numbered_as_the_others_is_an_edge_and_a_word_before_numbers_none(write):
    assert edge_list(write("weights.csv", "TF,TG,0.5\nBern,Olten,1\n")).num_edges == 2
    urls = "http://a/1#x http://b/2\nhttp://c/3#y http://d/4\n"
    for text in ("1 2\n3 4\n", "i i\nj|k i2\n", "YAL001C YBR002W\nYCL003C YDL004W\n", "A DavidL\nDavidL B\n", urls):
        network = edge_list(write("edges.txt", text))
        assert (network.num_edges, set(network.report.node_names)) == (2, set(text.split()))
    assert edge_list(write("edges.txt", "Quelle Ziel\nZiel c\nc Quelle\n")).num_edges == 3
    for header in ("Quelle Ziel", "node1 node2"):
        assert edge_list(write("numbers.txt", f"{header}\n1 2\n2 3\n")).report.node_names == ("1", "2", "3")


def test_blanks_around_a_name_are_not_part_of_it(write):
    text = "A, B\nB\xa0, C\n\u200bC ,A\t\n \ufeffA,\u3000B\n"
    for genes in (None, "ABC"):
        network = edge_list(write("ring.csv", text), genes, sep=",")
        assert network.edge_index.tolist() == [[0, 0, 1], [1, 2, 2]]
        assert (network.report.node_names, network.report.unknown) == (None if genes else ("A", "B", "C"), ())
    for text in ("0, 1\n1, 2\n2, 0\n", "0 ,1\n1 ,2\n2 ,0\n", " Source , Target\n0, 1\n1, 2\n2, 0\n"):
        assert edge_list(write("ring.csv", text), directed=True).edge_index.tolist() == [[0, 1, 2], [1, 2, 0]]


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
        ("Bern,Olten,3\nBern,Olten,\n", "row 2: the weight is '', expected a finite number"),
        ("Bern,Olten\n\nBern,\n", "row 2: column 2 is empty, expected a name"),
        ("A,B\nB,C\n#C,A\n", "row 3: column 1 begins with #: comments are expected before the first edge"),
        ("A,B\n\xa0,C\n", "row 2: column 1 is empty, expected a name"),
        ("source,target\n", "holds no rows after its header"),
        ("A,B,x\nA,C,2\n", "its columns are 'A, B, x': which are source and target"),
    ],
)
def test_what_would_make_another_graph_is_refused(write, text, why):
    with pytest.raises(ReadError, match=rf"edges\.csv\.gz: .*{why}.*\(read as an edge list\)"):
        edge_list(write("edges.csv.gz", text), None if "A" in text else NAMES)


# ---- a header that is a comment, as files of public databases have one

STRING = (
    "#node1\tnode2\tnode1_string_id\tnode2_string_id\tneighborhood_on_chromosome\tgene_fusion\t"
    "phylogenetic_cooccurrence\thomology\tcoexpression\texperimentally_determined_interaction\t"
    "database_annotated\tautomated_textmining\tcombined_score\n"
)
MITAB = (
    "#ID(s) interactor A\tID(s) interactor B\tAlt. ID(s) interactor A\tAlt. ID(s) interactor B\t"
    "Alias(es) interactor A\tAlias(es) interactor B\tInteraction detection method(s)\tConfidence value(s)\n"
)
REACTOME = (
    "# Interactor 1 uniprot id\tInteractor 1 Ensembl gene id\tInteractor 1 Entrez Gene id\tInteractor 2 uniprot id\t"
    "Interactor 2 Ensembl gene id\tInteractor 2 Entrez Gene id\tInteraction type\n"
)
FUNCTIONAL = "Gene1\tGene2\tAnnotation\tDirection\tScore\nA\tB\tcatalyzed by\t<-\t0.5\nB\tC\tpredicted\t-\t1\n"
BIOGRID = (
    "#BioGRID Interaction ID\tEntrez Gene Interactor A\tEntrez Gene Interactor B\tSystematic Name Interactor A\t"
    "Systematic Name Interactor B\n1\t856\t857\tA\tB\n2\t857\t858\tB\tC\n"
)


@pytest.mark.parametrize(
    ("text", "columns", "edges"),
    [
        (STRING + "A\tB\tx\ty" + 8 * "\t0" + "\t0.5\nB\tC\ty\tz" + 8 * "\t0" + "\t1\n", None, WEIGHTED),
        (STRING[1:] + "A\tB\tx\ty" + 8 * "\t0" + "\t0.5\nB\tC\ty\tz" + 8 * "\t0" + "\t1\n", None, WEIGHTED),
        (MITAB + "A\tB\tx:1\ty:1\t-\t-\t-\tscore:0.5\nB\tC\t-\t-\t-\t-\t-\t-\nC\t-\t-\t-\t-\t-\t-\t-\n", None,
         YEAST_PAIR),
        (MITAB.replace("(s)", "").replace("(es)", "es") + "A\tB\tx\ty\t-\t-\t-\t-\nB\tC\t-\t-\t-\t-\t-\t-\n", None,
         YEAST_PAIR),
        (FUNCTIONAL, None, WEIGHTED),
        (BIOGRID, ("Systematic Name Interactor A", "Systematic Name Interactor B"), YEAST_PAIR),
        (REACTOME + "A\tx\t-\tB\ty\t-\tcleavage\nB\ty\t-\tC\tz\t-\tcleavage\n",
         ("Interactor 1 uniprot id", "Interactor 2 uniprot id"), YEAST_PAIR),
        (BIOGRID, (3, 4), YEAST_PAIR),
        ("# source target\nsource target\nA B\nB C\n", ("source", "target"), YEAST_PAIR),
        ("# made by hand\n# target source\nB A\nC B\n", None, YEAST_PAIR),
        ("% source,weight,target\nA,0.5,B\nB,1,C\n", None, WEIGHTED),
        ("#from to  w\nA\tB\t0.5\nB\tC\t1\n", None, WEIGHTED),
        ("# Nodes: 3 Edges: 2\nA B\nB C\n", None, YEAST_PAIR),  # no header
        ("# to,from\nsource,target\nA,B\nB,C\n", None, YEAST_PAIR),  # the other line says it, too
        ("#A,B\nA,B\nB,C\n", None, YEAST_PAIR),  # an edge that somebody commented out
    ],
)  # fmt: skip
def test_the_last_comment_is_the_header_if_it_calls_two_columns_source_and_target(write, text, columns, edges):
    found = edges_of(edge_list(write("edges.tsv", text), columns=columns, directed="Direction" not in text))
    assert found == edges


@pytest.mark.parametrize(
    ("text", "options", "why"),
    [
        (BIOGRID, {}, "its columns are 'BioGRID Interaction ID, .*': which are source and target"),
        (REACTOME + "A\tx\t-\tB\ty\t-\tcleavage\n", {}, "its columns are 'Interactor 1 uniprot id"),
        (FUNCTIONAL, {"directed": True}, "its column direction says which way an edge goes"),
        ("# source target\nA B\n", {"columns": ("source", "targt")}, "no column 'targt' .*; did you mean 'target'"),
    ],
)
def test_a_header_that_does_not_say_it_all_is_asked_about(write, text, options, why):
    with pytest.raises(ReadError, match=why):
        edge_list(write("edges.tsv", text), **options)


# ---- weights, blanks, edges that come again


@pytest.mark.parametrize("weight", ["1_000", "1_0.5", "2e1_0", "0x10", "1,5"])
def test_what_only_python_calls_a_number_is_no_weight(write, weight):
    with pytest.raises(ReadError, match=f"row 3: the weight is '{weight}', expected a finite number"):
        edge_list(write("edges.tsv", f"source\ttarget\tweight\nA\tB\t2\nB\tC\t{weight}\n"))


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ('"New  York" "Los   Angeles"\n"Los   Angeles" Bern\n', {"New  York", "Los   Angeles", "Bern"}),
        ('  Bern   "a  b"  \n"a  b"  "say ""no  no"""\n', {"Bern", "a  b", 'say "no  no"'}),
        ('A   5"  \n5"   B\n', {"A", '5"', "B"}),  # an inch is no quote
    ],
)
def test_several_spaces_separate_like_one_but_not_in_quotes(write, text, names):
    assert {*edge_list(write("edges.txt", text), header=False).report.node_names} == names


def of_rows(write, rows, **options):
    return edge_list(write("edges.csv", "source,target,weight\n" + rows.replace(" ", "\n")), **options)


@pytest.mark.parametrize(
    ("rows", "strongest", "total"),
    [
        ("A,B,-0.9 A,B,0.1", -0.9, -0.8),
        ("A,B,0.1 A,B,-0.9", -0.9, -0.8),  # whatever the order
        ("A,B,2 B,A,3 A,B,5", 5, 10),  # parallel lines
        ("A,B,2 A,B,2 B,A,4", 4, 4),  # each direction has the same sum: it is there twice
        ("A,B,-3 A,B,3", 3, 0),
        ("A,A,1 A,A,2", 2, 3),
        ("A,B,7 B,A,7", 7, 7),
    ],
)
def test_an_edge_of_several_rows_has_the_strongest_weight_or_the_sum_and_the_rule_is_said(
    write, rows, strongest, total
):
    assert of_rows(write, rows).weight.tolist() == [strongest]
    summed = of_rows(write, rows, duplicates="sum")
    assert summed.weight.tolist() == pytest.approx([total])
    assert "1 edges appear in several rows: each has the sum" in str(summed.report)
    assert ("each has the largest of their weights" in str(of_rows(write, rows).report)) == ("7" not in rows)
    with pytest.raises(ReadError, match="row 3 has the edge of row 2 again"):  # the header is row 1
        of_rows(write, rows, duplicates="error")


def test_rows_without_a_weight_are_counted_and_a_rule_that_there_is_not_is_named(write):
    path = write("edges.csv", "A,B\nB,A\nB,A\nB,B\n")
    assert edge_list(path, duplicates="sum").weight.tolist() == [3, 1]
    assert edge_list(path).weight is None
    with pytest.raises(InputError, match="unknown duplicates 'mx'; did you mean 'max'"):
        edge_list(path, duplicates="mx")


def test_self_loops_are_kept_and_counted_and_names_that_differ_in_case_are_said(write):
    report = edge_list(write("edges.csv", "A,B\nB,B\na,a\nA,a\n")).report
    assert "2 of the edges are self-loops" in report.notes
    for text in ("A,B\nB,C\na,C\n", "Z\u00fcrich,Z\u00fcrich\nZu\u0308rich,Bern\n", "A,B\n\uff21,B\n"):
        notes = edge_list(write("edges.csv", text), header=False).report.notes
        assert "some names differ only in case, in Unicode or in “.0”, and are nodes of their own" in notes
    assert not any("self" in note for note in edge_list(write("edges.csv", "A,B\nB,C\n")).report.notes)


@pytest.mark.parametrize(
    ("nodes", "said"),
    [
        (
            ["A", "B", "C"],
            "2 of 4 rows were dropped: they name a station that is not in the station list of 3, such as 'd'",
        ),
        (["A", "B", "C", "D"], "such as 'd'; 'd' differs from 'D' only in case, in Unicode or in “.0”"),
    ],
)
@pytest.mark.filterwarnings("default")
def test_names_that_are_lost_are_warned_about_from_a_tenth_on(write, nodes, said):
    path = write("edges.csv", "A,B\nB,C\nC,d\nB,d\n")
    with pytest.warns(UserWarning, match=said):
        found = edge_list(path, nodes, node_type="station")
    assert found.report.dropped == {"unknown station": 2}
    rows = "A,B\nB,C\nC,A\n" * 7
    with (
        pytest.warns(UserWarning, match="only in case") if "D" in nodes else nullcontext()
    ):  # a twentieth; its case is said
        edge_list(write("edges.csv", f"{rows}C,d\n"), [*nodes, *map(str, range(9))], unknown_limit=1)


def test_a_row_is_found_again_in_the_edges_of_both_directions(write):
    path = write("edges.csv", "source,target,km\nOlten,Bern,3\nBern,Olten,5\nOlten,Chur,0.5\nChur,Chur,7\nBern,X,1\n")
    once = edge_list(path, NAMES)
    both = once.in_both_directions()
    rows = [("Olten", "Bern"), ("Bern", "Olten"), ("Olten", "Chur"), ("Chur", "Chur")]
    forward, backward = both.report.edge_of_row.tolist()
    assert forward[4] == backward[4] == once.report.edge_of_row[4] == -1
    pairs = [(NAMES[a], NAMES[b]) for a, b in both.edge_index.T.tolist()]
    for row, ends in enumerate(rows):
        assert {pairs[forward[row]], pairs[backward[row]]} == {ends, ends[::-1]}
    assert forward[3] == backward[3]
    assert once.report.edge_of_row.tolist()[:2] == [0, 0]
    with pytest.warns(UserWarning, match="5 of 5 rows"):
        nothing = edge_list(path, ["Basel"], unknown_limit=1.0).in_both_directions()
    assert nothing.report.edge_of_row.tolist() == [[-1] * 5] * 2


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
    ends = [(a, b) if directed else tuple(sorted((a, b))) for a, b, _ in rows]
    ordered = sorted(zip(ends, (row[2] for row in rows), strict=True), key=lambda row: (abs(row[1]), row[1]))
    expected = dict(ordered)  # of an edge that comes again the weight of the largest magnitude
    pairs = [(names[one], names[other]) for one, other in network.edge_index.T.tolist()]
    assert dict(zip(pairs, network.weight.tolist(), strict=True)) == expected
    assert [pairs[edge] for edge in network.report.edge_of_row.tolist()] == ends
    assert network.report.rows == len(rows) == network.report.kept + sum(network.report.dropped.values())
