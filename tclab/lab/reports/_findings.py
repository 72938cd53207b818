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
from tclab.timing._verdict import FASTER, ONCE, SAME, UNDECIDED, Pair

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
    rows = undisturbed(rows_of(rows))
    check_known("subject of findings", ("sweep", "steps"), about)
    if about == "sweep":
        return Sentences(filter(None, _of_sweep(rows)))
    parts, points = cells.stage_parts(rows), cells.points_of_modes(rows)
    return Sentences(filter(None, [*largest_stages(parts), *_workers(parts), busy_text(points), *without_time(rows)]))


def _of_sweep(rows: pd.DataFrame) -> list[str]:
    if rows.empty:
        return ["There are no rows yet: run this again when the sweep has ended."]
    ok = rows[(rows["stage"] == "step") & (rows["status"] == "ok")]
    if ok.empty:
        return ["No setting of this sweep was measured, so there is nothing to compare.", *without_time(rows)]
    swept = [by for by in AXES if (ok.groupby("model")[by].nunique() > 1).any()]
    axes = [sentence for by in swept for sentence in axis_sentences(rows, by)]
    return [*dict.fromkeys([*answer(rows), *axes]), *without_time(rows), busy_text(rows), _equivalence(rows)]


def answer(rows: pd.DataFrame) -> list[str]:
    """Return which strategy is the fastest, in full: one text for each model and setting where strategies compare."""
    texts = axis_texts(rows, "strategy")
    none = [f"{_BUSY}."] if any(_BUSY in text.clauses for text in texts) else []
    return [*none, *(text.full for text in texts if text.full)]


def _answer(cell: pd.DataFrame, of: str, once: str) -> AxisText:
    """Return which strategy is the fastest of one model and setting, in the cell that the most strategies ran in.

    The fastest is compared with `edge_mask`, or else the slowest strategy. A text claims what its verdicts do: where
    strategies ran once each, none is called faster. Sweeps run points one after the other, which the full text says.
    """
    quiet, left_out = _quiet(cell), _left_out(cell, "strategy")
    timed = cells.one_run_each(cell if quiet.empty else quiet).sort_values("mean_seconds").set_index("strategy")
    row, speeds = timed.iloc[0], timed["samples_per_second"].map(cells.figure_text)
    size = f"at batch {row['batch_size']} with {counted(row['networks'], 'network')}"
    if quiet.empty:
        every = ", ".join(f"{name} {speed}" for name, speed in speeds.items())
        return AxisText(of, (_BUSY,), full=f"Unreliable samples/s {size}, {of}: {every}.")
    if len(speeds) == 1:
        return AxisText(of, (f"{speeds.index[0]} alone was measured: {speeds.iloc[0]} samples/s{once}",), left_out)
    fast, pairs = cells.against_the_fastest(quiet)
    reference = cells.reference_of(list(pairs))
    ran_once = all(pair.obstacle == ONCE and pair.runs == (1, 1) for pair in pairs.values())
    text, advice = (_once if ran_once else _judged)(fast, f"{speeds[fast]} samples/s", pairs)
    beside = _beside(pairs[reference])
    ranks = f" ({ranks_text(quiet)})" if row["ranks"] > 1 else ""
    machine = f"this machine{ranks}" if of_this_machine(row) else where_measured(quiet)
    carried = quiet.groupby("strategy")["batch_bytes"].median().map(bytes_text, na_action="ignore")[[fast, reference]]
    batch = "" if carried.isna().any() else f"A batch of {fast} has {carried[fast]} ({reference}: {carried[reference]})"
    said = (f"On {machine}, {size}, {of}: {text}", advice, beside, batch, left_out)
    full = f"{'. '.join(filter(None, said))}. Settings were measured one after another; race them to confirm."
    return AxisText(of, tuple(filter(None, (text, beside))), left_out, full)


def _judged(fast: str, words: str, pairs: Mapping[str, Pair]) -> tuple[str, str]:
    """Return which strategy is the fastest, by verdicts, and which may be as fast; there is no more to do."""
    open_: dict[str, list[str]] = {}  # why → which
    for name, pair in pairs.items():
        if pair.verdict == UNDECIDED:
            open_.setdefault(cells.why_undecided(pair), []).append(name)
    same = [name for name, pair in pairs.items() if pair.verdict == SAME]
    text = f"{fast} is the fastest: {words}"
    if open_:
        over = ", ".join(f"{first_of(names, 6)} ({why})" for why, names in open_.items())
        text = f"{fast} has the highest throughput, {words}, but it is not certainly faster than {over}"
    return text + (f"; as fast, within ±{pairs[same[0]].margin:.0%}: {first_of(same, 6)}" if same else ""), ""


def _once(fast: str, words: str, pairs: Mapping[str, Pair]) -> tuple[str, str]:
    """Return which strategy had the highest throughput in single runs, and what to do, as none is called faster."""
    n = len(pairs) + 1
    second, pair = max(pairs.items(), key=lambda item: item[1].ratio or 0.0)
    text = f"In one run each, {fast} had the highest throughput, {words}; {second} {1 - (pair.ratio or 1.0):.0%} less"
    caution = f"The best of {n} looks better than it is" if n > 2 else "One run each decides nothing"
    return text, f"{caution}: set repeats=3, or race {fast} and {second}"


