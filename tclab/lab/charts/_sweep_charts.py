"""Charts of a sweep's rows: the overview, throughput, stages of a step, modes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from textwrap import wrap
from typing import Any

import pandas as pd

from tclab._display import bytes_text, seconds_text
from tclab.errors import check_known
from tclab.lab.charts._marks import lines, ratios, stacked
from tclab.lab.charts._style import EMPTY, STAGE_COLOURS, chart_title, empty_chart
from tclab.lab.reports import _cells as cells
from tclab.lab.reports._findings import AXES, AxisText, along, axis_sentences, axis_texts, largest_stages
from tclab.sweeps._compare import undisturbed
from tclab.sweeps._point import Point
from tclab.sweeps._rows import Runs, rows_of
from tclab.timing._verdict import ONCE, SAME, UNDECIDED

_COLOURED = 4  # lines of a model
_LINES = 2  # of a title
_LETTER = 6.5  # pixels of a letter of a title


def throughput(rows: Runs, by: str = "strategy") -> Any:
    """Return samples a second: an overview with a row a strategy, or a line a strategy over batch size or networks.

    Rows of mode `step` count, or of the first mode there is where that was not run.

    Lines have the colour of their strategy for at most four of each model: the fastest, `edge_mask` or else the
    slowest, and those that are the fastest elsewhere, or nearly. The others are grey, and named under the mouse.

    The overview has the batch size and networks that the most strategies ran at, the fastest strategy first: samples a
    second with the 95 % interval, and bytes of a batch. A word at a row marks what dots do not show: a strategy without
    a time, one that is inexact, and one whose verdict against the fastest exact strategy of
    its model and setting is UNDECIDED or SAME. Where strategies ran once each there are no verdicts, and the title says
    so.

    **Arguments:**

    - `rows`: of a sweep.
    - `by`: "strategy", "batch_size" or "networks".

    **Raises:** `InputError` for another `by`.
    """
    check_known("axis of throughput", ["strategy", *AXES], by)
    rows = cells.with_labels(cells.in_one_mode(undisturbed(rows_of(rows))))
    if not (rows["status"] == "ok").any():
        return _without_figures(rows)
    return _overview(cells.fullest(rows)) if by == "strategy" else _over(rows, by)


def _title(rows: pd.DataFrame, by: str, width: int) -> tuple[list[str], str]:
    """Return what rows say of an axis as the lines of a title, two at most, and what it leaves out for those below.

    `width` is the chart's, in pixels. Of several models and settings it is the sentence of the one with the most
    points; `findings` has the others'.
    """
    first = next(iter(axis_texts(rows, by)), AxisText("", ("No exact strategy was measured",)))
    text = wrap(first.sentence(*first.clauses), int(width / _LETTER))
    if len(text) > _LINES:
        figures = first.clauses[-1 if by in AXES else 0]
        text = wrap(first.sentence(figures), int(width / _LETTER), max_lines=_LINES, placeholder=" …")
    return text, first.left_out


def _overview(cell: pd.DataFrame) -> Any:
    answer, left_out = _title(cell, "strategy", 600)
    if cell["model"].nunique() == 1:
        cell = cell.assign(label=_without_model(cell))
    for column, name in (("batch_size", "batch"), ("networks", "networks")):
        if (cell.groupby("model")[column].nunique() > 1).any():  # settings whose answers are at different sizes
            cell = cell.assign(label=cell["label"] + f" · {name} " + cell[column].astype(str))
    found = cells.step_throughput(cells.one_run_each(cell))
    found = found[~found["status"].str.startswith("not run")].drop_duplicates("label")
    found["hetero"] = ~found["model"].str.startswith("hetero")
    found = found.sort_values(["hetero", "model", "samples_per_second"], ascending=[True, True, False])
    measured = cell[(cell["stage"] == "step") & (cell["status"] == "ok")]
    words = _verdict_words(measured)
    said = found["label"].map({label: text.partition(":")[0] for label, text in words.items()})
    ok, status = found["status"] == "ok", found["status"].str.split(":").str[0]
    speed = found["samples_per_second"].map(cells.figure_text, na_action="ignore").where(ok, status)
    carried = found["batch_bytes"].where(ok).map(bytes_text, na_action="ignore")
    dots = found[["label", "samples_per_second", "low", "high"]].set_axis(["line", "value", "low", "high"], axis=1)
    dots["text"] = [" · ".join(filter(pd.notna, some)) for some in zip(speed, carried, said, strict=True)]
    dots["why"], dots["kind"] = [words.get(label, "") for label in found["label"]], found["strategy"]
    once = measured["label"].is_unique and len(measured) > 1
    judged = any(text.startswith(("as fast", "undecided")) for text in words.values())
    beside = "beside a row: samples/s, size of a batch" + ", verdict against the fastest" * judged
    lines = "line: 95 % interval of its steps" + "; one run each, which decides nothing" * once
    title = chart_title(answer, beside, lines, left_out, rows=cell)
    return ratios(dots, title, axis="samples/s (logarithmic, more is better)", one=None)


def _verdict_words(steps: pd.DataFrame) -> dict[str, str]:
    """Return label → a word on the strategy: inexact, or its verdict against the fastest where dots do not show it."""
    exact = steps["exact"].fillna(True).astype(bool)
    words = dict.fromkeys(steps[~exact]["label"], "inexact")
    for _, group in steps[exact].groupby(["model", "setting"], sort=False):
        labels = dict(zip(group["strategy"], group["label"], strict=True))
        if len(labels) > 1:
            pairs = cells.against_the_fastest(group)[1]
            words |= {labels[name]: "as fast" for name, pair in pairs.items() if pair.verdict == SAME}
            words |= {labels[name]: f"undecided: {cells.why_undecided(pair)}" for name, pair in pairs.items()
                      if pair.verdict == UNDECIDED and pair.obstacle != ONCE}  # fmt: skip
    return words


def _over(rows: pd.DataFrame, by: str) -> Any:
    """Return a line a strategy over one axis, at the value of the other that the answer has."""
    steps = along(rows, by)
    of_axis = steps[steps["status"] == "ok"].groupby("model")[by].nunique() > 1
    if not of_axis.any():
        sentences = "\n".join(axis_sentences(rows, by))
        return empty_chart(sentences).properties(title=chart_title(f"{EMPTY} over {AXES[by]} yet", rows=steps))
    steps = steps[steps["model"].isin(of_axis.index[of_axis])]  # one point is no line, and no panel
    ok = steps[steps["status"] == "ok"]
    lost = steps[steps["status"].str.split(":").str[0].isin(["oom", "wrong", "failed"])]
    words = [f"{row['status'].split(':')[0]} at {row[by]}: {row['label']}" for row in lost.to_dict("records")]
    coloured = _in_colour(cells.comparable(ok), by)
    many = ok.groupby("model")["label"].transform("nunique") > _COLOURED
    columns = {"strategy": "kind", by: "x", "samples_per_second": "y"}
    found = ok[[*columns, "low", "high"]].rename(columns=columns)
    found["line"], found["faint"] = _without_model(ok), many & ~ok["label"].isin(coloured)
    found["panel"] = ok["model"] if ok["model"].nunique() > 1 else ""
    grey = "grey: others, named under the mouse" if found["faint"].any() else ""
    said = "; ".join(filter(None, ["line: 95 % interval", grey, *words[:4]]))
    width, panels = (440, 1) if found["panel"].nunique() == 1 else (300, 2)
    answer, left_out = _title(rows, by, panels * (width + 100))
    title = chart_title(answer, said, left_out, rows=steps)
    return lines(found, title, x=AXES[by], y="samples/s (logarithmic, more is better)", width=width, height=220)


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
        compared = ranked[ranked["strategy"] == cells.reference_of(list(ranked["strategy"]))]["label"].mode()
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
    rows = undisturbed(rows_of(rows) if points is None else cells.rows_of_points(rows, points))
    if not (rows["status"] == "ok").any():
        return _without_figures(rows)
    cell = cells.fullest(rows)
    found = cells.stage_parts(cell)
    if found.empty:
        return empty_chart("The rows have no stage of a step.")
    drawn = found["accounted"].map(cells.adds_up).astype(bool)
    whole = found["whole_seconds"].map(seconds_text) + found["where"].eq("worker").map({True: " of work", False: ""})
    wrong = found["accounted"].map("does not add up: stages add up to {:.1%} of its clock".format, na_action="ignore")
    parts = found[["mode", "stage", "model"]].rename(columns={"mode": "panel", "stage": "part"})
    label = _without_model(found) if found["model"].nunique() == 1 else found["label"]
    parts["bar"] = label + " · " + found["where"]
    parts["value"], parts["text"] = found["seconds"].where(drawn, 0.0), whole.where(drawn, wrong)
    parts["mode"] = pd.factorize(found["mode"])[0]
    parts["longest"] = found.groupby(["mode", "label"])["whole_seconds"].transform("max")
    parts = parts.sort_values(["mode", "model", "longest"], kind="stable")
    known = found["accounted"][drawn].dropna()
    shares = " to ".join(dict.fromkeys(f"{share:.1%}" for share in (known.min(), known.max()))) if len(known) else ""
    accounted = f"accounted for: {shares}; " if shares else ""
    of_device = found["where"].eq("device")
    said = largest_stages(found[of_device] if of_device.any() else found)
    fast_and_slow = [*said[:1], *said[1:][-1:]] or "No timeline's stages add up to its clock"
    title = chart_title(fast_and_slow, f"mean of each stage; {accounted}bars overlap in time", rows=cell)
    return stacked(parts, title, axis="time of a step, or of a worker's batch [s]", colours=STAGE_COLOURS)


SWEEP_CHARTS: dict[str, Callable[[pd.DataFrame], Any]] = {
    "overview": throughput,
    "over batch size": partial(throughput, by="batch_size"),
    "over networks": partial(throughput, by="networks"),
    "stages of a step": stages,
}


def _without_figures(rows: pd.DataFrame) -> Any:
    statuses = rows["status"].value_counts().to_dict() if len(rows) else {}
    text = [f"{number} × {status}" for status, number in statuses.items()] or ["No setting has been measured yet."]
    return empty_chart("\n".join(text[:8])).properties(title=chart_title(f"{EMPTY} yet"))


# ---- several ranks


def speed_up(rows: Runs, strong: Iterable[Point], weak: Iterable[Point]) -> Any:
    """Return samples per second over those of the fewest ranks, strong and weak scaling side by side.

    Dashed lines are the ideal, as many times as there are more ranks, and the same where only the cores of the machine
    are shared; the percentage at a point is its efficiency, speed-up over ideal.

    **Arguments:**

    - `rows`: of a sweep over ranks.
    - `strong`, `weak`: which of its points are of which kind, as `tclab.sweeps.config.scaling_points` returns them.
    """
    kinds = {"strong: one batch shared": strong, "weak: a batch for each rank": weak}
    sides = {panel: cells.rows_of_points(rows, points) for panel, points in kinds.items()}
    found = [one for panel, side in sides.items() for one in _speed_ups(side, panel)]
    if not found:
        return empty_chart("No two numbers of ranks were measured: there is no speed-up yet.")
    points = pd.DataFrame(found)
    more = "line: 95 % interval; percent: efficiency; dashed: ideal, and what the cores allow"
    title = chart_title(_efficiencies(found), more, rows=pd.concat(sides.values()))
    return lines(points, title, x="ranks", y="times as many samples per second", log="", width=260, height=240)


def _efficiencies(found: list[dict[str, Any]]) -> list[str]:
    """Return what the most ranks bring, a line for each kind of scaling."""
    said = []
    for panel in dict.fromkeys(one["panel"] for one in found):
        reached = [one for one in found if one["panel"] == panel and one["text"] and not one["dashed"]]
        best = max(reached, key=lambda one: (one["x"], one["y"]))
        more = f"{best['y']:.3g}× the samples/s on {best['x']:g} ranks, an efficiency of {best['text']}"
        said.append(f"{panel.partition(':')[0].capitalize()} scaling: {best['line']} has {more}")
    return said


def _speed_ups(rows: pd.DataFrame, panel: str) -> list[dict[str, Any]]:
    """Return the points of one panel, as `lines` takes them."""
    found: list[dict[str, Any]] = []
    limits: dict[tuple[str, int], dict[str, Any]] = {}
    ok = rows[(rows["stage"] == "step") & (rows["status"] == "ok")].sort_values("ranks")
    for (model, strategy), group in ok.groupby(["model", "strategy"], sort=False):
        first, *more_ranks = each = cells.records(group)
        for row in each if more_ranks else []:
            more = row["ranks"] / first["ranks"]
            times = row["samples_per_second"] / first["samples_per_second"]
            ratio, low, high = cells.ratio_of_rows(first, row)  # of steps, whose samples may differ
            at = {"panel": panel, "kind": strategy, "x": row["ranks"]}
            ends = {"low": times * low / ratio, "high": times * high / ratio}
            words = f"{times / more:.0%}" if more > 1 else ""
            found.append(at | ends | {"line": f"{model} · {strategy}", "y": times, "text": words, "dashed": False})
            cores = row["cores"] / first["threads"] / first["ranks"] if row["device"] == "cpu" else more
            for name, y in (("ideal", more), ("cores allow", min(more, max(1.0, cores)))):
                limits[name, row["ranks"]] = at | {"line": name, "kind": name, "y": y, "text": "", "dashed": True}
    return [*found, *limits.values()]
