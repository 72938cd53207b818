"""Charts and tables of what a figure's trust rests on: races, spike-ins, carry-over."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

import altair as alt
import pandas as pd

from tclab.lab.colours import STRATEGY_COLOURS, strategy_colours
from tclab.lab.log_ticks import log_ticks
from tclab.lab.parts import SUMS
from tclab.lab.ratios import ratio_layers, ratio_rows
from tclab.sweeps.measured_on import this_machine
from tclab.timing import FASTER, SAME, SLOWER, Ledger, Pair, Race, SpikeIn, verdicts_of
from tclab.timing.units import bytes_text

UNDECIDED_COLOUR = "#dddddd"
_CELL = re.compile(r"batch (\d+), (\d+) networks")


def ledger_table(ledger: Ledger) -> pd.DataFrame:
    """Return what each stage of each timeline took in the middle step, and its share of the timeline.

    Stages that were not seen are left out.
    """
    frame = ledger.frame().dropna(subset=["seconds"])
    wholes = frame["stage"].isin(SUMS)
    parts = frame[~wholes].groupby(["timeline", "stage"], sort=False)["seconds"]
    table = pd.DataFrame({"median ms": parts.median() * 1e3, "steps": parts.count()})
    sums = parts.sum()
    table["share"] = (sums / sums.groupby("timeline").transform("sum")).map("{:.1%}".format)
    return table


def pairs_against(pairs: Iterable[Pair], arm: str) -> list[Pair]:
    """Return the comparisons with an arm, each told from the other arm's side."""
    return [pair if pair.b == arm else pair.flipped() for pair in pairs if arm in (pair.a, pair.b)]


def race_chart(pairs: Iterable[Pair], against: str, *, where: str | None = None) -> alt.LayerChart:
    """Return each arm's time over that of one of them, with its 95 % interval, and the margin as a band.

    **Arguments:**

    - `pairs`: `Race.pairs`, or made again from raw blocks by `verdicts_of(samples).values()`.
    - `against`: the arm that is 1.
    - `where`: what it was measured on, for the title; this machine unless given.
    """
    chosen = pairs_against(pairs, against)
    rows = ratio_rows(((pair.a, pair) for pair in chosen), by="arm").sort_values("ratio")
    margin = max((pair.margin for pair in chosen), default=0.0)
    chart: alt.LayerChart = ratio_layers(
        rows, by="arm", title=f"time over that of {against}", of=f"against {against}", margin=margin
    ).properties(
        width=520,
        height=alt.Step(26),
        title=alt.TitleParams(
            f"Each against {against}",
            subtitle=[f"{where or this_machine()} · 95 % intervals; grey band: the margin of ±{margin:.1%}"],
            anchor="start",
        ),
    )
    return chart


def race_words(race: Race, against: str) -> list[str]:
    """Return what a race says of each arm against one of them, and what it rests on, in a sentence each."""
    found = []
    for pair in pairs_against(race.pairs, against):
        if pair.ratio is None or pair.interval is None:
            found.append(f"{pair.a}: {pair.verdict}, {pair.why}")
            continue
        low, high = pair.interval
        ratio = f"{pair.ratio:.3g} × the time of {against} [{low:.3g}, {high:.3g}]"
        found.append(f"{pair.a}: {pair.verdict}, {ratio}, {pair.kept} rounds")
    floor = "was not measured" if race.floor is None else f"is {race.floor:.1%}"
    found.append(f"an arm's difference from itself {floor}, so no difference within ±{race.margin:.1%} is claimed")
    return found


