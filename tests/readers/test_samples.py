from __future__ import annotations

from pathlib import Path

import pytest
from made_up_samples import sample_files

from tclab import CellGraph, readers
from tclab.readers._metabolic_model import metabolism_of

SAMPLES = Path(__file__).resolve().parents[2] / "data_samples" / "cell"


def test_the_samples_that_are_kept_are_those_that_are_made():
    kept = {file.name: file.read_bytes().decode() for file in SAMPLES.iterdir()}
    assert kept == sample_files()


def test_the_samples_become_a_graph(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    graph = CellGraph.from_folder(SAMPLES)
    assert graph.num_nodes["gene"] == 40
    assert len(graph.networks) == 4 + 1 + 1 + 1 + 6 + 6 + 6
    assert graph.metabolism is not None
    others = {"double_mutant_allele_compsition.csv", "edge_list.csv"}
    unknown = {
        name for name, why in graph.report.ignored.items() if why.startswith("not a file name of a known format")
    }
    assert unknown == others


def test_the_model_is_the_same_in_each_format():
    models = [
        readers.yeast_gem(SAMPLES / "yeast-GEM.yml", cache=False),
        readers.yeast_gem(SAMPLES / "yeast-GEM.txt"),
        readers.bigg_json(SAMPLES / "iMU12.json"),
    ]
    found = [metabolism_of(model) for model in models]
    for metabolism in found[1:]:
        assert metabolism.gpr.edge_index.equal(found[0].gpr.edge_index)
        assert sorted(metabolism.stoichiometry.weight) == sorted(found[0].stoichiometry.weight)


def test_the_sbml_model_is_the_same_as_the_json():
    pytest.importorskip("cobra")
    model = readers.sbml(SAMPLES / "iMU12.xml", cache=False)
    expected = metabolism_of(readers.bigg_json(SAMPLES / "iMU12.json"))
    assert metabolism_of(model).gpr.edge_index.equal(expected.gpr.edge_index)


def test_the_screens_are_read():
    assert len(readers.kuzmin(SAMPLES / "aao1729_data_s1.tsv")) == 20
    assert len(readers.kuzmin(SAMPLES / "aao1729_data_s1.tsv", mutant_type="digenic")) == 10
    assert len(readers.kuzmin_fitness(SAMPLES / "aaz5667_Table_S5.tsv")) == 20
    assert len(readers.costanzo(SAMPLES / "SGA_NxN.txt")) == 30
    composition = SAMPLES / "double_mutant_allele_compsition.csv"
    path = SAMPLES / "scored_made_up_trigenic.txt"
    assert len(readers.sga_trigenic(path, deletions_only=True)) > len(
        readers.sga_trigenic(path, deletions_only=True, composition=composition)
    )
    assert len(readers.sga_digenic(SAMPLES / "scored_made_up_digenic.txt")) == 30
