"""Charts of bytes: what a batch carries, and whether loading takes time in proportion to it."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

import altair as alt
import pandas as pd

from tclab._display import bytes_text
from tclab.lab.charts._style import GREY, chart_title, empty_chart, log_ticks, plain_frame, rows_title, strategy_colour
from tclab.lab.reports._bytes_fit import bytes_fit, loading_points
from tclab.lab.reports._comparable_rows import fullest_cells, one_run_each, step_throughput, values_text, with_labels
from tclab.lab.reports._stage_parts import ordered_labels
from tclab.sweeps.store._row_files import Runs, rows_of

_WIDTH = 520
_LABELS = alt.Axis(labelLimit=380)

_PANEL = 260


def bytes_per_batch(rows: Runs) -> Any:
    """Return the bytes of a batch of each strategy, counted from its tensors, on a logarithmic axis."""
    rows = rows_of(rows)
    chosen = fullest_cells(with_labels(rows))
    steps = step_throughput(one_run_each(chosen))
    ok = plain_frame(steps[steps["status"] == "ok"], ["strategy", "label", "batch_bytes"])
    ok["bytes"] = ok["batch_bytes"].map(bytes_text)
    order = ok.sort_values("batch_bytes", ascending=False)["label"].tolist()
    y = alt.Y("label:N", sort=order, title=None, axis=_LABELS)
    x = alt.X(
        "batch_bytes:Q",
        title="bytes a batch (logarithmic)",
        scale=alt.Scale(type="log", padding=30),
        axis=alt.Axis(format="~s", values=log_ticks(ok["batch_bytes"])),
    )
    colour = strategy_colour(ok).legend(None)
    # a bar's length would say nothing on this axis
    marks = alt.Chart(ok).mark_point(filled=True, size=80, opacity=1).encode(y=y, x=x, color=colour)
    text = alt.Chart(ok).mark_text(align="left", dx=8, color=GREY).encode(y=y, x=x, text="bytes:N")
    more = f"{values_text(chosen, 'batch_size')}, {values_text(chosen, 'networks')}"
    return (marks + text).properties(width=_WIDTH, title=rows_title("Bytes of a batch", chosen, more))


def time_against_bytes(rows: Runs) -> Any:
    """Return seconds a batch in mode `data` against its bytes, a panel for each strategy, with the fitted line.

    The panels share their time axis; each has its own axis of bytes.
    """
    rows = rows_of(rows)
    points = loading_points(rows)
    if points.empty:
        return empty_chart("Mode data was not measured.")
    fits = {fit["label"]: fit for fit in bytes_fit(rows).to_dict("records")}
    longest = 1.15 * max(points["high_seconds"].max(), points["mean_seconds"].max())
    second, factor = ("s", 1.0) if longest >= 1 else ("ms", 1e3)
    points[["took", "low", "high"]] = factor * points[["mean_seconds", "low_seconds", "high_seconds"]]
    panels = []
    for place, label in enumerate(ordered_labels(points)):
        group = points[points["label"] == label].copy()
        widest = group["batch_bytes"].max()
        unit, size = next((u, s) for u, s in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3), ("B", 1)) if widest >= s)
        group["sent"], end = group["batch_bytes"] / size, 1.12 * widest / size
        x = alt.X(
            "sent:Q",
            title=f"bytes of a batch [{unit}]",
            scale=alt.Scale(domain=[0, end], nice=False),
            axis=alt.Axis(tickCount=5, gridOpacity=0.4),
        )
        y = alt.Y(
            "took:Q",
            title=f"mode data [{second} a batch]" if place == 0 else None,
            scale=alt.Scale(domain=[0, factor * longest], nice=False),
            axis=alt.Axis(gridOpacity=0.4),
        )
        base = alt.Chart(group).encode(x=x, color=strategy_colour(points).legend(None))
        layers = [
            base.mark_rule(strokeWidth=2).encode(y=alt.Y("low:Q"), y2="high:Q"),
            base.mark_point(filled=True, size=60, opacity=1).encode(y=y),
            base.mark_text(align="left", dx=7, dy=-7, fontSize=10).encode(
                y=y, text=alt.Text("batch_size:Q", format="d"), color=alt.value(GREY)
            ),
        ]
        fit = fits[label]
        if pd.notna(fit["r_squared"]):
            ends = pd.DataFrame({"sent": [0.0, end]})
            ends["took"] = factor * (fit["seconds_at_none"] + fit["seconds_per_byte"] * size * ends["sent"])
            line = alt.Chart(ends).mark_line(strokeDash=[5, 3], color=GREY, clip=True)
            layers.insert(0, line.encode(x=x, y=y))
        title = chart_title(label, _fit_text(fit), size=12)
        panels.append(alt.layer(*layers).properties(width=_PANEL, height=220, title=title))
    chart = alt.hconcat(*panels, spacing=16)
    more = "numbers: batch size; line: 95 % interval; dashed: least squares"
    return chart.properties(title=rows_title("Is loading bound by bytes?", rows, more))


def _fit_text(fit: Mapping[Hashable, Any]) -> str:
    if pd.isna(fit["r_squared"]):
        return f"{fit['batch_sizes']} batch sizes: too few for a line"
    if not fit["low"] > 0:  # missing where all times are equal
        return f"R² = {fit['r_squared']:.2f}: {fit['batch_sizes']} batch sizes do not show a slope"
    return f"R² = {fit['r_squared']:.3f}, {bytes_text(1 / fit['seconds_per_byte'])}/s"
