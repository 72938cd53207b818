from __future__ import annotations

import random

import pytest

from tclab import InputError
from tclab.readers import ReadError, string_links

FILE = "4932.protein.links.detailed.v12.0.txt"
GENES = ["YAL001C", "YAL002W", "YBR001C"]
HEADER = (
    "protein1 protein2 neighborhood fusion cooccurence coexpression experimental database textmining combined_score\n"
)
ROWS = (
    "4932.YAL001C 4932.YAL002W 0 0 0 300 900 0 0 910\n"
    "4932.YAL002W 4932.YAL001C 0 0 0 300 900 0 0 910\n"
    "4932.YBR001C 4932.YAL001C 0 0 0 200 0 0 0 200\n"
    "4932.YAL001C 4932.YBR001C 0 0 0 200 0 0 0 200\n"
    "4932.Q0010 4932.YAL001C 0 0 0 200 0 0 0 200\n"
)


def test_each_channel_becomes_a_network(write):
    networks = string_links(write(FILE, HEADER + ROWS), GENES)
    assert list(networks) == [
        f"string12_0_{channel}"
        for channel in ("neighborhood", "fusion", "cooccurence", "coexpression", "experimental", "database")
    ]
    network = networks["string12_0_coexpression"]
    assert network.edge_index.tolist() == [[0, 0], [1, 2]]
    assert network.weight is None
    assert not network.directed
    report = network.report
    assert report.scores.tolist() == [300, 200]
    assert (report.rows, report.kept, report.unknown_examples) == (5, 2, ("4932.Q0010",))
    assert report.dropped == {"unknown gene": 1, "reverse of an undirected edge": 2}
    assert networks["string12_0_fusion"].num_edges == 0


def test_threshold_and_channels_are_parameters(write):
    path = write(FILE + ".gz", HEADER + ROWS)
    networks = string_links(path, GENES, threshold=300, channels=["combined", "coexpression"])
    assert list(networks) == ["string12_0_combined", "string12_0_coexpression"]
    assert networks["string12_0_coexpression"].num_edges == 1
    assert networks["string12_0_coexpression"].report.dropped["score below 300"] == 2
    with pytest.raises(InputError, match="unknown channel 'coexpresion'; did you mean 'coexpression'"):
        string_links(path, GENES, channels=["coexpresion"])
    with pytest.raises(InputError, match="threshold is 1001, expected 0 to 1000"):
        string_links(path, GENES, threshold=1001)


def test_the_plain_table_has_the_combined_score(write):
    path = write("4932.protein.links.v11.5.txt", "protein1 protein2 combined_score\n4932.YAL001C 4932.YBR001C 7\n")
    networks = string_links(path, GENES)
    assert list(networks) == ["string11_5_combined"]
    assert "1 edges appear once" in str(networks["string11_5_combined"].report)


def test_rows_and_columns_may_be_in_any_order(write):
    expected = {name: n.fingerprint() for name, n in string_links(write(FILE, HEADER + ROWS), GENES).items()}
    table = [line.split() for line in (HEADER + ROWS).splitlines()]
    columns = list(range(10))
    random.Random(1).shuffle(columns)
    rows = table[1:]
    random.Random(2).shuffle(rows)
    text = "\n".join(" ".join(row[place] for place in columns) for row in [table[0], *rows])
    assert {n.name: n.fingerprint() for n in string_links(write(FILE, text), GENES).values()} == expected


@pytest.mark.parametrize(
    ("text", "line", "why"),
    [
        ((HEADER + ROWS).replace(" ", "\t"), 1, "no column 'protein1' between spaces"),
        (
            (HEADER + ROWS).replace("protein2", "protein"),
            1,
            "no column 'protein2' between spaces; did you mean",
        ),
        (HEADER.replace("fusion", "database") + ROWS, 1, "the column 'database' twice"),
        (HEADER + ROWS.replace("900 0 0 910", "900 0 910"), 2, "9 columns between spaces, expected 10"),
        (HEADER + ROWS.replace("300 900", "300 1001"), 2, "experimental is 1001, expected 0 to 1000"),
        (HEADER + ROWS.replace("300 900", "300 -1"), 2, "experimental is -1, expected 0 to 1000"),
        (HEADER + ROWS.replace("300 900", "300 0.9"), 2, "experimental is '0.9', expected a whole number"),
        (HEADER + ROWS + "4932.YAL001C 4932.YA", 7, "2 columns between spaces"),
        ((HEADER + ROWS).encode().replace(b"Q0010", b"Q\xff10"), 6, "byte 0xff at column 7 is not UTF-8"),
    ],
)
def test_a_bad_table_is_an_error_with_file_and_line(write, text, line, why):
    with pytest.raises(ReadError, match=why) as caught:
        string_links(write(FILE, text), GENES)
    assert f"{FILE}, line {line}:" in str(caught.value)


def test_an_empty_table_and_another_organism_are_errors(write):
    with pytest.raises(ReadError, match="holds no rows"):
        string_links(write(FILE, HEADER), GENES)
    with pytest.raises(ReadError, match=r"5 of 5 rows name a gene that is not in the gene list of 1"):
        string_links(write(FILE, HEADER + ROWS), ["BRCA1"])


def test_progress_goes_from_some_to_all_of_the_file(write):
    path = write(FILE, HEADER + ROWS)
    seen = []
    string_links(path, GENES, progress=lambda done, whole: seen.append((done, whole)))
    assert seen[-1] == (path.stat().st_size, path.stat().st_size)


def test_transferred_evidence_is_joined_as_string_joins_it(public, write):
    path = public("string_full_v10.5_excerpt/4932.protein.links.full.v10.5.excerpt.txt")
    genes = ["YAL005C", "YLL024C", "YMR214W", "YPL094C"]
    networks = string_links(path, genes, unknown_limit=1.0)
    assert networks["string10_5_coexpression"].report.rows == 9
    # 41 with 668 transferred: 41 is the prior, so that it adds nothing
    assert networks["string10_5_coexpression"].report.scores.tolist() == [912, 409, 152]
    assert networks["string10_5_experimental"].report.scores.tolist() == [652, 668]
    own = string_links(path, genes, unknown_limit=1.0, transferred=False)
    assert own["string10_5_experimental"].report.scores.tolist() == [652, 41]
