"""Charts of throughput: over batch size, over the number of edge types, and by strategy."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import altair as alt
import pandas as pd

from tclab.errors import unknown
from tclab.lab.charts._style import (
    GREY,
    interval_rule,
    log_axis,
    plain_frame,
    rows_title,
    strategy_colour,
    strategy_shape,
    tooltips,
)
from tclab.lab.reports._comparable_rows import (
    against_the_fastest,
    by_arms,
    fullest_cells,
    one_run_each,
    step_throughput,
    values_text,
    with_labels,
)
from tclab.sweeps.store._row_files import Runs, rows_of
from tclab.timing._verdict import SAME, UNDECIDED, Pair

# one for each model, or setting of a model
_DASHES = [[1, 0], [5, 3], [2, 2], [8, 2, 2, 2], [10, 4], [1, 3], [8, 2, 2, 2, 2, 2], [4, 1]]
_NAMES = 2  # of points without a time at one place of an axis; more are counted
_WIDTH, _HEIGHT = 520, 300
_LABELS = alt.Axis(labelLimit=380)
_AXES = {
    "strategy": ("", ""),
    "batch_size": ("batch size", "Throughput over batch size"),
    "networks": ("networks (edge types)", "Throughput over edge types"),
}
_FIGURES = {"samples_per_second": "samples a second", "low": "95 % from", "high": "95 % to"}
_VERDICTS = {UNDECIDED: "undecided", SAME: "the same"}  # those that bars alone do not show


def _largest(rows: pd.DataFrame, column: str) -> pd.DataFrame:
    """Return, for each model, the rows at the largest value of a column that was measured most fully."""
    ok = rows[rows["status"] == "ok"]
    counts = ok.groupby(["model", column])["label"].nunique().reset_index()
    best = counts.sort_values(["label", column]).groupby("model").tail(1)
    return rows.merge(best[["model", column]], on=["model", column])


def _lines(rows: pd.DataFrame, column: str, axis: str, title: str, more: str) -> Any:
    steps = step_throughput(one_run_each(rows))
    ok = plain_frame(
        steps[steps["status"] == "ok"],
        ["strategy", "model", "setting", "label", column, "samples_per_second", "low", "high"],
    )
    ok["line"] = [" · ".join(filter(None, pair)) for pair in zip(ok["model"], ok["setting"], strict=True)]
    lines = list(dict.fromkeys(ok.sort_values(["model", "setting"])["line"]))
    missing = _without_time(steps, column)
    places = sorted({*ok[column], *missing[column]})
    single = len(places) == 1  # then strategies lie side by side, or they would hide one another
    ticks = alt.Axis(values=places, format="d", grid=False, labelAngle=0)
    over = alt.Scale(type="log", base=2, nice=False, padding=16)
    x = (
        alt.X(f"{column}:O", title=axis, axis=ticks)
        if single
        else alt.X(f"{column}:Q", title=axis, scale=over, axis=ticks)
    )
    y = alt.Y(
        "samples_per_second:Q",
        title="samples a second (logarithmic)",
        **log_axis([*ok["low"], *ok["high"]], padding=16),
    )
    dash = alt.StrokeDash(
        "line:N",
        scale=alt.Scale(domain=lines, range=_DASHES),
        legend=alt.Legend(title=None, orient="bottom", columns=1, labelLimit=_WIDTH) if len(lines) > 1 else None,
    )
    figures = tooltips({"label": "configuration"}, {column: axis, **_FIGURES})
    base = alt.Chart(ok).encode(x=x, color=strategy_colour(ok), detail="label:N", tooltip=figures)
    if single:
        base = base.encode(xOffset=alt.XOffset("label:N", sort=ok.sort_values(["line", "strategy"])["label"].tolist()))
    layers = [
        base.mark_rule(strokeWidth=1.5).encode(y="low:Q", y2="high:Q"),
        base.mark_line().encode(y=y, strokeDash=dash),
        base.mark_point(filled=True, size=60).encode(y=y, shape=strategy_shape(ok)),
    ]
    if len(missing):
        text = alt.Chart(missing)
        if single:
            text = text.mark_text(align="center", dy=-6, fontSize=10, color=GREY)
        else:
            text = text.mark_text(angle=270, align="left", dx=4, dy=9, fontSize=10, color=GREY)
        layers.append(text.encode(x=x, y=alt.value("height"), text="text:N"))
    return alt.layer(*layers).properties(width=_WIDTH, height=_HEIGHT, title=rows_title(title, rows, more))


def _without_time(steps: pd.DataFrame, column: str) -> pd.DataFrame:
    """Return a line for each place of an axis with points that have no time: "oom: edge_mask; wrong × 3"."""
    kinds = steps["status"].str.split(":").str[0]
    lost = steps[kinds.isin(["oom", "wrong", "failed"])].assign(kind=kinds)
    if lost["model"].nunique() == 1:  # which need not be named
        lost = lost.assign(label=[label.split(" · ", 1)[1] for label in lost["label"]])
    lines = []
    for place, at_place in lost.groupby(lost[column].astype(float)):
        words = []
        for kind, of_kind in at_place.groupby("kind"):
            names = list(dict.fromkeys(of_kind["label"]))
            words.append(f"{kind}: {', '.join(names)}" if len(names) <= _NAMES else f"{kind} × {len(names)}")
        lines.append({column: place, "text": "; ".join(words)})
    return pd.DataFrame(lines, columns=[column, "text"])


def throughput(rows: Runs, by: str = "strategy", *, pairs: Iterable[Pair] = ()) -> Any:
    """Return samples a second: bars of strategies, or a line a strategy over batch size or edge types.

    Bars are at the largest batch and networks that the most strategies ran at. A word at a bar marks what bars do not
    show: a strategy without a time, one that is inexact, and one whose verdict against the fastest exact strategy of
    its model and setting is UNDECIDED or SAME, as in `conclusion`. Lines have bars of the 95 % interval.

    **Arguments:**

    - `rows`: of a sweep.
    - `by`: "strategy", "batch_size" or "networks".
    - `pairs`: of a race of these points, as for `conclusion`; for bars.

    **Raises:** `InputError` for another `by`.
    """
    if by not in _AXES:
        raise unknown("axis of throughput", by, _AXES)
    rows = with_labels(rows_of(rows))
    if by == "strategy":
        return _bars(fullest_cells(rows), pairs)
    if by == "batch_size":
        chosen, fixed = _largest(rows, "networks"), "networks"
    else:
        masked = rows[rows["exact"].notna()]
        varied = masked.groupby("model")["networks"].nunique()
        masked = masked[masked["model"].isin(varied[varied > 1].index)] if (varied > 1).any() else masked
        chosen, fixed = _fullest_batch(masked), "batch_size"
    axis, title = _AXES[by]
    return _lines(chosen, by, axis, title, values_text(chosen, fixed))


def _fullest_batch(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows at the largest of the batch sizes that have the most points, as the other charts do."""
    ok = rows[(rows["status"] == "ok") & (rows["stage"] == "step")]
    counts = ok.groupby("batch_size")["networks"].count()
    if counts.empty:
        return rows
    return rows[rows["batch_size"] == counts.index[counts == counts.max()].max()]


