from __future__ import annotations

import math

import pytest

from tclab import InputError
from tclab.readers import ReadError, costanzo, dango_genes, kuzmin, kuzmin_fitness, sga_digenic, sga_trigenic
from tclab.readers._screen import double_mutants

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


def test_only_rows_that_delete_three_genes_are_trigenic(table):
    screen = kuzmin(table)
    assert screen.genes.names == (A, B, C)
    assert screen.perturbations.deletions.samples().tolist() == [0, 0, 0, 1, 1, 1]
    assert screen.perturbations.deletions.nodes.tolist() == [0, 1, 2, 0, 1, 2]
    assert screen.perturbations.scores.tolist() == pytest.approx([-0.5, 0.3])
    assert screen.table[["gene_1", "gene_2", "gene_3"]].values.tolist() == [[A, B, C]] * 2
    assert screen.table["query_fitness"].isna().all()
    assert screen.report.dropped == {"no score": 1, "not trigenic": 3}
    assert screen.report.duplicates == 1


def test_a_neutral_deletion_does_not_count_first_or_second_or_in_the_array(table):
    screen = kuzmin(table, mutant_type="digenic")
    pairs = screen.table[["gene_1", "gene_2"]].values.tolist()
    assert pairs == [[A, C], [B, C], [A, B]]
    assert screen.table["gene_3"].isna().all()
    assert len(kuzmin(table, mutant_type="any")) == 5
    assert len(kuzmin(table, mutant_type="trigenic", neutral=())) == 5


def test_the_filters_are_parameters(table):
    assert len(kuzmin(table, mutant_type="any", p_below=0.05)) == 3
    deletions = kuzmin(table, mutant_type="any", deletions_only=True)
    assert deletions.report.dropped["not a deletion"] == 2
    with pytest.raises(InputError, match="unknown mutant type 'trigenc'; did you mean 'trigenic'"):
        kuzmin(table, mutant_type="trigenc")
    with pytest.raises(InputError, match="p_below is 5, expected 0 to 1"):
        kuzmin(table, p_below=5)


@pytest.mark.parametrize(("repeats", "score"), [("mean", -0.1), ("median", -0.1), ("lowest p", -0.5)])
def test_repeats_are_joined_only_when_asked(table, repeats, score):
    screen = kuzmin(table, repeats=repeats)
    assert screen.perturbations.scores.tolist() == pytest.approx([score])
    assert screen.table["rows"].tolist() == [2]
    assert screen.report.dropped[f"repeats ({repeats})"] == 1
    assert math.isnan(screen.table["p"][0]) == (repeats != "lowest p")


def test_repeats_can_be_refused(table):
    with pytest.raises(InputError, match=f"1 rows delete genes that another row deletes, such as {A}, "):
        kuzmin(table, repeats="refuse")


def test_genes_that_are_not_in_the_list_are_dropped_and_reported(table):
    screen = kuzmin(table, [C, A], mutant_type="any", unknown_limit=0.9)
    assert screen.table[["gene_1", "gene_2"]].values.tolist() == [[C, A]]
    assert screen.report.dropped["unknown gene"] == 4
    with pytest.raises(ReadError, match="4 of 5 rows name a gene that is not in the gene list"):
        kuzmin(table, [C, A], mutant_type="any")


@pytest.mark.parametrize(
    ("text", "line", "why"),
    [
        (HEADER.replace("P-value", "P") + ROWS, 1, "no column 'p-value' between tabs"),
        (HEADER + ROWS.replace("\t0.3\t0.3", "\t0.3\tlow"), 5, "is 'low', expected a number"),
        (HEADER + ROWS.replace("0.04", "1.04"), 5, "the p-value is 1.04, expected 0 to 1"),
        (
            HEADER + ROWS.replace(f"{A}_tsa9", f"{A}tsa9"),
            5,
            "strain 'YAL001Ctsa9', expected one like",
        ),
        (HEADER + ROWS.replace(f"{A}_tsa9", f"{A}+{B}_tm9"), 5, "expected one like YBL007C_dma91"),
        (HEADER + ROWS.replace("_tm4", "_4"), 5, "expected one like YAL015C"),
        (HEADER + ROWS[:-5], 7, "11 columns between tabs, expected 12"),
        (HEADER + ROWS.replace("\t", ";"), 2, "1 column between tabs"),
    ],
)
def test_a_bad_table_is_an_error_with_file_and_line(write, text, line, why):
    with pytest.raises(ReadError, match=why) as caught:
        kuzmin(write("aao1729_data_s1.tsv", text))
    assert f"aao1729_data_s1.tsv, line {line}:" in str(caught.value)


