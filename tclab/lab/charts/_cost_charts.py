"""Charts of kernels' costs: break-even of masking and filtering, held-out predictions, roofline, largest batches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import altair as alt
import pandas as pd

from tclab.lab.charts._style import (
    GREY,
    SHAPES,
    chart_title,
    fixed_colour,
    log_axis,
    machine_text,
    strategy_colours,
    tooltips,
)
from tclab.sweeps.predict._cost_model import CostModel
from tclab.sweeps.predict._fits import LargestBatch
from tclab.sweeps.predict._roofline import Ceilings

_WIDTH, _HEIGHT = 520, 280


def break_even_chart(
    model: CostModel, widths: Sequence[int], *, deleted_share: float | None = None, where: str | None = None
) -> Any:
    """Return the share of removed edges above which filtering is faster, over the number of features.

    Below 0 filtering is always faster, above 1 never: line and band then lie on the edge, since no share is beyond.

    **Arguments:**

    - `model`: the fitted costs. `widths`: numbers of features.
    - `deleted_share`: the share that the given deletions remove, drawn as a dashed line.
    - `where`: the machine, for the title; this one unless given, its device alone for "cpu" or "cuda".
    """
    rows = []
    for width in widths:
        best, low, high = model.break_even(width)
        shares = {"p": best, "low": low, "high": high}
        rows.append({"features": width} | {name: min(max(share, 0.0), 1.0) for name, share in shares.items()})
    base = alt.Chart(pd.DataFrame(rows)).encode(
        x=alt.X("features:Q", scale=alt.Scale(type="log", base=2), title="features H")
    )
    band = base.mark_area(opacity=0.25, color="#0072b2").encode(
        y=alt.Y("low:Q", title="share of edges removed, p", axis=alt.Axis(format="%")), y2="high:Q"
    )
    line = base.mark_line(point=True, color="#0072b2").encode(y="p:Q")
    layers = [band, line]
    if deleted_share is not None:
        rule = pd.DataFrame({"p": [deleted_share]})
        layers.append(alt.Chart(rule).mark_rule(color="#d55e00", strokeDash=[5, 3]).encode(y="p:Q"))
    subtitle = [f"{machine_text(where)} · band: 95 % interval"]
    if deleted_share is not None:
        subtitle.append(f"dashed: {deleted_share:.2%} removed, {_break_even_verdict(model, widths, deleted_share)}")
    title = chart_title("Filtering is faster above the line", *subtitle)
    return alt.layer(*layers).properties(width=_WIDTH, height=_HEIGHT, title=title)


def _break_even_verdict(model: CostModel, widths: Sequence[int], deleted_share: float) -> str:
    """Return which is faster for a share of removed edges; a call's constant is not in the model."""
    masking, filtering, undecided = "masking is the faster", "filtering is the faster", "undecided"
    found: dict[str, list[str]] = {masking: [], filtering: [], undecided: []}
    for width in widths:
        _, low, high = model.break_even(width)
        found[masking if deleted_share < low else filtering if deleted_share > high else undecided].append(str(width))
    return "; ".join(f"{verdict} at {', '.join(at)} features" for verdict, at in found.items() if at)


def held_out_chart(both: pd.DataFrame, rate: str, *, where: str | None = None) -> Any:
    """Return predicted against measured times of the held-out cells, masking and filtering of each.

    **Arguments:**

    - `both`, `rate`: of `CostModel.against`.
    - `where`: the machine, for the title; this one unless given, its device alone for "cpu" or "cuda".
    """
    parts = []
    for method in ("mask", "filter"):
        times = both[[f"predicted_{method}_seconds", f"{method}_seconds"]]
        parts.append(times.set_axis(["predicted", "measured"], axis=1).assign(method=method))
    points = pd.concat(parts)
    limits = [points[["predicted", "measured"]].min().min(), points[["predicted", "measured"]].max().max()]
    log = log_axis(limits, domain=[limits[0] / 1.3, limits[1] * 1.3])
    colours = {"mask": "#d55e00", "filter": "#56b4e9"}
    dots = alt.Chart(points).encode(
        x=alt.X("measured:Q", title="measured seconds", **log),
        y=alt.Y("predicted:Q", title="predicted seconds", **log),
        color=fixed_colour("method", colours, colours),
        shape=alt.Shape("method:N", scale=alt.Scale(domain=list(colours))),
    )
    ends = pd.DataFrame({"measured": limits, "predicted": limits})
    line = alt.Chart(ends).mark_line(color="#999999").encode(x="measured:Q", y="predicted:Q")
    title = chart_title("Held-out cells, predicted before they ran", machine_text(where), rate)
    return (line + dots.mark_point(filled=True, size=60)).properties(width=_WIDTH, height=_HEIGHT, title=title)


