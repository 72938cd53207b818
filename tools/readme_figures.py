"""Figures of README.md and docs/gpu.md, written from recordings: `python tools/readme_figures.py [FOLDER]`.

`make gpu` runs it at its end. Between two marks each page says what was measured on a GPU, on which one, at which
commit; without a recording of a GPU in FOLDER (`data_samples/recordings`), that nothing was. The pictures `steps.svg`
and `changed_rows.svg` in `docs/pictures`, each with one for dark pages, show `data_samples/steps.csv` and
`changed_rows.csv`, measured by `benchmarks/steps.py` and `benchmarks/sparse.py --share`.
It needs pandas and pyarrow alone.
"""

import json
import sys
from pathlib import Path

import pandas as pd
import pyarrow.parquet as pq

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "data_samples" / "recordings"
PICTURES = ROOT / "docs" / "pictures"
COLOURS = {"subgraph": "#999999", "edge_mask": "#d55e00", "node_mask": "#009e73", "delta": "#e0729a"}
BLUE = "#5a8fd0"
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
    measured = f"commits {', '.join(commits)}, in separate runs" if len(commits) > 1 else f"commit {commits[0]}"
    lines = [
        f"**Measured on {made['gpu']}** (torch {made['torch']}, {measured}): HeteroCell's\n"
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


def steps_panels(steps: pd.DataFrame) -> list[tuple]:
    """Return a panel for each machine: the time of a training step by each strategy."""
    panels = []
    for machine, rows in steps.groupby("machine", sort=False):
        seconds = rows.set_index("strategy")["seconds"]
        best = seconds.idxmin()
        title = f"{best} is fastest: {seconds['subgraph'] / seconds[best]:.2g}× faster than subgraph"
        bars = [(name, value, f"{value:.2f} s", COLOURS[name]) for name, value in seconds.items()]
        panels.append((title, f"{machine}; seconds per training step, less is better", bars))
    return panels


def pays_panels(pays: pd.DataFrame) -> list[tuple]:
    """Return panels over failures and over lines per station: how many times as fast changed rows are."""
    made = []
    for by, words in (("most_failures", "failures"), ("lines_per_station", "lines per station")):
        rows = pays[pays["lines_per_station"] == pays["lines_per_station"].min()]
        rows = rows if by == "most_failures" else pays[pays["most_failures"] == pays["most_failures"].min()]
        for way, column in (("PyG's batch", "pyg"), ("whole samples", "whole")):
            labels = [f"{row[by]:g} {words} ({row['differing']:.0%})" for _, row in rows.iterrows()]
            bars = [(label, times, f"{times:.1f}×", BLUE) for label, times in zip(labels, rows[column], strict=True)]
            title = f"{rows[column].min():.2g} to {rows[column].max():.2g} times as fast as {way}"
            made.append((title, "ChangedRows; in brackets: rows that differ", bars))
    return made


def drawn(panels: list[tuple], ink: str) -> str:
    """Return an SVG of panels of bars, two beside each other; a bar is a label, a value, its words and a colour."""
    height, parts = 66 + 30 * max(len(bars) for *_, bars in panels), []
    for k, (title, subtitle, bars) in enumerate(panels):
        wide, most = 10 + max(8 * len(label) for label, *_ in bars), max(value for _, value, *_ in bars)
        parts.append(
            f'<g transform="translate({16 + 432 * (k % 2)}, {height * (k // 2)})">'
            f'<text y="24" font-size="14" font-weight="bold">{title}</text><text y="44">{subtitle}</text>'
        )
        for i, (label, value, words, colour) in enumerate(bars):
            y, width = 58 + 30 * i, (350 - wide) * value / most
            parts.append(
                f'<text x="{wide - 8}" y="{y + 15}" text-anchor="end">{label}</text>'
                f'<rect x="{wide}" y="{y}" width="{width:.1f}" height="22" fill="{colour}"/>'
                f'<text x="{wide + 6 + width:.1f}" y="{y + 15}">{words}</text>'
            )
        parts.append("</g>")
    size = f'viewBox="0 0 880 {height * -(-len(panels) // 2)}"'
    style = f'font-family="Helvetica, Arial, sans-serif" font-size="13" fill="{ink}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} {style}>{"".join(parts)}</svg>\n'


def write(folder: Path = FOLDER) -> None:
    """Write both pages and the pictures, for light pages and for dark ones."""
    for name, panels in (("steps", steps_panels), ("changed_rows", pays_panels)):
        figures_of = pd.read_csv(ROOT / "data_samples" / f"{name}.csv")
        for end, ink in ((".svg", "#333333"), ("-dark.svg", "#d0d0d0")):
            PICTURES.joinpath(name + end).write_text(drawn(panels(figures_of), ink), encoding="utf-8")
    for page in PAGES:
        found = figures(folder, short=page.name == "README.md")
        page.write_text(written(page.read_text(encoding="utf-8"), found), encoding="utf-8")


if __name__ == "__main__":
    write(*map(Path, sys.argv[1:]))
