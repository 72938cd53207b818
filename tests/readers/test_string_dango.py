from __future__ import annotations

import pytest
import torch

from tclab.readers import ReadError, dango_genes, string_dango

FILE = "yeast_string_fusion_adjacency.txt"
GENES = "YAL001C\nYAL002W\nYBR001C\nYCL001W"
ROWS = "1\t3\t0.5\n3\t1\t0.5\n2\t4\t0.9\n4\t2\t0.9\n"


@pytest.fixture
def folder(write):
    def made(rows=ROWS, name=FILE, genes=GENES):
        write("yeast_string_genes.txt", genes)
        return write(name, rows)

    return made


def test_each_edge_is_kept_once_from_the_lower_gene_to_the_higher(folder):
    network = string_dango(folder())
    assert network.name == "string9_1_fusion"
    assert network.edge_index.tolist() == [[0, 1], [2, 3]]
    assert not network.directed
    assert network.weight is None
    assert network.report.scores.tolist() == [0.5, 0.9]
    assert (network.report.rows, network.report.kept) == (4, 2)
    assert network.report.dropped == {"reverse of an undirected edge": 2}


@pytest.mark.parametrize("name", [FILE, FILE + ".gz"])
@pytest.mark.parametrize("rows", [ROWS, ROWS.replace("\n", "\r\n"), "\ufeff" + ROWS, ROWS.rstrip()])
def test_packing_line_ends_and_byte_order_mark_change_nothing(folder, name, rows):
    assert string_dango(folder(rows, name)).edge_index.tolist() == [[0, 1], [2, 3]]


def test_genes_are_matched_by_name_with_another_list(folder):
    network = string_dango(folder(), ["YCL001W", "YAL002W", "YBR001C"])
    assert network.num_sources == 3
    assert network.edge_index.tolist() == [[0], [1]]
    assert network.report.dropped["unknown gene"] == 2
    assert network.report.unknown_examples == ("YAL001C",)


@pytest.mark.parametrize(
    ("rows", "line", "why"),
    [
        (ROWS[:-8], 3, "no reverse"),
        (ROWS + "5\t1\t0.1\n1\t5\t0.1\n", 5, "expected 1 to 4"),
        (ROWS.replace("1\t3\t0.5\n", "0\t3\t0.5\n"), 1, "expected 1 to 4"),
        (ROWS.replace("4\t2\t0.9", "4\t2\t0.8"), 3, "its reverse 0.8"),
        (ROWS + "1\t3\t0.5\n3\t1\t0.5\n", 5, "again"),
        (ROWS + "1\t1\t0.5\n", 5, "joined to itself"),
        (ROWS.replace("0.9", "1.9"), 3, "expected 0 to 1"),
        (ROWS.replace("2\t4\t0.9", "2\t4"), 3, "expected 3"),
        (ROWS.replace("2\t4\t0.9", "2\t4\t0.9\t"), 3, "expected 3"),
        (ROWS.replace("\t", ","), 1, "expected 3"),
        (ROWS.replace("2\t4\t0.9", "2\t4.5\t0.9"), 3, "expected a whole number"),
        (ROWS.replace("2\t4\t0.9", "2\t\t0.9"), 3, "expected a whole number"),
        (ROWS.replace("2\t4\t0.9", "2\t4\tnan"), 3, "expected"),
        ("\n\n" + ROWS.replace("2\t4\t0.9", "2\tx\t0.9"), 5, "expected a whole number"),
        (ROWS.encode().replace(b"2\t4\t0.9", b"2\t\xff\t0.9"), 3, "not UTF-8"),
    ],
)
def test_a_bad_row_is_an_error_with_file_and_line(folder, rows, line, why):
    with pytest.raises(ReadError, match=why) as caught:
        string_dango(folder(rows))
    assert f"{FILE}, line {line}:" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"\n\n"])
def test_a_file_without_rows_is_an_error(folder, content):
    with pytest.raises(ReadError, match=r"empty|no rows"):
        string_dango(folder(content))


def test_a_gzip_cut_in_half_is_an_error(folder):
    path = folder(ROWS * 500, FILE + ".gz")
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(ReadError, match=f"{FILE}.gz: the gzip is cut short"):
        string_dango(path)


def test_a_gzip_bomb_stops_at_the_limit(folder):
    path = folder("1\t2\t0.5\n" * 100_000, FILE + ".gz")
    with pytest.raises(ReadError, match=r"more than 100,000 bytes.*limit_bytes"):
        string_dango(path, limit_bytes=100_000)


def test_a_missing_gene_list_is_an_error(write):
    with pytest.raises(ReadError, match=r"expected yeast_string_genes\.txt in the same folder"):
        string_dango(write(FILE, ROWS))


@pytest.mark.parametrize(
    ("genes", "why"),
    [("YAL001C\nYAL001C", "line 2: gene 'YAL001C' is already on line 1"), ("A,B", "line 1: 'A,B'")],
)
def test_a_bad_gene_list_is_an_error(folder, genes, why):
    with pytest.raises(ReadError, match=why):
        string_dango(folder(genes=genes))


@pytest.mark.parametrize(
    ("channel", "edges", "nodes", "low", "high"),
    [
        ("cooccurence", 2_664, 1_271, 0.009, 0.525),
        ("database", 33_486, 2_712, 0.185, 0.949),
        ("fusion", 1_361, 1_191, 0.001, 0.9),
        ("neighborhood", 45_610, 2_172, 0.064, 0.794),
    ],
)
def test_the_public_channels_have_their_counts(public, channel, edges, nodes, low, high):
    path = public(f"string_v9.1_dango/yeast_string_{channel}_adjacency.txt.gz")
    genes = dango_genes(path.with_name("yeast_string_genes.txt"))
    assert len(genes) == 6_400
    network = string_dango(path, genes)
    assert network.num_edges == edges
    assert network.report.rows == 2 * edges
    assert len(torch.unique(network.edge_index)) == nodes
    assert network.report.scores.min() == low
    assert network.report.scores.max() == high
    assert network.report.self_loops == 0


def test_indices_count_from_one(public):
    path = public("string_v9.1_dango/yeast_string_database_adjacency.txt.gz")
    genes = dango_genes(path.with_name("yeast_string_genes.txt"))
    edges = set(map(tuple, string_dango(path, genes).edge_index.T.tolist()))
    for one, other in (("YAL001C", "YBR123C"), ("YDL140C", "YOR151C")):  # subunits of TFIIIC, of RNA Pol II
        assert (genes.place(one), genes.place(other)) in edges