def race_card(rows: pd.DataFrame, pairs: Iterable[Pair], against: str) -> pd.DataFrame:
    """Return what a strategy is chosen by: gate, time with interval and verdict, waits, bytes, peak memory.

    **Arguments:**

    - `rows`: a sweep's, for all that is no time; the arms are named after its strategies.
    - `pairs`: of a race of these strategies. `against`: the arm that is 1.
    """
    steps = rows[rows["stage"] == "step"].drop_duplicates("strategy").set_index("strategy")
    lines = {}
    for pair in pairs_against(pairs, against):
        ends = "" if pair.interval is None else f" [{pair.interval[0]:.3g}, {pair.interval[1]:.3g}]"
        ratio = "not run" if pair.ratio is None else f"{pair.ratio:.3g} ×{ends}"
        lines[pair.a] = {f"time over {against}": ratio, "verdict": pair.verdict}
    table = pd.DataFrame(
        {
            strategy: {
                "gate": step["gate"],
                **lines.get(strategy, {f"time over {against}": "1 ×", "verdict": ""}),
                "host syncs": step["host_syncs"],
                "kernels": step["kernels"],
                "bytes of a batch": _bytes(step["batch_bytes"]),
                "peak memory": _bytes(step["peak_bytes"]),
            }
            for strategy, step in steps.iterrows()
            if strategy in lines or strategy == against
        }
    ).T
    return table.rename_axis("strategy")


def _bytes(number: object) -> str | None:
    return None if pd.isna(number) else bytes_text(float(number))  # type: ignore[arg-type, call-overload]


def winner_of(pairs: Sequence[Pair]) -> str:
    """Return the arm of one cell that is faster than every other, "tie" for the same at the top, or "undecided"."""
    arms = list(dict.fromkeys(arm for pair in pairs for arm in (pair.a, pair.b)))

    def verdicts(arm: str) -> set[str]:
        return {pair.verdict for pair in pairs_against(pairs, arm)}  # of the others, against this one

    beaten_by_none = [arm for arm in arms if FASTER not in verdicts(arm)]
    for arm in arms:
        if verdicts(arm) == {SLOWER}:
            return arm
    if len(beaten_by_none) > 1 and all(verdicts(arm) <= {SLOWER, SAME} for arm in beaten_by_none):
        return "tie"
    return "undecided"


def winner_map(pairs: Iterable[Pair], *, where: str | None = None) -> alt.LayerChart:
    """Return which strategy wins where, over batch size and number of networks; what is open has a colour too.

    **Arguments:**

    - `pairs`: `Races.pairs` of a race over `tclab.sweeps.cells_of(points)`.
    - `where`: what it was measured on, for the title; this machine unless given.
    """
    cells: dict[str, list[Pair]] = {}
    for pair in pairs:
        cells.setdefault(pair.cell or "", []).append(pair)
    rows = []
    for cell, own in cells.items():
        found = _CELL.fullmatch(cell)
        if found is None:
            raise ValueError(f"cell {cell!r} is named otherwise than tclab.sweeps.cells_of names them")
        winner = winner_of(own)
        lead = max(
            (pair.ratio for pair in pairs_against(own, winner) if pair.ratio), default=None
        )  # over the slowest
        rows.append(
            {
                "batch_size": int(found[1]),
                "networks": int(found[2]),
                "winner": winner,
                "lead": "" if lead is None else f"{lead:.1f} ×",
            }
        )
    table = pd.DataFrame(rows, columns=["batch_size", "networks", "winner", "lead"])
    colours = {
        **strategy_colours([name for name in table["winner"] if name not in ("tie", "undecided")]),
        "tie": "#f0e442",
        "undecided": UNDECIDED_COLOUR,
    }
    shown = [name for name in [*STRATEGY_COLOURS, *colours] if name in set(table["winner"])]
    shown = list(dict.fromkeys([*shown, "undecided"]))
    base = alt.Chart(table).encode(
        x=alt.X("batch_size:O", title="batch size", axis=alt.Axis(labelAngle=0)),
        y=alt.Y("networks:O", title="edge types", sort="descending"),
    )
    chart: Any = alt.layer(
        base.mark_rect(stroke="white", strokeWidth=2).encode(
            color=alt.Color(
                "winner:N",
                title="fastest",
                scale=alt.Scale(domain=shown, range=[colours[name] for name in shown]),
            )
        ),
        base.mark_text(fontWeight="bold").encode(text="lead:N"),
    ).properties(
        width=alt.Step(90),
        height=alt.Step(50),
        title=alt.TitleParams(
            "Which is fastest where",
            subtitle=[where or this_machine(), "number: how much longer the slowest takes"],
            anchor="start",
        ),
    )
    return chart


