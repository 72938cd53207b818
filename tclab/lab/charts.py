"""Charts from rows, in one visual language: a colour and a shape for each strategy, spread always drawn."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import altair as alt
import numpy as np
import pandas as pd

from tclab.lab.colours import STAGE_COLOURS, STRATEGY_COLOURS
from tclab.lab.measured_on import where_measured
from tclab.sweeps.seen import cycles

_OWN = ("#000000", "#7f3b08", "#4d4d4d")  # strategies of a user's own, in order
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
_DASHES = [[1, 0], [5, 3], [2, 2]]  # a model each
_WIDTH, _HEIGHT = 520, 300


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
    steps["way"] = steps["model"] + " · " + steps["strategy"]
    return steps


def _largest(rows: pd.DataFrame, column: str) -> pd.DataFrame:
    """Return, for each model, the rows at the largest value of a column that was measured most fully."""
    ok = rows[rows["status"] == "ok"]
    counts = ok.groupby(["model", column])["strategy"].nunique().reset_index()
    best = counts.sort_values(["strategy", column]).groupby("model").tail(1)
    return rows.merge(best[["model", column]], on=["model", column])


def _plain(frame: pd.DataFrame, columns: list[str]) -> pd.DataFrame:
    """Return some columns as altair can write them: no nullable types, no lists."""
    made = pd.DataFrame()
    for name in columns:
        text = pd.api.types.is_string_dtype(frame[name].dtype)
        made[name] = frame[name].astype(object) if text else frame[name].astype("float64")
    return made


def strategy_colours(names: Iterable[str]) -> dict[str, str]:
    """Return the colour of each strategy, those of a user's own among them."""
    own = [name for name in dict.fromkeys(names) if name not in STRATEGY_COLOURS]
    return {**STRATEGY_COLOURS, **{name: _OWN[i % len(_OWN)] for i, name in enumerate(own)}}


def _colour(frame: pd.DataFrame) -> Any:
    names = list(dict.fromkeys(frame["strategy"]))
    colours = strategy_colours(names)
    domain = [name for name in colours if name in names]
    return alt.Color(
        "strategy:N", scale=alt.Scale(domain=domain, range=[colours[n] for n in domain]), title="strategy"
    )


def _shape(frame: pd.DataFrame) -> Any:
    every = [*STRATEGY_COLOURS, *(n for n in dict.fromkeys(frame["strategy"]) if n not in STRATEGY_COLOURS)]
    domain = [name for name in every if name in set(frame["strategy"])]
    shapes = [_SHAPES[every.index(name) % len(_SHAPES)] for name in domain]
    return alt.Shape("strategy:N", scale=alt.Scale(domain=domain, range=shapes), title="strategy")


def _title(text: str, rows: pd.DataFrame, more: str = "") -> Any:
    subtitle = where_measured(rows) + (f" · {more}" if more else "")
    return alt.TitleParams(text, subtitle=[subtitle], anchor="start", offset=10)


def _lines(rows: pd.DataFrame, column: str, axis: str, title: str, more: str) -> Any:
    steps = _steps(rows)
    ok = _plain(
        steps[steps["status"] == "ok"],
        ["strategy", "model", "way", column, "samples_per_second", "low", "high"],
    )
    models = sorted(ok["model"].unique())
    if len(models) > 1:
        words = ("solid", "dashed", "dotted")
        named = ", ".join(f"{model} {word}" for model, word in zip(models, words, strict=False))
        more = f"{more} · {named}"
    x = alt.X(
        f"{column}:Q",
        title=axis,
        scale=alt.Scale(type="log", base=2, nice=False, padding=16),
        axis=alt.Axis(values=sorted(ok[column].unique().tolist()), format="d", grid=False),
    )
    y = alt.Y(
        "samples_per_second:Q",
        title="samples a second",
        scale=alt.Scale(type="log", nice=False, padding=16),
        axis=alt.Axis(tickCount=5, gridOpacity=0.5),
    )
    base = alt.Chart(ok).encode(
        x=x,
        color=_colour(ok),
        strokeDash=alt.StrokeDash("model:N", scale=alt.Scale(domain=models, range=_DASHES), legend=None),
        detail="way:N",
    )
    layers = [
        base.mark_rule(strokeWidth=1.5).encode(y="low:Q", y2="high:Q", strokeDash=alt.value([1, 0])),
        base.mark_line().encode(y=y),
        base.mark_point(filled=True, size=60).encode(y=y, shape=_shape(ok)),
    ]
    lost = steps[
        (steps["status"] == "oom") | (steps["status"] == "wrong") | steps["status"].str.startswith("failed")
    ]
    if len(lost):
        marks = _plain(lost, ["strategy", column, "status"])
        marks["status"] = marks["status"].str.split(":").str[0]
        layers.append(
            alt.Chart(marks)
            .mark_text(angle=270, align="left", dx=4)
            .encode(x=f"{column}:Q", y=alt.value(_HEIGHT), text="status:N", color=_colour(marks))
        )
    return alt.layer(*layers).properties(width=_WIDTH, height=_HEIGHT, title=_title(title, rows, more))


def throughput_by_batch_size(rows: pd.DataFrame) -> alt.LayerChart:
    """Return samples a second over batch size, a line a strategy, bars from quartile to quartile."""
    chosen = _largest(rows, "networks")
    return _lines(chosen, "batch_size", "batch size", "Throughput over batch size", _range(chosen, "networks"))


def throughput_by_networks(rows: pd.DataFrame) -> alt.LayerChart:
    """Return samples a second over the number of edge types, a line a strategy, bars from quartile to quartile."""
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
    return _largest(_largest(rows, "networks"), "batch_size")


