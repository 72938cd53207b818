"""Published figures of the case study, each with its standing, next to the same as measured here."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pandas as pd

from tclab.errors import InputError
from tclab.lab.charts._marks import ratios
from tclab.lab.charts._style import chart_title, colours_of
from tclab.lab.reports._cells import one_point_each, ratio_of_rows, records, stage_parts, times_text
from tclab.masking._strategy import BASELINES
from tclab.perturbation._dataset import steps_per_epoch
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
_PUBLISHED_COLOUR = "#9a9a9a"
# of what a component is, its name, its stages, and the key of the published figure of the same
_COMPONENTS = (
    ("making a batch", "reading samples, making masks", ("sample", "mask"), "component_processor"),
    ("making a batch", "collation", ("collate",), "component_collation"),
    ("making a batch", "the rest", (), ""),
    ("step", "waiting for a batch", ("data_wait",), ""),
    ("step", "transfer", ("transfer",), "component_transfer"),
    ("step", "masks on the device", ("mask",), ""),
    ("step", "forward and loss", ("forward", "loss"), "component_model"),
    ("step", "backward", ("backward",), ""),
    ("step", "clip and optimizer", ("clip", "optimizer"), ""),
    ("step", "the rest", (), ""),
)
_COMPONENT_OF = {(of, stage): component for of, component, stages, _ in _COMPONENTS for stage in stages}


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


def published_ratios(rows: Runs, figures: pd.DataFrame) -> pd.DataFrame:
    """Return how many times longer a step of the hetero model takes than DANGO's, by mode, published and measured.

    Columns: mode, figure (a strategy of this machine, or a published key), ratio, `low` and `high` (its 95 % interval,
    missing for what is published or has too few steps), batches (of both models), standing, caveat.

    **Arguments:**

    - `rows`: of points in several modes.
    - `figures`: as `published_figures` returns them.
    """
    measured = measured_ratios(rows_of(rows)).rename(columns={"strategy": "figure"})
    measured = measured.assign(standing="measured here", caveat="")
    both = pd.concat([measured, ratios_of_figures(figures)])[
        ["mode", "figure", "ratio", "low", "high", "batches", "standing", "caveat"]
    ]
    order = {mode: place for place, mode in enumerate(MODES)}
    return both.sort_values("mode", key=lambda modes: modes.map(order), kind="stable").reset_index(drop=True)


def ratios_of_figures(figures: pd.DataFrame) -> pd.DataFrame:
    """Return how many times longer the published hetero model took than DANGO, figure by figure.

    Ratios are of steps, as they were run: the two models' batch sizes were 28 and 64 except for `full_step`. A ratio of
    epochs is divided by that of their steps.
    """
    by_key = {row["key"]: row for row in figures.to_dict("records")}
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
    """Return how many times longer each hetero strategy's step takes than DANGO's, in each mode that was measured."""
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
        "Hetero against DANGO", "line: 95 % interval; hollow: published, of another machine, batch sizes and code",
        rows=rows,
    )  # fmt: skip
    colour = {**dict.fromkeys(table["figure"], _PUBLISHED_COLOUR), **colours_of(table["figure"][here])}
    colours = dict(zip(found["line"], map(colour.__getitem__, found["figure"]), strict=True))
    return ratios(found, title, axis="time of a step, hetero : DANGO (logarithmic)", colours=colours)


def judged(strategies: Iterable[str]) -> str | None:
    """Return the strategy that stands for the team's: `edge_mask`, or else the first of some; `None` of none."""
    names = list(dict.fromkeys(strategies))
    return next((name for name in [*BASELINES, *names] if name in names), None)


def component_table(rows: Runs, figures: pd.DataFrame) -> pd.DataFrame:
    """Return each component of a training step: both models' mean seconds, hetero's share, and the published seconds.

    Components of the step add up to it; those of making a batch, which a worker does meanwhile, to that. The published
    seconds are estimates of the team's, never measured. What a model lacks is missing.

    **Arguments:**

    - `rows`: of both models in mode `step`, each with its own batch size (`batch_sizes="hetero_cell:28,dango:64"`). Of
      the hetero model the strategy `edge_mask` counts, which the table was of, or else the first there is.
    - `figures`: as `published_figures` returns them.
    """
    parts = stage_parts(one_point_each(rows_of(rows)))
    parts = parts[(parts["mode"] == "step") & (parts["stage"] != "idle")]
    of_dango = parts["model"] == "dango"
    hetero = parts[~of_dango]
    hetero = hetero[hetero["strategy"] == judged(hetero["strategy"])]
    table = pd.DataFrame({"hetero_seconds": _components(hetero), "dango_seconds": _components(parts[of_dango])})
    kept = [line for line in _COMPONENTS if line[:2] in table.index]
    table = table.reindex(pd.MultiIndex.from_tuples([line[:2] for line in kept], names=["of", "component"]))
    table["hetero : dango"] = table["hetero_seconds"] / table["dango_seconds"]
    table["hetero_share"] = table["hetero_seconds"] / table.groupby("of")["hetero_seconds"].transform("sum")
    values = dict(zip(figures["key"], figures["value"].astype(float), strict=True))
    table["published_seconds"] = [values.get(key, values.get(f"{key}_hetero")) for *_, key in kept]
    return table


def _components(parts: pd.DataFrame) -> pd.Series:
    """Return the seconds of each component of one model's point."""
    main = "device" if (parts["where"] == "device").any() else "host"
    of = parts["where"].map({"worker": "making a batch", "loading": "making a batch", main: "step"})
    component = [_COMPONENT_OF.get(pair, "the rest") for pair in zip(of, parts["stage"], strict=True)]
    return parts.assign(of=of, component=component).groupby(["of", "component"])["seconds"].sum()
