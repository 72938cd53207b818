"""Charts from rows, in one visual language: a colour and a shape for each strategy, spread always drawn."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from zlib import crc32

import altair as alt
import numpy as np
import pandas as pd

from tclab.lab.colours import STAGE_COLOURS, STRATEGY_COLOURS, strategy_colours
from tclab.lab.comparable import against_the_fastest, by_arms, one_run_each, with_ways
from tclab.lab.log_ticks import log_ticks
from tclab.sweeps.measured_on import graph_text, where_measured
from tclab.sweeps.seen import cycles
from tclab.timing import SAME, UNDECIDED, Pair
from tclab.timing.units import bytes_text

_SHAPES = (
    "circle",
    "square",
    "triangle-up",
    "diamond",
    "cross",
    "triangle-down",
    "triangle-left",
    "triangle-right",
)
# a model, or a setting of one, each
_DASHES = [[1, 0], [5, 3], [2, 2], [8, 2, 2, 2], [10, 4], [1, 3], [8, 2, 2, 2, 2, 2], [4, 1]]
_NAMES = 2  # of what has no time at one place of an axis; more are counted
_WIDTH, _HEIGHT = 520, 300
_WAYS = alt.Axis(labelLimit=380)
_VERDICTS = {UNDECIDED: "undecided", SAME: "the same"}  # that bars alone do not show


def _steps(rows: pd.DataFrame) -> pd.DataFrame:
    """Return one row a point, with the spread of its throughput and what is wrong where there is none."""
    steps = rows[(rows["stage"] == "step")].copy()
    steps["low"] = steps["batch_size"] * steps["ranks"] / steps["q3_seconds"]
    steps["high"] = steps["batch_size"] * steps["ranks"] / steps["q1_seconds"]
    adding_up = (steps["accumulate"] > 1).fillna(False) & (steps["status"] == "ok")
    for at, row in steps[adding_up].iterrows():  # as samples_per_second: over whole steps of the optimizer
        q1, q3 = np.quantile(cycles(row["samples_seconds"], int(row["accumulate"])), [0.25, 0.75])
        steps.loc[at, ["low", "high"]] = (
            row["batch_size"] * row["ranks"] / q3,
            row["batch_size"] * row["ranks"] / q1,
        )
    return steps


def _largest(rows: pd.DataFrame, column: str) -> pd.DataFrame:
    """Return, for each model, the rows at the largest value of a column that was measured most fully."""
    ok = rows[rows["status"] == "ok"]
    counts = ok.groupby(["model", column])["way"].nunique().reset_index()
    best = counts.sort_values(["way", column]).groupby("model").tail(1)
    return rows.merge(best[["model", column]], on=["model", column])


def _plain(frame: pd.DataFrame, columns: list[str]) -> pd.DataFrame:
    """Return some columns as altair can write them: no nullable types, no lists."""
    made = pd.DataFrame()
    for name in columns:
        text = pd.api.types.is_string_dtype(frame[name].dtype)
        made[name] = frame[name].astype(object) if text else frame[name].astype("float64")
    return made


def _colour(frame: pd.DataFrame) -> Any:
    names = list(dict.fromkeys(frame["strategy"]))
    colours = strategy_colours(names)
    domain = [name for name in colours if name in names]
    return alt.Color(
        "strategy:N", scale=alt.Scale(domain=domain, range=[colours[n] for n in domain]), title="strategy"
    )


def _shape(frame: pd.DataFrame) -> Any:
    places = {name: place for place, name in enumerate(STRATEGY_COLOURS)}
    domain = [name for name in strategy_colours(frame["strategy"]) if name in set(frame["strategy"])]
    shapes = [_SHAPES[places.get(name, crc32(name.encode())) % len(_SHAPES)] for name in domain]
    return alt.Shape("strategy:N", scale=alt.Scale(domain=domain, range=shapes), title="strategy")


def _title(text: str, rows: pd.DataFrame, more: str = "") -> Any:
    of = " · ".join(filter(None, (graph_text(rows), more)))
    return alt.TitleParams(text, subtitle=[where_measured(rows), *([of] if of else [])], anchor="start", offset=10)


def _lines(rows: pd.DataFrame, column: str, axis: str, title: str, more: str) -> Any:
    steps = _steps(one_run_each(rows))
    ok = _plain(
        steps[steps["status"] == "ok"],
        ["strategy", "model", "setting", "way", column, "samples_per_second", "low", "high"],
    )
    ok["line"] = [" · ".join(filter(None, pair)) for pair in zip(ok["model"], ok["setting"], strict=True)]
    lines = list(dict.fromkeys(ok.sort_values(["model", "setting"])["line"]))
    lost = _lost(steps, column)
    places = sorted({*ok[column], *lost[column]})
    alone = len(places) == 1  # then strategies lie side by side, or they would hide one another
    ticks = alt.Axis(values=places, format="d", grid=False, labelAngle=0)
    over = alt.Scale(type="log", base=2, nice=False, padding=16)
    x = (
        alt.X(f"{column}:O", title=axis, axis=ticks)
        if alone
        else alt.X(f"{column}:Q", title=axis, scale=over, axis=ticks)
    )
    y = alt.Y(
        "samples_per_second:Q",
        title="samples a second",
        scale=alt.Scale(type="log", nice=False, padding=16),
        axis=alt.Axis(values=log_ticks([*ok["low"], *ok["high"]]), format="~g", gridOpacity=0.5),
    )
    dash = alt.StrokeDash(
        "line:N",
        scale=alt.Scale(domain=lines, range=_DASHES),
        legend=alt.Legend(title=None, orient="bottom", columns=1, labelLimit=_WIDTH) if len(lines) > 1 else None,
    )
    base = alt.Chart(ok).encode(x=x, color=_colour(ok), detail="way:N", tooltip=["way:N"])
    if alone:
        base = base.encode(xOffset=alt.XOffset("way:N", sort=ok.sort_values(["line", "strategy"])["way"].tolist()))
    layers = [
        base.mark_rule(strokeWidth=1.5).encode(y="low:Q", y2="high:Q"),
        base.mark_line().encode(y=y, strokeDash=dash),
        base.mark_point(filled=True, size=60).encode(y=y, shape=_shape(ok)),
    ]
    if len(lost):
        text = alt.Chart(lost)
        if alone:
            text = text.mark_text(align="center", dy=-6, fontSize=10, color="#555555")
        else:
            text = text.mark_text(angle=270, align="left", dx=4, dy=9, fontSize=10, color="#555555")
        layers.append(text.encode(x=x, y=alt.value("height"), text="text:N"))
    return alt.layer(*layers).properties(width=_WIDTH, height=_HEIGHT, title=_title(title, rows, more))


def _lost(steps: pd.DataFrame, column: str) -> pd.DataFrame:
    """Return what has no time at each place of an axis, in one line of words: "oom: edge_mask; wrong × 3"."""
    kinds = steps["status"].str.split(":").str[0]
    lost = steps[kinds.isin(["oom", "wrong", "failed"])].assign(kind=kinds)
    if lost["model"].nunique() == 1:  # whose is plain
        lost = lost.assign(way=[way.split(" · ", 1)[1] for way in lost["way"]])
    found = []
    for place, own in lost.groupby(lost[column].astype(float)):
        words = []
        for kind, those in own.groupby("kind"):
            names = list(dict.fromkeys(those["way"]))
            words.append(f"{kind}: {', '.join(names)}" if len(names) <= _NAMES else f"{kind} × {len(names)}")
        found.append({column: place, "text": "; ".join(words)})
    return pd.DataFrame(found, columns=[column, "text"])


def throughput_by_batch_size(rows: pd.DataFrame) -> alt.LayerChart:
    """Return samples a second over batch size, a line a strategy, bars from quartile to quartile."""
    chosen = _largest(with_ways(rows), "networks")
    return _lines(chosen, "batch_size", "batch size", "Throughput over batch size", _range(chosen, "networks"))


def throughput_by_networks(rows: pd.DataFrame) -> alt.LayerChart:
    """Return samples a second over the number of edge types, a line a strategy, bars from quartile to quartile."""
    rows = with_ways(rows)
    masked = rows[rows["exact"].notna()]
    varied = masked.groupby("model")["networks"].nunique()
    masked = masked[masked["model"].isin(varied[varied > 1].index)] if (varied > 1).any() else masked
    chosen = _middle_batch(masked)
    return _lines(
        chosen,
        "networks",
        "networks (edge types)",
        "Throughput over edge types",
        _range(chosen, "batch_size"),
    )


def _middle_batch(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows at the batch size that was measured at the most numbers of networks."""
    ok = rows[(rows["status"] == "ok") & (rows["stage"] == "step")]
    counts = ok.groupby("batch_size")["networks"].count()
    if counts.empty:
        return rows
    return rows[rows["batch_size"] == counts.sort_index().idxmax()]


