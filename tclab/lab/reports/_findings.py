"""The findings of a sweep: first its answer, then sentences made from its rows, never more certain than they are."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import groupby
from typing import Any, NamedTuple

import pandas as pd

from tclab._display import Sentences, bytes_text, counted, first_of, seconds_text
from tclab.errors import check_known
from tclab.lab.reports import _cells as cells
from tclab.sweeps._compare import undisturbed
from tclab.sweeps._row_files import Runs, rows_of
from tclab.sweeps._rows import busy_text, of_this_machine, ranks_text, where_measured, without_time
from tclab.timing._verdict import BUSY, FASTER, ONCE, SAME, UNDECIDED, Pair

AXES = {"batch_size": "batch size", "networks": "number of networks"}
_TYPED = {"batch_size": "batch_sizes 1,2,4,8", "networks": "networks 1,3,9"}
_BUSY = "Other programs used the CPU, so no strategy is named the fastest: measure again on a quiet machine"
_LEVEL = 0.05  # a share of samples a second below which single runs tell nothing apart


def findings(rows: Runs, about: str = "sweep") -> Sentences:
    """Return the findings of a sweep's rows, a sentence each; every sentence rests on rows.

    **Arguments:**

    - `rows`: of a sweep.
    - `about`: "sweep": which strategy is the fastest, by how much, undecided with which, and what was not run; or
      "steps", of points in the modes of `tclab.Point.mode`: the largest stages, and the workers.

    **Raises:** `InputError` for another `about`.
    """
    rows = rows_of(rows)
    check_known("subject of findings", ("sweep", "steps"), about)
    if about == "sweep":
        return Sentences(filter(None, _of_sweep(rows)))
    parts, points = cells.stage_parts(rows), cells.points_of_modes(rows)
    return Sentences(filter(None, [*_largest(parts), *_workers(parts), busy_text(points), *without_time(rows)]))


def _of_sweep(rows: pd.DataFrame) -> list[str]:
    if rows.empty:
        return ["There are no rows yet: run this again when the sweep has ended."]
    ok = rows[(rows["stage"] == "step") & (rows["status"] == "ok")]
    if ok.empty:
        return ["No point of this sweep was measured, so there is nothing to compare.", *without_time(rows)]
    label = ranks_text(ok)
    # where some points have one rank, a sentence names its own setting
    end = f" ({label})." if label and (ok["ranks"] > 1).all() else "."
    *answers, checked = (
        s if not s or label in s else s.removesuffix(".") + end for s in (*answer(rows), _equivalence(rows))
    )
    axes = [one for by in AXES if (ok.groupby("model")[by].nunique() > 1).any() for one in axis_sentences(rows, by)]
    return [*answers, *dict.fromkeys(axes), *without_time(rows), busy_text(undisturbed(rows)), checked]


def answer(rows: pd.DataFrame) -> list[str]:
    """Return which strategy is the fastest, one sentence for each group of rows that are alike.

    The comparison is made in the cell, a batch size and networks, that the most strategies ran in: with `edge_mask`,
    or else the slowest strategy. A sentence claims what its verdicts do: where strategies ran once each, none is called
    faster. Sweeps run points one after the other, which each sentence says.
    """
    groups = cells.with_labels(cells.comparable(cells.in_one_mode(rows))).groupby(["model", "setting"], sort=False)
    return [sentence for (_, setting), group in groups if (sentence := _answer(group, str(setting)))]


def _answer(ok: pd.DataFrame, setting: str) -> str:
    cell = cells.fullest(ok)
    if cell["strategy"].nunique() < 2:
        return ""
    fast, pairs = cells.against_the_fastest(cell)
    reference = cells.reference_of(list(pairs))
    samples = cell[cell["strategy"] == fast]["samples_per_second"].median()
    first = cell.iloc[0]
    at = f"at batch {first['batch_size']} with {counted(first['networks'], 'network')}"
    place = ", ".join(filter(None, (_machine(cell), at, first["model"], setting)))
    words = f"{cells.figure_text(samples)} samples/s"
    ran_once = all(pair.obstacle in (ONCE, BUSY) and pair.runs == (1, 1) for pair in pairs.values())
    text = _once(fast, words, pairs) if ran_once else _judged(fast, words, pairs)
    said = [f"{place}: {text}", _beside(pairs[reference]), _batch_bytes(cell, fast, reference)]
    end = "Settings were measured one after another; race them to confirm."
    return f"{'. '.join(filter(None, said))}. {end}"


def _judged(fast: str, words: str, pairs: Mapping[str, Pair]) -> str:
    """Return which strategy is the fastest, by verdicts, and which may be as fast."""
    open_: dict[str, list[str]] = {}  # why → which
    for name, pair in pairs.items():
        if pair.verdict == UNDECIDED:
            open_.setdefault(cells.why_undecided(pair), []).append(name)
    same = [name for name, pair in pairs.items() if pair.verdict == SAME]
    text = f"{fast} is the fastest: {words}"
    if open_:
        over = ", ".join(f"{first_of(names, 6)} ({why})" for why, names in open_.items())
        text = f"{fast} has the highest throughput, {words}, but it is not certainly faster than {over}"
    return text + (f"; as fast, within ±{pairs[same[0]].margin:.0%}: {first_of(same, 6)}" if same else "")


def _once(fast: str, words: str, pairs: Mapping[str, Pair]) -> str:
    """Return which strategy had the highest throughput in single runs, of which none is called faster."""
    n = len(pairs) + 1
    second, pair = max(pairs.items(), key=lambda item: item[1].ratio or 0.0)
    text = f"In one run each, {fast} had the highest throughput, {words}"
    if pair.ratio is not None:
        text += f"; {second} {1 - pair.ratio:.0%} less"
    text += f". The best of {n} looks better than it is" if n > 2 else ". One run each decides nothing"
    return f"{text}: set repeats=3, or race {fast} and {second}"


def _beside(pair: Pair) -> str:
    """Return how the fastest compares with the reference: by the interval's lower end, as the best of several."""
    if pair.ratio is None:
        return ""
    if pair.verdict == FASTER and pair.interval:
        least, measured = (cells.figure_text(1 / ratio) for ratio in (pair.interval[1], pair.ratio))
        return f"{pair.a} is at least {least}× as fast as {pair.b} ({measured}× as measured)"
    once = ", with one run each" if pair.obstacle == ONCE else ""
    return f"{pair.a} ran {cells.figure_text(1 / pair.ratio)}× as fast as {pair.b}{once}"


