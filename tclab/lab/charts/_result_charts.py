"""Charts of results: races, comparisons, ledgers, epochs and traces."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pandas as pd

from tclab._display import counted, seconds_text
from tclab.errors import require
from tclab.lab.charts._marks import ratios, stacked
from tclab.lab.charts._style import CATEGORY_COLOURS, STAGE_COLOURS, chart_title, colours_of, empty_chart, machine_text
from tclab.lab.reports._cells import pairs_against
from tclab.sweeps._compare import Comparison
from tclab.sweeps.predict import Epoch
from tclab.timing import Ledger
from tclab.timing._ledger import SUMS
from tclab.timing._race import Race, Races
from tclab.timing._verdict import FASTER, OPPOSITE, SAME, SLOWER, UNDECIDED, Pair, explain
from tclab.trace._categories import OUTSIDE
from tclab.trace._report import Report

_NEUTRAL = {"": "#4e77c9"}  # of dots that are no strategy's
_WITHIN = 0.10  # error that a prediction may have
_LEFT = "logarithmic; left is faster"
_SAID = {FASTER: "faster than", SLOWER: "slower than", SAME: "as fast as", UNDECIDED: "not told apart from"}


def _ratio_rows(pairs: Iterable[tuple[str, Pair]]) -> pd.DataFrame:
    """Return pairs as rows of `ratios`, each with its verdict as words; without a ratio there are the words alone."""
    columns = ["line", "kind", "value", "low", "high", "sure", "text", "why"]
    found = []
    for name, pair in pairs:
        low, high = (not pair.tells_nothing and pair.interval) or (None, None)
        text = f"{pair.ratio:.3g}× {pair.verdict}" if pair.ratio else f"{pair.verdict}: no ratio"
        found.append((name, pair.a, pair.ratio, low, high, pair.verdict != UNDECIDED, text, explain(pair)))
    return pd.DataFrame(found, columns=columns)


def _finding(named: Sequence[tuple[str, Pair]], against: str, nouns: str) -> str:
    """Return what named pairs say as a title: how many are faster than what they are against, or else slower, or alike.

    `nouns` is what they are, if they are several.
    """
    verdict, words = next(said for said in _SAID.items() if any(pair.verdict == said[0] for _, pair in named))
    alike = {name: pair for name, pair in named if pair.verdict == verdict}
    most = (max if verdict == SLOWER else min)(alike, key=lambda name: alike[name].ratio or 1.0)
    subject, it = f"{alike[most].a} is", "it"
    if len(named) > 1:
        subject, it = f"{len(alike)} of {len(named)} {nouns} {'is' if len(alike) == 1 else 'are'}", most
    figures = f": {it} takes {alike[most].ratio:.3g}× the time" if verdict in OPPOSITE else ""
    return f"{subject} {words} {against}{figures}"


def race_chart(
    pairs: Race | Races | Iterable[Pair], against: str, *, by: str = "", title: str = "", where: str | None = None
) -> Any:
    """Return each arm's time over that of one of them, with the interval that decides, and the margin as a band.

    A hollow dot is undecided. A row is named by its arm and, in a race of several cells, its cell.

    **Arguments:**

    - `pairs`: a race, whose title then says whether the machine was busy; or the pairs of
      `tclab.timing.verdicts_of(samples)`.
    - `against`: the arm that is 1.
    - `by`: what a cell's name is, "samples".
    - `title`: the chart's; what the race found, unless given.
    - `where`: the machine, for the line below it; this one unless given, its device alone for "cpu" or "cuda".
    """
    chosen = pairs_against(pairs.pairs if isinstance(pairs, Race | Races) else pairs, against)
    named = []
    for pair in chosen:
        noun = by.removesuffix("s") if str(pair.cell) == "1" else by
        cell = pair.cell and f"{pair.cell} {noun}".strip()
        named.append((" · ".join(filter(None, (pair.a, cell))), pair))
    rows = _ratio_rows(named)
    if rows["value"].isna().all():
        reasons = "\n".join(dict.fromkeys(f"{name}: {explain(pair)}" for name, pair in named))
        return empty_chart(f"{title or f'Each candidate against {against}'}: no ratio.\n{reasons}")
    if chosen[0].cell is None:
        rows = rows.sort_values("value")
    margin = max(pair.margin for pair in chosen)
    more = f"with the interval that decides; grey band: the margin of ±{margin:.1%}"
    heading = chart_title(title or _finding(named, against, "candidates"), machine_text(where, pairs), more)
    return ratios(rows, heading, axis=f"time over that of {against} ({_LEFT})", band=(1 / (1 + margin), 1 + margin))


def _comparison_chart(comparison: Comparison) -> Any:
    """Return the second runs' time over the first's for each point, with 95 % intervals and the margin as a band."""
    first, second = comparison.names
    timed = [(pair.cell or "", pair) for pair in comparison.pairs if pair.ratio]
    if not timed:
        return empty_chart(f"No setting of {first} and {second} has a time in both.")
    margin = max(pair.margin for pair in comparison.pairs)
    said = [" and ".join(dict.fromkeys(map(str, comparison.where)))]
    said += [f"{name}: {was} → {now}"[:100] for name, (was, now) in comparison.differs.items()]
    said.append(f"95 % intervals, the sides ran at different times; grey band: the margin of ±{margin:.0%}")
    title = chart_title(_finding(timed, first, f"settings of {second}"), *said)
    axis = f"{comparison.stage}: time of {second} over {first} ({_LEFT})"
    rows = _ratio_rows(timed).assign(kind="")
    return ratios(rows, title, axis=axis, colours=_NEUTRAL, band=(1 / (1 + margin), 1 + margin))


def _ledger_chart(ledger: Ledger) -> Any:
    """Return a bar of stages for each timeline of a ledger, the mean of each, which add up to the mean step.

    Timelines overlap, so they are never added: a worker makes a batch while the host trains.
    """
    frame = ledger.frame().dropna(subset=["seconds"])
    parts = frame[~frame["stage"].isin([*SUMS, "idle"])]
    if parts.empty:
        return empty_chart("The ledger has no step.")
    means = parts.groupby(["timeline", "stage"], sort=False)["seconds"].sum().astype(float).reset_index()
    means = means.set_axis(["bar", "part", "value"], axis=1)
    means["value"] /= means["bar"].map(parts.groupby("timeline")["step"].nunique())
    means["text"] = means.groupby("bar")["value"].transform("sum").map(seconds_text)
    accounted = ", ".join(f"{line} {share:.1%}" for line, share in ledger.accounted.items())
    of = f"{machine_text(result=ledger)} · {len(ledger)} steps · accounted for: {accounted}"
    first = means[means["bar"] == means["bar"].iloc[0]]
    most = first.loc[first["value"].idxmax()]
    share = most["value"] / (first["value"].sum() or 1.0)
    title = chart_title(f"{most['part']} is the largest stage of a step: {share:.0%} of the {most['bar']}'s time", of)
    colours = colours_of(means["part"], STAGE_COLOURS)
    return stacked(means, title, axis="a step [s], mean of each stage", colours=colours)


def _epoch_chart(epochs: Sequence[Epoch]) -> Any:
    """Return predicted over measured seconds of each epoch, its interval, and a band of ±10 %."""
    rows: list[tuple[Any, ...]] = []
    for epoch in epochs:
        point, predicted, took = epoch.point, epoch.predicted, epoch.measured_seconds
        size = f"batch {point.batch_size}, {counted(point.workers, 'worker')}"
        line = f"{point.model} · {point.strategy} · {point.mode} · {size}"
        text = f"{predicted.seconds:.3g} s predicted, {took:.3g} s measured"
        rows.append((line, epoch.ratio, predicted.low / took, predicted.high / took, text))
    found = pd.DataFrame(rows, columns=["line", "value", "low", "high", "text"])
    devices = {epoch.point.device for epoch in epochs}
    busy = next((epoch for epoch in epochs if epoch.busy_percent is not None), None)
    machine = machine_text(devices.pop() if len(devices) == 1 else None, busy)
    inside = int((abs(found["value"] - 1) <= _WITHIN).sum())
    text = f"{inside} of {len(found)} epochs took the predicted time, within {_WITHIN:.0%}"
    scales = " and ".join(dict.fromkeys(f"scale {epoch.point.scale:g}" for epoch in epochs if epoch.point.scale))
    of = " · ".join(filter(None, (machine, scales)))
    title = chart_title(text, of, f"grey band: within {_WITHIN:.0%}; line: 90 % interval of the prediction")
    return ratios(found, title, axis="predicted over measured seconds of the epoch (logarithmic, 1 is right)",
                  colours=_NEUTRAL, band=(1 - _WITHIN, 1 + _WITHIN))  # fmt: skip


# ---- traces

_OF_TRACES = {  # the last three are of a device
    **CATEGORY_COLOURS, **STAGE_COLOURS, OUTSIDE: STAGE_COLOURS["other"],
    "compute": STAGE_COLOURS["forward"], "exposed communication": STAGE_COLOURS["communication"],
    "copies and sets": STAGE_COLOURS["transfer"],
}  # fmt: skip


def trace_chart(report: Report) -> Any:
    """Return bars of where the time of a trace went, each with its share of what its panel adds up to.

    A panel for the main threads' self time by kind of work, one by the stage of the step around it, and one for each
    device's span, from its first event to its last: compute, the exposed part of communication, copies and sets that
    neither hides, idle. What the trace has nothing of has no panel.

    **Arguments:**

    - `report`: as `tclab.trace.analyze` returns it.
    """
    tables = {"main thread, by kind of work": report.categories, "main thread, by stage of the step": report.stages}
    found = [(panel, *row) for panel, table in tables.items() for row in zip(table.iloc[:, 0].astype(str),
             table["self_us"], table["share"], strict=True) if row[1] > 0]  # fmt: skip
    for device in report.breakdown.dropna(subset="span_us").to_dict("records"):
        found += _kinds_of(device)
    if not found:
        return empty_chart("No event in this trace.")
    parts = pd.DataFrame(found, columns=["panel", "bar", "us", "of"])
    parts = parts.assign(part=parts["bar"], value=parts["us"] / 1e6, label="", text=parts["of"].map("{:.1%}".format))
    panel = next((name for name, *_ in reversed(found) if name in tables), found[0][0])  # stages, if there are any
    _, largest, _, share = max((row for row in found if row[0] == panel), key=lambda row: row[2])
    title = chart_title(f"{largest} took the largest share of the time: {share:.0%} ({panel})", _recorded(report))
    return stacked(parts, title, axis="time [s]", colours=colours_of(parts["part"], _OF_TRACES))


def _kinds_of(device: dict[Any, Any]) -> list[tuple[str, str, float, float]]:
    """Return panel, kind, microseconds and share of each kind of a device's span, a row of `report.breakdown`."""
    span, exposed = device["span_us"], device["exposed_communication_us"]
    panel = f"device {device['device']}" + ("" if pd.isna(device["rank"]) else f" of rank {device['rank']}")
    kinds = {
        "compute": device["compute_us"],
        "exposed communication": exposed,
        "copies and sets": device["non_compute_us"] - exposed,  # those during compute are hidden by it
        "idle": device["idle_us"],
    }
    return [(panel, kind, us, us / span if span else 0.0) for kind, us in kinds.items()]


