"""A point's timelines as parts that add up: worker, host and device, each by itself; in rows and in sentences."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pandas as pd

from tclab._display import seconds_text
from tclab.lab.reports._comparable_rows import one_run_each, outlier_sentences, with_labels
from tclab.masking import names
from tclab.sweeps.store._machine_label import busy_text
from tclab.sweeps.store._row_frame import without_time
from tclab.timing._ledger_rows import SUMS, TOLERANCE
from tclab.timing._warmup import NOT_STEADY
from tclab.training._step import MODES

# Timelines in the order in which a batch passes them, with their labels. They overlap, so they are never added.
TIMELINES = {"worker": "worker", "loading": "loading, within the host's data_wait", "host": "host", "device": "device"}
_POINT = ["mode", "model", "strategy"]
_ACCOUNTED = [f"{where}_accounted" for where in TIMELINES]


def one_point_each(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows without overheads of one run of one point for each mode, model and strategy, the first setting.

    Among several batch sizes or numbers of networks it is the one with the most modes, the largest such.
    """
    chosen = points_of_modes(rows)
    return chosen[chosen["label"] == chosen.groupby(_POINT)["label"].transform("first")]


def points_of_modes(rows: pd.DataFrame) -> pd.DataFrame:
    """Return what `one_point_each` does, and as much of each further setting of a model and strategy.

    A column more, `label`, has model, strategy and what tells such settings apart: "dango · indices · loop lightning".
    """
    plain = rows["overheads"].isna() | (rows["overheads"] == "")
    rows = rows[(rows["status"] == "ok") & plain]
    if rows.empty:
        return rows.assign(label="")
    # over these columns alone: each operation on a frame costs a step for each of its hundred columns
    ok = rows[[*_POINT, "batch_size", "networks", "seed"]].reset_index(drop=True)
    cells = ok.groupby(["model", "strategy", "batch_size", "networks"])["mode"].nunique().reset_index()
    best = cells.sort_values(["mode", "batch_size", "networks"]).groupby(["model", "strategy"]).tail(1)
    ok = ok.reset_index().merge(best[["model", "strategy", "batch_size", "networks"]])
    first = ok.groupby(_POINT)["seed"].transform(lambda seeds: seeds.fillna(0).min())
    chosen = rows.iloc[ok.loc[ok["seed"].fillna(0) == first, "index"]]
    if not chosen[chosen["stage"] == "step"].duplicated(_POINT).any():
        return chosen.assign(label=chosen["model"] + " · " + chosen["strategy"])
    return pd.concat([one_run_each(with_labels(group)) for _, group in chosen.groupby(_POINT, sort=False)])