def _batch_bytes(cell: pd.DataFrame, fast: str, reference: str) -> str:
    sides = [cell[cell["strategy"] == name]["batch_bytes"].dropna() for name in (fast, reference)]
    if any(side.empty for side in sides):
        return ""
    return f"A batch of {fast} has {bytes_text(sides[0].median())} ({reference}: {bytes_text(sides[1].median())})"


def _machine(rows: pd.DataFrame) -> str:
    if not of_this_machine(rows.iloc[0]):
        return f"On {where_measured(rows)}"
    return "On this machine, which was busy" if rows["contention"].notna().any() else "On this machine"


def _equivalence(rows: pd.DataFrame) -> str:
    """Return what passed the equivalence check, what was not compared on the whole graph, and what is inexact."""
    tried = rows[rows["equivalence"].notna() & (rows["stage"] == "step") & (rows["strategy"] != "subgraph")]
    error = tried.groupby("strategy")["equivalence_fp64_error"].max()
    of = {result: sorted(set(group["strategy"])) for result, group in tried.groupby("equivalence")}
    inexact = of.get("inexact", [])
    passed = [name for name in of.get("passed", []) if name not in (*of.get("failed", []), *inexact)]
    words = []
    if passed:
        agree = f"{counted(len(passed), 'strategy', 'strategies')} agree{'s' * (len(passed) == 1)} with subgraph"
        exactly = error[passed].eq(0).fillna(False).all()
        close = "in fp64 exactly" if exactly else f"largest error in fp64: {error[passed].max():.0e}"
        words.append(f"{agree}, the reference, on a part of the graph ({close})")
    for result, names in tried.groupby("equivalence_full_size")["strategy"].unique().items():
        if result != "failed":  # its status says so
            words.append(f"{first_of(sorted(names), 6)}, on all of it, too: {result}")
    words += [f"{name} is inexact" + f", error {error[name]:.0e} in fp64" * pd.notna(error[name]) for name in inexact]
    words += tried["equivalence_left_out"].dropna().unique().tolist()
    return f"{'; '.join(words)}." if words else ""


# ---- the axes of a sweep: which strategy leads, by how much, and from where on that changes