def _range(rows: pd.DataFrame, column: str) -> str:
    values = sorted({int(v) for v in rows[rows["status"] == "ok"][column].dropna()})
    name = {"networks": "networks", "batch_size": "batch" if (rows["ranks"] == 1).all() else "batch a rank"}[column]
    return f"{name} {' and '.join(map(str, values))}" if values else ""


def _at_largest(rows: pd.DataFrame) -> pd.DataFrame:
    """Return, for each model, the rows of the cell that the most exact ways were run in, the largest of them."""
    ok = rows[(rows["status"] == "ok") & (rows["stage"] == "step")]
    exact = ok["exact"].fillna(True).astype(bool)
    ok = ok[exact] if exact.any() else ok
    counts = ok.groupby(["model", "networks", "batch_size"])["way"].nunique().reset_index()
    best = counts.sort_values(["way", "networks", "batch_size"]).groupby("model").tail(1)
    return rows.merge(best[["model", "networks", "batch_size"]], on=["model", "networks", "batch_size"])


def throughput_by_strategy(rows: pd.DataFrame, pairs: Iterable[Pair] = ()) -> alt.LayerChart:
    """Return samples a second of each strategy at the largest batch and the most networks that most were run at.

    A word beside a bar says what it does not show: what has no figure, what is inexact, and of which the verdict
    against the fastest exact strategy of its model and setting is UNDECIDED or SAME, as `conclusion` has it.

    **Arguments:**

    - `rows`: of a sweep.
    - `pairs`: of a race of these points, as for `conclusion`.
    """
    chosen = _at_largest(with_ways(rows))
    steps = _steps(one_run_each(chosen))
    ok = _plain(steps[steps["status"] == "ok"], ["strategy", "way", "samples_per_second", "low", "high"])
    room = alt.Scale(domain=[0, 1.2 * ok["high"].max()]) if len(ok) else alt.Scale()  # for words beside the bars
    order = ok.sort_values("samples_per_second", ascending=False)["way"].tolist()
    y = alt.Y("way:N", sort=order, title=None, axis=_WAYS)
    bars = (
        alt.Chart(ok)
        .mark_bar()
        .encode(
            y=y,
            x=alt.X(
                "samples_per_second:Q",
                title="samples a second",
                scale=room,
                stack=None,
                axis=alt.Axis(tickCount=6),
            ),
            color=_colour(ok).legend(None),
        )
    )
    spread = alt.Chart(ok).mark_rule(strokeWidth=2).encode(y=y, x="low:Q", x2="high:Q", color=alt.value("#333333"))
    said = _said_of(chosen, ok, pairs)
    text = (
        alt.Chart(said)
        .mark_text(align="left", dx=6, color="#333333", fontStyle="italic")
        .encode(y=y, x="place:Q", text="word:N")
    )
    more = f"{_range(chosen, 'batch_size')}, {_range(chosen, 'networks')}"
    more += " · words: against the fastest" * bool(said["word"].isin(list(_VERDICTS.values())).any())
    return (bars + spread + text).properties(
        width=_WIDTH, title=_title("Throughput of each strategy", chosen, more)
    )