def roofline_chart(kernels: pd.DataFrame, limits: Ceilings, *, where: str | None = None) -> Any:
    """Return each kernel's operations a second over its operations a byte, under the two ceilings.

    **Arguments:**

    - `kernels`: of `tclab.sweeps.predict.roofline`. `limits`: the machine's bandwidth and operations a second.
    - `where`: the machine, for the title; this one unless given, its device alone for "cpu" or "cuda".
    """
    rows = kernels.assign(intensity=kernels["flop"] / kernels["bytes"], gflops=kernels["flops"] / 1e9)
    ridge = limits.flops / limits.bytes_per_second
    ends = [rows["intensity"].min() / 2, ridge, max(rows["intensity"].max(), ridge) * 2]
    roof = pd.DataFrame(
        {"intensity": ends, "gflops": [min(x * limits.bytes_per_second, limits.flops) / 1e9 for x in ends]}
    )
    logs = [log_axis([*roof[name], *rows[name]], padding=25) for name in ("intensity", "gflops")]
    line = alt.Chart(roof).encode(
        x=alt.X("intensity:Q", title="operations a byte (of the least traffic)", **logs[0]),
        y=alt.Y("gflops:Q", title="billion operations a second", **logs[1]),
    )
    colours = strategy_colours(rows["kernel"])
    shares = {row["kernel"]: f"{row['kernel']}, {row['share']:.0%}" for _, row in rows.iterrows()}
    colours = {shares[name]: colour for name, colour in colours.items() if name in shares}
    names = list(colours)
    dots = alt.Chart(rows.assign(kernel=rows["kernel"].map(shares))).encode(
        x="intensity:Q",
        y="gflops:Q",
        color=fixed_colour("kernel", colours, names),
        shape=alt.Shape("kernel:N", scale=alt.Scale(domain=names, range=list(SHAPES))),
        tooltip=tooltips({"kernel": "kernel"}, {"gflops": "GFLOP/s", "intensity": "operations a byte"}),
    )
    measured = f"{limits.bytes_per_second / 1e9:.3g} GB/s in a copy, {limits.flops / 1e9:.4g} GFLOP/s in a product"
    title = chart_title(
        "Each kernel under this machine's ceilings",
        machine_text(where),
        measured,
        "share: the least time that the ceilings allow over the measured time",
    )
    return (line.mark_line(color=GREY) + dots.mark_point(filled=True, size=120)).properties(
        width=_WIDTH, height=_HEIGHT, title=title
    )


def largest_batches_chart(batches: Sequence[LargestBatch], *, where: str | None = None) -> Any:
    """Return the largest batch of each strategy that ran within a memory limit, and the expected one."""
    rows = pd.DataFrame(
        [
            {"strategy": one.point.strategy, "samples": number, "what": what}
            for one in batches
            for what, number in (("ran", one.size), ("expected", one.expected))
        ]
    )
    title = chart_title(
        "The largest batch that fits",
        machine_text(where or batches[0].point.device),
        f"{batches[0].memory_bytes / 1e9:.3g} GB a process; found by bisection, each trial in a process",
    )
    marks = alt.Chart(rows).encode(
        y=alt.Y("strategy:N", sort="-x", title=None),
        x=alt.X("samples:Q", title="samples in a batch"),
        yOffset=alt.YOffset("what:N", sort=["ran", "expected"]),
        color=fixed_colour("what", {"ran": "#009e73", "expected": "#999999"}, ["ran", "expected"]),
    )
    return marks.mark_bar().properties(width=_WIDTH, height=alt.Step(16), title=title)
