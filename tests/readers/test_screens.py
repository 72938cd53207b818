"""Genetic interaction screens: which rows are samples, of which genes, as nodes of a graph."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from tclab import CellGraph, InputError
from tclab.perturbation import Perturbations
from tclab.readers import ReadError, costanzo, kuzmin, read_perturbations, sga_trigenic

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


@pytest.fixture
def table(write):
    return write("aao1729_data_s1.tsv", HEADER + ROWS)


def graph_of(*names):
    return CellGraph({"gene": len(names)}, {}, "gene", {"gene": names}, source="of a test")


@pytest.fixture(scope="module")
def cell():
    """A graph with the gene list of the samples, without their networks."""
    return graph_of(*(SAMPLES / "yeast_string_genes.txt").read_text().split())


def deleted(screen):
    return [{screen.genes.names[gene] for gene in sample.tolist()} for sample in map(
        screen.perturbations.deletions.__getitem__, range(len(screen)))]  # fmt: skip


def test_only_rows_that_delete_three_genes_are_trigenic(table):
    screen = kuzmin(table)
    assert screen.genes.names == (A, B, C)
    assert screen.perturbations.deletions.samples().tolist() == [0, 0, 0, 1, 1, 1]
    assert screen.perturbations.deletions.nodes.tolist() == [0, 1, 2, 0, 1, 2]
    assert screen.perturbations.scores.tolist() == pytest.approx([-0.5, 0.3])
    assert screen.report.dropped == {"no score": 1, "not trigenic": 3}
    assert screen.report.duplicates == 1


def test_a_neutral_deletion_does_not_count_first_or_second_or_in_the_array(table):
    assert deleted(kuzmin(table, mutant_type="digenic")) == [{A, C}, {B, C}, {A, B}]
    assert len(kuzmin(table, mutant_type="any")) == 5


def test_the_filters_are_parameters(table):
    assert len(kuzmin(table, mutant_type="any", p_below=0.05)) == 3
    assert kuzmin(table, mutant_type="any", deletions_only=True).report.dropped["not a deletion"] == 2
    for option, why in (
        ({"mutant_type": "trigenc"}, "unknown mutant type of Kuzmin.*'trigenc'; did you mean 'trigenic'"),
        ({"p_below": 5}, "p_below is 5, expected 0 to 1"),
        ({"repeats": "men"}, "unknown treatment of repeats 'men'; did you mean 'mean'"),
    ):
        with pytest.raises(InputError, match=why):
            kuzmin(table, **option)


@pytest.mark.parametrize(("repeats", "score"), [("mean", -0.1), ("lowest p", -0.5)])
def test_repeats_are_joined_only_when_asked(table, repeats, score):
    screen = kuzmin(table, repeats=repeats)
    assert screen.perturbations.scores.tolist() == pytest.approx([score])
    assert screen.report.dropped[f"repeats ({repeats})"] == 1


def test_genes_that_are_not_in_the_list_are_dropped_and_reported(table):
    screen = kuzmin(table, [C, A], mutant_type="any", unknown_limit=0.9)
    assert deleted(screen) == [{A, C}]
    assert (screen.report.dropped["unknown gene"], screen.report.unknown_examples) == (4, (B,))
    with pytest.raises(ReadError, match=r"4 of 5 rows name a gene that is not in the gene list of 2 .*'YAL002W'"):
        kuzmin(table, [C, A], mutant_type="any")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (HEADER.replace("P-value", "P") + ROWS, "no column 'p-value' between tabs"),
        (HEADER + ROWS.replace("\t0.3\t0.3", "\t0.3\tlow"), "row 4: .* invalid value 'low'"),
        (HEADER + ROWS.replace("0.04", "1.04"), "row 4: P-value is 1.04, expected 0 to 1"),
        (HEADER + ROWS.replace("\t0.3\t0.3", "\t0.3\t1e9"), r"row 4: .* is 1e\+09, expected -1e\+06 to 1e\+06"),
        (HEADER + ROWS.replace(f"{A}_tsa9", f"{A}tsa9"), "row 4: .* 'YAL001Ctsa9', expected one like"),
        (HEADER + ROWS.replace(f"{A}_tsa9", f"{A}+{B}_tm9"), "row 4: .*expected one like YBL007C_dma91"),
        (HEADER + ROWS.replace("_tm4", "_4"), "row 4: .*expected one like YAL015C"),
        (HEADER + ROWS[:-5], "row 6: Expected 12 columns, got 11"),
        (HEADER + ROWS.replace("\t", ";"), "row 1: Expected 12 columns, got 1"),
    ],
)
def test_a_bad_table_is_an_error_with_file_and_row(write, text, why):
    with pytest.raises(ReadError, match=rf"t\.tsv: .*{why}"):
        kuzmin(write("t.tsv", text))


def test_costanzos_and_the_pipelines_tables_are_read(write):
    header = (
        "Query Strain ID\tQuery allele name\tArray Strain ID\tArray allele name\tArraytype/Temp\t"
        "Genetic interaction score (ε)\tP-value\tQuery single mutant fitness (SMF)\tArray SMF\t"
        "Double mutant fitness\tDouble mutant fitness standard deviation\n"
    )
    rows = (
        f"{A}_tsq508\ttfc3-g349e\t{B}_dma1\tvps8\tTSA30\t-0.2\t0.001\t0.9\t1.0\t0.7\t0.02\n"
        f"{C}_sn1\tc\t{B}_dma1\tvps8\tDMA30\t0.1\t0.4\t\t1.0\t1.1\t0.02\n"
    )
    path = write("SGA_ExN_NxE.txt.gz", header + rows)
    assert deleted(costanzo(path)) == [{A, B}, {B, C}]
    assert costanzo(path, deletions_only=True).perturbations.scores.tolist() == pytest.approx([0.1])
    with pytest.raises(InputError, match=r"unknown mutant type of Costanzo.*'trigenic'; .*digenic"):
        costanzo(path, mutant_type="trigenic")
    text = (
        "Query Strain ID\tArray Strain ID\tAdjusted genetic interaction score (epsilon or tau)\tP-value\t"
        "Double/triple mutant fitness\tDouble/triple mutant fitness standard deviation\n"
        f"{A}+{B}_tm1\t{C}_dma7\t-0.1\t0.01\t0.9\t0.1\n"
        f"URA3control+{HO}_y13096\t{C}_dma7\t-0.1\t0.01\t0.9\t0.1\n"
    )
    assert deleted(sga_trigenic(write("scored_x_trigenic.txt", text))) == [{A, B, C}]


# file → format, mutant type, samples
FORMATS = {
    "aao1729_data_s1.tsv": ("kuzmin", "trigenic", 20),
    "SGA_NxN.txt": ("costanzo", "digenic", 30),
    "scored_made_up_trigenic.txt": ("sga_trigenic", "trigenic", 20),
}


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
        assert (report.format, report.mutant_type, len(found)) == FORMATS[name]
        assert report.rows == report.kept + sum(report.dropped.values()) == 30
        assert (report.kept, report.assigned) == (len(found), None)
        assert report.score in str(found)
        prints.append(found.fingerprint())
    assert len(set(prints)) == 1
    assert sorted(read_perturbations(write_rows(tmp_path, head, reversed(rows)), cell).scores) == sorted(found.scores)


def write_rows(folder, head, rows):
    (folder / "again").write_text(head + "".join(rows))
    return folder / "again"


def test_unknown_genes_and_missing_scores_of_a_graph_are_counted(write):
    rows = row(f"{A}+{B}_tm1", f"{C}_dma7", -0.5) + row(f"{A}+{B}_tm1", f"{C}_dma7", 0.25)
    rows += row(f"{A}+{B}_tm1", "YBR001C-B_dma8", 0.1) + row(f"{A}+YZZ999W_tm2", f"{C}_dma7", 0.3)
    path = write("t.tsv", HEADER + rows + row(f"{A}+{B}_tm1", f"{C}_dma7", "NaN"))
    report = (found := read_perturbations(path, graph_of(C, B, A))).report
    assert found.deletions.nodes.tolist() == [0, 1, 2, 0, 1, 2]
    assert found.scores.tolist() == [-0.5, 0.25]
    assert (report.rows, report.kept, report.duplicates) == (5, 2, 1)
    assert report.dropped == {"no score": 1, "unknown gene": 2}
    assert "2 names unknown, such as YBR001C-B, YZZ999W" in str(found)
    assert read_perturbations(path, graph_of(C, B, A), repeats="mean").scores.tolist() == [-0.125]


def test_a_synthetic_graph_is_assigned_the_genes_of_most_samples_and_says_so(write):
    rows = row(f"{A}+{B}_tm1", f"{C}_dma7", -0.5) + row(f"{A}+{B}_tm1", "YZZ999W_dma8", 0.1)
    rows += row(f"{B}+{A}_tm1", "YZZ998W_dma8", 0.2) + row(f"{C}+{B}_tm1", "YZZ997W_dma8", 0.3)
    path = write("t.tsv", HEADER + rows)
    small = read_perturbations(path, CellGraph.synthetic(4 / 6607, metabolism=False))
    assert small.report.assigned == {B: 0, A: 1, C: 2, "YZZ997W": 3}
    assert small.deletions.nodes.tolist() == [0, 1, 2, 0, 2, 3]
    assert small.scores.tolist() == pytest.approx([-0.5, 0.3])
    assert small.report.dropped["no node left for a gene"] == 2
    assert small.report.rows == small.report.kept + sum(small.report.dropped.values())
    assert "no node names: 4 of the file's 6 genes were assigned to nodes" in str(small)
    head, *lines = path.read_text().splitlines(keepends=True)
    again = write("again.tsv", head + "".join(reversed(lines)))
    assert read_perturbations(again, CellGraph.synthetic(0.01, metabolism=False)).report.assigned[B] == 0
    with pytest.raises(ReadError, match="none of its 4 samples has all its genes among the 2 nodes"):
        read_perturbations(path, CellGraph.synthetic(2 / 6607, metabolism=False))


def test_a_graph_of_ones_own_without_names_is_refused_unless_asked():
    graph, path = CellGraph({"gene": 40}, {}, "gene"), SAMPLES / "aao1729_data_s1.tsv"
    with pytest.raises(InputError, match=r"'given' has no names for its gene nodes.*assign_unnamed=True"):
        read_perturbations(path, graph)
    assert read_perturbations(path, graph, assign_unnamed=True).report.assigned
    with pytest.raises(InputError, match="has no names"):
        read_perturbations(path, CellGraph.synthetic(0.01, metabolism=False), assign_unnamed=False)


def test_what_is_no_screen_names_the_formats_and_the_nearest(write, cell):
    lacks = HEADER.replace("P-value", "Q-value") + ROWS
    for text, why in (
        ("a\tb\n1\t2\n", r"is no screen.*'a \| b' lacks .*; known: kuzmin \(.*costanzo"),
        (lacks, "the nearest is kuzmin, of whose columns .* lacks p-value"),
        ("", "is empty"),
        (HEADER + ROWS.replace("tm", "xy"), "none of its 6 rows|"),
    ):
        with pytest.raises(ReadError, match=why):
            read_perturbations(write("t.tsv", text), cell)
    with pytest.raises(ReadError, match=r"no such file; did you mean 'aao1729_data_s1\.tsv'"):
        read_perturbations(SAMPLES / "aao1729_data_S1.tsv", cell)
    with pytest.raises(ReadError, match=r"none of its 30 rows is a trigenic sample: .*20 p not below 0"):
        read_perturbations(SAMPLES / "aao1729_data_s1.tsv", cell, p_below=0)


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
    assert read_perturbations(path, cell).fingerprint() == expected.fingerprint()
    book.active["XFD1048576"] = "x"  # one cell at a sheet's end, which would take minutes
    book.save(tmp_path / "far.xlsx")
    assert len(read_perturbations(tmp_path / "far.xlsx", cell)) == 20
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ReadError, match="is damaged or cut short"):
        kuzmin(path)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x", "y")
    with pytest.raises(ReadError, match=r"KeyError: .*\(read as a genetic interaction screen\)"):
        kuzmin(path)


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
    assert (found.report.format, len(found), found.report.unknown) == (format_name, samples, 0)
    assert len(read_perturbations(public(name), graph, mutant_type="digenic")) == digenic
    if samples == 4_606:
        assert (found.report.duplicates, found.report.rows) == (4, 10_432)
        assert len(read_perturbations(public(name), graph, repeats="mean")) == 4_602
        strong = read_perturbations(public(name), graph, p_below=0.05)
        assert (strong.scores < -0.08).sum() == 10