def _said_of(chosen: pd.DataFrame, ok: pd.DataFrame, pairs: Iterable[Pair]) -> pd.DataFrame:
    """Return what bars do not show, and where."""
    steps = chosen[chosen["stage"] == "step"]
    lost = steps[(steps["status"] != "ok") & ~steps["status"].str.startswith("not run")]
    lost = lost[~lost["way"].isin(ok["way"])].drop_duplicates("way")
    said = [(way, status.split(":")[0], 0.0) for way, status in zip(lost["way"], lost["status"], strict=True)]
    ends = dict(zip(ok["way"], ok["high"], strict=True))
    timed = steps[steps["status"] == "ok"]
    exact = timed["exact"].fillna(True).astype(bool)
    said += [(way, "inexact", ends[way]) for way in timed[~exact]["way"].unique()]
    groups = [own for _, own in timed[exact].groupby(["model", "setting"], sort=False)]
    known = by_arms(pairs, len(groups))
    for own in groups:
        ways = dict(zip(own["strategy"], own["way"], strict=True))
        for strategy, pair in (against_the_fastest(own, known) if len(ways) > 1 else {}).items():
            if pair.verdict in _VERDICTS:
                said.append((ways[strategy], _VERDICTS[pair.verdict], ends[ways[strategy]]))
    return pd.DataFrame(said, columns=["way", "word", "place"])


