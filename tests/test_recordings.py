"""The front page says what was recorded on a GPU, or that nothing was."""

import json

import readme_figures
from stage_rows import row as made_up

import tclab
from tclab import masking
from tclab.sweeps._rows import frame, table


def row(strategy, batch_size, **fields):
    """A row of a step of 10 ms on a GPU, at full size."""
    on_gpu = {"scale": 1.0, "device": "cuda", "where": "device", "gpu": "Made Up 9000", "cpu": "Made", "accumulate": 1}
    return made_up(strategy, 0.01, batch_size=batch_size, commit="0123456789", **{**on_gpu, **fields})


def recorded(folder, name, rows, **environment):
    place = folder / name
    place.mkdir(parents=True)
    frame(table(rows)).to_parquet(place / "rows.parquet")
    (place / "environment.json").write_text(json.dumps({"cpu": "Made", "gpu": None, **environment}))


def test_the_front_page_says_what_was_measured_on_which_gpu_or_that_nothing_was(tmp_path):
    for page in readme_figures.PAGES:
        found = readme_figures.figures(short=page.name == "README.md")
        assert readme_figures.written(page.read_text(), found) == page.read_text(), page
    recorded(tmp_path, "a-cpu", [row("node_mask", 2, device="cpu", gpu=None)])
    assert readme_figures.figures(tmp_path).startswith("**Not measured on CUDA.**")
    rows = [
        *(row("node_mask", size, measured_at=f"2026-01-0{size}T00:00:00+00:00") for size in (2, 8)),
        row("node_mask", 8, measured_at="2026-01-01T00:00:00+00:00", samples_per_second=1.0),  # an earlier run
        row("edge_mask", 8, status="oom", samples_per_second=None),
        row("indices", 8, model="dango", networks=6, samples_per_second=12_345.6),
        row("node_mask", 8, networks=1),
        row("node_mask", 8, scale=0.1),
        row("node_mask", 8, mode="data"),
        row("node_mask", 8, dtype="bfloat16"),
        row("node_mask", 8, stage="forward"),
    ]
    recorded(tmp_path, "made-up-9000", rows, gpu="Made Up 9000", torch="2.11.0")
    text = readme_figures.figures(tmp_path)
    assert text.startswith("**Measured on Made Up 9000** (torch 2.11.0, commit 0123456)")
    assert text.splitlines()[3:] == [
        "| | 2 | 8 |",
        "|---|---|---|",
        "| `node_mask` | 200 | 800 |",
        "| `edge_mask` |  | oom |",
        "| `(dango)` |  | 12,300 |",
    ]
    assert [line[:9] for line in readme_figures.figures(tmp_path, short=True).splitlines()[5:]] == ["| `node_m"]


def test_no_recording_has_a_strategy_that_cannot_be_chosen():
    """`tclab.advise` of a recording's rows would suggest it, and the pages' tables would name it."""
    recordings = list(readme_figures.FOLDER.glob("*/rows.parquet"))
    assert recordings
    for path in recordings:
        assert set(tclab.rows(path)["strategy"]) <= set(masking.names()), path