def along(rows: pd.DataFrame, by: str) -> pd.DataFrame:
    """Return the steps of rows `with_labels` over one axis, one run of each point, as `step_throughput` does.

    The other axis has, for each model and setting, its value in the cell that is the answer: see `fullest`; by
    "strategy" both have.
    """
    if by not in AXES:
        return cells.step_throughput(cells.one_run_each(cells.fullest(rows)))
    other = "networks" if by == "batch_size" else "batch_size"
    answer = cells.fullest(rows)[["model", "setting", other]].drop_duplicates()
    return cells.step_throughput(cells.one_run_each(rows)).merge(answer)


class AxisText(NamedTuple):
    """What the rows of one model and setting say of an axis."""

    of: str  # the model and setting; empty where no other says anything else
    clauses: tuple[str, ...]  # of one sentence; the last has the figures
    left_out: str = ""  # points that the sentence leaves out, and why

    def sentence(self, *clauses: str) -> str:
        """Return a sentence of some clauses."""
        text = "; ".join(filter(None, clauses)) + "."
        if self.of and clauses[0] != _BUSY:
            return f"{self.of}: {text}"
        return text[0].upper() + text[1:] if text.startswith(("all ", "at ", "from ", "measured ")) else text


def axis_sentences(rows: Runs, by: str = "strategy") -> list[str]:
    """Return what rows say of an axis, a sentence for each model and setting, or one if they all say the same.

    **Arguments:**

    - `rows`: of a sweep.
    - `by`: "strategy", at the batch size and networks that most of them ran at; "batch_size"; or "networks".
    """
    return list(dict.fromkeys(text.sentence(*text.clauses, text.left_out) for text in axis_texts(rows, by)))


def axis_texts(rows: Runs, by: str) -> list[AxisText]:
    """Return what rows say of an axis, of the model and setting first that has the most points along it."""
    chosen = cells.with_labels(cells.comparable(cells.in_one_mode(rows_of(rows))))
    every = [] if chosen.empty else list(along(chosen, by).groupby(["model", "setting"], sort=False))
    groups = [group for group in every if by in AXES and group[1][by].nunique() > 1] or every
    once = ", one run each" * (not chosen.duplicated(["label", "batch_size", "networks"]).any())
    found = [AxisText(", ".join(filter(None, map(str, of))), *_clauses(group, by, once))
             for of, group in sorted(groups, key=lambda group: -len(group[1]))]  # fmt: skip
    alike = len(found) == len(every) and len({text[1:] for text in found}) == 1
    return [found[0]._replace(of="")] if alike else found


def _clauses(steps: pd.DataFrame, by: str, once: str) -> tuple[tuple[str, ...], str]:
    """Return what the steps of one model and setting say of an axis, in clauses, and what these leave out.

    A point that ran while other programs used the CPU is left out; so is a size at which it was the fastest
    nevertheless, or at which it leaves nothing to compare.
    """
    sizes = [size for _, size in steps.groupby(by)] if by in AXES else [steps]
    if by in AXES and len(sizes) < 2:
        needs = f"a line over the {AXES[by]} needs others: {_TYPED[by]}"
        return (f"measured at {_size(steps, by)} alone", needs), ""
    quiet = [size for size in map(_quiet, sizes) if len(size)]
    if not quiet:
        return (_BUSY,), ""
    busy = steps[steps["contention"].notna()].groupby("strategy", sort=False)
    named = [f"{name} at {_size(own, by)}" if by in AXES else str(name) for name, own in busy]
    *clauses, last = _leads(quiet, by, every=len(quiet) == len(sizes))
    return (*clauses, last + once), f"left out, as other programs used the CPU: {first_of(named)}" if named else ""


def _quiet(size: pd.DataFrame) -> pd.DataFrame:
    """Return the points of one size that ran alone on the CPU; none where they decide nothing without the others."""
    quiet = size[size["contention"].isna()]
    decides = len(quiet) > 1 or len(size) == 1
    fastest = size.sort_values("samples_per_second").tail(1)
    return quiet if decides and fastest["contention"].isna().all() else quiet.head(0)


