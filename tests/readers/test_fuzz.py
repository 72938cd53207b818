from __future__ import annotations

import importlib.util
import random
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_up_samples import sample_files

from tclab.readers import ReadError, edge_list, string_links, yeastract

# of each format; benchmarks/fuzz_readers.py takes 10,000
INPUTS = {"fast": range(15), "wide": range(15, 200)}

_spec = importlib.util.spec_from_file_location(
    "fuzz_readers", Path(__file__).resolve().parents[2] / "benchmarks" / "fuzz_readers.py"
)
fuzz = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(fuzz)
FORMATS, OWN = fuzz.formats(), fuzz.own_formats()

NETWORKS = [
    *("string_dango", "string_links", "string_links_full", "edge_list", "edge_list_alone", "biogrid"),
    *("yeastract", "yeastract_matrix", "yeastract_pairs", "tflink", "tflink_targets", "sgd_regulation"),
]
SCREENS = ["kuzmin", "kuzmin_fitness", "costanzo", "sga_trigenic", "sga_digenic"]


@pytest.mark.parametrize("inputs", ["fast", pytest.param("wide", marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", FORMATS)
def test_damaged_files_give_a_clear_error_or_a_result(name, inputs, tmp_path):
    if name == "sbml":
        pytest.importorskip("cobra")
    sample, read = FORMATS[name]
    if sample.endswith(".xlsx"):
        pytest.importorskip("openpyxl")
        content = fuzz.sheet(sample_files()[fuzz.TABLE])
    else:
        content = sample_files()[sample].encode()
    for number in INPUTS[inputs]:
        (tmp_path / sample).write_bytes(fuzz.mutated(content, np.random.default_rng([1, number])))
        assert fuzz.fault(read, tmp_path / sample) is None, f"input {number}"


@pytest.mark.parametrize("inputs", ["fast", pytest.param("wide", marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", OWN)
def test_damaged_files_of_tclabs_own_give_a_clear_error_or_what_was_written(name, inputs, tmp_path, monkeypatch):
    folder, elsewhere = tmp_path / "folder", tmp_path / "elsewhere"
    folder.mkdir()
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    content = OWN[name].made(folder)
    path = folder / OWN[name].file
    for number in INPUTS[inputs]:
        path.write_bytes(OWN[name].mutate(content, np.random.default_rng([1, number])))
        assert fuzz.fault(OWN[name].read, path, OWN[name].named) is None, f"input {number}"
    assert not any(elsewhere.iterdir())


def shuffled(text, seed, header):
    lines = text.splitlines(keepends=True)
    body = lines[header:]
    random.Random(seed).shuffle(body)
    return "".join(lines[:header] + body)


def header_lines(text):
    first = text.splitlines()[0]
    if first.startswith("!"):
        return 2
    known = ("protein1", "#BioGRID", "source", "Uniprot", "Query", ";")
    return int(first.startswith(known) and not first.startswith("Query\tY"))


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("name", NETWORKS)
def test_a_network_does_not_depend_on_the_order_of_the_rows(name, seed, tmp_path):
    sample, read = FORMATS[name]
    text = sample_files()[sample]
    prints = []
    for content in (text, shuffled(text, seed, header_lines(text))):
        (tmp_path / sample).write_text(content)
        found = read(tmp_path / sample)
        networks = found.values() if isinstance(found, dict) else [found]
        prints.append([(network.fingerprint(), network.report) for network in networks])
        for network in networks:
            scores = network.report.scores
            prints[-1].append(None if scores is None else scores.tolist())
    assert prints[0] == prints[1]


@pytest.mark.parametrize("name", SCREENS)
def test_a_screen_does_not_depend_on_the_order_of_the_rows(name, tmp_path):
    sample, read = FORMATS[name]
    text = sample_files()[sample]
    found = []
    for content in (text, shuffled(text, 3, header_lines(text))):
        (tmp_path / sample).write_text(content)
        screen = read(tmp_path / sample)
        genes = screen.table[["gene_1", "gene_2", "gene_3"]].fillna("").values.tolist()
        found.append(sorted(zip(genes, screen.perturbations.scores.tolist(), strict=True)))
    assert found[0] == found[1]


NAMES = st.sampled_from(["A", "B", "C", "D", "E"])
# any text that does not end a cell or a line, nor is a byte order mark
CELLS = st.text(
    st.characters(exclude_characters="\0\t\r\n;\u200b\ufeff", exclude_categories=["Cs"]), min_size=1, max_size=6
)
ENDS = st.sampled_from(["\n", "\r\n"])


def pairs_of(network):
    return [tuple(pair) for pair in network.edge_index.T.tolist()]


@given(rows=st.lists(st.tuples(NAMES, NAMES, st.integers(-9, 9)), min_size=1), end=ENDS)
def test_an_edge_list_is_that_of_a_dictionary(tmp_path, rows, end):
    path = tmp_path / "edges.tsv"
    path.write_text("".join(f"{a}\t{b}\t{w}{end}" for a, b, w in rows), newline="")
    network = edge_list(path, "ABCDE", separator="\t", has_header=False)
    expected: dict[tuple[int, int], int] = {}
    for one, other, weight in rows:
        pair = tuple(sorted(("ABCDE".index(one), "ABCDE".index(other))))
        expected[pair] = max(weight, expected.get(pair, weight))
    assert pairs_of(network) == sorted(expected)
    assert network.weight.tolist() == [expected[pair] for pair in sorted(expected)]
    report = network.report
    assert report.rows == len(rows) == report.kept + sum(report.dropped.values())


# blanks around a name are not part of it, and a line of a comment is none of an edge
NODES = CELLS.map(str.strip).filter(lambda name: name and not name.startswith(("#", "%")))


@given(rows=st.lists(st.tuples(NODES, NODES), min_size=1))
def test_every_name_of_a_file_becomes_a_node(tmp_path, rows):
    path = tmp_path / "edges.tsv"
    path.write_text("".join(f"{a}\t{b}\n" for a, b in rows), newline="")
    network = edge_list(path, separator="\t", has_header=False, directed=True)
    names = network.report.node_names
    assert {(names[a], names[b]) for a, b in pairs_of(network)} == set(rows)


@given(
    rows=st.lists(st.tuples(NAMES, NAMES, st.integers(-5, 1005), st.integers(0, 1000)), min_size=1, max_size=20),
    threshold=st.integers(0, 1000),
)
def test_a_link_table_is_that_of_a_dictionary(tmp_path, rows, threshold):
    path = tmp_path / "4932.protein.links.detailed.v1.0.txt"
    text = "protein1 protein2 fusion database\n"
    text += "".join(f"4932.{a} 4932.{b} {fusion} {database}\n" for a, b, fusion, database in rows)
    path.write_text(text)
    bad = [place for place, row in enumerate(rows) if not 0 <= row[2] <= 1000]
    if bad:
        why = f"line {bad[0] + 2}: fusion is {rows[bad[0]][2]}, expected 0 to 1000"
        with pytest.raises(ReadError, match=why):
            string_links(path, "ABCDE", threshold=threshold)
        return
    networks = string_links(path, "ABCDE", threshold=threshold)
    for place, channel in ((2, "fusion"), (3, "database")):
        expected: dict[tuple[int, int], int] = {}
        for row in rows:
            pair = tuple(sorted("ABCDE".index(name) for name in row[:2]))
            if row[place] >= max(threshold, 1):
                expected[pair] = max(row[place], expected.get(pair, 0))
        network = networks[f"string1_0_{channel}"]
        scores = network.report.scores.tolist()
        assert dict(zip(pairs_of(network), scores, strict=True)) == expected
        assert network.report.rows == network.report.kept + sum(network.report.dropped.values())


@given(rows=st.lists(st.tuples(CELLS, CELLS), min_size=1, max_size=8))
def test_unknown_regulators_are_counted_never_guessed(tmp_path, rows):
    path = tmp_path / "RegulationTwoColumnTable_both.tsv"
    path.write_text("".join(f"{a};{b}\n" for a, b in rows), newline="")
    network = yeastract(path, ["A", "B"], unknown_limit=1.0)
    known = {(a, b) for a, b in rows if {a, b} <= {"A", "B"}}
    assert {("AB"[a], "AB"[b]) for a, b in pairs_of(network)} == known
    assert network.report.unknown == len({name for row in rows for name in row} - {"A", "B"})
