"""The findings of a sweep and its conclusion: sentences made from its rows, never more certain than the rows are."""

from __future__ import annotations

from collections.abc import Iterable

import pandas as pd

from tclab._display import Sentences, bytes_text, counted
from tclab.errors import unknown
from tclab.lab.reports._bytes_fit import bytes_findings
from tclab.lab.reports._comparable_rows import (
    against_the_fastest,
    alike,
    by_arms,
    fastest_and_reference,
    fullest,
    outlier_sentences,
    ratio_text,
)
from tclab.lab.reports._stage_parts import step_findings
from tclab.sweeps.store._machine_label import busy_text, contentions, ranks_text, where_measured
from tclab.sweeps.store._row_files import Runs, rows_of
from tclab.sweeps.store._row_frame import without_time
from tclab.timing._environment import fingerprint
from tclab.timing._verdict import FASTER, SAME, SLOWER, Pair


def conclusion(rows: pd.DataFrame, pairs: Iterable[Pair] = ()) -> list[str]:
    """Compare the fastest strategy with `edge_mask`, one sentence for each group of rows that are alike.

    Alike are rows of one machine, one code, and the same settings but strategy, batch size and networks. Where
    `edge_mask` was not run, the slowest strategy stands for it. The comparison is made at the batch size and the
    networks that the most strategies were run at. A sentence claims what its verdict does: an interval that reaches
    across the margin is undecided, and a sentence on steps that were not raced says so.

    **Arguments:**

    - `rows`: of a sweep.
    - `pairs`: of a race of these points, whose arms have the strategies' names. They decide where all rows are
      alike; among several groups names alone do not tell which rows they belong to.
    """
    without = rows["overheads"].isna() | (rows["overheads"] == "")
    ok = rows[(rows["stage"] == "step") & (rows["status"] == "ok") & without]
    modes = list(ok["mode"].dropna().unique())
    ok = ok[ok["mode"] == ("step" if "step" in modes else modes[0])] if modes else ok
    groups = alike(ok)
    known = by_arms(pairs, len(groups))
    sentences = [_sentence(group, setting, known) for setting, group in groups]
    return [sentence for sentence in sentences if sentence]


def place_text(cell: pd.DataFrame, setting: str) -> str:
    """Return where and with what settings the rows of one cell were measured."""
    first = cell.iloc[0]
    networks = counted(first["networks"], "network")
    place = f"{_machine_place(cell)}, at batch {first['batch_size']} with {networks}, {first['model']}"
    return f"{place}, {setting}" if setting else place


def _sentence(ok: pd.DataFrame, setting: str, known: dict[frozenset[str], Pair]) -> str:
    cell = fullest(ok)
    if cell["strategy"].nunique() < 2:
        return ""
    fast, slow = fastest_and_reference(cell)
    pair = against_the_fastest(cell, known)[slow]
    how = "" if frozenset((fast, slow)) in known else " (run one after the other, not raced)"
    sides = [cell[cell["strategy"] == name] for name in (slow, fast)]
    carried = _bytes_carried(*(side["batch_bytes"].dropna() for side in sides))
    return f"{place_text(cell, setting)}: {_verdict(pair)}{how}{carried}."


def _machine_place(rows: pd.DataFrame) -> str:
    row = rows.iloc[0]
    same = all((None if pd.isna(row[name]) else row[name]) == value for name, value in fingerprint("hardware").items())
    if not same:
        return f"On {where_measured(rows)}"
    busy = contentions(rows)["others"].fillna(False).any()
    return "On this machine, which was busy" if busy else "On this machine"


def _verdict(pair: Pair) -> str:
    if pair.ratio is None:
        return f"{pair.a} against {pair.b} is undecided: {pair.why}"
    times = f"{1 / pair.ratio:.3g} ×"
    if pair.interval is not None:
        times += f" [{1 / pair.interval[1]:.3g}, {1 / pair.interval[0]:.3g}]"
    if pair.verdict == FASTER:
        return f"{pair.a} is {times} faster than {pair.b}"
    if pair.verdict == SLOWER:
        return _verdict(pair.flipped())
    if pair.verdict == SAME:
        return f"{pair.a} is as fast as {pair.b}, within ±{pair.margin:.1%}"
    return f"whether {pair.a} is faster than {pair.b} is undecided: {times}, and {pair.why}"


