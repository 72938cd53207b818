"""The findings of a sweep: sentences made from its rows, never more certain than the rows are."""

from __future__ import annotations

import pandas as pd

from tclab._format import bytes_text
from tclab.lab.reports._comparable_rows import alike, fastest_and_reference, fullest, outlier_sentences, ratio_text
from tclab.lab.reports._conclusion import conclusion, place_text
from tclab.lab.reports._tables import without_time
from tclab.sweeps.analysis._cpu_pressure import busy_text
from tclab.sweeps.analysis._machine_label import ranks_text
from tclab.sweeps.store._row_files import Runs, rows_of

_MODEL_SETTINGS = ("model", "loss", "hidden", "layers")  # settings that models cannot share


def findings(rows: Runs, *, concluded: bool = False) -> list[str]:
    """Return the findings of a sweep's rows, a sentence each; every sentence rests on rows.

    **Arguments:**

    - `rows`: of a sweep.
    - `concluded`: leave the `conclusion` out, as it stands elsewhere.
    """
    rows = rows_of(rows)
    if rows.empty:
        return ["There are no rows yet: run this again when the sweep has ended."]
    ok = rows[(rows["stage"] == "step") & (rows["status"] == "ok")]
    if ok.empty:
        return ["No point of this sweep was measured, so there is nothing to compare.", *without_time(rows)]
    sentences = [_equivalence(rows), *([] if concluded else conclusion(rows)), busy_text(rows), *_strategies(ok)]
    sentences += [*outlier_sentences(ok), *_models(ok), *_bytes(ok), *_syncs(ok), *without_time(rows)]
    sentences = [sentence for sentence in sentences if sentence]
    label = ranks_text(ok)
    if not label:
        return sentences
    return [s if label in s else f"{s.removesuffix('.')} ({label})." for s in sentences]


def _equivalence(rows: pd.DataFrame) -> str:
    tried = rows[rows["equivalence"].notna() & (rows["stage"] == "step")]
    failed = sorted(set(tried[tried["equivalence"] == "failed"]["strategy"]))
    if failed:
        names = ", ".join(failed)
        return f"The equivalence check failed for {names}: not what subgraph computes, and therefore not timed."
    exact, inexact = tried[tried["equivalence"] == "passed"], tried[tried["equivalence"] == "inexact"]
    passed = sorted(set(exact["strategy"]) - set(inexact["strategy"]))
    parts = [_passed(passed, len({*exact["strategy"], *inexact["strategy"]}), exact)] if passed else []
    parts += [
        f"{name} is inexact{'' if pd.isna(error) else f', error {error:.0e} in fp64'}"
        for name, error in inexact.groupby("strategy")["equivalence_fp64_error"].max().items()
    ]
    text = "; ".join(parts)
    return f"{text}." if text else ""


def _passed(names: list[str], tried: int, exact: pd.DataFrame) -> str:
    """Return how many of the strategies compute the same, and the largest error of those."""
    worst = f"(in fp64 to {exact[exact['strategy'].isin(names)]['equivalence_fp64_error'].max():.0e} at worst)"
    if tried == 1:
        return f"{names[0]} computes what subgraph computes {worst}"
    number = f"All {tried}" if len(names) == tried else f"{len(names)} of {tried}"
    verb = "computes" if len(names) == 1 else "compute"
    return f"{number} strategies that were tried {verb} what subgraph computes {worst}"


def _strategies(ok: pd.DataFrame) -> list[str]:
    """Return the most samples a second, and whose interval reaches into its own; no verdict is given."""
    sentences = []
    for setting, group in alike(ok):
        cell = fullest(group).sort_values("mean_seconds")
        if cell["strategy"].nunique() < 2:
            continue
        fast, slow = fastest_and_reference(cell)
        best = cell[cell["strategy"] == fast].iloc[0]
        reaches = (cell["low_seconds"] <= best["high_seconds"]).fillna(False)
        near = cell[reaches & ~cell["strategy"].isin([fast, slow])]
        others = " and ".join(dict.fromkeys(near["strategy"]))
        text = (
            f"{place_text(cell, setting)}: {fast} trains on the most samples a second, {best['samples_per_second']:.3g}"
        )
        sentences.append(f"{text}{f'; its interval reaches into that of {others}' * bool(others)}.")
    return sentences


def _models(ok: pd.DataFrame) -> list[str]:
    """Compare the models, each with its fastest strategy, at the largest batch size that all were run at."""
    return [sentence for setting, group in alike(ok, _MODEL_SETTINGS) for sentence in _models_alike(group, setting)]


def _models_alike(ok: pd.DataFrame, setting: str) -> list[str]:
    models = list(dict.fromkeys(ok["model"]))
    if len(models) < 2:
        return []
    shared = set.intersection(*(set(ok[ok["model"] == model]["batch_size"]) for model in models))
    if not shared:
        return []
    batch = max(shared)
    best = []
    for model in models:
        steps = ok[(ok["model"] == model) & (ok["batch_size"] == batch)]
        steps = steps[steps["networks"] == steps["networks"].max()]
        best.append(steps.sort_values("mean_seconds").iloc[0])
    fast, slow = (sorted(best, key=lambda row: row["mean_seconds"])[i] for i in (0, -1))
    return [
        f"At batch {batch}{', ' if setting else ''}{setting}, a step of {slow['model']} ({slow['strategy']}, "
        f"{slow['networks']} networks) takes "
        f"{ratio_text(slow, fast)} as long as one of {fast['model']} ({fast['strategy']}, {fast['networks']} networks)."
    ]


def _bytes(ok: pd.DataFrame) -> list[str]:
    cell = fullest(ok).dropna(subset=["batch_bytes"])
    if cell["strategy"].nunique() < 2:
        return []
    most, least = (cell.sort_values(["batch_bytes", "mean_seconds"]).iloc[i] for i in (-1, 0))
    return [
        f"A batch of {most['batch_size']} carries {bytes_text(most['batch_bytes'])} with {most['strategy']} and "
        f"{bytes_text(least['batch_bytes'])} with {least['strategy']}."
    ]


def _syncs(ok: pd.DataFrame) -> list[str]:
    """Name the strategy whose host waits for the device most often, or would on a GPU."""
    known = ok.dropna(subset=["host_syncs"])
    if known.empty:
        return []
    worst = known.sort_values("host_syncs").iloc[-1]
    if worst["host_syncs"] == 0:
        return ["In no step does the host wait for the device between transfer and backward."]
    would = "waits" if worst["device"] == "cuda" else "would wait on a GPU"
    times = f"{worst['host_syncs']} times a step"
    return [f"With {worst['strategy']} at batch {worst['batch_size']} the host {would} {times}."]
