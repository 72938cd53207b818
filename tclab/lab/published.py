"""The original team's published figures, each with its standing, beside what was measured here: as ratios alone."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import altair as alt
import pandas as pd

from tclab.errors import InputError
from tclab.lab.charts import _colour
from tclab.lab.colours import STRATEGY_COLOURS
from tclab.lab.log_ticks import log_ticks
from tclab.lab.parts import one_point_each, times_text
from tclab.sweeps.measured_on import graph_text, where_measured
from tclab.training import MODES

_COLUMNS = ["key", "model", "gpus", "batch_size", "what", "value", "unit", "standing", "caveat"]
RECORDS = 265_851  # of the published training split
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
_BETWEEN = alt.Axis(grid=True, bandPosition=0, gridOpacity=0.5, ticks=False)  # lines between the rows
# What may be believed, from most to least; a shape and a grey each
_STANDINGS = {
    "steady": ("square", "#000000"),
    "real training": ("diamond", "#000000"),
    "expected": ("triangle-up", "#777777"),
    "suspect": ("triangle-down", "#999999"),
    "artefact": ("cross", "#999999"),
}


def steps_per_epoch(batch_size: int, ranks: int, samples: int = RECORDS) -> int:
    """Return how many steps an epoch has: plain arithmetic, the last batch may be smaller."""
    return math.ceil(samples / (batch_size * ranks))


def published_figures(path: str | Path) -> pd.DataFrame:
    """Return the table of published figures as it is kept, missing words as empty ones.

    **Raises:** `InputError` for a file that is not there or has other columns.
    """
    if not Path(path).is_file():
        raise InputError(f"published is {str(path)!r}, expected a CSV file of published figures")
    found = pd.read_csv(path, keep_default_na=False)
    missing = [name for name in _COLUMNS if name not in found.columns]
    if missing:
        raise InputError(f"{path} has no column {missing[0]!r}, expected {', '.join(_COLUMNS)}")
    return found[_COLUMNS]


def published_ratios(figures: pd.DataFrame) -> pd.DataFrame:
    """Return how many times longer the published hetero model took than DANGO, figure by figure.

    Columns: figure, mode (here), ratio, per, standing, caveat. Of steps, as they were run: the two models' batch
    sizes were 28 and 64 but for `full_step`'s. Epochs are brought to steps by the steps that each has.
    """
    by_key = {row["key"]: row for _, row in figures.iterrows()}
    found = []
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
        found += [
            {
                "figure": what,
                "mode": mode,
                "ratio": ratio,
                "batches": f"{hetero['batch_size']} and {dango['batch_size']}",
                "standing": hetero["standing"],
                "caveat": hetero["caveat"],
            }
            for mode in modes
        ]
    return pd.DataFrame(found, columns=["figure", "mode", "ratio", "batches", "standing", "caveat"])


def _steps(figure: pd.Series) -> int:
    return steps_per_epoch(int(figure["batch_size"]), int(figure["gpus"]))


def measured_ratios(rows: pd.DataFrame) -> pd.DataFrame:
    """Return how many times longer each hetero strategy's step takes than DANGO's, in each mode that was measured.

    Columns: mode, model, strategy, ratio, and `low` and `high`, what the quartiles of both allow.
    """
    steps = one_point_each(rows)
    steps = steps[steps["stage"] == "step"]
    found = []
    for mode in _modes(steps):
        own = steps[steps["mode"] == mode]
        dango = own[own["model"] == "dango"]
        if dango.empty:
            continue
        base = dango.iloc[0]
        for _, row in own[own["model"] != "dango"].iterrows():
            found.append(
                {
                    "mode": mode,
                    "model": row["model"],
                    "strategy": row["strategy"],
                    "ratio": float(row["median_seconds"] / base["median_seconds"]),
                    "low": float(row["q1_seconds"] / base["q3_seconds"]),
                    "high": float(row["q3_seconds"] / base["q1_seconds"]),
                    "batches": f"{row['batch_size']} and {base['batch_size']}",
                }
            )
    return pd.DataFrame(found, columns=["mode", "model", "strategy", "ratio", "low", "high", "batches"])


def beside_published(rows: pd.DataFrame, figures: pd.DataFrame) -> pd.DataFrame:
    """Return hetero : DANGO by mode, published beside measured, a line for each figure of either."""
    measured = measured_ratios(rows)
    here = pd.DataFrame(
        {
            "mode": measured["mode"],
            "hetero : dango": measured["ratio"],
            "figure": "here: " + measured["model"] + " · " + measured["strategy"],
            "standing": [
                f"measured, quartiles {a:.3g} to {b:.3g}" for a, b in measured[["low", "high"]].to_numpy()
            ],
            "batches": measured["batches"],
            "caveat": where_measured(rows),
        }
    )
    old = published_ratios(figures).rename(columns={"ratio": "hetero : dango"})
    both = pd.concat([here, old[here.columns]])
    order = {mode: place for place, mode in enumerate(_modes(both))}
    found = both.sort_values("mode", key=lambda modes: modes.map(order), kind="stable").reset_index(drop=True)
    return found.assign(**{"hetero : dango": found["hetero : dango"].map(times_text)})


def _modes(frame: pd.DataFrame) -> list[str]:
    return [mode for mode in MODES if mode in set(frame["mode"])]


def _scale_of(standings: list[str], place: int) -> alt.Scale:
    return alt.Scale(domain=standings, range=[_STANDINGS[name][place] for name in standings])


def ratios_beside_published(rows: pd.DataFrame, figures: pd.DataFrame) -> Any:
    """Return hetero : DANGO in each mode, measured in colour with quartiles, published in black and grey."""
    measured, old = measured_ratios(rows), published_ratios(figures)
    measured["way"] = "here: " + measured["model"] + " · " + measured["strategy"]
    old["key"] = old["figure"].str.split(":").str[0]
    old["text"] = old["key"] + ", " + old["standing"]
    modes = _modes(pd.concat([measured[["mode"]], old[["mode"]]]))
    y = alt.Y(
        "mode:N",
        sort=modes,
        scale=alt.Scale(domain=modes, paddingInner=0, paddingOuter=0),
        title=None,
        axis=_BETWEEN,
    )
    lanes = ["published", *(name for name in STRATEGY_COLOURS if name in set(measured["strategy"]))]
    lanes += [name for name in dict.fromkeys(measured["strategy"]) if name not in lanes]
    offset = alt.Scale(domain=lanes, paddingOuter=0.6)
    every = [1.0, *old["ratio"], *measured["low"], *measured["high"]]
    x = alt.X(
        "ratio:Q",
        title="time of a step, hetero : DANGO (1 = the same)",
        scale=alt.Scale(type="log", nice=False, domain=[0.7 * min(every), 6 * max(every)]),  # room for words
        axis=alt.Axis(format="~g", values=log_ticks(every), gridOpacity=0.4),
    )
    standings = [name for name in _STANDINGS if name in set(old["standing"])]
    published = alt.Chart(old.assign(lane="published")).encode(
        y=y, x=x, yOffset=alt.YOffset("lane:N", scale=offset)
    )
    here = alt.Chart(measured).encode(y=y, yOffset=alt.YOffset("strategy:N", scale=offset))
    colour = _colour(measured).title("measured here")
    layers = [
        alt.Chart(pd.DataFrame({"one": [1.0]})).mark_rule(color="#bbbbbb").encode(x="one:Q"),
        here.mark_rule(strokeWidth=3).encode(x="low:Q", x2="high:Q", color=colour),
        here.mark_point(filled=True, size=80, opacity=1).encode(x=x, color=colour),
        published.mark_point(filled=True, size=80, opacity=1).encode(
            shape=alt.Shape("standing:N", scale=_scale_of(standings, 0), legend=None),
            fill=alt.Fill("standing:N", scale=_scale_of(standings, 1), legend=None),
        ),
        published.mark_text(align="left", dx=9, fontSize=10, color="#555555").encode(text="text:N"),
    ]
    place = " · ".join(filter(None, (where_measured(rows), graph_text(rows))))
    subtitle = [
        f"measured on {place}; line: what the quartiles of both allow",
        "published: another machine, other batch sizes, other code: no figure here is to be compared in seconds",
    ]
    title = alt.TitleParams("Hetero against DANGO", subtitle=subtitle, anchor="start", offset=10)
    chart = alt.layer(*layers)
    return chart.properties(width=520, height=22 * max(2, len(lanes)) * max(1, len(modes)), title=title)