def _bytes_carried(slow: pd.Series, fast: pd.Series) -> str:
    fewer = 0 if slow.empty or fast.empty else int(slow.median()) - int(fast.median())
    return f"; {bytes_text(abs(fewer))} {'fewer' if fewer > 0 else 'more'} bytes per batch" if fewer else ""


_MODEL_SETTINGS = ("model", "loss", "hidden", "layers")  # settings that models cannot share
_ABOUT = {"steps": step_findings, "bytes": bytes_findings}


def findings(rows: Runs, about: str = "sweep", *, concluded: bool = False) -> Sentences:
    """Return the findings of a sweep's rows, a sentence each; every sentence rests on rows.

    **Arguments:**

    - `rows`: of a sweep.
    - `about`: "sweep", strategies and models next to each other; "steps", of points in the modes of
      `tclab.Point.mode`: the largest stages, the workers, whether timelines add up; or "bytes", whether loading is
      bound by bytes: where a line fits, most of the time grows with bytes, and the same samples in few bytes take less
      than half as long.
    - `concluded`: leave the `conclusion` out, as it stands elsewhere.

    **Raises:** `InputError` for another `about`.
    """
    rows = rows_of(rows)
    if about in _ABOUT:
        return Sentences(_ABOUT[about](rows))
    if about != "sweep":
        raise unknown("subject of findings", about, ["sweep", *_ABOUT])
    if rows.empty:
        return Sentences(["There are no rows yet: run this again when the sweep has ended."])
    ok = rows[(rows["stage"] == "step") & (rows["status"] == "ok")]
    if ok.empty:
        return Sentences(["No point of this sweep was measured, so there is nothing to compare.", *without_time(rows)])
    sentences = [_equivalence(rows), *([] if concluded else conclusion(rows)), busy_text(rows), *_strategies(ok)]
    sentences += outlier_sentences(ok)
    sentences += [_models(group, setting) for setting, group in alike(ok, _MODEL_SETTINGS)]
    sentences += [*_bytes(ok), *_syncs(ok), *without_time(rows)]
    sentences = Sentences(filter(None, sentences))
    label = ranks_text(ok)
    if not label or (ok["ranks"] == 1).any():  # where some points have one rank, a sentence names its own setting
        return sentences
    return Sentences(s if label in s else f"{s.removesuffix('.')} ({label})." for s in sentences)


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
    of = f"{len(names)} of {tried}"
    number = {2: "Both"}.get(tried, f"All {tried}") if len(names) == tried else of
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


def _models(ok: pd.DataFrame, setting: str) -> str:
    """Compare the models, each with its fastest strategy, at the largest batch size that all were run at.

    Models without a batch size in common are compared at the largest of each, by the step and by the sample.
    """
    models = list(dict.fromkeys(ok["model"]))
    if len(models) < 2:
        return ""
    shared = set.intersection(*(set(ok[ok["model"] == model]["batch_size"]) for model in models))
    best = []
    for model in models:
        steps = ok[ok["model"] == model]
        steps = steps[steps["batch_size"] == (max(shared) if shared else steps["batch_size"].max())]
        steps = steps[steps["networks"] == steps["networks"].max()]
        best.append(steps.sort_values("mean_seconds").iloc[0])
    fast, slow = (sorted(best, key=lambda row: row["mean_seconds"])[i] for i in (0, -1))
    sides = [
        f"{row['model']} ({row['strategy']}, {counted(row['networks'], 'network')}{'' if shared else ', batch '}"
        f"{'' if shared else row['batch_size']})"
        for row in (slow, fast)
    ]
    place = ", ".join(filter(None, [f"batch {max(shared)}" if shared else "", setting]))
    text = f"a step of {sides[0]} takes {ratio_text(slow, fast)} as long as one of {sides[1]}"
    if not shared:
        samples = slow["mean_seconds"] / slow["batch_size"] / (fast["mean_seconds"] / fast["batch_size"])
        text += f", a sample {samples:.3g} ×"
    return f"At {place}, {text}." if place else f"{text[0].upper()}{text[1:]}."


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