def spike_chart(found: SpikeIn, *, where: str | None = None) -> alt.LayerChart:
    """Return what came back over what was put in, a colour a stage, with the ±10 % that is allowed.

    **Arguments:**

    - `found`: by `tclab.timing.spike_in`.
    - `where`: what it was measured on, for the title; this machine unless given.
    """
    rows = pd.DataFrame(
        [
            {
                "stage": trial.stage,
                "injected": trial.injected_seconds * 1e3,
                "recovered": trial.recovered_seconds[trial.stage] * 1e3,
                "found": "yes" if trial.recovered() else "no",
            }
            for trial in found.trials
            if trial.injected_seconds
        ]
    )
    low, high = float(rows["injected"].min()) / 2, float(rows["injected"].max()) * 2
    line = pd.DataFrame({"x": [low, high]})
    line["low"], line["high"] = 0.9 * line["x"], 1.1 * line["x"]
    log = alt.Scale(type="log", domain=[low, high], clamp=True)
    axis = alt.Axis(values=log_ticks([*rows["injected"], *rows["recovered"]]), format="~g")
    x = alt.X("injected:Q", title="delay put in, ms", scale=log, axis=axis)
    chart: Any = alt.layer(
        alt.Chart(line)
        .mark_area(color="#bbbbbb", opacity=0.4)
        .encode(x=alt.X("x:Q", scale=log, axis=axis), y=alt.Y("low:Q", scale=log, axis=axis), y2="high:Q"),
        alt.Chart(rows)
        .mark_point(size=70, strokeWidth=2)
        .encode(
            x=x,
            y=alt.Y("recovered:Q", title="what the ledger gave back there, ms", scale=log, axis=axis),
            color=alt.Color("stage:N", title="stage"),
            shape=alt.Shape(
                "found:N",
                title="came back",
                scale=alt.Scale(domain=["yes", "no"], range=["circle", "cross"]),
            ),
        ),
    ).properties(
        width=380,
        height=300,
        title=alt.TitleParams(
            f"{found.share():.0%} of {len(rows)} delays came back where they were put",
            subtitle=[f"{where or this_machine()} · grey band: within 10 %"],
            anchor="start",
        ),
    )
    return chart


def spike_table(found: SpikeIn) -> pd.DataFrame:
    """Return slope, its interval, detection limit in milliseconds and the share that came back, by stage."""
    return pd.DataFrame(
        [
            {
                "stage": response.stage,
                "slope": response.slope,
                "slope interval": None
                if response.slope_interval is None
                else "[{:.3f}, {:.3f}]".format(*response.slope_interval),
                "detection limit ms": None
                if response.detection_limit_seconds is None
                else response.detection_limit_seconds * 1e3,
                "came back": f"{response.share:.0%} of {response.trials}",
            }
            for response in found.responses()
        ]
    ).set_index("stage")


def carry_over_table(race: Race) -> pd.DataFrame:
    """Return each arm's time among the others over its time alone; missing where it was run alone too seldom."""
    return pd.DataFrame(
        {
            arm: {
                "time among the others over alone": found.ratio,
                "95 % interval": None if found.interval is None else "[{:.3f}, {:.3f}]".format(*found.interval),
                "times alone": found.controls,
            }
            for arm, found in race.carry_over.items()
        }
    ).T.rename_axis("arm")


def pairs_of(samples: Iterable[dict[str, object]]) -> list[Pair]:
    """Return every comparison that raw blocks hold, on whichever machine they were run."""
    return list(verdicts_of(samples).values())
