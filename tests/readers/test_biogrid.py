from __future__ import annotations

import pytest

from tclab.readers import ReadError, biogrid, sgd_features

TAB3 = [
    "#BioGRID Interaction ID",
    "Systematic Name Interactor A",
    "Systematic Name Interactor B",
    "Experimental System",
    "Experimental System Type",
    "Organism ID Interactor A",
    "Organism ID Interactor B",
]
ROWS = [
    ["1", "YAL001C", "YBR001C", "Two-hybrid", "physical", "559292", "559292"],
    ["2", "YBR001C", "YAL001C", "Affinity Capture-MS", "physical", "559292", "559292"],
    ["3", "YAL001C", "YAL002W", "Synthetic Lethality", "genetic", "559292", "559292"],
    ["4", "YAL002W", "YAL002W", "PCA", "physical", "559292", "559292"],
    ["5", "YAL002W", "-", "PCA", "physical", "559292", "9606"],
]
GENES = ["YAL001C", "YAL002W", "YBR001C"]


def table(header, rows):
    return "\n".join("\t".join(row) for row in [header, *rows]) + "\n"


def test_physical_interactions_of_yeast_become_a_network(write):
    path = write("BIOGRID-ALL-4.4.200.tab3.txt", table(TAB3, ROWS))
    network = biogrid(path, GENES)
    assert network.name == "biogrid_physical"
    assert network.edge_index.tolist() == [[0, 1], [2, 1]]
    assert network.report.dropped == {
        "Experimental System Type is not physical": 1,
        "organism is not 559292": 1,
        "reverse of an undirected edge": 1,
    }
    assert network.report.self_loops == 1
    assert biogrid(path, GENES, system_type="genetic").num_edges == 1
    both = biogrid(path, GENES, system_type=None, organism=None, self_loops=False)
    assert both.name == "biogrid"
    assert both.report.dropped["unknown gene"] == 1
    assert both.edge_index.tolist() == [[0, 0], [1, 2]]


def test_columns_and_rows_may_be_in_any_order(write):
    expected = biogrid(write("a.tab3.txt", table(TAB3, ROWS)), GENES).fingerprint()
    mirrored = [row[::-1] for row in [[name.lstrip("#") for name in TAB3], *ROWS[::-1]]]
    mirrored[0][0] = "#" + mirrored[0][0]
    assert biogrid(write("b.tab3.txt", table(mirrored[0], mirrored[1:])), GENES).fingerprint() == expected


@pytest.mark.parametrize(
    ("text", "place", "why"),
    [
        (
            table(TAB3, ROWS).replace("\t", ","),
            ", line 1:",
            "no column 'Systematic Name Interactor A' between tabs",
        ),
        (table(TAB3[:-1], [row[:-1] for row in ROWS]), ", line 1:", "no column 'Organism ID Interactor B'"),
        (table(TAB3, [*ROWS, ROWS[0][:5]]), ", line 7:", "5 columns between tabs, expected 7"),
        (
            table(TAB3, ROWS).replace("genetic", "gentic"),
            ", line 4:",
            "'gentic', expected physical or genetic",
        ),
        (table(TAB3, []), "", "holds no rows"),
    ],
)
def test_a_bad_table_is_an_error_with_file_and_line(write, text, place, why):
    with pytest.raises(ReadError, match=why) as caught:
        biogrid(write("x.tab3.txt", text), GENES)
    assert f"x.tab3.txt{place}" in str(caught.value)


def test_the_public_table_has_its_counts(public):
    genes = sgd_features(public("sgd_features/SGD_features_barseq.tab.gz"))
    path = public("biogrid_tab2_whi2/BIOGRID-GENE-34444-3.1.84.tab2.txt")
    report = biogrid(path, genes).report
    assert (report.rows, report.kept) == (294, 13)
    assert report.dropped["Experimental System Type is not physical"] == 275
    whi2 = biogrid(path, genes, system_type="genetic")
    assert (whi2.edge_index == genes.place("YOR043W")).any(dim=0).all()
