"""Sentences about a whole training step: its largest stages, its workers, what its timelines account for."""

from __future__ import annotations

import pandas as pd

from tclab._format import seconds_text
from tclab.lab.reports._comparable_rows import outlier_sentences
from tclab.lab.reports._stage_parts import accounted_text, adds_up, load_text, points_of_modes, stage_parts
from tclab.sweeps.store._row_frame import without_time
from tclab.timing._ledger_rows import TOLERANCE
from tclab.timing._warmup import NOT_STEADY


def step_findings(rows: pd.DataFrame) -> list[str]:
    """Return what rows of several modes show, a sentence each; a sentence that no row supports is left out.

    **Arguments:**

    - `rows`: of points in any of the modes, as `tclab.sweep` returns them.
    """
    parts = stage_parts(rows)
    sentences = [*_largest(parts), *_workers(parts), _accounted(parts), _steady(rows)]
    sentences += outlier_sentences(points_of_modes(rows))
    sentences += [load_text(points_of_modes(rows)), *without_time(rows)]
    return [sentence for sentence in sentences if sentence]


def _largest(parts: pd.DataFrame) -> list[str]:
    """Name the largest three stages of a step, for each model, strategy and further setting in mode `step`."""
    sentences = []
    host = parts[(parts["mode"] == "step") & parts["where"].isin(["host", "device"])]
    for (label, where), group in host.groupby(["label", "where"], sort=False):
        whole = group["whole_seconds"].iloc[0]
        if not adds_up(group["accounted"].iloc[0]) or not whole:
            continue
        first = group.sort_values("seconds", ascending=False).head(3)
        named = [
            f"{stage} {seconds / whole:.0%}" for stage, seconds in zip(first["stage"], first["seconds"], strict=True)
        ]
        sentences.append(
            f"{_words(str(label))}: a step takes {seconds_text(whole)} of the {where}'s time, {', '.join(named)}."
        )
    return sentences


def _words(label: str) -> str:
    """Return a label as a sentence names it: "dango with indices, loop lightning"."""
    model, *rest = label.split(" · ")
    return f"{model} with {', '.join(rest)}"


def _workers(parts: pd.DataFrame) -> list[str]:
    sentences = []
    made = parts[(parts["mode"] == "step") & (parts["where"] == "worker")]
    for label, group in made.groupby("label", sort=False):
        idle = group[group["stage"] == "idle"]["seconds"].sum()
        whole = group["whole_seconds"].iloc[0]
        if idle + whole > 0:
            sentences.append(
                f"Meanwhile a worker of {_words(str(label))} makes a batch in {seconds_text(whole)} and is idle "
                f"{idle / (idle + whole):.0%} of its time."
            )
    return sentences


def _accounted(parts: pd.DataFrame) -> str:
    lines = parts.drop_duplicates(["mode", "label", "where"])
    known = lines[lines["accounted"].notna()]
    if known.empty:
        return ""
    bad = known[~known["accounted"].map(adds_up).astype(bool)]
    worst = known.iloc[int((known["accounted"].astype(float) - 1).abs().to_numpy().argmax())]
    place = f"{worst['where']}, {_words(worst['label'])}, mode {worst['mode']}"
    words = f"farthest from its clock: {place} ({accounted_text(worst['accounted'])})"
    if bad.empty:
        return f"All {len(known)} timelines with a clock of their own add up within {TOLERANCE:.0%}; {words}."
    return f"{len(bad)} of {len(known)} timelines do not add up and are not drawn; {words}."


def _steady(rows: pd.DataFrame) -> str:
    steps = points_of_modes(rows)
    steps = steps[steps["stage"] == "step"]
    if steps.empty:
        return ""
    not_yet, unknown = (steps["steady"] == NOT_STEADY).sum(), steps["steady"].isna().sum()
    parts = [f"{not_yet} of {len(steps)} points were still changing"] if not_yet else []
    parts += [f"{unknown} of {len(steps)} had too few steps to tell whether warm-up was over"] if unknown else []
    return f"{'; '.join(parts)}." if parts else ""
