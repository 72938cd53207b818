"""Points on real samples: a screen's deletions and scores in runs, estimates, grids, epochs and kept rows."""

import shutil
from dataclasses import replace

import numpy as np
import pytest

import tclab
from tclab import InputError, Point
from tclab.lab.panel._panel_state import PanelState
from tclab.readers import read_perturbations
from tclab.sweeps import run_epoch
from tclab.sweeps.execution._setup import setup
from tclab.sweeps.predict._epoch import full_steps
from tclab.sweeps.store._code_fingerprint import files_of
from tclab.sweeps.store._results import Results

SMALL = {"batch_size": 2, "workers": 0, "steps": 2, "warmup": 0, "device": "cpu"}


@pytest.fixture
def screen_file(root, tmp_path):
    """A copy of a made-up file in the format of Kuzmin et al. 2018."""
    return shutil.copy(root / "data_samples" / "cell" / "aao1729_data_s1.tsv", tmp_path / "screen.tsv")


@pytest.fixture
def point(screen_file):
    return Point(**SMALL, scale=0.02, networks=1, perturbations=str(screen_file))


def test_the_files_deletions_and_scores_are_what_is_trained_on(point):
    screen = point.screen()
    known = {(*screen.deletions[i].tolist(), float(screen.scores[i])) for i in range(len(screen))}
    with setup(point.resolved(), 2 * len(screen)) as here:  # more than the file has: it is gone through again
        read = here.data.samples.read(range(len(screen)))
    drawn = [(*read.deletions[i].tolist(), float(read.scores[i])) for i in range(len(screen))]
    assert set(drawn) == known
    assert len(drawn) == len(screen)
    again = point.samples(2 * len(screen))
    assert again.deletions[len(screen)].tolist() == again.deletions[0].tolist()
    other = replace(point, seed=1).samples(len(screen))
    assert not np.array_equal(other.scores.numpy(), point.samples(len(screen)).scores.numpy())


def test_rows_and_print_say_what_was_read_and_left_out(point, tmp_path, capsys):
    rows = tclab.sweep(point, results=tmp_path / "rows")
    assert set(rows["status"]) == {"ok"}
    report = point.screen().report
    (row,) = rows[rows["stage"] == "step"].to_dict("records")
    assert row["perturbations"] == point.perturbations
    assert (row["file_samples"], row["file_rows_left_out"]) == (len(point.screen()), report.rows - report.kept)
    assert row["unknown_genes"] == report.unknown
    assert row["samples_report"] == str(report)
    assert rows["num_deletions"].isna().all()  # the file says how many
    assert f"{len(point.screen())} samples of screen.tsv" in capsys.readouterr().err
    assert str(report) in " ".join(str(tclab.fits(point)).split())  # wrapped there
    synthetic = tclab.run(replace(point, perturbations=None))
    assert synthetic[["file_samples", "unknown_genes", "samples_report"]].isna().all(axis=None)


def test_genes_that_the_graph_lacks_are_counted(root, screen_file):
    with_names = Point(**SMALL, graph=str(root / "data_samples" / "cell"), perturbations=str(screen_file))
    expected = read_perturbations(screen_file, with_names.cell_graph())
    assert with_names.screen().fingerprint() == expected.fingerprint()
    assert with_names.screen().report.unknown == expected.report.unknown


@pytest.mark.slow
def test_a_changed_file_is_another_point(point, screen_file, tmp_path):
    results = Results(tmp_path / "rows")
    path, files, number = results.path(point), files_of(point), len(point.screen())
    assert results.path(replace(point, perturbations=None)) != path
    tclab.sweep(point, results=results.folder, progress=None)
    assert results.read(point) is not None
    lines = screen_file.read_text().splitlines(keepends=True)
    screen_file.write_text("".join(lines[: len(lines) // 2]))
    assert results.path(point) != path
    assert files_of(point) != files  # a warm child that has read the old file is not asked
    assert results.read(point) is None
    assert len(point.screen()) < number
    rows = tclab.sweep(point, results=results.folder, progress=None)
    assert set(rows["file_samples"]) == {len(point.screen())}
    assert len(list(results.folder.glob("*.parquet"))) == 2


def test_a_store_on_disk_is_made_for_the_files_samples(point):
    rows = tclab.run(replace(point, store="lmdb", strategy="stored_mask"))
    assert set(rows["status"]) == {"ok"}


def test_a_file_reaches_grid_and_panel(screen_file):
    points = tclab.grid(gpus=0, scale=0.02, networks=1, batch_sizes=1, perturbations=f"none,{screen_file}")
    assert {p.perturbations for p in points} == {None, str(screen_file)}
    assert {p.num_deletions for p in points if p.perturbations} == {None}
    with pytest.raises(InputError, match=r"perturbations is 'nowhere\.tsv', expected a file of a screen that exists"):
        tclab.grid(gpus=0, scale=0.02, perturbations="nowhere.tsv")
    state = PanelState(perturbations=str(screen_file), gpus=0)
    assert {p.perturbations for p in state.points()} == {str(screen_file)}
    assert PanelState.of_points(state.points(), state.results).perturbations == str(screen_file)


def test_an_epoch_is_of_the_files_training_samples(point):
    samples = len(point.screen())
    training = samples - 2 * (samples // 10)
    assert full_steps(point) == -(-training // 2)  # the last batch may be smaller
    assert full_steps(replace(point, perturbations=None)) == 132_926


@pytest.mark.parametrize(("model", "strategy"), [("hetero_cell", "node_mask"), ("dango", "indices")])
def test_both_models_learn_from_the_public_excerpt_of_real_triples(model, strategy, shared_data, tmp_path):
    file = shared_data / "kuzmin2020_excerpt" / "aaz5667_Table_S1_excerpt.tsv"
    if not file.exists():
        pytest.skip("Kuzmin's public excerpt is not in ../shared/data")
    # all four of its triples are in every batch: each step is an epoch of them
    point = Point(**{**SMALL, "batch_size": 4}, scale=0.02, networks=1, perturbations=str(file),
                  model=model, strategy=strategy)  # fmt: skip
    epoch = run_epoch(point, 40, tmp_path, threads=1)
    first, last = (sum(few) / 4 for few in (epoch.losses[:4], epoch.losses[-4:]))
    assert len(epoch.losses) == 40
    assert last < 0.98 * first, epoch.losses
    shown = " ".join(str(epoch).split())
    assert "aaz5667_Table_S1_excerpt.tsv: 4 of 11 rows kept; 7 dropped (not trigenic)" in shown
    assert f"mean loss {first:.4g} in the first tenth of the steps, {last:.4g} in the last" in shown


@pytest.mark.parametrize(
    "name", ["kuzmin2020_excerpt/aaz5667_Table_S1_excerpt.tsv", "kuzmin2020_excerpt/aaz5667_Table_S3_excerpt.tsv"]
)
def test_real_rows_are_run(name, shared_data):
    file = shared_data / name
    if not file.exists():
        pytest.skip(f"the public file {name} is not in ../shared/data")
    rows = tclab.run(Point(**SMALL, scale=0.02, networks=1, perturbations=str(file)))
    assert set(rows["status"]) == {"ok"}
    assert (rows["file_samples"] > 0).all()