def _beside(pair: Pair) -> str:
    """Return how the fastest compares with the reference: by the interval's lower end, as the best of several."""
    if pair.ratio is None:
        return ""
    if pair.verdict == FASTER and pair.interval:
        least, measured = (cells.figure_text(1 / ratio) for ratio in (pair.interval[1], pair.ratio))
        return f"{pair.a} is at least {least}× as fast as {pair.b} ({measured}× as measured)"
    once = ", with one run each" if pair.obstacle == ONCE else ""
    return f"{pair.a} ran {cells.figure_text(1 / pair.ratio)}× as fast as {pair.b}{once}"


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

    The other axis has, for each model and setting, its value in the cell that is the answer: see `fullest`.
    """
    other = "networks" if by == "batch_size" else "batch_size"
    answer = cells.fullest(rows)[["model", "setting", other]].drop_duplicates()
    return cells.step_throughput(cells.one_run_each(rows)).merge(answer)


class AxisText(NamedTuple):
    """What the rows of one model and setting say of an axis."""

    of: str  # the model and setting; empty where no other says anything else
    clauses: tuple[str, ...]  # of one sentence
    left_out: str = ""  # points that the sentence leaves out, and why
    full: str = ""  # of strategies: all that is known of the fastest; empty where it has no other beside it

    def sentence(self, *clauses: str) -> str:
        """Return a sentence of some clauses."""
        text = "; ".join(filter(None, clauses)) + "."
        if self.of and clauses[0] != _BUSY:
            return f"{self.of}: {text}"
        return text[0].upper() + text[1:] if text.startswith(("at ", "from ", "measured ")) else text


def axis_sentences(rows: Runs, by: str = "strategy") -> list[str]:
    """Return what rows say of an axis, a sentence for each model and setting, or one if they all say the same.

    **Arguments:**

    - `rows`: of a sweep.
    - `by`: "strategy", at the batch size and networks that most of them ran at; "batch_size"; or "networks".
    """
    texts = axis_texts(undisturbed(rows_of(rows)), by)
    return list(dict.fromkeys(text.sentence(*text.clauses, text.left_out) for text in texts))


def axis_texts(rows: pd.DataFrame, by: str) -> list[AxisText]:
    """Return what rows say of an axis, of the model and setting first that has the most points along it."""
    chosen = cells.with_labels(cells.comparable(cells.in_one_mode(rows)))
    if chosen.empty:
        return []
    every = list((along(chosen, by) if by in AXES else cells.fullest(chosen)).groupby(["model", "setting"], sort=False))
    groups = [group for group in every if by in AXES and group[1][by].nunique() > 1] or every
    once = ", one run each" * (not chosen.duplicated(["label", "batch_size", "networks"]).any())
    texts = []
    for names, group in sorted(groups, key=lambda group: -len(group[1])):
        of = ", ".join(filter(None, map(str, names)))
        texts.append(AxisText(of, *_clauses(group, by, once)) if by in AXES else _answer(group, of, once))
    alike = len(texts) == len(every) and len({text[1:] for text in texts}) == 1
    return [texts[0]._replace(of="")] if alike else texts


def _clauses(steps: pd.DataFrame, by: str, once: str) -> tuple[tuple[str, ...], str]:
    """Return what the steps of one model and setting say of an axis, in clauses, and what these leave out.

    A point that ran while other programs used the CPU is left out; so is a size at which it was the fastest
    nevertheless, or at which it leaves nothing to compare.
    """
    sizes = [size for _, size in steps.groupby(by)]
    if len(sizes) < 2:
        needs = f"a line over the {AXES[by]} needs others: {_TYPED[by]}"
        return (f"measured at {_size(steps, by)} alone", needs), ""
    quiet = [size for size in map(_quiet, sizes) if len(size)]
    if not quiet:
        return (_BUSY,), ""
    *clauses, last = _leads(quiet, by, every=len(quiet) == len(sizes))
    return (*clauses, last + once), _left_out(steps, by)


def _left_out(steps: pd.DataFrame, by: str) -> str:
    """Return which points ran while other programs used the CPU; empty without any."""
    busy = steps[steps["contention"].notna()].groupby("strategy", sort=False)
    named = [f"{name} at {_size(points, by)}" if by in AXES else str(name) for name, points in busy]
    return f"left out, as other programs used the CPU: {first_of(named)}" if named else ""


def _quiet(size: pd.DataFrame) -> pd.DataFrame:
    """Return the points of one size that ran alone on the CPU; none where they decide nothing without the others."""
    quiet = size[size["contention"].isna()]
    decides = quiet["strategy"].nunique() > 1 or size["strategy"].nunique() == 1
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
        where = f"at {_size(run, by)} "
        if len(runs) == 1 and every:
            where = f"at every {AXES[by]} "
        elif run is runs[-1] and run[by].nunique() > 1 and len(runs) > 1:
            where = f"from {_size(run[run[by] == run[by].min()], by)} on "
        last = run[run[by] == run[by].max()]
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
    clauses[-1] += f" at {_size(sizes[-1], by)}" if runs[-1][by].nunique() > 1 else ""
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


def largest_stages(parts: pd.DataFrame) -> list[str]:
    """Name the largest three stages of a step, of the fastest model, strategy and further setting first.

    Those of mode `step` count, or of the first mode there is where that was not run.
    """
    sentences, modes = [], list(parts["mode"])
    timed = parts[parts["where"].isin(["host", "device"]) & (parts["whole_seconds"] > 0)].sort_values("whole_seconds")
    timed = timed[timed["mode"] == ("step" if "step" in modes else next(iter(modes), ""))]
    for (label, where), group in timed.groupby(["label", "where"], sort=False):
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
