"""A recording of a machine is shown on any other, and where there is none that is said."""

import json

import pandas as pd
import pyarrow.parquet as pq
import pytest
import readme_figures

from tclab import InputError
from tclab.sweeps.store._rows import table

lab = pytest.importorskip("tclab.lab")


def row(strategy, batch_size, **fields):
    return {
        "graph": "synthetic", "scale": 1.0, "model": "hetero_cell", "strategy": strategy, "batch_size": batch_size,
        "networks": 9, "mode": "step", "device": "cuda", "ranks": 1, "dtype": "float32", "stage": "step",
        "where": "host", "n": 5, "mean_seconds": 0.01, "median_seconds": 0.01, "q1_seconds": 0.009, "q3_seconds": 0.011,
        "samples_per_second": batch_size / 0.01, "accumulate": 1, "status": "ok", "gpu": "Made Up 9000",
        "cpu": "Made", "cores": 2, **fields,
    }  # fmt: skip


def recorded(folder, name, rows, **environment):
    place = folder / name
    place.mkdir(parents=True)
    pq.write_table(table(rows), place / "rows.parquet")
    pd.DataFrame([{"kernel": "dense", "seconds": 1.0}]).to_csv(place / "rooflines.csv", index=False)
    (place / "environment.json").write_text(json.dumps({"cpu": "Made", "gpu": None, **environment}))


def test_where_nothing_is_recorded_words_say_what_records(tmp_path):
    found = lab.recording(folder=tmp_path)
    assert str(found).startswith("Nothing is recorded in data_samples/recordings: `make gpu`")
    assert found.charts() == []
    with pytest.raises(InputError, match="unknown recording 'nvidia'"):
        lab.recording("nvidia", folder=tmp_path)


def test_a_gpu_s_recording_goes_before_a_cpu_s_and_a_cpu_s_says_that_it_is_one(tmp_path):
    recorded(tmp_path, "a-cpu", [row("node_mask", 2, device="cpu", gpu=None, scale=0.02)])
    small = lab.recording(folder=tmp_path)
    assert "Made, no GPU: 1 of 1 points were measured, at scale 0.02. An example" in str(small)
    rows = [row("node_mask", 2), row("node_mask", 4), row("edge_mask", 4, status="oom", median_seconds=None)]
    recorded(tmp_path, "made-up-9000", rows, gpu="Made Up 9000")
    found = lab.recording(folder=tmp_path)
    assert str(found) == "Recorded on Made Up 9000: 2 of 3 points were measured, at scale 1."
    assert lab.recording("a-cpu", folder=tmp_path).name == "a-cpu"
    assert len(found.rooflines) == 1
    by_batch = found.charts()[0].to_dict()
    assert "Made Up 9000" in json.dumps(by_batch["title"])


def test_what_lies_in_the_project_can_be_shown():
    found = lab.recording()
    assert str(found).startswith(("Recorded on", "Nothing is recorded"))
    for chart in found.charts():
        assert chart.to_dict()


def test_the_front_page_says_what_was_measured_on_which_gpu_or_that_nothing_was(tmp_path):
    for page in readme_figures.PAGES:
        assert readme_figures.written(page.read_text(), readme_figures.figures()) == page.read_text(), page
    recorded(tmp_path, "a-cpu", [row("node_mask", 2, device="cpu", gpu=None)])
    assert readme_figures.figures(tmp_path).startswith("**Not measured on CUDA.**")
    rows = [
        *(row("node_mask", size, measured_at=f"2026-01-0{size}T00:00:00+00:00") for size in (2, 8)),
        row("node_mask", 8, measured_at="2026-01-01T00:00:00+00:00", samples_per_second=1.0),  # an earlier run
        row("edge_mask", 8, status="oom", samples_per_second=None),
        row("indices", 8, model="dango", samples_per_second=12_345.6),
        row("node_mask", 8, networks=1),
        row("node_mask", 8, scale=0.1),
        row("node_mask", 8, mode="data"),
        row("node_mask", 8, dtype="bfloat16"),
        row("node_mask", 8, where="device"),
    ]
    recorded(tmp_path, "made-up-9000", rows, gpu="Made Up 9000", torch="2.11.0", commit="0123456789")
    text = readme_figures.figures(tmp_path)
    assert text.startswith("**Measured on Made Up 9000** (torch 2.11.0, commit 0123456)")
    assert text.splitlines()[3:] == [
        "| | 2 | 8 |",
        "|---|---|---|",
        "| `(dango)` |  | 1.235e+04 |",
        "| `node_mask` | 200 | 800 |",
        "| `edge_mask` |  | oom |",
    ]