def _leads(sizes: list[pd.DataFrame], by: str, *, every: bool) -> list[str]:
    """Return which strategies lead at the smallest size and, if others do, at the last, with its samples per second.

    **Arguments:**

    - `sizes`: the steps of each size. `every`: these are all sizes that were measured.
    """
    runs = [pd.concat(same) for _, same in groupby(sizes, key=lambda size: sorted(_leaders(size)))]
    clauses = []
    for run in (runs[0], runs[-1])[: len(runs)]:
        where = f"at {_size(run, by)} " if by in AXES else ""
        if by in AXES and len(runs) == 1 and every:
            where = f"at every {AXES[by]} "
        elif by in AXES and run is runs[-1] and run[by].nunique() > 1 and len(runs) > 1:
            where = f"from {_size(run[run[by] == run[by].min()], by)} on "
        last = run[run[by] == run[by].max()] if by in AXES else run
        names, n = _leaders(last), len(last)
        few = names if len(names) < 4 else [*names[:2], f"{len(names) - 2} others"]
        lead = f"all {n} strategies" if len(names) == n > 2 else f"{', '.join(few[:-1])} and {few[-1]}"
        alone = f"{names[0]} {'has the highest throughput' if n > 1 else 'alone was measured'}"
        clauses.append(f"{where}{alone if len(names) == 1 else f'{lead} are level'}")
    speeds = sizes[-1].set_index("strategy")["samples_per_second"].sort_values(ascending=False)
    clauses[-1] += f": {cells.figure_text(speeds.iloc[0])} samples/s"
    if len(speeds) > 1:
        reference = cells.reference_of(list(speeds.index[1:]))
        times, speed = map(cells.figure_text, (speeds.iloc[0] / speeds[reference], speeds[reference]))
        clauses[-1] += f", {speed} with {reference}" if reference in names else f", {times}× {reference}'s {speed}"
    clauses[-1] += f" at {_size(sizes[-1], by)}" if by in AXES and runs[-1][by].nunique() > 1 else ""
    return clauses


def _leaders(steps: pd.DataFrame) -> list[str]:
    """Return the strategies of one size that cannot be told from the one with the most samples a second."""
    ranked = steps.sort_values("samples_per_second", ascending=False)
    best = ranked.iloc[0]
    near = ranked["samples_per_second"] * (1 + _LEVEL) >= best["samples_per_second"]
    even = ranked["high"].between(ranked["low"], 2 * ranked["low"])  # one stalled step widens an interval to anything
    reaches = (ranked["high"] >= best["low"]) & (even | ~even.iloc[0])
    return list(ranked[near | reaches]["strategy"])


def _size(steps: pd.DataFrame, by: str) -> str:
    """Return the size that steps are of, or the first and the last: "batch 1 and batch 4"."""
    ends = dict.fromkeys((int(steps[by].min()), int(steps[by].max())))
    return " and ".join(f"batch {size}" if by == "batch_size" else counted(size, "network") for size in ends)


# ---- the stages of a step


def _largest(parts: pd.DataFrame) -> list[str]:
    """Name the largest three stages of a step, for each model, strategy and further setting in mode `step`."""
    sentences = []
    host = parts[(parts["mode"] == "step") & parts["where"].isin(["host", "device"]) & (parts["whole_seconds"] > 0)]
    for (label, where), group in host.groupby(["label", "where"], sort=False):
        whole = group["whole_seconds"].iloc[0]
        if cells.adds_up(group["accounted"].iloc[0]):
            first = group.sort_values("seconds", ascending=False).set_index("stage")["seconds"].head(3)
            named = [f"{stage} {took / whole:.0%}" for stage, took in first.items()]
            took = f"a step takes {seconds_text(whole)} of the {where}'s time"
            sentences.append(f"{_words(label)}: {took}, {', '.join(named)}.")
    return sentences


def _words(label: Any) -> str:
    """Return a label as a sentence names it: "dango with indices, loop lightning"."""
    model, *rest = str(label).split(" · ")
    return f"{model} with {', '.join(rest)}"


def _workers(parts: pd.DataFrame) -> list[str]:
    sentences = []
    made = parts[(parts["mode"] == "step") & (parts["where"] == "worker")]
    for label, group in made.groupby("label", sort=False):
        idle, whole = group[group["stage"] == "idle"]["seconds"].sum(), group["whole_seconds"].iloc[0]
        if idle + whole > 0:
            makes = f"a worker of {_words(label)} makes a batch in {seconds_text(whole)}"
            sentences.append(f"Meanwhile {makes} and is idle {idle / (idle + whole):.0%} of its time.")
    return sentences
