"""Published figures of the case study, each with its standing, next to the same as measured here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from io import BytesIO
from pathlib import Path
from typing import Any

import pandas as pd

from tclab._source import opened
from tclab.lab.charts._marks import ratios
from tclab.lab.charts._style import chart_title, colours_of
from tclab.lab.reports._cells import one_point_each, ratio_of_rows, records, stage_parts, times_text
from tclab.masking._strategy import BASELINES
from tclab.perturbation._deletions import steps_per_epoch
from tclab.sweeps._row_files import Runs, rows_of
from tclab.training._step import MODES

_COLUMNS = ["key", "model", "gpus", "batch_size", "what", "value", "unit", "standing", "caveat"]
# Pairs of figures, one of each model → the modes here that run what they named. 086a's "data pipeline only" ran
# a dummy backward and the optimizer in Lightning's loop: `empty` is nearer to it than `data`.
_PAIRS = {
    "086a": ("data", "empty"), "524": ("data", "empty"), "086b": ("model",), "epochs": ("step",), "trace": ("step",),
    "full_step": ("fixed_batch",),
}  # fmt: skip
_PUBLISHED_COLOUR = "#9a9a9a"
# of a timeline and stage, the key of the published figure of the same
_COMPONENTS = {
    ("worker", "mask"): "component_processor",
    ("worker", "collate"): "component_collation",
    ("host", "transfer"): "component_transfer",
    ("host", "forward"): "component_model_hetero",
}


def published_figures(path: str | Path) -> pd.DataFrame:
    """Return the table of published figures, missing words as empty ones."""
    with opened(path, "published figures") as content:
        return pd.read_csv(BytesIO(content), usecols=_COLUMNS, keep_default_na=False)[_COLUMNS]


def published_ratios(rows: Runs, figures: str | Path) -> pd.DataFrame:
    """Return how many times longer a step of the hetero model takes than DANGO's, by mode, published and measured.

    Columns: mode, figure (a strategy of this machine, or a published key), ratio, `low` and `high` (its 95 % interval,
    missing for what is published or has too few steps), batches (of both models), standing, caveat.

    **Arguments:**

    - `rows`: of points in several modes.
    - `figures`: the published ones, a CSV file with the columns of `data_samples/published_measurements.csv`.

    **Raises:** `InputError` for a file that is not there or lacks one of these columns.
    """
    measured = measured_ratios(rows_of(rows)).rename(columns={"strategy": "figure"})
    both = pd.concat([measured.assign(standing="measured here", caveat=""), ratios_of_figures(figures)])
    order = {mode: place for place, mode in enumerate(MODES)}
    return both.sort_values("mode", key=lambda modes: modes.map(order), kind="stable").reset_index(drop=True)


def ratios_of_figures(figures: str | Path) -> pd.DataFrame:
    """Return how many times longer the published hetero model took than DANGO, figure by figure.

    Ratios are of steps, as they were run: the two models' batch sizes were 28 and 64 except for `full_step`. A ratio of
    epochs is divided by that of their steps.
    """
    by_key = {row["key"]: row for row in published_figures(figures).to_dict("records")}
    found: list[dict[str, Any]] = []
    for key, modes in _PAIRS.items():
        hetero, dango = by_key.get(f"{key}_hetero"), by_key.get(f"{key}_dango")
        if hetero is None or dango is None:
            continue
        ratio = float(hetero["value"]) / float(dango["value"])
        if hetero["unit"] in ("it/s", "epoch"):  # a rate is high where a time is short
            ratio = 1 / ratio
        if hetero["unit"] == "epoch":
            ratio /= _steps(hetero) / _steps(dango)
        batches = f"{hetero['batch_size']} and {dango['batch_size']}"
        more = {"batches": batches, "standing": hetero["standing"], "caveat": f"{hetero['what']}. {hetero['caveat']}"}
        found += [{"mode": mode, "figure": key, "ratio": ratio, "low": None, "high": None} | more for mode in modes]
    return pd.DataFrame(found)


def _steps(figure: dict[Any, Any]) -> int:
    return steps_per_epoch(int(figure["batch_size"]), int(figure["gpus"]))


def measured_ratios(rows: pd.DataFrame) -> pd.DataFrame:
    """Return how many times longer each hetero strategy's step takes than factored DANGO's, in each mode measured."""
    steps = one_point_each(rows)
    steps = steps[steps["stage"] == "step"]
    found = []
    for mode, group in steps.groupby("mode", sort=False):
        of_dango = group["model"] == "dango"
        for base in records(group[of_dango].head(1)):
            for row in records(group[~of_dango]):
                batches = f"{row['batch_size']} and {base['batch_size']}"
                found.append((mode, row["strategy"], *ratio_of_rows(row, base), batches))
    return pd.DataFrame(found, columns=["mode", "strategy", "ratio", "low", "high", "batches"])


def ratios_chart(table: pd.DataFrame, rows: Runs) -> Any:
    """Return the chart of `published_ratios`: each mode's measured ratios in colour, published ones in grey.

    **Arguments:**

    - `table`: of `published_ratios`. `rows`: those it was made of, for the title.
    """
    rows = rows_of(rows)
    here = table["standing"] == "measured here"
    found = table.rename(columns={"ratio": "value"}).assign(
        line=table["mode"] + " · " + table["figure"] + (", " + table["standing"]).where(~here, ""),
        sure=here,
        text=table["ratio"].map(times_text),
        why=table["caveat"],
    )
    title = chart_title(
        "Hetero against DANGO",
        "line: 95 % interval; here DANGO is factored; hollow: published (dense), another machine, batch size and code",
        rows=rows,
    )
    colour = {**dict.fromkeys(table["figure"], _PUBLISHED_COLOUR), **colours_of(table["figure"][here])}
    colours = dict(zip(found["line"], map(colour.__getitem__, found["figure"]), strict=True))
    return ratios(found, title, axis="time of a step, hetero : DANGO (logarithmic)", colours=colours)


def artefacts_chart(wrong: Mapping[str, float], right: Mapping[str, float], rows: Runs) -> Any:
    """Return the chart of wrong ratios, each next to the right one of the same runs.

    **Arguments:**

    - `wrong`, `right`: name of a published ratio and its mistake → how many times as slow, with the mistake and
      without.
    - `rows`: those they were made of, for the title.
    """
    both = pd.DataFrame({"wrong": wrong, "right": right}).rename_axis("line").reset_index()
    found = both.melt("line", var_name="kind").assign(low=None, high=None)
    found["text"], found["line"] = found["value"].map("{:.3g} ×".format), found["line"] + ", " + found["kind"]
    colours = dict(zip(found["line"], found["kind"].map({"wrong": "#d55e00", "right": "#009e73"}), strict=True))
    title = chart_title("The same runs, five mistakes", rows=rows_of(rows))
    return ratios(found.sort_values("line"), title, axis="times as slow (logarithmic)", colours=colours)


def judged(strategies: Iterable[str]) -> str | None:
    """Return the strategy that stands for the team's: `edge_mask`, or else the first of some; `None` of none."""
    names = list(dict.fromkeys(strategies))
    return next((name for name in [*BASELINES, *names] if name in names), None)