def stage_parts(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the mean seconds of each stage in a step, a row for each timeline and stage of each point.

    Means are over all steps of whole cycles (`mean_seconds` of rows), so that the stages of a timeline add up to its
    whole, and the step to the throughput. `idle` is a worker's time until the next batch is requested, and is in no
    whole.

    Columns: label, mode, model, strategy, where, stage, seconds; `whole_seconds`, the sum of the timeline's stages, and
    `whole_p5_seconds` and `whole_p95_seconds`, between which nine in ten single steps lie; `accounted`, the share of
    the timeline's clock that its stages account for, missing where it has no clock.
    """
    found: list[tuple[Any, ...]] = []
    of = ["label", *_POINT]
    chosen = points_of_modes(rows)
    chosen = chosen[[*of, "where", "stage", "mean_seconds", "samples_seconds", *(set(_ACCOUNTED) & set(chosen))]]
    steps = chosen[chosen["stage"] == "step"].to_dict("records")
    step_of = {tuple(step[name] for name in of): step for step in steps}
    for key, group in chosen.groupby([*of, "where"], sort=False):
        *point, where = key
        parts = group[~group["stage"].isin(SUMS)].to_dict("records")
        whole = sum(float(row["mean_seconds"]) for row in parts if row["stage"] != "idle")
        low, high = _range_of_wholes([row["samples_seconds"] for row in parts if row["stage"] != "idle"], whole)
        accounted = step_of.get(tuple(point), {}).get(f"{where}_accounted")
        of_all = (whole, low, high, None if pd.isna(accounted) else float(accounted))
        found += [(*point, where, row["stage"], float(row["mean_seconds"]), *of_all) for row in parts]
    columns = [*of, "where", "stage", "seconds", "whole_seconds", "whole_p5_seconds", "whole_p95_seconds"]
    made = pd.DataFrame(found, columns=[*columns, "accounted"])
    order = {mode: place for place, mode in enumerate(MODES)}
    return made.sort_values("mode", key=lambda modes: modes.map(order), kind="stable").reset_index(drop=True)


def _range_of_wholes(samples: list[Any], mean: float) -> tuple[float, float]:
    """Return the 5 % and the 95 % quantile of whole steps; both are the mean where a stage is not in every step."""
    if len({len(values) for values in samples}) != 1:
        return mean, mean  # which step a sample is of is not known
    low, high = np.quantile(np.sum([np.asarray(values, dtype=float) for values in samples], axis=0), [0.05, 0.95])
    return float(low), float(high)


def adds_up(accounted: float | None) -> bool:
    """Return whether a timeline may be drawn: its stages account for its clock, or there is no clock."""
    return accounted is None or bool(pd.isna(accounted)) or abs(accounted - 1.0) <= TOLERANCE


def accounted_text(accounted: float | None) -> str:
    """Return the share of a timeline that its stages account for as text: "accounted for: 99.9 %"."""
    if accounted is None or pd.isna(accounted):
        return "no clock of its own"
    if adds_up(accounted):
        return f"accounted for: {100 * accounted:.1f} %"
    return f"does not add up: stages add up to {100 * accounted:.1f} % of its clock"


def times_text(ratio: float) -> str:
    """Return a ratio as text: "2.41 ×", "243 ×"."""
    return f"{ratio:.3g} ×" if ratio < 100 else f"{ratio:,.0f} ×"


def load_text(rows: pd.DataFrame) -> str:
    """Return how busy the machine was while rows were measured; empty where nothing is known."""
    if text := busy_text(rows):
        return text
    loads, pressures = [], []
    for text in rows["conditions"].dropna():
        for moment in json.loads(text):
            loads += [moment["load"]] if moment.get("load") is not None else []
            pressures += [moment["cpu_pressure_percent"]] if moment.get("cpu_pressure_percent") is not None else []
    if not loads:
        return ""
    cores = rows["cores"].dropna().max()
    waiting = f"; for {max(pressures):.0f} % of the time at worst, something waited for a core" if pressures else ""
    crowded = (
        "more than the cores, of these or other processes: believe ratios, not seconds"
        if max(loads) > cores
        else "a quiet machine"
    )
    return f"Load {min(loads):.1f} to {max(loads):.1f} on {cores} cores{waiting}: {crowded}."


def ordered_labels(frame: pd.DataFrame) -> list[str]:
    """Return the labels of some rows, the models together, strategies in the order of their registry."""
    strategies = list(dict.fromkeys([*names(), *frame["strategy"]]))
    labels = frame[["model", "strategy", "label"]].drop_duplicates()
    order = [
        (not model.startswith("hetero"), model, strategies.index(strategy))
        for model, strategy in zip(labels["model"], labels["strategy"], strict=True)
    ]
    return [label for _, label in sorted(zip(order, labels["label"], strict=True), key=lambda one: one[0])]


def step_findings(rows: pd.DataFrame) -> list[str]:
    """Return what rows of several modes show, a sentence each; a sentence that no row supports is left out."""
    parts, points = stage_parts(rows), points_of_modes(rows)
    sentences = [*_largest(parts), *_workers(parts), _accounted(parts), _steady(points), *outlier_sentences(points)]
    sentences += [load_text(points), *without_time(rows)]
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


def _steady(points: pd.DataFrame) -> str:
    steps = points[points["stage"] == "step"]
    if steps.empty:
        return ""
    not_yet, unknown = (steps["steady"] == NOT_STEADY).sum(), steps["steady"].isna().sum()
    parts = [f"{not_yet} of {len(steps)} points were still changing"] if not_yet else []
    parts += [f"{unknown} of {len(steps)} had too few steps to tell whether warm-up was over"] if unknown else []
    return f"{'; '.join(parts)}." if parts else ""
