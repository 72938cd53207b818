"""What was found, in sentences made from rows, never more certain than the rows are."""

from __future__ import annotations

import pandas as pd

from tclab.lab.comparable import alike, ends, fullest
from tclab.lab.concluding import conclusion, place_of
from tclab.sweeps.busy import busy_text
from tclab.sweeps.measured_on import ranks_text
from tclab.timing.units import bytes_text

_OF_THE_MODEL = ("model", "loss", "hidden", "layers")  # settings that models cannot share


def findings(rows: pd.DataFrame, *, concluded: bool = False) -> list[str]:
    """Return what the rows of a sweep say, a sentence each; nothing is said that no row carries.

    **Arguments:**

    - `rows`: of a sweep.
    - `concluded`: the `conclusion` is told elsewhere, so it is not told here.
    """
    if rows.empty:
        return ["There are no rows yet: run this again when the sweep is through."]
    ok = rows[(rows["stage"] == "step") & (rows["status"] == "ok")]
    if ok.empty:
        return ["No point of this sweep was measured, so there is nothing to compare.", *_lost(rows)]
    said = [_gate(rows), *([] if concluded else conclusion(rows)), busy_text(rows), *_strategies(ok)]
    said += [*_models(ok), *_bytes(ok), *_syncs(ok), *_lost(rows)]
    label = ranks_text(ok)
    if not label:
        return [sentence for sentence in said if sentence]
    return [s if label in s else f"{s.removesuffix('.')} ({label})." for s in said if s]


def _gate(rows: pd.DataFrame) -> str:
    tried = rows[rows["gate"].notna() & (rows["stage"] == "step")]
    failed = sorted(set(tried[tried["gate"] == "failed"]["strategy"]))
    if failed:
        names = ", ".join(failed)
        return f"The gate failed for {names}: not what subgraph computes, and so not timed."
    exact, inexact = tried[tried["gate"] == "passed"], tried[tried["gate"] == "inexact"]
    passed = sorted(set(exact["strategy"]) - set(inexact["strategy"]))
    said = [_passed(passed, len({*exact["strategy"], *inexact["strategy"]}), exact)] if passed else []
    said += [
        f"{name} is inexact{'' if pd.isna(error) else f', error {error:.0e} in fp64'}"
        for name, error in inexact.groupby("strategy")["gate_fp64_error"].max().items()
    ]
    text = "; ".join(said)
    return f"{text}." if text else ""


def _passed(names: list[str], tried: int, exact: pd.DataFrame) -> str:
    """Return how many of the strategies compute the same, and how nearly those do; no other's error is in it."""
    worst = f"(in fp64 to {exact[exact['strategy'].isin(names)]['gate_fp64_error'].max():.0e} at worst)"
    if tried == 1:
        return f"{names[0]} computes what subgraph computes {worst}"
    number = f"All {tried}" if len(names) == tried else f"{len(names)} of {tried}"
    verb = "computes" if len(names) == 1 else "compute"
    return f"{number} strategies that were tried {verb} what subgraph computes {worst}"


def _strategies(ok: pd.DataFrame) -> list[str]:
    """Say how many samples a second the shortest step gives, and which others come near; nothing is judged."""
    said = []
    for words, own in alike(ok):
        there = fullest(own).sort_values("median_seconds")
        if there["strategy"].nunique() < 2:
            continue
        fast, slow = ends(there)
        best = there[there["strategy"] == fast].iloc[0]
        near = there[(there["q1_seconds"] <= best["q3_seconds"]) & ~there["strategy"].isin([fast, slow])]
        others = " and ".join(dict.fromkeys(near["strategy"]))
        words = f"{place_of(there, words)}: {fast} has the shortest median step, {best['samples_per_second']:.3g}"
        said.append(f"{words} samples a second{f'; the quartiles of {others} reach into its own' * bool(others)}.")
    return said


def _ratio(slow: pd.Series, fast: pd.Series) -> str:
    """Return how many times faster, with what the quartiles of both allow."""
    low, high = slow["q1_seconds"] / fast["q3_seconds"], slow["q3_seconds"] / fast["q1_seconds"]
    return f"{slow['median_seconds'] / fast['median_seconds']:.3g} × [quartiles {low:.3g}, {high:.3g}]"


def _models(ok: pd.DataFrame) -> list[str]:
    """Compare the models, each with its fastest strategy, at the largest batch size that both were run at."""
    return [sentence for words, own in alike(ok, _OF_THE_MODEL) for sentence in _models_of(own, words)]


def _models_of(ok: pd.DataFrame, words: str) -> list[str]:
    models = list(dict.fromkeys(ok["model"]))
    if len(models) < 2:
        return []
    shared = set.intersection(*(set(ok[ok["model"] == model]["batch_size"]) for model in models))
    if not shared:
        return []
    batch = max(shared)
    best = []
    for model in models:
        own = ok[(ok["model"] == model) & (ok["batch_size"] == batch)]
        own = own[own["networks"] == own["networks"].max()]
        best.append(own.sort_values("median_seconds").iloc[0])
    fast, slow = (sorted(best, key=lambda row: row["median_seconds"])[i] for i in (0, -1))
    return [
        f"At batch {batch}{', ' if words else ''}{words}, a step of {slow['model']} ({slow['strategy']}, "
        f"{slow['networks']} networks) takes "
        f"{_ratio(slow, fast)} as long as one of {fast['model']} ({fast['strategy']}, {fast['networks']} networks)."
    ]


def _bytes(ok: pd.DataFrame) -> list[str]:
    there = fullest(ok).dropna(subset=["batch_bytes"])
    if there["strategy"].nunique() < 2:
        return []
    most, least = (there.sort_values(["batch_bytes", "median_seconds"]).iloc[i] for i in (-1, 0))
    return [
        f"A batch of {most['batch_size']} carries {bytes_text(most['batch_bytes'])} with {most['strategy']} and "
        f"{bytes_text(least['batch_bytes'])} with {least['strategy']}."
    ]


def _syncs(ok: pd.DataFrame) -> list[str]:
    """Name the strategies for which the host waits, or would wait on a GPU."""
    known = ok.dropna(subset=["host_syncs"])
    if known.empty:
        return []
    worst = known.sort_values("host_syncs").iloc[-1]
    if worst["host_syncs"] == 0:
        return ["In no step does the host wait for the device between transfer and backward."]
    would = "waits" if worst["device"] == "cuda" else "would wait on a GPU"
    times = f"{worst['host_syncs']} times a step"
    return [f"With {worst['strategy']} at batch {worst['batch_size']} the host {would} {times}."]


def _lost(rows: pd.DataFrame) -> list[str]:
    steps = rows[(rows["stage"] == "step") & (rows["status"] != "ok")]
    said = []
    for status, own in steps.groupby("status"):
        names = sorted(set(own["model"] + " " + own["strategy"]))
        named = f" ({', '.join(names)})" if len(names) <= 3 else ""
        said.append(f"{len(own)} point{'s' if len(own) > 1 else ''}{named}: {status}.")
    return said
