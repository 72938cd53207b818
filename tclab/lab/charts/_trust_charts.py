"""Charts of trust: races, winners, two runs compared, and spikes of a known length."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import altair as alt
import pandas as pd

from tclab.lab.charts._style import (
    chart_title,
    empty_chart,
    fixed_colour,
    log_axis,
    machine_text,
    stage_colours,
    strategy_colours,
    tooltips,
)
from tclab.lab.reports._race_tables import pairs_against, winner_table
from tclab.sweeps.analysis._compare_runs import Comparison
from tclab.timing._race import Race, Races
from tclab.timing._self_test import SpikeIn
from tclab.timing._verdict import FASTER, SAME, SLOWER, UNDECIDED, Pair

# Okabe and Ito's colours for decided verdicts, grey for the undecided one
VERDICT_COLOURS = {FASTER: "#009e73", SAME: "#0072b2", SLOWER: "#d55e00", UNDECIDED: "#999999"}


def ratio_rows(pairs: Iterable[tuple[str | None, Pair]], *, by: str) -> pd.DataFrame:
    """Return the pairs that have a ratio as rows, with their names in column `by`."""
    none = (None, None)
    rows = [
        (name, pair.ratio, *(pair.interval or none), *(pair.decision_interval or none), pair.verdict, pair.why)
        for name, pair in pairs
    ]
    columns = [by, "ratio", "low", "high", "widest_low", "widest_high", "verdict", "why"]
    return pd.DataFrame(rows, columns=columns).dropna(subset=["ratio"])


def ratio_layers(rows: pd.DataFrame, *, by: str, title: str, of: str, margin: float) -> Any:
    """Return a layer of the ratios of `ratio_rows`, in their order, with their intervals; hollow where undecided.

    The thick line is the 95 % interval; the thin one, where there is one, is the wider interval that decides. `title`
    is the axis's, `of` the colours', and `margin` half the width of the grey band around 1.
    """
    ends = [1 / (1 + margin), 1 + margin]
    y = alt.Y(f"{by}:N", title=None, sort=None, axis=alt.Axis(labelLimit=330))
    x = alt.X(
        "ratio:Q",
        title=f"{title} (logarithmic; left is faster)",
        **log_axis([*ends, *rows[["ratio", "low", "high", "widest_low", "widest_high"]].stack()], padding=16),
    )
    band = pd.DataFrame({"from": ends[:1], "to": ends[1:]})
    base = alt.Chart(rows).encode(
        y=y,
        color=fixed_colour("verdict", VERDICT_COLOURS, rows["verdict"], title=of),
        tooltip=tooltips(
            {by: by, "verdict": of, "why": "why"}, {"ratio": "ratio", "low": "95 % from", "high": "95 % to"}
        ),
    )
    return alt.layer(
        alt.Chart(band).mark_rect(color="#bbbbbb", opacity=0.4).encode(x="from:Q", x2="to:Q"),
        base.mark_rule(strokeWidth=1).encode(x="widest_low:Q", x2="widest_high:Q"),
        base.mark_rule(strokeWidth=4).encode(x=alt.X("low:Q"), x2="high:Q"),
        base.transform_filter(alt.datum.verdict != UNDECIDED).mark_point(filled=True, size=80).encode(x=x),
        base.transform_filter(alt.datum.verdict == UNDECIDED).mark_point(filled=False, size=80).encode(x=x),
    )


def comparison_chart(comparison: Comparison, *, where: str | None = None) -> Any:
    """Return the second runs' time over the first's for each point, with 95 % intervals and the margin as a band.

    A point is hollow where it is undecided. Points that are in one side alone, or have no time on one side, are
    counted below the title.
    """
    first, second = comparison.names
    rows = ratio_rows(((pair.cell, pair) for pair in comparison.pairs), by="point")
    if rows.empty:
        return empty_chart(f"No point of {first} and {second} has a time in both.")
    margin = max(pair.margin for pair in comparison.pairs)
    return ratio_layers(
        rows, by="point", title=f"{comparison.stage}: time of {second} over {first}", of=second, margin=margin
    ).properties(
        width=420,
        height=alt.Step(24),
        title=chart_title(f"{second} against {first}", *_subtitle(comparison, margin, where)),
    )


def _subtitle(comparison: Comparison, margin: float, where: str | None) -> list[str]:
    first, second = comparison.names
    places = [f"{name}: {where}" for name, where in zip(comparison.names, comparison.where, strict=True)]
    lines = [where or comparison.where[0]] if where or len(set(comparison.where)) == 1 else places
    lines += [f"{name}: {was} → {now}" for name, (was, now) in comparison.differs.items()]
    lines = [line if len(line) <= 100 else f"{line[:97]}…" for line in lines]
    lines.append(f"95 % intervals, the sides ran at different times; grey band: the margin of ±{margin:.0%}")
    alone = [(first, len(comparison.only_first)), (second, len(comparison.only_second))]
    lines += [f"{count} more in {name} alone" for name, count in alone if count]
    timeless = sum(pair.ratio is None for pair in comparison.pairs)
    lines += [f"{timeless} in both without a time in one of them"] if timeless else []
    return lines


def race_chart(
    pairs: Race | Races | Iterable[Pair], against: str, *, by: str = "", title: str = "", where: str | None = None
) -> Any:
    """Return each arm's time over that of one of them, with its intervals, and the margin as a band.

    A verdict is decided by the thin line, the interval that holds however often the race goes on, not by the 95 % one.

    In a race of several cells a line is named by its cell, and by its arm where there are others besides.

    **Arguments:**

    - `pairs`: a race, whose title then says whether the machine was busy; or the pairs of
      `tclab.timing.verdicts_of(samples)`.
    - `against`: the arm that is 1.
    - `by`: what a cell's name is, "samples".
    - `title`: the chart's.
    - `where`: the machine, for the title; this one unless given, its device alone for "cpu" or "cuda".
    """
    chosen = pairs_against(_pairs_of(pairs), against)
    several = len({pair.a for pair in chosen}) > 1
    named = {}
    for pair in chosen:
        cell = pair.cell and f"{pair.cell} {by}".strip()
        named[pair.a if cell is None else f"{pair.a} · {cell}" if several else cell] = pair
    title = title or f"Each arm against {against}"
    rows = ratio_rows(named.items(), by=by or "arm")
    if rows.empty:
        reasons = "\n".join(dict.fromkeys(f"{name}: {pair.why}" for name, pair in named.items()))
        return empty_chart(f"{title}: no ratio.\n{reasons}")
    margin = max(pair.margin for pair in chosen)
    rows = rows.sort_values("ratio") if chosen[0].cell is None else rows
    return ratio_layers(
        rows, by=by or "arm", title=f"time over that of {against}", of=f"against {against}", margin=margin
    ).properties(
        width=520,
        height=alt.Step(26),
        title=chart_title(
            title,
            machine_text(where, pairs),
            f"thick: 95 % interval; thin: the one that decides; grey band: the margin of ±{margin:.1%}",
        ),
    )


def winner_map(pairs: Races | Iterable[Pair], *, where: str | None = None) -> Any:
    """Return the fastest strategy of each batch size and number of networks; a tie and the undecided have colours.

    **Arguments:**

    - `pairs`: what `tclab.sweeps.race_grid(points)` returns, or pairs.
    - `where`: the machine, for the title; this one unless given, its device alone for "cpu" or "cuda".
    """
    table = winner_table(_pairs_of(pairs))
    named = [name for name in table["winner"] if name not in ("tie", "undecided")]
    colours = {**strategy_colours(named), "tie": "#f0e442", "undecided": "#dddddd"}
    base = alt.Chart(table).encode(
        x=alt.X("batch_size:O", title="batch size", axis=alt.Axis(labelAngle=0)),
        y=alt.Y("networks:O", title="edge types", sort="descending"),
    )
    return alt.layer(
        base.mark_rect(stroke="white", strokeWidth=2).encode(
            color=fixed_colour("winner", colours, [*table["winner"], "undecided"], title="fastest")
        ),
        base.mark_text(fontWeight="bold").encode(text="lead:N"),
    ).properties(
        width=alt.Step(90),
        height=alt.Step(50),
        title=chart_title(
            "The fastest strategy of each cell", machine_text(where, pairs), "number: how much longer the slowest takes"
        ),
    )


def _pairs_of(given: Race | Races | Iterable[Pair]) -> Iterable[Pair]:
    return given.pairs if isinstance(given, Race | Races) else given


def spike_chart(spikes: SpikeIn, *, where: str | None = None) -> Any:
    """Return measured over injected delays, a colour a stage, with a band of ±10 %."""
    rows = pd.DataFrame(
        [
            {
                "stage": trial.stage,
                "injected": trial.injected_seconds * 1e3,
                "recovered": trial.recovered_seconds * 1e3,
                "found": "yes" if trial.recovered() else "no",
            }
            for trial in spikes.trials
        ]
    )
    least, most = float(rows["injected"].min()), float(rows["injected"].max())
    found = rows["recovered"][rows["recovered"] > least / 20]  # on a logarithmic axis; noise is also below 0
    low, high = min([least / 2, *(found / 1.2)]), max([most * 2, *(found * 1.2)])
    edge = "" if len(found) == len(rows) else f"; {len(rows) - len(found)} below the axis, drawn on it"
    line = pd.DataFrame({"x": [low, high]})
    line["low"], line["high"] = 0.9 * line["x"], 1.1 * line["x"]
    log = log_axis([*rows["injected"], *rows["recovered"]], domain=[low, high], clamp=True)
    x = alt.X("injected:Q", title="injected delay [ms]", **log)
    return alt.layer(
        alt.Chart(line)
        .mark_area(color="#bbbbbb", opacity=0.4)
        .encode(x=alt.X("x:Q", **log), y=alt.Y("low:Q", **log), y2="high:Q"),
        alt.Chart(rows)
        .mark_point(size=70, strokeWidth=2)
        .encode(
            x=x,
            y=alt.Y("recovered:Q", title="delay that the ledger measured in that stage [ms]", **log),
            color=fixed_colour("stage", stage_colours(rows["stage"]), rows["stage"], title="stage"),
            shape=alt.Shape(
                "found:N",
                title="recovered",
                scale=alt.Scale(domain=["yes", "no"], range=["circle", "cross"]),
            ),
        ),
    ).properties(
        width=380,
        height=300,
        title=chart_title(
            f"{spikes.share():.0%} of {len(rows)} delays were measured in the stage that they were injected into",
            f"{machine_text(where, spikes)} · grey band: within 10 %{edge}",
        ),
    )