def _bars(chosen: pd.DataFrame, pairs: Iterable[Pair]) -> Any:
    steps = step_throughput(one_run_each(chosen))
    ok = plain_frame(steps[steps["status"] == "ok"], ["strategy", "label", "samples_per_second", "low", "high"])
    marks = _bar_words(chosen, ok, pairs)
    words = dict(zip(marks["label"], marks["word"], strict=True))
    ok["said"] = [words.get(label, "—") for label in ok["label"]]
    scale = alt.Scale(domain=[0, 1.2 * ok["high"].max()]) if len(ok) else alt.Scale()  # leaves space for words
    order = ok.sort_values("samples_per_second", ascending=False)["label"].tolist()
    y = alt.Y("label:N", sort=order, title=None, axis=_LABELS)
    bars = alt.Chart(ok).encode(
        y=y,
        x=alt.X(
            "samples_per_second:Q",
            title="samples a second",
            scale=scale,
            stack=None,
            axis=alt.Axis(tickCount=6),
        ),
        color=strategy_colour(ok).legend(None),
        tooltip=tooltips({"label": "configuration", **({"said": "against the fastest"} if words else {})}, _FIGURES),
    )
    spread = interval_rule(alt.Chart(ok), y=y, x="low:Q", x2="high:Q")
    text = alt.Chart(marks).encode(y=y, x="place:Q", text="word:N")
    text = text.mark_text(align="left", dx=6, fontSize=11, color=GREY, fontStyle="italic")
    more = f"{values_text(chosen, 'batch_size')}, {values_text(chosen, 'networks')}"
    more += " · words: compared with the fastest" * bool(marks["word"].isin(list(_VERDICTS.values())).any())
    title = rows_title("Throughput of each strategy", chosen, more)
    return alt.layer(bars.mark_bar(), *spread, text).properties(width=_WIDTH, title=title)


def _bar_words(chosen: pd.DataFrame, ok: pd.DataFrame, pairs: Iterable[Pair]) -> pd.DataFrame:
    """Return the words at the bars, and their places."""
    steps = chosen[chosen["stage"] == "step"]
    lost = steps[(steps["status"] != "ok") & ~steps["status"].str.startswith("not run")]
    lost = lost[~lost["label"].isin(ok["label"])].drop_duplicates("label")
    words = [(label, status.split(":")[0], 0.0) for label, status in zip(lost["label"], lost["status"], strict=True)]
    ends = dict(zip(ok["label"], ok["high"], strict=True))
    timed = steps[steps["status"] == "ok"]
    exact = timed["exact"].fillna(True).astype(bool)
    words += [(label, "inexact", ends[label]) for label in timed[~exact]["label"].unique()]
    groups = [group for _, group in timed[exact].groupby(["model", "setting"], sort=False)]
    known = by_arms(pairs, len(groups))
    for group in groups:
        labels = dict(zip(group["strategy"], group["label"], strict=True))
        for strategy, pair in (against_the_fastest(group, known) if len(labels) > 1 else {}).items():
            if pair.verdict in _VERDICTS:
                words.append((labels[strategy], _VERDICTS[pair.verdict], ends[labels[strategy]]))
    return pd.DataFrame(words, columns=["label", "word", "place"])
