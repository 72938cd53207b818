"""Genetic interaction screens: which rows are samples, of which genes, as nodes of a graph."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from tclab import CellGraph, InputError
from tclab.perturbation import Perturbations
from tclab.readers import ReadError, read_perturbations

SAMPLES = Path(__file__).resolve().parents[2] / "data_samples" / "cell"
HEADER = (
    "Query strain ID\tQuery allele name\tArray strain ID\tArray allele name\tCombined mutant type\t"
    "Raw genetic interaction score (epsilon)\tAdjusted genetic interaction score (epsilon or tau)\tP-value\t"
    "Query single/double mutant fitness\tArray single mutant fitness\tCombined mutant fitness\t"
    "Combined mutant fitness standard deviation\n"
)
A, B, C, HO = "YAL001C", "YAL002W", "YBR001C-A", "YDL227C"


def row(query, array, score, p="0.01", alleles=("aΔ+bΔ", "cΔ"), kind="trigenic"):
    return f"{query}\t{alleles[0]}\t{array}\t{alleles[1]}\t{kind}\t{score}\t{score}\t{p}\t\t0.9\t0.8\tNaN\n"


ROWS = (
    row(f"{A}+{B}_tm1", f"{C}_dma7", -0.5, "0.00E+00")
    + row(f"{A}+{HO}_tm2", f"{C}_dma7", 0.1, kind="digenic")
    + row(f"{HO}+{B}_tm3", f"{C}_tsa8", 0.2, "0.5", ("hoΔ+bΔ", "c-1"), kind="digenic")
    + row(f"{B}+{C}_tm4", f"{A}_tsa9", 0.3, "0.04", ("bΔ+cΔ", "a-11-supp1"))
    + row(f"{A}+{B}_tm5", f"{HO}_dma1", 0.4, "", kind="trigenic")
    + row(f"{A}+{B}_tm5", f"{C}_dma7", "NaN", "")
)


def graph_of(*names):
    return CellGraph({"gene": len(names)}, {}, "gene", {"gene": names}, source="of a test")


@pytest.fixture(scope="module")
def cell():
    """A graph with the gene list of the samples, without their networks."""
    return graph_of(*(SAMPLES / "yeast_string_genes.txt").read_text().split())


def deleted(found, graph):
    names = graph.node_names["gene"]
    return [{names[node] for node in found.deletions[i].tolist()} for i in range(len(found))]


def test_rows_are_samples_by_how_many_genes_they_delete(write):
    path, graph = write("aao1729_data_s1.tsv", HEADER + ROWS), graph_of(A, B, C)
    found = read_perturbations(path, graph)
    assert deleted(found, graph) == [{A, B, C}, {A, B, C}]
    assert found.scores.tolist() == pytest.approx([-0.5, 0.3])
    assert found.report.dropped == {"no score": 1, "not trigenic": 3}
    assert "1 rows delete the same genes as another row" in str(found)
    # a neutral deletion does not count: first, second, or in the array
    assert deleted(read_perturbations(path, graph, mutant_type="digenic"), graph) == [{A, C}, {B, C}, {A, B}]
    assert len(read_perturbations(path, graph, mutant_type="any")) == 5
    with pytest.raises(InputError, match="unknown mutant type 'trigenc'; did you mean 'trigenic'"):
        read_perturbations(path, graph, mutant_type="trigenc")


def test_genes_that_are_not_in_the_graph_are_dropped_and_reported(write):
    path, graph = write("aao1729_data_s1.tsv", HEADER + ROWS), graph_of(C, A)
    found = read_perturbations(path, graph, mutant_type="any", unknown_limit=0.9)
    assert deleted(found, graph) == [{A, C}]
    assert (found.report.dropped["unknown gene"], found.report.unknown) == (4, (B,))
    with pytest.raises(ReadError, match=r"4 of 5 rows name a gene that is not in the gene list of 2 .*'YAL002W'"):
        read_perturbations(path, graph, mutant_type="any")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("a\tb\n1\t2\n", r"is no screen that tclab reads, kuzmin, costanzo, .*'a \| b' lacks"),
        (HEADER.replace("P-value", "P") + ROWS, "the nearest is kuzmin, of whose columns .* lacks p-value"),
        (HEADER + ROWS.replace("\t0.3\t0.3", "\t0.3\tlow"), "row 4: .* invalid value 'low'"),
        (HEADER + ROWS.replace("\t0.3\t0.3", "\t0.3\t1e9"), r"row 4: .* is 1e\+09, expected -1e\+06 to 1e\+06"),
        (HEADER + ROWS.replace(f"{A}_tsa9", f"{A}tsa9"), "row 4: .* 'YAL001Ctsa9', expected one like"),
        (HEADER + ROWS.replace(f"{A}_tsa9", f"{A}+{B}_tm9"), "row 4: .*expected one like YBL007C_dma91"),
        (HEADER + ROWS.replace("_tm4", "_4"), "row 4: .*expected one like YAL015C"),
        (HEADER + ROWS[:-5], "row 6: Expected 12 columns, got 11"),
        (HEADER + row(f"{A}+{HO}_tm2", f"{C}_dma7", 0.1), "none of its 1 rows is a trigenic sample: 1 not trigenic"),
    ],
)
def test_a_bad_table_is_an_error_with_file_and_row(write, text, why):
    with pytest.raises(ReadError, match=rf"t\.tsv: .*{why}"):
        read_perturbations(write("t.tsv", text), graph_of(A, B, C))


# file → format, mutant type, samples
FORMATS = {
    "aao1729_data_s1.tsv": ("kuzmin", "trigenic", 20),
    "SGA_NxN.txt": ("costanzo", "digenic", 30),
    "scored_made_up_trigenic.txt": ("sga_trigenic", "trigenic", 20),
}


def numbers_of(found):
    return found.deletions.nodes.tolist(), found.deletions.ptr.tolist(), found.scores.tolist()


@pytest.mark.parametrize("name", FORMATS)
def test_the_format_is_known_by_the_columns(name, cell, tmp_path):
    text = (SAMPLES / name).read_text()
    head, *rows = text.splitlines(keepends=True)
    prints = []
    for file, content in ((name, text), ("table", head + "".join(rows)), ("t.csv", text.replace("\t", ","))):
        (tmp_path / file).write_text(content)
        found = read_perturbations(tmp_path / file, cell)
        report = found.report
        assert isinstance(found, Perturbations)
        kind, mutant_type, samples = FORMATS[name]
        assert f"format {kind}, {mutant_type} samples" in str(found)
        assert report.rows == report.kept + sum(report.dropped.values()) == 30
        assert report.kept == len(found) == samples
        prints.append(numbers_of(found))
    assert prints[1:] == prints[:-1]
    assert sorted(read_perturbations(write_rows(tmp_path, head, reversed(rows)), cell).scores) == sorted(found.scores)


def write_rows(folder, head, rows):
    (folder / "again").write_text(head + "".join(rows))
    return folder / "again"


def test_a_synthetic_graph_is_assigned_the_genes_of_most_samples_and_says_so(write):
    rows = row(f"{A}+{B}_tm1", f"{C}_dma7", -0.5) + row(f"{A}+{B}_tm1", "YZZ999W_dma8", 0.1)
    rows += row(f"{B}+{A}_tm1", "YZZ998W_dma8", 0.2) + row(f"{C}+{B}_tm1", "YZZ997W_dma8", 0.3)
    path = write("t.tsv", HEADER + rows)
    small = read_perturbations(path, CellGraph.synthetic(4 / 6607, metabolism=False))
    assert small.deletions.nodes.tolist() == [0, 1, 2, 0, 2, 3]
    assert small.scores.tolist() == pytest.approx([-0.5, 0.3])
    assert small.report.dropped["no node left for a gene"] == 2
    assert small.report.rows == small.report.kept + sum(small.report.dropped.values())
    assert "no node names: 4 of the file's 6 genes were assigned to nodes" in str(small)
    head, *lines = path.read_text().splitlines(keepends=True)
    again = write("again.tsv", head + "".join(reversed(lines)))
    assert sorted(read_perturbations(again, CellGraph.synthetic(0.01, metabolism=False)).scores)[0] == -0.5
    with pytest.raises(ReadError, match="none of its 4 samples has all its genes among the 2 nodes"):
        read_perturbations(path, CellGraph.synthetic(2 / 6607, metabolism=False))


def test_a_graph_of_ones_own_without_names_is_refused():
    with pytest.raises(InputError, match=r"'given' has no names for its gene nodes.*expected node_names"):
        read_perturbations(SAMPLES / "aao1729_data_s1.tsv", CellGraph({"gene": 40}, {}, "gene"))


def test_a_workbook_is_read_too_and_a_damaged_one_refused(cell, tmp_path):
    openpyxl = pytest.importorskip("openpyxl")
    book, path = openpyxl.Workbook(), tmp_path / "table.xlsx"
    book.active.append(["Data S1. Raw genetic interaction datasets"])
    for line in (SAMPLES / "aao1729_data_s1.tsv").read_text().splitlines():
        book.active.append(
            [cell if i < 5 or not cell[:1].isdigit() else float(cell) for i, cell in enumerate(line.split("\t"))]
        )
    book.active.append([])
    book.save(path)
    expected = read_perturbations(SAMPLES / "aao1729_data_s1.tsv", cell)
    assert numbers_of(read_perturbations(path, cell)) == numbers_of(expected)
    book.active["XFD1048576"] = "x"  # one cell at a sheet's end, which would take minutes
    book.save(tmp_path / "far.xlsx")
    assert len(read_perturbations(tmp_path / "far.xlsx", cell)) == 20
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ReadError, match="is damaged or cut short"):
        read_perturbations(path, cell)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x", "y")
    with pytest.raises(ReadError, match=r"KeyError: .*\(read as a genetic interaction screen\)"):
        read_perturbations(path, cell)


@pytest.mark.parametrize(
    ("name", "format_name", "samples", "digenic"),
    [
        ("kuzmin2020_excerpt/aaz5667_Table_S1_excerpt.tsv", "kuzmin", 4, 7),
        ("kuzmin2020_excerpt/aaz5667_Table_S3_excerpt.tsv", "kuzmin", 2, 3),
        ("sga_trigenic_public/scored_triple_test_small_trigenic.txt.gz", "sga_trigenic", 4_606, 5_826),
    ],
)
def test_public_screens_become_perturbations_of_the_published_genes(public, name, format_name, samples, digenic):
    graph = graph_of(*public("string_v9.1_dango/yeast_string_genes.txt").read_text().split())
    found = read_perturbations(public(name), graph)
    assert f"format {format_name}, trigenic" in str(found)
    assert (len(found), found.report.unknown) == (samples, ())
    assert len(read_perturbations(public(name), graph, mutant_type="digenic")) == digenic
    if samples == 4_606:
        assert "4 rows delete the same genes" in str(found)
        assert found.report.rows == 10_432