def throughput_by_strategy(rows: pd.DataFrame) -> alt.LayerChart:
    """Return samples a second of each strategy at the largest batch and the most networks that all were run at."""
    chosen = _at_largest(rows)
    steps = _steps(chosen)
    ok = _plain(steps[steps["status"] == "ok"], ["strategy", "way", "samples_per_second", "low", "high"])
    room = alt.Scale(domain=[0, 1.2 * ok["high"].max()]) if len(ok) else alt.Scale()  # for words beside the bars
    order = ok.sort_values("samples_per_second", ascending=False)["way"].tolist()
    y = alt.Y("way:N", sort=order, title=None, axis=alt.Axis(labelLimit=260))
    bars = (
        alt.Chart(ok)
        .mark_bar()
        .encode(
            y=y,
            x=alt.X("samples_per_second:Q", title="samples a second", scale=room, axis=alt.Axis(tickCount=6)),
            color=_colour(ok).legend(None),
        )
    )
    spread = alt.Chart(ok).mark_rule(strokeWidth=2).encode(y=y, x="low:Q", x2="high:Q", color=alt.value("#333333"))
    text = (
        alt.Chart(_said_of(steps, ok))
        .mark_text(align="left", dx=6, color="#333333", fontStyle="italic")
        .encode(y=y, x="place:Q", text="word:N")
    )
    more = f"{_range(chosen, 'batch_size')}, {_range(chosen, 'networks')}"
    return (bars + spread + text).properties(width=_WIDTH, title=_title("Throughput of each strategy", rows, more))


def _said_of(steps: pd.DataFrame, ok: pd.DataFrame) -> pd.DataFrame:
    """Return what bars do not show, and where: what has no figure, and what cannot be told from the fastest.

    "undecided" where the quartiles reach the leader's, as the sentences of `findings` have it.
    """
    lost = steps[(steps["status"] != "ok") & ~steps["status"].str.startswith("not run")]
    lost = lost[~lost["way"].isin(ok["way"])].drop_duplicates("way")
    said = [(way, status.split(":")[0], 0.0) for way, status in zip(lost["way"], lost["status"], strict=True)]
    if len(ok) > 1:
        low = ok.sort_values("samples_per_second")["low"].iloc[-1]
        close = ok[ok["high"] >= low]
        if len(close) > 1:
            said += [(way, "undecided", high) for way, high in zip(close["way"], close["high"], strict=True)]
    return pd.DataFrame(said, columns=["way", "word", "place"])


def bytes_per_batch(rows: pd.DataFrame) -> alt.LayerChart:
    """Return what travels with each batch, counted from its tensors, on a logarithmic axis."""
    chosen = _at_largest(rows)
    steps = _steps(chosen)
    ok = _plain(steps[steps["status"] == "ok"], ["strategy", "way", "batch_bytes"])
    ok["label"] = ok["batch_bytes"].map(bytes_text)
    y = alt.Y(
        "way:N",
        sort=ok.sort_values("batch_bytes", ascending=False)["way"].tolist(),
        title=None,
        axis=alt.Axis(labelLimit=260),
    )
    x = alt.X(
        "batch_bytes:Q",
        title="bytes a batch",
        scale=alt.Scale(type="log"),
        axis=alt.Axis(format="~s", tickCount=6),
    )
    bars = alt.Chart(ok).mark_bar().encode(y=y, x=x, x2=alt.datum(1), color=_colour(ok).legend(None))
    text = alt.Chart(ok).mark_text(align="left", dx=4).encode(y=y, x=x, text="label:N")
    more = f"{_range(chosen, 'batch_size')}, {_range(chosen, 'networks')}"
    return (bars + text).properties(width=_WIDTH, title=_title("Bytes of a batch", rows, more))


def stages(rows: pd.DataFrame) -> alt.Chart:
    """Return where a step's time goes, the median of each stage, for each strategy at the largest batch."""
    chosen = _at_largest(rows)
    # the timeline that the step is timed on; workers make other batches meanwhile
    own = chosen["where"].eq(chosen["device"].map({"cuda": "device"}).fillna("host"))
    chosen = chosen[(chosen["status"] == "ok") & own & chosen["stage"].isin(list(STAGE_COLOURS))].copy()
    chosen["way"] = chosen["model"] + " · " + chosen["strategy"]
    chosen["order"] = chosen["stage"].map({name: i for i, name in enumerate(STAGE_COLOURS)}).astype("float64")
    flat = _plain(chosen, ["way", "stage", "median_seconds", "order"])
    flat["median_seconds"] = flat["median_seconds"].clip(lower=0)
    shown = [name for name in STAGE_COLOURS if name in set(flat["stage"])]
    return (
        alt.Chart(flat)
        .mark_bar()
        .encode(
            y=alt.Y(
                "way:N",
                sort=flat.groupby("way")["median_seconds"].sum().sort_values().index.tolist(),
                title=None,
                axis=alt.Axis(labelLimit=260),
            ),
            x=alt.X("median_seconds:Q", title="seconds a step (median of each stage)"),
            color=alt.Color(
                "stage:N", scale=alt.Scale(domain=shown, range=[STAGE_COLOURS[name] for name in shown])
            ),
            order="order:Q",
        )
        .properties(
            width=_WIDTH,
            title=_title(
                "Where a step's time goes",
                rows,
                f"{_range(chosen, 'batch_size')}, {_range(chosen, 'networks')}",
            ),
        )
    )


def bytes_text(number: float) -> str:
    """Return a number of bytes as people read it: "1.15 GB", "1,016 B"."""
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if number >= size and number >= 1e4:
            return f"{number / size:.3g} {unit}"
    return f"{number:,.0f} B"
