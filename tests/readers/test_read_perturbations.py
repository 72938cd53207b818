from __future__ import annotations

from pathlib import Path

import pytest
from test_screens import HEADER, A, B, C, row

from tclab import CellGraph, InputError
from tclab.perturbation import Perturbations
from tclab.readers import ReadError, costanzo, kuzmin, read_perturbations, sga_digenic

SAMPLES = Path(__file__).resolve().parents[2] / "data_samples" / "cell"
# file → format, mutant type, samples
FORMATS = {
    "aao1729_data_s1.tsv": ("kuzmin", "trigenic", 20),
    "aaz5667_Table_S5.tsv": ("kuzmin_fitness", "any", 20),
    "SGA_NxN.txt": ("costanzo", "digenic", 30),
    "scored_made_up_trigenic.txt": ("sga_trigenic", "trigenic", 20),
    "scored_made_up_digenic.txt": ("sga_digenic", "any", 30),
}


def graph_of(*names, relations=None):
    return CellGraph({"gene": len(names)}, relations or {}, "gene", {"gene": names}, source="of a test")


@pytest.fixture(scope="module")
def cell():
    """A graph with the gene list of the samples, without their networks."""
    return graph_of(*(SAMPLES / "yeast_string_genes.txt").read_text().split())


@pytest.mark.parametrize("renamed", [False, True])
@pytest.mark.parametrize("name", FORMATS)
def test_the_format_is_known_by_the_columns(name, renamed, cell, tmp_path):
    path = SAMPLES / name
    if renamed:
        path = tmp_path / "table"
        path.write_bytes((SAMPLES / name).read_bytes())
    found = read_perturbations(path, cell)
    expected, report = FORMATS[name], found.report
    assert isinstance(found, Perturbations)
    assert (report.format, report.mutant_type, len(found)) == expected
    assert report.rows == report.kept + sum(report.dropped.values())
    assert len(found.scores) == len(found) == report.kept
    assert found.deletions.nodes.max() < 40
    assert report.assigned is None
    assert report.score in str(found)


def test_nodes_and_scores_are_those_of_the_formats_reader(cell):
    names = cell.node_names["gene"]
    for name, reader in (("aao1729_data_s1.tsv", kuzmin), ("SGA_NxN.txt", costanzo), ("aaz5667_Table_S5.tsv", None)):
        found = read_perturbations(SAMPLES / name, cell)
        if reader is not None:
            expected = reader(SAMPLES / name, names).perturbations
            assert found.fingerprint() == expected.fingerprint()
    screen = sga_digenic(SAMPLES / "scored_made_up_digenic.txt", names)
    found = read_perturbations(SAMPLES / "scored_made_up_digenic.txt", cell)
    for sample, genes in enumerate(screen.table[["gene_1", "gene_2", "gene_3"]].values.tolist()):
        assert {names[node] for node in found.deletions[sample].tolist()} == {g for g in genes if isinstance(g, str)}


def test_unknown_genes_and_missing_scores_are_counted(write):
    other = "YBR001C-B"
    rows = row(f"{A}+{B}_tm1", f"{C}_dma7", -0.5) + row(f"{A}+{B}_tm1", f"{C}_dma7", 0.25)
    rows += row(f"{A}+{B}_tm1", f"{other}_dma8", 0.1) + row(f"{A}+{B}_tm1", f"{other}_dma9", 0.1)
    rows += row(f"{A}+YZZ999W_tm2", f"{C}_dma7", 0.3) + row(f"{A}+{B}_tm1", f"{C}_dma7", "NaN")
    found = read_perturbations(write("t.tsv", HEADER + rows), graph_of(C, B, A), unknown_limit=0.9)
    report = found.report
    assert found.deletions.nodes.tolist() == [0, 1, 2, 0, 1, 2]
    assert found.scores.tolist() == [-0.5, 0.25]
    assert (report.rows, report.kept, report.duplicates) == (6, 2, 1)
    assert report.dropped == {"no score": 1, "unknown gene": 3}
    assert report.unknown_rows == {other: 2, "YZZ999W": 1}
    assert report.nearest[other] == C
    assert f"{other} (2 rows; nearest {C})" in str(found)
    mean = read_perturbations(write("t.tsv", HEADER + rows), graph_of(C, B, A), unknown_limit=0.9, repeats="mean")
    assert mean.scores.tolist() == [-0.125]
    with pytest.raises(ReadError, match=r"3 of 5 rows name a gene that is not in the gene list of 3 .*'YBR001C-B'"):
        read_perturbations(write("t.tsv", HEADER + rows), graph_of(C, B, A))


def test_a_synthetic_graph_is_assigned_the_genes_of_most_samples_and_says_so(write):
    rows = row(f"{A}+{B}_tm1", f"{C}_dma7", -0.5) + row(f"{A}+{B}_tm1", "YZZ999W_dma8", 0.1)
    rows += row(f"{B}+{A}_tm1", "YZZ998W_dma8", 0.2) + row(f"{C}+{B}_tm1", "YZZ997W_dma8", 0.3)
    path = write("t.tsv", HEADER + rows)
    small = read_perturbations(path, CellGraph.synthetic(4 / 6607, metabolism=False))
    assert small.report.assigned == {B: 0, A: 1, C: 2, "YZZ997W": 3}
    assert small.deletions.nodes.tolist() == [0, 1, 2, 0, 2, 3]
    assert small.scores.tolist() == pytest.approx([-0.5, 0.3])
    assert small.report.dropped == {"no node left for a gene": 2}
    assert small.report.rows == small.report.kept + sum(small.report.dropped.values())
    assert "no node names: 4 of the file's 6 genes were assigned to nodes" in str(small)
    assert len(read_perturbations(path, CellGraph.synthetic(0.01, metabolism=False))) == 4
    with pytest.raises(ReadError, match="none of its 4 samples has all its genes among the 2 nodes"):
        read_perturbations(path, CellGraph.synthetic(2 / 6607, metabolism=False))


