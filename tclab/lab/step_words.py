"""What was found of a whole training step, in sentences made from rows."""

from __future__ import annotations

import pandas as pd

from tclab.lab.hypotheses import hypotheses
from tclab.lab.parts import busy, closes, closure_text, one_point_each, seconds_text, stage_parts, times_text
from tclab.lab.published import measured_ratios
from tclab.timing.accounts import TOLERANCE
from tclab.timing.warmup import NOT_STEADY


def step_findings(rows: pd.DataFrame) -> list[str]:
    """Return what the rows of the modes say, a sentence each; nothing is said that no row carries."""
    steps = rows[rows["stage"] == "step"]
    parts = stage_parts(rows)
    said = [*_largest(parts), *_workers(parts), _ratios(rows), *_verdicts(rows), _closures(parts), _steady(rows)]
    said += [busy(one_point_each(rows)), _missing(steps)]
    return [sentence for sentence in said if sentence]


def _largest(parts: pd.DataFrame) -> list[str]:
    """Name the stages that make up most of a step, for each way in mode `step`."""
    said = []
    host = parts[(parts["mode"] == "step") & parts["where"].isin(["host", "device"])]
    for (model, strategy, where), own in host.groupby(["model", "strategy", "where"], sort=False):
        whole = own["whole_seconds"].iloc[0]
        if not closes(own["closure"].iloc[0]) or not whole:
            continue
        first = own.sort_values("seconds", ascending=False).head(3)
        named = [f"{row['stage']} {row['seconds'] / whole:.0%}" for _, row in first.iterrows()]
        said.append(
            f"{model} with {strategy}: a step takes {seconds_text(whole)} of the {where}'s time, "
            f"{', '.join(named)}."
        )
    return said


def _workers(parts: pd.DataFrame) -> list[str]:
    said = []
    made = parts[(parts["mode"] == "step") & (parts["where"] == "worker")]
    for (model, strategy), own in made.groupby(["model", "strategy"], sort=False):
        idle = own[own["stage"] == "idle"]["seconds"].sum()
        whole = own["whole_seconds"].iloc[0]
        if idle + whole > 0:
            said.append(
                f"Meanwhile a worker of {model} with {strategy} makes a batch in {seconds_text(whole)} and is idle "
                f"{idle / (idle + whole):.0%} of its time."
            )
    return said


def _ratios(rows: pd.DataFrame) -> str:
    found = measured_ratios(rows)
    parts = []
    for strategy, own in found.groupby("strategy", sort=False):
        named = [
            f"{row['mode']} {times_text(row['ratio'])} [{row['low']:.2g}, {row['high']:.2g}]"
            for _, row in own.iterrows()
        ]
        parts.append(f"with {strategy} {', '.join(named)}")
    if not parts:
        return ""
    return f"A step of the hetero model takes, of DANGO's, [quartiles]: {'; '.join(parts)}."


def _verdicts(rows: pd.DataFrame) -> list[str]:
    return [f"Hypothesis “{found.name}”: {found.verdict}." for found in hypotheses(rows)]


def _closures(parts: pd.DataFrame) -> str:
    lines = parts.drop_duplicates(["mode", "model", "strategy", "where"])
    known = lines[lines["closure"].notna()]
    if known.empty:
        return ""
    bad = known[~known["closure"].map(closes).astype(bool)]
    worst = known.iloc[int((known["closure"].astype(float) - 1).abs().to_numpy().argmax())]
    place = f"{worst['where']}, {worst['model']} with {worst['strategy']}, mode {worst['mode']}"
    words = f"the worst is {closure_text(worst['closure'])} ({place})"
    if bad.empty:
        return f"All {len(known)} timelines with a clock of their own close within {TOLERANCE:.0%}; {words}."
    return f"{len(bad)} of {len(known)} timelines do not close and are not drawn; {words}."


def _steady(rows: pd.DataFrame) -> str:
    steps = one_point_each(rows)
    steps = steps[steps["stage"] == "step"]
    if steps.empty:
        return ""
    not_yet, unknown = (steps["steady"] == NOT_STEADY).sum(), steps["steady"].isna().sum()
    parts = [f"{not_yet} of {len(steps)} points were still changing"] if not_yet else []
    parts += [f"{unknown} of {len(steps)} had too few steps to tell whether warm-up was over"] if unknown else []
    return f"{'; '.join(parts)}." if parts else ""


def _missing(steps: pd.DataFrame) -> str:
    lost = steps[steps["status"] != "ok"]
    if lost.empty:
        return ""
    named = [f"{count} × {status}" for status, count in lost["status"].value_counts().items()]
    return f"Without a time: {'; '.join(named)}."
