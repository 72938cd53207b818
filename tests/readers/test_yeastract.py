from __future__ import annotations

import pytest

from tclab.readers import ReadError, yeastract, yeastract_names

FILE = "RegulationTwoColumnTable_both.tsv"
NAMES = "Name\tORF\nGCN4\tYEL009C\nHIS3\tYOR202W\nYF6W\tYFR006W\nYF6W\tYFL006W\nsnR13\tsnR13\n"
ROWS = "GCN4;HIS3\nGCN4;GCN4\nGCN4;snR13\nGCN4;YF6W\nGCN4;NIP100\nGCN4;YOR202W\n"


@pytest.fixture
def folder(write):
    def made(rows=ROWS, name=FILE, names=NAMES):
        write("orftogene.txt", names)
        return write(name, rows)

    return made


def test_names_become_systematic_and_nothing_is_guessed(folder):
    path = folder()
    genes = yeastract_names(path.with_name("orftogene.txt"))
    assert genes.names == ("YEL009C", "YFL006W", "YFR006W", "YOR202W", "snR13")
    network = yeastract(path, genes)
    assert network.name == "yeastract_both"
    assert network.directed
    assert network.edge_index.tolist() == [[0, 0, 0], [0, 3, 4]]
    report = network.report
    assert (report.rows, report.kept, report.self_loops, report.duplicates) == (6, 3, 1, 1)
    assert report.dropped == {"unknown gene": 2, "duplicate edge": 1}
    assert report.mapped == 2
    assert (report.unknown, report.unknown_examples) == (2, ("NIP100", "YF6W"))
    assert genes.ambiguous == {"YF6W": ("YFL006W", "YFR006W")}


def test_the_order_of_the_rows_does_not_matter(folder):
    network = yeastract(folder())
    again = yeastract(folder("".join(sorted(ROWS.splitlines(keepends=True)))))
    assert again.fingerprint() == network.fingerprint()


@pytest.mark.parametrize(
    ("rows", "line", "why"),
    [
        (ROWS + "GCN4\n", 7, "1 column between semicolons, expected 2"),
        ("GCN4;HIS3;1\n" + ROWS, 1, "3 columns"),
        (ROWS.replace(";", "\t"), 1, "expected 2"),
        (ROWS.encode() + b"GCN4;HIS\xe93\n", 7, "byte 0xe9 at column 9 is not UTF-8"),
    ],
)
def test_a_bad_row_is_an_error_with_file_and_line(folder, rows, line, why):
    with pytest.raises(ReadError, match=why) as caught:
        yeastract(folder(rows))
    assert f"{FILE}, line {line}:" in str(caught.value)


def test_another_organism_is_an_error(folder):
    with pytest.raises(ReadError, match=r"5 of 6 rows name a gene that is not in the gene list of 1"):
        yeastract(folder(), ["YEL009C"])
    assert yeastract(folder(), ["YEL009C"], unknown_limit=1.0).num_edges == 1


@pytest.mark.parametrize("names", ["Name;ORF\nA;B\n", "gene\torf\nA\tB\n", "Name\tORF\nA\n", "Name\tORF\n"])
def test_bad_names_are_errors(folder, names):
    with pytest.raises(ReadError, match=r"orftogene\.txt"):
        yeastract(folder(names=names))


@pytest.mark.parametrize(
    ("kind", "rows", "lost", "self_loops"),
    [("activator", 59_169, 84, 80), ("inhibitor", 47_047, 66, 19), ("both", 90_895, 126, 83)],
)
def test_the_public_tables_have_their_counts(public, kind, rows, lost, self_loops):
    report = yeastract(public(f"yeastract/RegulationTwoColumnTable_{kind}.tsv.gz")).report
    assert (report.rows, report.self_loops, report.duplicates) == (rows, self_loops, 0)
    assert report.kept == rows - report.dropped["unknown gene"]


def test_the_public_names_have_their_counts(public):
    genes = yeastract_names(public("yeastract/orftogene.txt"))
    assert genes.report.rows == 6_564
    assert set(genes.ambiguous) == {"YF6W", "YORW"}