def test_the_assignment_does_not_depend_on_the_order_of_the_rows(tmp_path):
    head, *rows = (SAMPLES / "aao1729_data_s1.tsv").read_text().splitlines(keepends=True)
    (tmp_path / "t.tsv").write_text(head + "".join(reversed(rows)))
    graph = CellGraph.synthetic(0.01, metabolism=False)
    found = [read_perturbations(path, graph) for path in (SAMPLES / "aao1729_data_s1.tsv", tmp_path / "t.tsv")]
    assert found[0].report.assigned == found[1].report.assigned


def test_a_graph_of_ones_own_without_names_is_refused_unless_asked():
    graph = CellGraph({"gene": 40}, {}, "gene")
    path = SAMPLES / "aao1729_data_s1.tsv"
    with pytest.raises(InputError, match=r"'given' has no names for its gene nodes.*assign_unnamed=True"):
        read_perturbations(path, graph)
    assert read_perturbations(path, graph, assign_unnamed=True).report.assigned
    with pytest.raises(InputError, match="has no names"):
        read_perturbations(path, CellGraph.synthetic(0.01, metabolism=False), assign_unnamed=False)


def test_what_is_no_screen_names_the_formats_and_the_nearest(write, cell):
    with pytest.raises(
        ReadError, match=r"no genetic interaction screen.*first line is 'a \| b'; known: kuzmin \(.*costanzo"
    ):
        read_perturbations(write("t.tsv", "a\tb\n1\t2\n"), cell)
    lacks = HEADER.replace("P-value", "Q-value")
    with pytest.raises(ReadError, match="the nearest is kuzmin, of whose columns it lacks 'p-value'"):
        read_perturbations(write("t.tsv", lacks + row(f"{A}+{B}_tm1", f"{C}_dma7", -0.5)), cell)
    with pytest.raises(ReadError, match="the file is empty"):
        read_perturbations(write("t.tsv", ""), cell)
    with pytest.raises(ReadError, match=r"no such file; did you mean 'aao1729_data_s1\.tsv'"):
        read_perturbations(SAMPLES / "aao1729_data_S1.tsv", cell)
    cells = (SAMPLES / "scored_made_up_digenic.txt").read_text().splitlines()[0].split("\t")
    path = write("t.txt", "\t".join(cells[:11]) + "\n")
    with pytest.raises(ReadError, match="11 columns between tabs, expected 12"):
        read_perturbations(path, cell)


def test_what_a_format_does_not_have_is_refused(cell):
    with pytest.raises(InputError, match="unknown mutant type 'trigenc'; did you mean 'trigenic'"):
        read_perturbations(SAMPLES / "aao1729_data_s1.tsv", cell, mutant_type="trigenc")
    with pytest.raises(InputError, match="mutant_type is 'trigenic', expected 'digenic' for Costanzo"):
        read_perturbations(SAMPLES / "SGA_NxN.txt", cell, mutant_type="trigenic")
    with pytest.raises(InputError, match=r"this is Kuzmin et al\. 2020 Table S5"):
        read_perturbations(SAMPLES / "aaz5667_Table_S5.tsv", cell, p_below=0.05)
    with pytest.raises(ReadError, match=r"none of its 30 rows is a trigenic sample: .*20 p not below 0"):
        read_perturbations(SAMPLES / "aao1729_data_s1.tsv", cell, p_below=0)


def test_the_mutant_type_is_a_parameter(cell):
    path = SAMPLES / "aao1729_data_s1.tsv"
    lengths = {
        kind: read_perturbations(path, cell, mutant_type=kind).deletions.ptr.diff() for kind in ("digenic", "any")
    }
    assert set(lengths["digenic"].tolist()) == {2}
    assert set(lengths["any"].tolist()) == {2, 3}


def test_a_workbook_is_read_too(cell, tmp_path):
    openpyxl = pytest.importorskip("openpyxl")
    book = openpyxl.Workbook()
    book.active.append(["Data S1. Raw genetic interaction datasets"])
    for line in (SAMPLES / "aao1729_data_s1.tsv").read_text().splitlines():
        book.active.append(line.split("\t"))
    book.save(tmp_path / "table.xlsx")
    found = read_perturbations(tmp_path / "table.xlsx", cell)
    assert found.fingerprint() == read_perturbations(SAMPLES / "aao1729_data_s1.tsv", cell).fingerprint()


@pytest.mark.parametrize(
    ("name", "format_name", "samples"),
    [
        ("kuzmin2020_excerpt/aaz5667_Table_S1_excerpt.tsv", "kuzmin", 4),
        ("kuzmin2020_excerpt/aaz5667_Table_S3_excerpt.tsv", "kuzmin", 2),
        ("kuzmin2020_excerpt/aaz5667_Table_S5_excerpt.tsv", "kuzmin_fitness", 5),
        ("sga_trigenic_public/scored_triple_test_small_trigenic.txt.gz", "sga_trigenic", 4_606),
        ("sga_trigenic_public/scored_triple_test_small_digenic.txt.txt.gz", "sga_digenic", 10_432),
    ],
)
def test_public_screens_become_perturbations_of_the_published_genes(public, name, format_name, samples):
    graph = graph_of(*public("string_v9.1_dango/yeast_string_genes.txt").read_text().split())
    found = read_perturbations(public(name), graph)
    assert (found.report.format, len(found)) == (format_name, samples)
    assert not found.report.unknown_rows