def _recorded(report: Report) -> str:
    """Return where a trace was recorded: its file or files, devices and steps."""
    files = [trace.path.name for trace in report.traces]
    ran = report.settings[report.settings["device_events"].astype(bool)]
    devices = dict.fromkeys(name for names in ran["device_names"] for name in names) or (["device"] if len(ran) else [])
    named = files[0] if len(files) == 1 else f"{len(files)} files, {files[0]} first"
    return f"{named} · {', '.join(devices) or 'no device event'} · {counted(len(report.steps), 'step')}"


# ---- by its type

_CHARTS: dict[type, Callable[[Any], Any]] = {
    Comparison: _comparison_chart,
    Epoch: _epoch_chart,
    Ledger: _ledger_chart,
    Report: trace_chart,
}


def result_chart(result: Any) -> Any:
    """Return the chart of a result.

    | result of | chart |
    |---|---|
    | `tclab.compare` | the second runs' time over the first's, point by point |
    | `tclab.timing.Ledger` | a bar of stages for each timeline, which add up to the mean step |
    | `tclab.sweeps.run_epoch`, a list of them | predicted over measured seconds of each epoch |
    | `tclab.trace.analyze` | self time by kind of work and by stage of the step, and what each device did |

    Intervals are of 95 %; what is undecided is hollow. The title names the machine of the result, or this one; a
    trace's its files and their devices.

    **Raises:** `InputError` for anything else.
    """
    one = result[0] if isinstance(result, list | tuple) and result else result
    require("result", one, tuple(_CHARTS), "a comparison, a ledger, a trace's report, or a list of epochs")
    draw = next(draw for kind, draw in _CHARTS.items() if isinstance(one, kind))
    return draw(result)
