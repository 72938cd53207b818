"""Figures of README.md and docs/gpu.md, written from recordings: `python tools/readme_figures.py [FOLDER]`.

`make gpu` runs it at its end. Between two marks each page says what was measured on a GPU, on which one, at which
commit; without a recording of a GPU in FOLDER (`data_samples/recordings`), that nothing was. The picture
`docs/pictures/steps.svg` (and `steps-dark.svg`) shows `data_samples/steps.csv`. It needs pandas and pyarrow alone.
"""

import json
import sys
from pathlib import Path

import pandas as pd
import pyarrow.parquet as pq

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "data_samples" / "recordings"
STEPS = ROOT / "data_samples" / "steps.csv"
PICTURE = ROOT / "docs" / "pictures" / "steps.svg"
COLOURS = {"subgraph": "#999999", "edge_mask": "#d55e00", "node_mask": "#009e73", "delta": "#e0729a"}
PAGES = (ROOT / "README.md", ROOT / "docs" / "gpu.md")
BEGIN, END = "<!-- recordings: tools/readme_figures.py writes this -->", "<!-- end of recordings -->"
NOTHING = (
    "**Not measured on CUDA.** The code for GPUs exists, NCCL included, and no figure here is from one. `make gpu` on "
    "a machine\nwith a GPU measures everything that needs one, and puts its figures here."
)


def figures(folder: Path = FOLDER, *, short: bool = False) -> str:
    """Return a table for each recording of a GPU: HeteroCell by each strategy and DANGO, over batch sizes.

    A `short` one has those that were measured at several sizes, and `subgraph`.
    """
    tables = [_table(path, short) for path in sorted(folder.glob("*/rows.parquet"))]
    return "\n\n".join(filter(None, tables)) or NOTHING


def _table(path: Path, short: bool) -> str | None:
    rows = pq.read_table(path).to_pandas(ignore_metadata=True)
    asked = {"device": "cuda", "stage": "step", "mode": "step", "dtype": "float32", "ranks": 1}
    steps = rows[(rows[list(asked)] == pd.Series(asked)).all(axis=1)]
    if steps.empty:
        return None
    every = steps.groupby("model")["networks"].transform("max")
    steps = steps[(steps["scale"] == steps["scale"].max()) & (steps["networks"] == every)].sort_values("measured_at")
    ok = steps["status"] == "ok"
    cells = pd.DataFrame({
        "label": steps["strategy"].where(steps["model"] == "hetero_cell", "(" + steps["model"] + ")"),
        "batch": steps["batch_size"],
        # a status such as oom stands where a point has no time
        "rate": steps["samples_per_second"].map(lambda rate: f"{float(f'{rate:.3g}'):,g}").where(ok, steps["status"]),
    })  # fmt: skip
    # of two runs the later
    table = cells.pivot_table("rate", "label", "batch", aggfunc="last", fill_value="")
    if short and len(table.columns) > 1:
        table = table[((table != "").sum(axis=1) > 1) | (table.index == "subgraph")]
    best = steps["samples_per_second"].where(ok, 0.0).groupby(cells["label"]).max()
    table = table.loc[sorted(table.index, key=lambda label: ("(" in label, -best[label], label))]
    made = json.loads((path.parent / "environment.json").read_text())
    commits = sorted(commit[:7] for commit in steps["commit"].dropna().unique())
    measured = ", ".join(commits) + (", each a session of its own" if len(commits) > 1 else "")
    lines = [
        f"**Measured on {made['gpu']}** (torch {made['torch']}, commit {measured}): HeteroCell's\n"
        f"training samples per second by batch size, fp32, {steps['networks'].max()} edge types, scale "
        f"{steps['scale'].iloc[0]:g}; `(dango)` is another model, for comparison.\n",
        "| | " + " | ".join(map(str, table.columns)) + " |",
        "|---" * (len(table.columns) + 1) + "|",
        *(f"| `{label}` | " + " | ".join(cells) + " |" for label, *cells in table.itertuples()),
    ]
    return "\n".join(lines)


def written(text: str, found: str) -> str:
    """Return a page's text with the figures between its marks."""
    before, rest = text.split(BEGIN)
    return f"{before}{BEGIN}\n\n{found}\n\n{END}{rest.split(END)[1]}"


def drawn(steps: pd.DataFrame, ink: str) -> str:
    """Return an SVG of bars: a panel for each machine, the time of a training step by each strategy."""
    panels = []
    for k, (machine, rows) in enumerate(steps.groupby("machine", sort=False)):
        seconds = rows.set_index("strategy")["seconds"]
        best = seconds.idxmin()
        title = f"{best} is fastest: {seconds['subgraph'] / seconds[best]:.2g}× faster than subgraph"
        lines = [
            f'<g transform="translate({16 + 432 * k}, 0)">'
            f'<text y="24" font-size="14" font-weight="bold">{title}</text>'
            f'<text y="44">{machine}; seconds per training step, less is better</text>'
        ]
        for i, (strategy, value) in enumerate(seconds.items()):
            y, width = 58 + 30 * i, 250 * value / seconds.max()
            lines.append(
                f'<text x="76" y="{y + 15}" text-anchor="end">{strategy}</text>'
                f'<rect x="84" y="{y}" width="{width:.1f}" height="22" fill="{COLOURS[strategy]}"/>'
                f'<text x="{90 + width:.1f}" y="{y + 15}">{value:.2f} s</text>'
            )
        panels.append("".join([*lines, "</g>"]))
    style = f'font-family="Helvetica, Arial, sans-serif" font-size="13" fill="{ink}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 880 186" {style}>{"".join(panels)}</svg>\n'


def write(folder: Path = FOLDER) -> None:
    """Write both pages and both pictures."""
    for name, ink in (("steps.svg", "#333333"), ("steps-dark.svg", "#d0d0d0")):
        PICTURE.with_name(name).write_text(drawn(pd.read_csv(STEPS), ink), encoding="utf-8")
    for page in PAGES:
        found = figures(folder, short=page.name == "README.md")
        page.write_text(written(page.read_text(encoding="utf-8"), found), encoding="utf-8")


if __name__ == "__main__":
    write(*map(Path, sys.argv[1:]))
