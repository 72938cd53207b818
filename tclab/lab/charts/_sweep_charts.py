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
    comparable,
    figure_text,
    fullest,
    in_one_mode,
    one_run_each,
    reference_of,
    stage_parts,
    step_throughput,
    why_undecided,
    with_labels,
)
from tclab.lab.reports._tables import rows_of_points
from tclab.sweeps.config._point import Point
from tclab.sweeps.store._row_files import Runs, rows_of
from tclab.timing._verdict import ONCE, SAME, UNDECIDED

# Stages of a step as the overview has them; each has the colour of the one that names it.
_KIND_OF = {
    **dict.fromkeys(("sample", "data_wait", "collate", "transfer"), "loading"),
    **dict.fromkeys(("loss", "gather"), "forward"),
    **{kind: kind for kind in ("mask", "forward", "backward")},
}
_KIND_COLOURS = {"loading": STAGE_COLOURS["transfer"], **STAGE_COLOURS}
_COLOURED = 4  # lines of a model
_AXES = {"batch_size": "batch size", "networks": "networks (edge types)"}


def throughput(rows: Runs, by: str = "strategy") -> Any:
    """Return samples a second: an overview with a row a strategy, or a line a strategy over batch size or networks.

    Rows of mode `step` count, or of the first mode there is where that was not run.

    Lines have the colour of their strategy for at most four of each model: the fastest, `edge_mask` or else the
    slowest, and those that are the fastest elsewhere, or nearly. The others are grey, and named under the mouse.

    The overview has the batch size and networks that the most strategies ran at, the fastest strategy first: samples a
    second with the 95 % interval, bytes of a batch, and the parts of a step. A word at a row marks what dots do not
    show: a strategy without a time, one that is inexact, and one whose verdict against the fastest exact strategy of
    its model and setting is UNDECIDED or SAME. Where strategies ran once each there are no verdicts, and the title says
    so.

    **Arguments:**

    - `rows`: of a sweep.
    - `by`: "strategy", "batch_size" or "networks".

    **Raises:** `InputError` for another `by`.
    """
    if by != "strategy" and by not in _AXES:
        raise unknown("axis of throughput", by, ["strategy", *_AXES])
    rows = with_labels(in_one_mode(rows_of(rows)))
    if not (rows["status"] == "ok").any():
        return _without_figures(rows)
    return _overview(fullest(rows)) if by == "strategy" else _over(rows, by)


def _overview(cell: pd.DataFrame) -> Any:
    if cell["model"].nunique() == 1:
        cell = cell.assign(label=_without_model(cell))
    found = step_throughput(one_run_each(cell))
    found = found[~found["status"].str.startswith("not run")].drop_duplicates("label")
    found["hetero"] = ~found["model"].str.startswith("hetero")
    found = found.sort_values(["hetero", "model", "samples_per_second"], ascending=[True, True, False])
    measured = cell[(cell["stage"] == "step") & (cell["status"] == "ok")]
    said = found["label"].map(_verdict_words(measured))
    ok, status = found["status"] == "ok", found["status"].str.split(":").str[0]
    speed = found["samples_per_second"].map(figure_text, na_action="ignore").where(ok, status)
    carried = found["batch_bytes"].where(ok).map(bytes_text, na_action="ignore")
    dots = found[["label", "samples_per_second", "low", "high"]].set_axis(["line", "value", "low", "high"], axis=1)
    dots["text"] = [" · ".join(filter(pd.notna, some)) for some in zip(speed, carried, said, strict=True)]
    colours = dict(zip(found["label"], map(colours_of(found["strategy"]).__getitem__, found["strategy"]), strict=True))
    parts = _kinds_of_stages(cell)
    parts["value"] /= parts.groupby("bar")["value"].transform("sum")
    bars = found[["label"]].rename(columns={"label": "bar"})  # in the order of the dots
    parts = bars.merge(parts, how="left").fillna({"part": "other", "value": 0.0})
    heads = ["samples a second · bytes of a batch · against the fastest", "where a step's time goes"]
    small = [alt.TitleParams(text, fontSize=12, anchor="start", frame="group") for text in heads]
    both = [
        ratios(dots, small[0], axis="samples a second (logarithmic)", colours=colours, one=None, width=260),
        stacked(parts, small[1], axis="share of a step", colours=_KIND_COLOURS, seconds=False, named=False, width=260),
    ]
    once = measured["label"].is_unique and len(measured) > 1
    lines = "line: 95 % interval of its steps" + "; one run each, which decides nothing" * once
    title = chart_title("Which strategy is the fastest", lines, rows=cell)
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
                      if pair.verdict == UNDECIDED and pair.obstacle != ONCE}  # fmt: skip
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
    coloured = _in_colour(comparable(ok), by)
    many = ok.groupby("model")["label"].transform("nunique") > _COLOURED
    columns = {"strategy": "kind", by: "x", "samples_per_second": "y"}
    found = ok[[*columns, "low", "high"]].rename(columns=columns)
    found["line"], found["faint"] = _without_model(ok), many & ~ok["label"].isin(coloured)
    found["panel"] = ok["model"] if ok["model"].nunique() > 1 else ""
    grey = "grey: others, named under the mouse" if found["faint"].any() else ""
    said = "; ".join(filter(None, ["line: 95 % interval", grey, *words[:4]]))
    title = chart_title(f"Throughput over {_AXES[by]}", said, rows=rows.merge(best))
    ticks = sorted(found["x"].astype(float).unique())
    if len(ticks) < 2:
        only = f"{ticks[0]:g} alone" if ticks else "nothing"
        return empty_chart(f"{_AXES[by]}: {only} was measured.").properties(title=title)
    width = 440 if found["panel"].nunique() == 1 else 300
    return lines(found, title, x=_AXES[by], y="samples a second (logarithmic)", width=width)


def _in_colour(steps: pd.DataFrame, by: str) -> list[str]:
    """Return the labels that have a colour: for each model the fastest, what it is compared with, and two more.

    The fastest is that of the largest batch size or number of networks, then come those that are at a smaller one,
    then the others. Those that were measured at one alone, which are no line, are last.
    """
    chosen: list[str] = []
    for _, group in steps.groupby("model", sort=False):
        several = group.groupby("label")[by].transform("nunique") > 1
        ranked = group.assign(several=several).sort_values(["several", "samples_per_second"], ascending=False)
        fastest = ranked.drop_duplicates(by).sort_values(by, ascending=False)["label"]
        compared = ranked[ranked["strategy"] == reference_of(list(ranked["strategy"]))]["label"].mode()
        first = [*fastest[:1], *compared[:1], *fastest, *ranked["label"]]
        chosen += list(dict.fromkeys(first))[:_COLOURED]
    return chosen


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
    parts = found[["mode", "stage", "model"]].rename(columns={"mode": "panel", "stage": "part"})
    parts["bar"] = found["label"] + " · " + found["where"]
    parts["value"], parts["text"] = found["seconds"].where(drawn, 0.0), whole.where(drawn, wrong)
    parts["mode"] = pd.factorize(found["mode"])[0]
    parts["longest"] = found.groupby(["mode", "label"])["whole_seconds"].transform("max")
    parts = parts.sort_values(["mode", "model", "longest"], kind="stable")
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


def _without_figures(rows: pd.DataFrame) -> Any:
    statuses = rows["status"].value_counts().to_dict() if len(rows) else {}
    text = [f"{number} × {status}" for status, number in statuses.items()] or ["No point has been measured yet."]
    return empty_chart("\n".join(text[:8])).properties(title=chart_title(f"{EMPTY} yet"))