def bytes_per_batch(rows: pd.DataFrame) -> alt.LayerChart:
    """Return what travels with each batch, counted from its tensors, on a logarithmic axis."""
    chosen = _at_largest(with_ways(rows))
    steps = _steps(one_run_each(chosen))
    ok = _plain(steps[steps["status"] == "ok"], ["strategy", "way", "batch_bytes"])
    ok["label"] = ok["batch_bytes"].map(bytes_text)
    y = alt.Y("way:N", sort=ok.sort_values("batch_bytes", ascending=False)["way"].tolist(), title=None, axis=_WAYS)
    x = alt.X(
        "batch_bytes:Q",
        title="bytes a batch",
        scale=alt.Scale(type="log"),
        axis=alt.Axis(format="~s", values=log_ticks([1.0, *ok["batch_bytes"]])),
    )
    bars = alt.Chart(ok).mark_bar().encode(y=y, x=x, x2=alt.datum(1), color=_colour(ok).legend(None))
    text = alt.Chart(ok).mark_text(align="left", dx=4).encode(y=y, x=x, text="label:N")
    more = f"{_range(chosen, 'batch_size')}, {_range(chosen, 'networks')}"
    return (bars + text).properties(width=_WIDTH, title=_title("Bytes of a batch", chosen, more))


def stages(rows: pd.DataFrame) -> alt.LayerChart:
    """Return where a step's time goes, the median of each stage, for each strategy at the largest batch.

    A line from quartile to quartile of whole steps lies over each bar.
    """
    chosen = one_run_each(_at_largest(with_ways(rows)))
    # the timeline that the step is timed on; workers make other batches meanwhile
    own = chosen["where"].eq(chosen["device"].map({"cuda": "device"}).fillna("host"))
    chosen = chosen[(chosen["status"] == "ok") & own].copy()
    chosen["order"] = chosen["stage"].map({name: i for i, name in enumerate(STAGE_COLOURS)}).astype("float64")
    parts = chosen[chosen["stage"].isin(list(STAGE_COLOURS))]
    flat = _plain(parts, ["way", "stage", "median_seconds", "order"])
    flat["median_seconds"] = flat["median_seconds"].clip(lower=0)
    wholes = _plain(chosen[chosen["stage"] == "step"], ["way", "q1_seconds", "q3_seconds"])
    wholes = wholes[wholes["way"].isin(flat["way"])]
    shown = [name for name in STAGE_COLOURS if name in set(flat["stage"])]
    order = flat.groupby("way")["median_seconds"].sum().sort_values().index.tolist()
    y = alt.Y("way:N", sort=order, title=None, axis=_WAYS)
    bars = (
        alt.Chart(flat)
        .mark_bar()
        .encode(
            y=y,
            x=alt.X("median_seconds:Q", title="seconds a step (median of each stage)"),
            color=alt.Color(
                "stage:N", scale=alt.Scale(domain=shown, range=[STAGE_COLOURS[name] for name in shown])
            ),
            order="order:Q",
        )
    )
    spread = (
        alt.Chart(wholes)
        .mark_rule(strokeWidth=1.5, color="#000000")
        .encode(y=y, x="q1_seconds:Q", x2="q3_seconds:Q")
    )
    more = f"{_range(chosen, 'batch_size')}, {_range(chosen, 'networks')} · line: quartiles of whole steps"
    return (bars + spread).properties(width=_WIDTH, title=_title("Where a step's time goes", chosen, more))
