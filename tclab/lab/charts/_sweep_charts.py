"""Charts of a sweep's rows: the overview, throughput, stages of a step, modes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import altair as alt
import pandas as pd

from tclab._display import bytes_text, seconds_text
from tclab.errors import unknown
from tclab.lab.charts._marks import lines, ratios, stacked
from tclab.lab.charts._style import EMPTY, STAGE_COLOURS, chart_title, colours_of, empty_chart
from tclab.lab.reports._cells import (
    adds_up,
    against_the_fastest,
    figure_text,
    fullest,
    one_run_each,
    stage_parts,
    step_throughput,
    why_undecided,
    with_labels,
)
from tclab.lab.reports._tables import rows_of_points
from tclab.sweeps.config._point import Point
from tclab.sweeps.store._row_files import Runs, rows_of
from tclab.timing._verdict import SAME, UNDECIDED

# Stages of a step as the overview has them; each has the colour of the one that names it.
_KINDS = {
    "loading": ("sample", "data_wait", "collate", "transfer"),
    "mask": ("mask",),
    "forward": ("forward", "loss", "gather"),
    "backward": ("backward",),
}
_KIND_OF = {stage: kind for kind, stages_ in _KINDS.items() for stage in stages_}
_KIND_COLOURS = {"loading": STAGE_COLOURS["transfer"]} | {
    n: STAGE_COLOURS[n] for n in ("mask", "forward", "backward", "other")
}
_AXES = {"batch_size": "batch size", "networks": "networks (edge types)"}


def throughput(rows: Runs, by: str = "strategy") -> Any:
    """Return samples a second: an overview with a row a strategy, or a line a strategy over batch size or networks.

    The overview has the batch size and networks that the most strategies ran at, the fastest strategy first: samples a
    second with the 95 % interval, bytes of a batch, and the parts of a step. A word at a row marks what dots do not
    show: a strategy without a time, one that is inexact, and one whose verdict against the fastest exact strategy of
    its model and setting is UNDECIDED or SAME.

    **Arguments:**

    - `rows`: of a sweep.
    - `by`: "strategy", "batch_size" or "networks".

    **Raises:** `InputError` for another `by`.
    """
    if by != "strategy" and by not in _AXES:
        raise unknown("axis of throughput", by, ["strategy", *_AXES])
    rows = with_labels(rows_of(rows))
    if not (rows["status"] == "ok").any():
        return _without_figures(rows)
    return _overview(fullest(rows)) if by == "strategy" else _over(rows, by)


def _overview(cell: pd.DataFrame) -> Any:
    if cell["model"].nunique() == 1:
        cell = cell.assign(label=_without_model(cell))
    found = step_throughput(one_run_each(cell))
    found = found[~found["status"].str.startswith("not run")].drop_duplicates("label")
    words = _verdict_words(cell[(cell["stage"] == "step") & (cell["status"] == "ok")])
    found["hetero"] = ~found["model"].str.startswith("hetero")
    found = found.sort_values(["hetero", "model", "samples_per_second"], ascending=[True, True, False])
    texts = []
    for row in found.to_dict("records"):
        if row["status"] == "ok":
            figures = [
                figure_text(row["samples_per_second"]),
                bytes_text(row["batch_bytes"]) if pd.notna(row["batch_bytes"]) else "",
            ]
        else:
            figures = [row["status"].split(":")[0]]
        texts.append(" · ".join(filter(None, [*figures, words.get(row["label"], "")])))
    dots = pd.DataFrame(
        {"line": found["label"], "value": found["samples_per_second"], "low": found["low"], "high": found["high"]}
    ).assign(text=texts)
    colours = dict(zip(found["label"], map(colours_of(found["strategy"]).__getitem__, found["strategy"]), strict=True))
    parts = _kinds_of_stages(cell)
    parts["value"] /= parts.groupby("bar")["value"].transform("sum")
    parts = found[["label"]].rename(columns={"label": "bar"}).merge(parts, how="left")  # in the order of the dots
    parts = parts.fillna({"part": "other", "value": 0.0})
    heads = ["samples a second · bytes of a batch · against the fastest", "where a step's time goes"]
    small = [alt.TitleParams(text, fontSize=12, anchor="start", frame="group") for text in heads]
    both = [
        ratios(dots, small[0], axis="samples a second (logarithmic)", colours=colours, one=None, width=260),
        stacked(parts, small[1], axis="share of a step", colours=_KIND_COLOURS, seconds=False, named=False, width=260),
    ]
    title = chart_title("Which strategy is the fastest", "line: 95 % interval", rows=cell)
    return alt.hconcat(*both, spacing=30, title=title).resolve_scale(color="independent")


def _verdict_words(steps: pd.DataFrame) -> dict[str, str]:
    """Return label → a word on the strategy: inexact, or its verdict against the fastest where dots do not show it."""
    exact = steps["exact"].fillna(True).astype(bool)
    words = dict.fromkeys(steps[~exact]["label"], "inexact")
    for _, group in steps[exact].groupby(["model", "setting"], sort=False):
        labels = dict(zip(group["strategy"], group["label"], strict=True))
        if len(labels) > 1:
            pairs = against_the_fastest(group)[1]
            words |= {labels[name]: "as fast" for name, pair in pairs.items() if pair.verdict == SAME}
            words |= {labels[name]: f"undecided: {why_undecided(pair)}" for name, pair in pairs.items()
                      if pair.verdict == UNDECIDED}  # fmt: skip
    return words


def _kinds_of_stages(rows: pd.DataFrame) -> pd.DataFrame:
    """Return bar, part and seconds a step of each kind of stage, on the timeline that the step is timed on."""
    chosen = one_run_each(rows)
    main = chosen["where"].eq(chosen["device"].map({"cuda": "device"}).fillna("host"))
    chosen = chosen[(chosen["status"] == "ok") & main & chosen["stage"].isin(list(STAGE_COLOURS))]
    part = chosen["stage"].map(_KIND_OF).fillna("other").rename("part")
    return chosen.groupby([chosen["label"].rename("bar"), part])["mean_seconds"].sum().rename("value").reset_index()


def _over(rows: pd.DataFrame, by: str) -> Any:
    """Return a line a strategy over one axis, at the value of the other that has the most points."""
    other = "networks" if by == "batch_size" else "batch_size"
    steps = step_throughput(one_run_each(rows))
    ok = steps[steps["status"] == "ok"]
    counts = ok.groupby(["model", other])["label"].size().reset_index()
    best = counts.sort_values(["label", other]).groupby("model").tail(1)[["model", other]]
    ok, lost = ok.merge(best), steps[steps["status"].str.split(":").str[0].isin(["oom", "wrong", "failed"])].merge(best)
    words = [f"{row['status'].split(':')[0]} at {row[by]}: {row['label']}" for row in lost.to_dict("records")]
    found = pd.DataFrame(
        {
            "line": _without_model(ok),  # which the panel has
            "kind": ok["strategy"],
            "panel": ok["model"] if ok["model"].nunique() > 1 else "",
            "x": ok[by],
            "y": ok["samples_per_second"],
            "low": ok["low"],
            "high": ok["high"],
        }
    )
    shown = rows.merge(best)
    title = chart_title(f"Throughput over {_AXES[by]}", "; ".join(["line: 95 % interval", *words[:4]]), rows=shown)
    ticks = sorted(found["x"].astype(float).unique())
    if len(ticks) < 2:
        only = f"{ticks[0]:g} alone" if ticks else "nothing"
        return empty_chart(f"{_AXES[by]}: {only} was measured.").properties(title=title)
    width = 440 if found["panel"].nunique() == 1 else 300
    return lines(found, title, x=_AXES[by], y="samples a second (logarithmic)", x_values=ticks, width=width)


def _without_model(rows: pd.DataFrame) -> pd.Series:
    """Return the labels of some rows without their model."""
    return rows["label"].str.split(" · ", n=1).str[1]


def stages(rows: Runs, points: Iterable[Point] | None = None) -> Any:
    """Return bars of stages, the mean of each, which add up to the mean step: a panel for each mode, on one axis.

    A bar is a timeline of a model and strategy, at the batch size and networks that the most strategies ran at, the
    fastest first; bars overlap in time. A timeline whose stages do not account for its clock has words in place of its
    bar.

    **Arguments:**

    - `rows`: of a sweep.
    - `points`: of a sweep over ranks, those to draw; all unless given.
    """
    rows = rows_of(rows) if points is None else rows_of_points(rows, points)
    if not (rows["status"] == "ok").any():
        return _without_figures(rows)
    cell = fullest(rows)
    found = stage_parts(cell)
    if found.empty:
        return empty_chart("The rows have no stage of a step.")
    drawn = found["accounted"].map(adds_up).astype(bool)
    whole = found["whole_seconds"].map(seconds_text) + found["where"].eq("worker").map({True: " of work", False: ""})
    wrong = found["accounted"].map("does not add up: stages add up to {:.1%} of its clock".format, na_action="ignore")
    parts = pd.DataFrame(
        {
            "panel": found["mode"],
            "bar": found["label"] + " · " + found["where"],
            "part": found["stage"],
            "value": found["seconds"].where(drawn, 0.0),
            "text": whole.where(drawn, wrong),
            "mode": pd.factorize(found["mode"])[0],
            "model": found["model"],
            "longest": found.groupby(["mode", "label"])["whole_seconds"].transform("max"),
        }
    ).sort_values(["mode", "model", "longest"], kind="stable")
    known = found["accounted"][drawn].dropna()
    shares = " to ".join(dict.fromkeys(f"{share:.1%}" for share in (known.min(), known.max()))) if len(known) else ""
    accounted = f"accounted for: {shares}; " if shares else ""
    title = chart_title("Where a step's time goes", f"mean of each stage; {accounted}bars overlap in time", rows=cell)
    return stacked(parts, title, axis="a step or batch [s]", colours=STAGE_COLOURS)


SWEEP_CHARTS: dict[str, Callable[[pd.DataFrame], Any]] = {
    "overview": throughput,
    "over batch size": partial(throughput, by="batch_size"),
    "over edge types": partial(throughput, by="networks"),
    "stages of a step": stages,
}


def sweep_chart(rows: pd.DataFrame, view: str = "overview") -> Any:
    """Return one of `SWEEP_CHARTS`; without any time, a chart that says why."""
    return _without_figures(rows) if rows.empty else SWEEP_CHARTS[view](rows)


def _without_figures(rows: pd.DataFrame) -> Any:
    statuses = rows["status"].value_counts().to_dict() if len(rows) else {}
    text = [f"{number} × {status}" for status, number in statuses.items()] or ["No point has been measured yet."]
    return empty_chart("\n".join(text[:8])).properties(title=chart_title(f"{EMPTY} yet"))
