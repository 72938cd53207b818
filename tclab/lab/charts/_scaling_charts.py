"""Charts of more ranks, and of predicted epochs: speed-up, what is exchanged, accumulation, predicted over measured."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import altair as alt
import pandas as pd

from tclab.errors import unknown
from tclab.lab.charts._style import (
    GREY,
    STAGE_COLOURS,
    chart_title,
    empty_chart,
    fixed_colour,
    machine_text,
    plain_frame,
    rows_title,
    strategy_colour,
    strategy_shape,
)
from tclab.lab.reports._comparable_rows import records, step_throughput
from tclab.lab.reports._scaling_tables import (
    EXCHANGE,
    KEY,
    epoch_name,
    exchange_table,
    ranks_table,
)
from tclab.perturbation._dataset import TRAINING_SAMPLES, steps_per_epoch
from tclab.sweeps.predict._epoch import BOTH, COMPUTE, LOADER, Epoch
from tclab.sweeps.store._row_files import Runs, rows_of

_WIDTH, _HEIGHT = 300, 240


def speed_up(strong: Runs, weak: Runs) -> Any:
    """Return speed-up over ranks, strong and weak scaling side by side, with the ideal and the limit of the cores."""
    strong = rows_of(strong)
    weak = rows_of(weak)
    panels = []
    for name, rows in (("strong: one batch shared", strong), ("weak: a batch for each rank", weak)):
        table = ranks_table(rows)
        if table.empty:
            continue
        panels.append(_speedup(table, name))
    if not panels:
        return empty_chart("No number of ranks was measured.")
    both = pd.concat([strong, weak])
    more = "line: 95 % interval; dashed: ideal; dotted: limit of the cores"
    chart = alt.hconcat(*panels, spacing=30).resolve_scale(color="shared", shape="shared")
    return chart.properties(title=rows_title("Samples a second, over those of one rank", both, more))


def _speedup(table: pd.DataFrame, name: str) -> Any:
    frame = plain_frame(table, [*KEY, "speedup", "low", "high", "ideal", "cores_allow", "efficiency"])
    frame["text"] = (
        frame["efficiency"].map(lambda share: f"{share:.0%}").where(frame["ranks"] > frame["ranks"].min(), "")
    )
    # labels of lines that are near one another lie above the higher and below the lower
    frame["above"] = frame.groupby("ranks")["speedup"].rank(method="first", ascending=False) <= 1
    x = alt.X(
        "ranks:Q",
        scale=alt.Scale(domain=[0.5, frame["ranks"].max() + 0.5]),
        axis=alt.Axis(values=sorted(frame["ranks"].unique()), format="d", grid=False),
        title="ranks",
    )
    times = "times as many samples a second"
    y = alt.Y("speedup:Q", title=times, scale=alt.Scale(zero=True))
    base = alt.Chart(frame)
    references = [
        base.mark_line(strokeDash=dash, color="#888888").encode(x=x, y=alt.Y(f"{column}:Q", title=times))
        for column, dash in (("ideal", [6, 4]), ("cores_allow", [2, 3]))
    ]
    coloured = base.encode(x=x, color=strategy_colour(table), detail="model:N")
    layers = [
        *references,
        coloured.mark_rule(strokeWidth=2).encode(y=alt.Y("low:Q", title=times), y2="high:Q"),
        coloured.mark_line().encode(y=y),
        coloured.mark_point(filled=True, size=70, opacity=1).encode(y=y, shape=strategy_shape(table)),
        *(
            coloured.transform_filter(alt.datum.above == above)
            .mark_text(align="left", dx=8, dy=dy, fontSize=10)
            .encode(y=y, text="text:N")
            for above, dy in ((True, -8), (False, 10))
        ),
    ]
    title = chart_title(f"{name} (number: efficiency)", size=12)
    return alt.layer(*layers).properties(width=_WIDTH, height=_HEIGHT, title=title)


def scaling_chart(rows: Runs, of: str) -> Any:
    """Return a chart of what several processes cost and bring.

    **Arguments:**

    - `rows`: of a sweep.
    - `of`: "exchange", the share of a step that several ranks cost: the loss's gather, rank_wait, exposed
      communication; or "accumulation", samples a second at one effective batch size, by more ranks or by more
      accumulated batches.

    **Raises:** `InputError` for another `of`.
    """
    rows = rows_of(rows)
    if of not in _CHARTS:
        raise unknown("chart of scaling", of, _CHARTS)
    return _CHARTS[of](rows)


def _exchange(rows: pd.DataFrame) -> Any:
    table = exchange_table(rows)
    if table.empty:
        return empty_chart("No point of several ranks was measured.")
    settings = [name for name in table.columns[: table.columns.get_loc("step_seconds")] if name not in KEY]
    varying = [name for name in settings if table[name].nunique(dropna=False) > 1]
    table["label"] = [
        f"{row['model']} · {row['ranks']} ranks × batch {row['batch_size']}"
        + (f" × {row['accumulate']} accumulated" if row["accumulate"] > 1 else "")
        + "".join(f" · {name.replace('_', ' ')} {row[name]}" for name in varying)
        for row in records(table)
    ]
    parts = table.rename(columns={f"{stage}_seconds": stage for stage in EXCHANGE})
    parts = parts.melt(["label", "step_seconds"], list(EXCHANGE), "stage", "seconds").dropna(subset=["seconds"])
    flat = plain_frame(parts, ["label", "stage", "seconds", "step_seconds"])
    flat["share"] = flat["seconds"] / flat["step_seconds"]
    bars = alt.Chart(flat).mark_bar().encode(
        y=alt.Y("label:N", sort=list(dict.fromkeys(table["label"])), title=None, axis=alt.Axis(labelLimit=320)),
        x=alt.X("share:Q", title="share of a step (mean over ranks)", axis=alt.Axis(format="%")),
        color=fixed_colour("stage", STAGE_COLOURS, flat["stage"], title="stage"),
    )  # fmt: skip
    more = "rank_wait: for the slowest rank; communication: exposed"
    return bars.properties(
        width=420, height=alt.Step(28), title=rows_title("What several ranks cost a step", rows, more)
    )


def _accumulation(rows: pd.DataFrame) -> Any:
    ok = rows[(rows["stage"] == "step") & (rows["status"] == "ok")]
    if ok.empty:
        return empty_chart("No accumulation was measured.")
    frame = plain_frame(step_throughput(ok), [*KEY, "samples_per_second", "low", "high"])
    frame["label"] = [
        f"{row['ranks']:.0f} rank{'s' if row['ranks'] > 1 else ''} × {row['accumulate']:.0f} batches of "
        f"{row['batch_size']:.0f}"
        for row in records(frame)
    ]
    effective = sorted({int(row["ranks"] * row["batch_size"] * row["accumulate"]) for row in records(frame)})
    y = alt.Y("label:N", sort=list(dict.fromkeys(frame.sort_values("ranks")["label"])), title=None)
    base = alt.Chart(frame).encode(y=y, yOffset="model:N", color=strategy_colour(ok))
    layers = [
        base.mark_rule(strokeWidth=2).encode(x=alt.X("low:Q", title="samples a second"), x2="high:Q"),
        base.mark_point(filled=True, size=70, opacity=1).encode(x="samples_per_second:Q", shape=strategy_shape(ok)),
    ]
    more = f"effective batch {' and '.join(map(str, effective))}; line: 95 % interval"
    title = rows_title("More ranks, or more batches per optimizer step", rows, more)
    return alt.layer(*layers).properties(width=420, height=alt.Step(24), title=title)


_CHARTS = {"exchange": _exchange, "accumulation": _accumulation}


def steps_per_epoch_chart(rows: Runs, *, samples: int = TRAINING_SAMPLES) -> Any:
    """Return the steps of an epoch over ranks × batch size, by arithmetic, with the published runs marked."""
    rows = rows_of(rows)
    ok = rows[(rows["stage"] == "step") & (rows["status"] == "ok")]
    pairs = {(int(row["ranks"]), int(row["batch_size"])): "here" for row in records(ok)}
    pairs |= {(4, 28): "published: hetero", (4, 64): "published: DANGO"}
    frame = pd.DataFrame(
        [
            {"samples": r * b, "steps": steps_per_epoch(b, r, samples), "what": what,
             "text": f"{r} × {b}: {steps_per_epoch(b, r, samples):,}"}
            for (r, b), what in pairs.items()
        ]
    )  # fmt: skip
    hetero, dango = steps_per_epoch(28, 4, samples), steps_per_epoch(64, 4, samples)
    x = alt.X("samples:Q", scale=alt.Scale(type="log"), title="ranks × batch", axis=alt.Axis(format="~g"))
    y = alt.Y("steps:Q", scale=alt.Scale(type="log"), title="steps an epoch", axis=alt.Axis(format="~s"))
    base = alt.Chart(frame).encode(x=x, y=y)
    layers = [
        base.mark_line(color="#bbbbbb"),
        base.mark_point(filled=True, size=70, opacity=1).encode(color=alt.Color("what:N", title=None)),
        base.mark_text(align="left", dx=8, dy=-6, fontSize=10).encode(text="text:N"),
    ]
    more = f"hetero at 4 × 28 takes {hetero / dango:.2f} × the steps of DANGO at 4 × 64"
    subtitle = f"{samples:,} samples; arithmetic, nothing measured: {more}"
    title = chart_title("Steps of an epoch", subtitle)
    return alt.layer(*layers).properties(width=520, height=_HEIGHT, title=title)


# Okabe and Ito's colours; points have shapes too
_COLOURS = {LOADER: "#e69f00", COMPUTE: "#0072b2", BOTH: "#009e73"}
_SHAPES = {LOADER: "square", COMPUTE: "circle", BOTH: "diamond"}
_EPOCH_WIDTH = 460
_WITHIN = 0.10  # error that a prediction may have


def epoch_chart(epochs: Sequence[Epoch], *, where: str | None = None) -> Any:
    """Return predicted over measured seconds of each epoch, its interval, and a band of ±10 %."""
    rows = pd.DataFrame(
        [
            {
                "epoch": epoch_name(epoch),
                "ratio": epoch.ratio,
                "low": epoch.predicted.low / epoch.measured_seconds,
                "high": epoch.predicted.high / epoch.measured_seconds,
                "binds": epoch.predicted.binds,
                "seconds": f"predicted {epoch.predicted.seconds:.3g} s, measured {epoch.measured_seconds:.3g} s",
            }
            for epoch in epochs
        ]
    )
    ends = [float(rows["low"].min()), float(rows["high"].max()), 1 - 2 * _WITHIN, 1 + 2 * _WITHIN]
    scale = alt.Scale(domain=[min(ends) - 0.05, max(ends) + 0.05], nice=False, zero=False)
    x = alt.X("ratio:Q", title="predicted over measured seconds of the epoch", scale=scale)
    y = alt.Y("epoch:N", title=None, sort=list(dict.fromkeys(rows["epoch"])), axis=alt.Axis(labelLimit=380))
    shown = [name for name in _COLOURS if name in set(rows["binds"])]
    colour = fixed_colour("binds", _COLOURS, shown, title="bound by", legend=alt.Legend(orient="bottom"))
    shapes = alt.Scale(domain=shown, range=[_SHAPES[name] for name in shown])
    shape = alt.Shape("binds:N", title="bound by", scale=shapes)
    band = pd.DataFrame({"low": [1 - _WITHIN], "high": [1 + _WITHIN]})
    base = alt.Chart(rows)
    chart: Any = alt.layer(
        alt.Chart(band).mark_rect(color="#bbbbbb", opacity=0.4).encode(x=alt.X("low:Q", scale=scale), x2="high:Q"),
        alt.Chart(pd.DataFrame({"at": [1.0]}))
        .mark_rule(color=GREY, strokeDash=[4, 3])
        .encode(x=alt.X("at:Q", scale=scale)),
        base.mark_rule(strokeWidth=2).encode(x=alt.X("low:Q", scale=scale), x2="high:Q", y=y, color=colour),
        base.mark_point(filled=True, size=80, opacity=1).encode(x=x, y=y, color=colour, shape=shape),
        base.mark_text(align="left", dx=8, color=GREY).encode(x=alt.value(_EPOCH_WIDTH), y=y, text="seconds:N"),
    )
    devices = {epoch.point.device for epoch in epochs}
    busy = next((epoch for epoch in epochs if epoch.busy_percent is not None), None)
    where = machine_text(where or (devices.pop() if len(devices) == 1 else None), busy)
    inside = int((abs(rows["ratio"] - 1) <= _WITHIN).sum())
    return chart.properties(
        width=_EPOCH_WIDTH,
        height=alt.Step(26),
        title=chart_title(
            f"{inside} of {len(rows)} epochs took the predicted time, within {_WITHIN:.0%}",
            f"{where} · grey band: within {_WITHIN:.0%}; bars: nine in ten simulations",
        ),
    )
