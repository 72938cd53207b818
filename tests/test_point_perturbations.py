"""Points on real samples: a screen's deletions and scores in runs, estimates, grids, epochs and kept rows."""

import shutil
from dataclasses import replace

import pytest
import torch

import tclab
from tclab import Point
from tclab.lab import Panel
from tclab.sweeps.config._point_inputs import cell_graph_of, resolve, samples_of, screen_of
from tclab.sweeps.execution._measure import setup
from tclab.sweeps.store._code_fingerprint import files_of
from tclab.sweeps.store._row_files import Results

SMALL = {"batch_size": 2, "workers": 0, "steps": 2, "warmup": 0, "device": "cpu"}


@pytest.fixture
def screen_file(root, tmp_path):
    """A copy of a made-up file in the format of Kuzmin et al. 2018."""
    return shutil.copy(root / "data_samples" / "cell" / "aao1729_data_s1.tsv", tmp_path / "screen.tsv")


@pytest.fixture
def point(screen_file):
    return Point(**SMALL, scale=0.02, networks=1, perturbations=str(screen_file))


def test_the_files_deletions_and_scores_are_what_is_trained_on(point):
    screen = screen_of(point)

    def rows(samples):
        return [(*samples.deletions[i].tolist(), float(samples.scores[i])) for i in range(len(screen))]

    with setup(resolve(point), 2 * len(screen)) as here:  # more than the file has: it is gone through again
        read = rows(here.data.samples.read(range(len(screen))))
    assert sorted(read) == sorted(rows(screen))
    graph = cell_graph_of(point)
    again = samples_of(point, 2 * len(screen), graph)
    assert again.deletions[len(screen)].tolist() == again.deletions[0].tolist()
    other, same = (samples_of(one, len(screen), graph).scores for one in (replace(point, seed=1), point))
    assert not torch.equal(other, same)


def test_rows_say_what_was_read_and_left_out(point, tmp_path):
    on_disk = replace(point, store="lmdb", strategy="stored_mask")
    rows = tclab.sweep([point, on_disk], results=tmp_path / "rows")
    assert set(rows["status"]) == {"ok"}
    for row in rows[rows["stage"] == "step"].to_dict("records"):
        assert row["perturbations"] == point.perturbations
        assert row["samples_report"] == str(screen_of(point).report)
    synthetic = tclab.run(replace(point, perturbations=3))
    assert synthetic["samples_report"].isna().all()


@pytest.mark.slow
def test_a_changed_file_is_another_point(point, screen_file, tmp_path):
    results = Results(tmp_path / "rows")
    files, report = files_of(point), str(screen_of(point).report)
    tclab.sweep(point, results=results.folder, progress=None)
    assert results.read(results.path(point).name) is not None
    lines = screen_file.read_text().splitlines(keepends=True)
    screen_file.write_text("".join(lines[: len(lines) // 2]))
    assert files_of(point) != files  # a warm child that has read the old file is not asked
    assert results.read(results.path(point).name) is None
    rows = tclab.sweep(point, results=results.folder, progress=None)
    assert set(rows["samples_report"]) == {str(screen_of(point).report)} != {report}
    assert len(list(results.folder.glob("*.parquet"))) == 2


def test_a_file_reaches_grid_and_panel(screen_file):
    points = tclab.grid(gpus=0, scale=0.02, networks=1, batch_sizes=1, perturbations=f"1,2,{screen_file}")
    assert {p.perturbations for p in points} == {1, 2, str(screen_file)}
    with pytest.raises(tclab.InputError, match=r"perturbations is 'nowhere\.tsv', expected a file of a screen that"):
        tclab.grid(gpus=0, scale=0.02, perturbations="nowhere.tsv")
    panel = Panel(perturbations=str(screen_file), gpus=0)
    assert {p.perturbations for p in panel.points()} == {str(screen_file)}


def test_both_models_learn_from_the_public_excerpt_of_real_triples(shared_data):
    # all four of its triples are in every batch: each step is an epoch of them
    file = shared_data / "kuzmin2020_excerpt/aaz5667_Table_S1_excerpt.tsv"
    if not file.exists():
        pytest.skip(f"the public file {file.name} is not in ../shared/data")
    of = {**SMALL, "batch_size": 4, "scale": 0.02, "networks": 1, "perturbations": str(file)}
    for model, strategy in (("hetero_cell", "node_mask"), ("dango", "indices")):
        point = Point(**of, model=model, strategy=strategy)
        with setup(resolve(point), 40 * 4) as here:
            losses = [loss.item() for loss in here.run(here.batches(), steps=40)]
        assert sum(losses[-4:]) < 0.98 * sum(losses[:4]), losses
        assert "4 of 11 rows kept; 7 dropped (not trigenic)" in str(screen_of(point).report)