def test_a_workbook_gives_the_same_as_the_table(table, tmp_path):
    openpyxl = pytest.importorskip("openpyxl")
    book = openpyxl.Workbook()
    book.active.append(["Table S1. Trigenic interactions"])
    for number, line in enumerate((HEADER + ROWS).splitlines()):
        cells = line.split("\t")
        numbers = [float(cell) if cell not in ("", "NaN") else None for cell in cells[5:]] if number else []
        book.active.append([*cells[:5], *numbers] if number else cells)
    path = tmp_path / "aaz5667-Table-S1.xlsx"
    book.save(path)
    screen, expected = kuzmin(path), kuzmin(table)
    assert screen.table.equals(expected.table)
    assert screen.report.dropped == expected.report.dropped
    with pytest.raises(ReadError, match="more than 1,000 bytes, the limit"):
        kuzmin(path, limit_bytes=1000)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ReadError, match="not an XLSX workbook"):
        kuzmin(path)


def test_fitness_goes_by_the_bare_strain(write):
    header = "Query Strain ID\tORF1\tORF2\tGene1\tGene2\tAllele1\tAllele2\tMutant type\tFitness\tSt.dev.\n"
    rows = f"tm1\t{A}\t{B}\ta\tb\taΔ\tbΔ\tDouble mutant\t0.9\t0.1\ntm2\t{HO}\t{B}\tho\tb\thoΔ\tbΔ\tx\tNaN\tNaN\n"
    screen = kuzmin_fitness(write("aaz5667_Table_S5.tsv", header + rows))
    assert screen.perturbations.deletions.nodes.tolist() == [0, 1]
    assert screen.report.dropped == {"no score": 1}


def test_costanzos_tables_are_digenic(write):
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
    screen = costanzo(path)
    assert screen.table[["gene_1", "gene_2"]].values.tolist() == [[A, B], [B, C]]
    assert costanzo(path, deletions_only=True).perturbations.scores.tolist() == pytest.approx([0.1])


def test_the_pipelines_tables_are_read(write):
    text = (
        "Query Strain ID\tArray Strain ID\tAdjusted genetic interaction score (epsilon or tau)\tP-value\t"
        "Double/triple mutant fitness\tDouble/triple mutant fitness standard deviation\n"
        f"{A}+{B}_tm1\t{C}_dma7\t-0.1\t0.01\t0.9\t0.1\n"
        f"URA3control+{HO}_y13096\t{C}_dma7\t-0.1\t0.01\t0.9\t0.1\n"
    )
    path = write("scored_x_trigenic.txt", text)
    assert len(sga_trigenic(path)) == 1
    assert len(sga_trigenic(path, deletions_only=True)) == 1
    strains = write(
        "double_mutant.csv",
        "StrainID1\tORF1\tStrainID2\tORF2\tDMstrainID\tSM1strainID\tSM2strainID\tAnnotation\n"
        f"sn1\t{A}\ttsa2\t{B}\ttm1\ttm2\ttm3\tx\n",
    )
    assert double_mutants(strains) == {"tm1": False, "tm2": True, "tm3": False}
    assert len(sga_trigenic(path, deletions_only=True, composition=strains)) == 0
    digenic = write("scored_x_digenic.txt", f"{A}+{B}_tm1\t{C}_dma7" + "\tNaN" * 7 + "\t0.9\t0.7\t0.1\n")
    assert sga_digenic(digenic).perturbations.scores.tolist() == pytest.approx([-0.2])


def test_the_public_screens_have_their_counts(public):
    folder = public("sga_trigenic_public/scored_triple_test_small_trigenic.txt.gz").parent
    path = folder / "scored_triple_test_small_trigenic.txt.gz"
    genes = dango_genes(public("string_v9.1_dango/yeast_string_genes.txt"))
    every = sga_trigenic(path, genes, mutant_type="any")
    assert (every.report.rows, len(every)) == (10_432, 10_432)
    assert (every.table["score"].min(), every.table["score"].max()) == (-0.4234, 0.1773)
    screen = sga_trigenic(path, genes)
    assert len(screen) == 4_606
    assert screen.report.duplicates == 4
    assert len(sga_trigenic(path, genes, repeats="mean")) == 4_602
    assert len(sga_trigenic(path, genes, mutant_type="digenic")) == 5_826
    strong = screen.table[(screen.table["score"] < -0.08) & (screen.table["p"] < 0.05)]
    assert len(strong) == 10
    digenic = sga_digenic(folder / "scored_triple_test_small_digenic.txt.txt.gz", genes)
    assert len(digenic) == 10_432


@pytest.mark.parametrize(("name", "rows"), [("S1", 11), ("S3", 5)])
def test_the_public_excerpts_have_their_rows(public, name, rows):
    path = public(f"kuzmin2020_excerpt/aaz5667_Table_{name}_excerpt.tsv")
    screen = kuzmin(path, mutant_type="any")
    assert len(screen) == rows
    controls = sum(f"{HO}" in query for query in screen.table["query"])
    assert len(kuzmin(path, mutant_type="digenic")) == controls


def test_the_public_fitness_excerpt_has_its_rows(public):
    screen = kuzmin_fitness(public("kuzmin2020_excerpt/aaz5667_Table_S5_excerpt.tsv"))
    assert (screen.report.rows, len(screen)) == (6, 5)
    assert "YAR002C-A" in screen.genes.names
