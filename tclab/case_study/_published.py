"""Published figures of the case study, each with its standing; the same ratios as measured here; two experiments."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from tclab._display import Display, Shown
from tclab.errors import InputError
from tclab.lab.charts._case_study_charts import draw_published_ratios
from tclab.lab.reports._comparable_rows import ratio_of_rows
from tclab.lab.reports._stage_parts import one_point_each, times_text
from tclab.perturbation._dataset import steps_per_epoch
from tclab.sweeps.config._grid import grid
from tclab.sweeps.config._point import Point
from tclab.sweeps.store._machine_label import where_measured
from tclab.sweeps.store._row_files import Runs, rows_of
from tclab.training._step import MODES

_COLUMNS = ["key", "model", "gpus", "batch_size", "what", "value", "unit", "standing", "caveat"]
# Pairs of figures, one of each model → the modes here that run what they named. 086a's "data pipeline only" ran
# a dummy backward and the optimizer in Lightning's loop: `empty` is nearer to it than `data`.
_PAIRS = {
    "086a": ("data", "empty"),
    "524": ("data", "empty"),
    "086b": ("model",),
    "epochs": ("step",),
    "trace": ("step",),
    "full_step": ("fixed_batch",),
}


def published_figures(path: str | Path) -> pd.DataFrame:
    """Return the table of published figures, missing words as empty ones.

    **Arguments:**

    - `path`: a CSV file with the columns of `data_samples/published_measurements.csv`.

    **Raises:** `InputError` for a file that is not there or has other columns.
    """
    if not Path(path).is_file():
        raise InputError(f"published is {str(path)!r}, expected a CSV file of published figures")
    figures = pd.read_csv(path, keep_default_na=False)
    missing = [name for name in _COLUMNS if name not in figures.columns]
    if missing:
        raise InputError(f"{path} has no column {missing[0]!r}, expected {', '.join(_COLUMNS)}")
    return figures[_COLUMNS]


def ratios_of_figures(figures: pd.DataFrame) -> pd.DataFrame:
    """Return how many times longer the published hetero model took than DANGO, figure by figure.

    Columns: figure, mode (here), ratio, batches, standing, caveat. Ratios are of steps, as they were run: the two
    models' batch sizes were 28 and 64 except for `full_step`. A ratio of epochs is divided by that of their steps.
    """
    by_key = {row["key"]: row for _, row in figures.iterrows()}
    ratios = []
    for key, modes in _PAIRS.items():
        hetero, dango = by_key.get(f"{key}_hetero"), by_key.get(f"{key}_dango")
        if hetero is None or dango is None:
            continue
        longer = dango if hetero["unit"] in ("it/s", "epoch") else hetero  # a rate is high where a time is short
        ratio = float(longer["value"]) / float((hetero if longer is dango else dango)["value"])
        what = f"{key}: {hetero['what']}"
        if hetero["unit"] == "epoch":
            ratio /= _steps(hetero) / _steps(dango)
            what = f"{key}: {hetero['what']}, a step"
        batches = f"{hetero['batch_size']} and {dango['batch_size']}"
        ratios += [(what, mode, ratio, batches, hetero["standing"], hetero["caveat"]) for mode in modes]
    return pd.DataFrame(ratios, columns=["figure", "mode", "ratio", "batches", "standing", "caveat"])


def _steps(figure: pd.Series) -> int:
    return steps_per_epoch(int(figure["batch_size"]), int(figure["gpus"]))


def measured_ratios(rows: pd.DataFrame) -> pd.DataFrame:
    """Return how many times longer each hetero strategy's step takes than DANGO's, in each mode that was measured.

    Columns: mode, model, strategy, ratio, `low` and `high`, its 95 % interval (missing where there are too few steps),
    and batches.
    """
    steps = one_point_each(rows)
    steps = steps[steps["stage"] == "step"]
    ratios = []
    for mode in _modes(steps):
        group = steps[steps["mode"] == mode]
        dango = group[group["model"] == "dango"]
        if dango.empty:
            continue
        base = dango.iloc[0]
        for _, row in group[group["model"] != "dango"].iterrows():
            batches = f"{row['batch_size']} and {base['batch_size']}"
            ratios.append((mode, row["model"], row["strategy"], *ratio_of_rows(row, base), batches))
    return pd.DataFrame(ratios, columns=["mode", "model", "strategy", "ratio", "low", "high", "batches"])


@dataclass(frozen=True, repr=False)
class PublishedRatios(Shown):
    """Hetero : DANGO by mode, published and measured; displayed as a table.

    **Arguments:**

    - `measured`: as `measured_ratios` returns them. `published`: as `ratios_of_figures` does.
    - `rows`: that the measured ones are of.
    """

    measured: pd.DataFrame
    published: pd.DataFrame
    rows: pd.DataFrame

    @property
    def table(self) -> pd.DataFrame:
        """A line a figure, by mode: mode, hetero : dango, figure, standing, batches, caveat."""
        measured = self.measured
        here = pd.DataFrame(
            {
                "mode": measured["mode"],
                "hetero : dango": measured["ratio"],
                "figure": "here: " + measured["model"] + " · " + measured["strategy"],
                "standing": [
                    "measured" + ("" if pd.isna(low) else f", 95 % interval {low:.3g} to {high:.3g}")
                    for low, high in measured[["low", "high"]].to_numpy()
                ],
                "batches": measured["batches"],
                "caveat": where_measured(self.rows),
            }
        )
        old = self.published.rename(columns={"ratio": "hetero : dango"})
        both = pd.concat([here, old[here.columns]])
        order = {mode: place for place, mode in enumerate(_modes(both))}
        table = both.sort_values("mode", key=lambda modes: modes.map(order), kind="stable").reset_index(drop=True)
        return table.assign(**{"hetero : dango": table["hetero : dango"].map(times_text)})

    def _display(self) -> Display:
        table = self.table.astype(str)
        columns = ["mode", "hetero : dango", "figure", "standing", "batches"]
        caveats = table[["figure", "caveat"]].drop_duplicates()
        notes = [f"{figure.removeprefix('here: ')}: {caveat}" for figure, caveat in caveats.to_numpy() if caveat]
        return Display("", columns, table[columns].to_numpy().tolist(), notes)

    def chart(self) -> Any:
        """Return the chart of each mode: measured ratios in colour, with intervals, and published ones in grey."""
        modes = _modes(pd.concat([self.measured[["mode"]], self.published[["mode"]]]))
        text = self.published["figure"].str.split(":").str[0] + ", " + self.published["standing"]
        return draw_published_ratios(self.measured, self.published.assign(text=text), modes, self.rows)


def published_ratios(rows: Runs, figures: pd.DataFrame) -> PublishedRatios:
    """Return hetero : DANGO by mode, published and measured; its `chart()` draws both.

    **Arguments:**

    - `rows`: of points in several modes.
    - `figures`: as `published_figures` returns them.
    """
    rows = rows_of(rows)
    return PublishedRatios(measured_ratios(rows), ratios_of_figures(figures), rows)


def _modes(frame: pd.DataFrame) -> list[str]:
    return [mode for mode in MODES if mode in set(frame["mode"])]


# ---- published experiments as points

# the production model with `edge_mask`: every edge is copied once a sample
_SET_UP: dict[str, Any] = {"models": "hetero_cell_production", "strategies": "edge_mask", "batch_sizes": 28}


def experiment_083(**more: Any) -> list[Point]:
    """Return the points of experiment 083: does a step's time follow the edges? One network, and all of them.

    As published, a step was about 2.4 times as fast on the coexpression network alone (0.91 against 0.38 it/s),
    which has 41 % of the edges.

    **Arguments:**

    - `more`: as for `grid`: `tclab.sweep(experiment_083(scale=0.1, batch_sizes=2), results="runs/083")`.
    """
    return [
        *grid(**{**_SET_UP, "networks": "all", **more}),
        *grid(**{**_SET_UP, "networks": "string12_0_coexpression", **more}),
    ]


def experiment_084(**more: Any) -> list[Point]:
    """Return the points of experiment 084: what do the loss's all-gathers cost? With them, and without.

    As published, there was no difference on four GPUs (0.35 it/s without).

    **Arguments:**

    - `more`: as for `grid`.
    """
    loss = "mle_wass_supcr,mle_wass_supcr_no_gather"
    return grid(**{**_SET_UP, "networks": "all", "loss": loss, "gpus": 4, **more})