def component_table(rows: Runs, figures: str | Path) -> pd.DataFrame:
    """Return the mean seconds of each stage of a training step, a column a model, and the published seconds.

    The stages of a timeline add up to it; a worker makes a batch while the host takes a step. The published seconds are
    estimates of the team's, never measured. What a model or the publication lacks is missing.

    **Arguments:**

    - `rows`: of points in mode `step`, each model with its own batch size (`batch_sizes="hetero_cell:28,dango:64"`). Of
      the hetero model the strategy `edge_mask` counts, which the publication was of, or else the first there is.
    - `figures`: the published ones, a CSV file with the columns of `data_samples/published_measurements.csv`.

    **Raises:** `InputError` for a file that is not there or lacks one of these columns.
    """
    parts = stage_parts(one_point_each(rows_of(rows)))
    parts = parts[(parts["mode"] == "step") & (parts["stage"] != "idle")]
    hetero = parts["model"] != "dango"
    parts = parts[~hetero | (parts["strategy"] == judged(parts[hetero]["strategy"]))]
    table = parts.pivot_table("seconds", ["where", "stage"], "model", sort=False)
    published = published_figures(figures).set_index("key")["value"].astype(float)
    table["published"] = [published.get(_COMPONENTS.get(at, "")) for at in table.index]
    return table
