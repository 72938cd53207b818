"""Three hypotheses on why the hetero model is slow, a verdict on each claim with its evidence from rows; findings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from tclab._display import Display, Sentences, Shown, bytes_text, counted, seconds_text
from tclab.case_study._published import measured_ratios
from tclab.graph._synthetic_graph import NETWORK_SIZES
from tclab.lab.reports._comparable_rows import ratio_of_rows, ratio_text
from tclab.lab.reports._stage_parts import one_point_each, times_text
from tclab.masking._strategy import BASELINES
from tclab.perturbation._dataset import steps_per_epoch
from tclab.sweeps.store._machine_label import where_measured
from tclab.sweeps.store._row_files import Runs, rows_of
from tclab.timing._statistics import MIN_OBSERVATIONS
from tclab.timing._step_means import LoaderPace, mean_step, share_of

HOLDS, FAILS = "holds here", "does not hold here"
UNDECIDED, NOT_MEASURED = "undecided", "not measured here"
_NOTHING = 1e-5  # seconds; less is within what the clock itself costs
_MOST = 0.5  # "dominates": more than half of a step
_PUBLISHED_EPOCH = 400 / 10  # epochs a day of DANGO over those of the hetero model, in real training
_PUBLISHED_BATCHES, _PUBLISHED_RANKS = (28, 64), 4  # of the hetero model and DANGO

_Share = tuple[float, float, float]  # of the time of all steps, and its 95 % interval


@dataclass(frozen=True, repr=False)
class Hypothesis(Shown):
    """A claim, its verdict by the rows, and the evidence.

    **Arguments:**

    - `name`, `claim`: as the team of the case study put it.
    - `verdict`: "holds here", "does not hold here", "undecided" or "not measured here".
    - `evidence`: a sentence each.
    """

    name: str
    claim: str
    verdict: str
    evidence: tuple[str, ...]

    def _display(self) -> Display:
        return Display(f"{self.name}: {self.verdict}", notes=[f"The claim: {self.claim}", *self.evidence])


def hypotheses(rows: Runs, rank_rows: Runs | None = None) -> list[Hypothesis]:
    """Return the three hypotheses, judged by the rows of mode `step` and those of the other modes.

    The third, DDP, makes two claims, and each has a verdict: that an epoch has more steps, and that communication takes
    most of a step.

    The strategy judged is the case study's, `edge_mask`, where it was run. "Most of a step" means more than half; a
    verdict needs a 95 % interval of the share on one side of that, 6 steps and two cycles of the loader's workers at
    least, and workers whose own times do not contradict it. Rows of one machine say nothing of another: a faster device
    leaves the loader less time.

    **Arguments:**

    - `rows`: of points in several modes.
    - `rank_rows`: of points of several ranks, for communication; `rows` unless given.
    """
    rows = rows_of(rows)
    rank_rows = rows if rank_rows is None else rows_of(rank_rows)
    return [_data_pipeline(rows), _mask_generation(rows), _more_steps(rows), communication_hypothesis(rank_rows)]


def findings(rows: Runs, rank_rows: Runs | None = None) -> Sentences:
    """Return what the rows of the modes show of the published claims, a sentence each.

    **Arguments:** as for `hypotheses`.
    """
    rows = rows_of(rows)
    verdicts = [f"Hypothesis “{found.name}”: {found.verdict}." for found in hypotheses(rows, rank_rows)]
    return Sentences(filter(None, (_ratios(rows), *verdicts)))


def _ratios(rows: pd.DataFrame) -> str:
    found = measured_ratios(rows)
    parts = []
    for strategy, group in found.groupby("strategy", sort=False):
        named = [
            f"{row['mode']} {times_text(row['ratio'])}"
            + ("" if pd.isna(row["low"]) else f" [{row['low']:.2g}, {row['high']:.2g}]")
            for _, row in group.iterrows()
        ]
        parts.append(f"with {strategy} {', '.join(named)}")
    if not parts:
        return ""
    return f"A step of the hetero model takes, of DANGO's, [95 % interval]: {'; '.join(parts)}."


# ---- shares of a step


class _Steps:
    """The steps of a point on the timeline that they are timed on.

    `whole` has their seconds, `stages` those of each stage that every step has: [steps] each.
    """

    def __init__(self, group: pd.DataFrame) -> None:
        steps = group[group["stage"] == "step"]
        own = group[group["where"] == steps["where"].iloc[0]]
        samples = {stage: np.asarray(each, dtype=float) for stage, each in own[["stage", "samples_seconds"]].to_numpy()}
        self.whole = samples.pop("step")
        self.stages = {str(stage): each for stage, each in samples.items() if each.shape == self.whole.shape}
        self.cycle = max(map(int, steps["cycle_steps"].dropna()), default=1)

    def mean(self, seconds: Any) -> float:
        return mean_step([seconds], self.cycle).value

    def share(self, part: Any) -> _Share:
        """Return a part's share of the time, total over total, and its 95 % interval; 0 to 1 where it has none."""
        share = share_of(part, self.whole, self.cycle)
        return (share.value, *(share.interval() or (0.0, 1.0)))

    def judged(self, share: _Share) -> str:
        if len(self.whole) < MIN_OBSERVATIONS:
            return UNDECIDED
        return HOLDS if share[1] > _MOST else FAILS if share[2] < _MOST else UNDECIDED


def _points_of(rows: pd.DataFrame, mode: str) -> dict[str, pd.DataFrame]:
    """Return strategy → rows of one mode, the strategies of the case study first; DANGO is left out."""
    chosen = one_point_each(rows)
    chosen = chosen[(chosen["mode"] == mode) & (chosen["strategy"] != "indices")]
    found = {str(name): group for name, group in chosen.groupby("strategy", sort=False)}
    return {name: found[name] for name in [*BASELINES, *found] if name in found}


def _judged_by(points: dict[str, pd.DataFrame]) -> str:
    """Return a sentence that names the deciding rows, and whether their graph is far smaller than the real one."""
    strategy, group = next(iter(points.items()))
    row = group.iloc[0]
    words = (
        f"Judged by {row['model']} with {strategy}, batch {row['batch_size']}, {counted(row['networks'], 'network')}"
    )
    if pd.isna(row["edges"]):
        return f"{words}."
    words += f" of {row['edges']:,} edges"
    small = row["edges"] < 0.5 * sum(size.edges for size in NETWORK_SIZES.values())
    return f"{words}{', far fewer than the real 2.4 million, of which this says nothing' if small else ''}."


def _percent(share: _Share) -> str:
    if share[2] < 0.001:
        return "less than 0.1%"
    return f"{share[0]:.1%} [{max(0.0, share[1]):.1%}, {min(1.0, share[2]):.1%}]"


# ---- the data pipeline


def _data_pipeline(rows: pd.DataFrame) -> Hypothesis:
    def evidence(strategy: str, group: pd.DataFrame) -> tuple[str, list[str]] | None:
        steps = _Steps(group)
        wait, transfer = (steps.stages.get(stage) for stage in ("data_wait", "transfer"))
        if wait is None or transfer is None:
            return None
        step, share = steps.mean(steps.whole), steps.share(wait + transfer)
        verdict = steps.judged(share)
        pace = _pace(group, step, steps.share(wait)[0])
        refusal = "" if pace is None else pace.refusal(steps.share(transfer)[0], _MOST)
        refused = refusal and verdict != UNDECIDED
        sentences = [
            f"{strategy}: waiting for the loader and the transfer are {_percent(share)} of a step of "
            f"{seconds_text(step)} ({len(steps.whole)} steps, {where_measured(group)}).",
            f"{strategy}: the verdict “{verdict}” is refused. {refusal[:1].upper()}{refusal[1:]}." if refused else "",
            _headroom(strategy, pace, group) if _making(group) else "",
            _against_fixed(rows, strategy, group, share[2]),
            _collation(strategy, group),
        ]
        return UNDECIDED if refused else verdict, sentences

    return _judged_by_share(rows, "Data pipeline", "collation and transfer take most of a step", evidence, _bytes_of)


def _judged_by_share(
    rows: pd.DataFrame,
    name: str,
    claim: str,
    evidence_of: Callable[[str, pd.DataFrame], tuple[str, list[str]] | None],
    last: Callable[[dict[str, pd.DataFrame]], str] = lambda points: "",
) -> Hypothesis:
    """Return a hypothesis on the share of a step, with the verdict of the first strategy that has evidence."""
    points = _points_of(rows, "step")
    if not points:
        return Hypothesis(name, claim, NOT_MEASURED, ("Mode step was not measured.",))
    verdict, evidence = "", [_judged_by(points)]
    for strategy, group in points.items():
        if (judged := evidence_of(strategy, group)) is not None:
            verdict = verdict or judged[0]
            evidence += judged[1]
    return Hypothesis(name, claim, verdict or UNDECIDED, tuple(filter(None, [*evidence, last(points)])))


def _making(group: pd.DataFrame) -> dict[str, float]:
    """Return stage → mean seconds of making one batch, by a worker or in the process that trains."""
    made = group[group["where"].isin(["worker", "loading"])]
    return {str(row["stage"]): float(row["mean_seconds"]) for _, row in made.iterrows()}


def _pace(group: pd.DataFrame, step: float, waiting: float) -> LoaderPace | None:
    """Return what the workers of a point can give; `None` where there are none."""
    workers, batch = group.iloc[0]["workers"], _making(group).get("batch")
    return LoaderPace(int(workers), batch, step, waiting) if workers and batch else None


def _headroom(strategy: str, pace: LoaderPace | None, group: pd.DataFrame) -> str:
    """Return how much faster the rest of a step would have to be before its workers could not keep up."""
    if pace is None:
        return f"{strategy}: a batch is made in {seconds_text(_making(group)['batch'])} within the step, by no worker."
    every, rest = pace.every_seconds, pace.rest_seconds
    words = f"{strategy}: its {pace.workers} worker{'s' if pace.workers > 1 else ''} can give a batch every"
    if every >= rest:
        return f"{words} {seconds_text(every)}, slower than the {seconds_text(rest)} that the rest of a step takes."
    return (
        f"{words} {seconds_text(every)}: on a device {times_text(rest / every)} as fast as this one, with the same "
        f"workers, loading would be the bound (arithmetic, not measured)."
    )


def _against_fixed(rows: pd.DataFrame, strategy: str, group: pd.DataFrame, most_waiting: float) -> str:
    """Return a step against one on a kept batch, which does all of it but loading; the two ran at different times.

    A step that surely takes less is impossible, and no evidence is made of it. One that takes more than its waiting, at
    most `most_waiting` of it, accounts for is printed with that doubt.
    """
    fixed = _points_of(rows, "fixed_batch").get(strategy)
    if fixed is None:
        return ""
    a, b = (frame[frame["stage"] == "step"].iloc[0] for frame in (group, fixed))
    _, low, high = ratio_of_rows(a, b)
    if high < 1:
        return (
            f"{strategy}: steps on a batch that is kept took longer than those that load as well, which loading cannot "
            f"do: the machine changed between the two modes, and their ratio is withheld."
        )
    unsure = "" if low > 1 else ": no difference that these steps can show"
    if most_waiting < 1 and low > 1 / (1 - most_waiting):
        unsure = f", more than its waiting ({most_waiting:.1%} at most) makes of it: workers or others took the cores"
    return f"{strategy}: a step takes {ratio_text(a, b)} as long as one on a batch that is kept{unsure}."


def _collation(strategy: str, group: pd.DataFrame) -> str:
    made = _making(group)
    if not made.get("batch"):
        return ""
    collate, mask, batch = (made.get(stage, 0.0) for stage in ("collate", "mask", "batch"))
    return (
        f"{strategy}: of the {seconds_text(batch)} that making a batch takes, collating (and replicating) is "
        f"{seconds_text(collate)} and making masks {seconds_text(mask)}."
    )


def _bytes_of(points: dict[str, pd.DataFrame]) -> str:
    parts = []
    for strategy, group in points.items():
        every, edges, masks = (group[name].dropna().max() for name in ("batch_bytes", "edge_bytes", "mask_bytes"))
        if pd.notna(every):
            known = pd.notna(edges) and pd.notna(masks) and masks > 0
            apart = f" ({bytes_text(edges - masks)} edges, {bytes_text(masks)} masks)" if known else ""
            parts.append(f"{bytes_text(every)} with {strategy}{apart}")
    batch = next(iter(points.values())).iloc[0]["batch_size"]
    return f"A batch of {batch} carries {' and '.join(parts)}." if parts else ""


# ---- making masks


def _mask_generation(rows: pd.DataFrame) -> Hypothesis:
    def evidence(strategy: str, group: pd.DataFrame) -> tuple[str, list[str]] | None:
        steps = _Steps(group)
        if (mask := steps.stages.get("mask")) is None:
            return None
        made = _making(group)
        waits = steps.stages.get("data_wait", np.zeros_like(steps.whole))
        most = steps.share(mask + min(made.get("mask", 0.0), steps.mean(waits)))
        sentences = [
            f"{strategy}: masks are made for {seconds_text(made.get('mask', 0.0))} a batch where it is loaded and "
            f"for {seconds_text(steps.mean(mask))} in the step's own stage; of a step they can be "
            f"{_percent(most)} at most, if every wait were for them."
        ]
        if made.get("mask", 0.0) > _NOTHING and made.get("collate"):
            less, more = sorted([(made["mask"], "making masks"), (made["collate"], "collating")])
            sentences.append(f"{strategy}: {more[1]} takes {times_text(more[0] / less[0])} as long as {less[1]}.")
        return steps.judged(most), sentences

    return _judged_by_share(rows, "Mask generation", "making the masks takes most of a step", evidence)


# ---- DDP


def _more_steps(rows: pd.DataFrame) -> Hypothesis:
    """Return DDP's first claim, which the batch sizes decide; the evidence is how much of an epoch it explains."""
    name, claim = "DDP, more steps", "an epoch of the hetero model has more steps than one of DANGO"
    hetero, dango, longer = _steps_of(*_PUBLISHED_BATCHES)
    published = (
        f"Published, batches of {' and '.join(map(str, _PUBLISHED_BATCHES))}: {hetero:,} and {dango:,} steps, "
        f"{longer:.2f} × as many. Of {_PUBLISHED_EPOCH:.0f} × an epoch, {_PUBLISHED_EPOCH / longer:.1f} × are left for "
        f"each step."
    )
    found = measured_ratios(rows)
    found = found[found["mode"] == "step"].set_index("strategy")
    if found.empty:
        return Hypothesis(name, claim, NOT_MEASURED, ("The rows do not have both models in mode step.", published))
    strategy = next(strategy for strategy in [*BASELINES, *found.index] if strategy in found.index)
    row = found.loc[strategy]
    hetero, dango, longer = _steps_of(*map(int, row["batches"].split(" and ")))
    steps = f"{hetero:,} steps and {dango:,}, {longer:.2f} × as many"
    evidence = [f"With batches of {row['batches']} on {_PUBLISHED_RANKS} ranks an epoch has {steps} (arithmetic)."]
    ratio, low, high = row["ratio"], row["low"], row["high"]
    which = "the larger" if longer > high else "the smaller" if longer < low else "not surely the larger"
    ends = "" if pd.isna(low) else f" [{low:.2g}, {high:.2g}]"
    evidence.append(
        f"{strategy}: a step takes {times_text(ratio)}{ends} as long as DANGO's, so an epoch of as "
        f"many samples {times_text(ratio * longer)}; the number of steps is {which} of its two factors."
    )
    return Hypothesis(name, claim, HOLDS if longer > 1 else FAILS, (*evidence, published))


def _steps_of(hetero: int, dango: int) -> tuple[int, int, float]:
    """Return the steps of an epoch of both models, by their batch sizes, and their ratio."""
    steps = [steps_per_epoch(size, _PUBLISHED_RANKS) for size in (hetero, dango)]
    return steps[0], steps[1], steps[0] / steps[1]


def communication_hypothesis(rows: pd.DataFrame) -> Hypothesis:
    """Return DDP's second claim, judged by the rows with the most ranks; see `hypotheses`."""
    name, claim = "DDP, communication", "all-reduces take most of a step"
    many = rows[(rows["status"] == "ok") & (rows["ranks"] > 1) & (rows["mode"] == "step")]
    if many.empty:
        tried = rows[(rows["ranks"] > 1) & (rows["status"] != "ok")]
        why = f" ({tried['status'].iloc[0]})" if len(tried) else ""
        measured = f"No row here has more than one rank{why}, so what all-reduces cost is not known."
        return Hypothesis(name, claim, NOT_MEASURED, (measured,))
    many = many[many["ranks"] == many["ranks"].max()]
    group = next(iter(_points_of(many, "step").values()), one_point_each(many))
    steps = _Steps(group)
    if "communication" not in steps.stages:
        return Hypothesis(name, claim, NOT_MEASURED, ("The rows have no stage for communication.",))
    shares = {stage: steps.share(seconds) for stage, seconds in steps.stages.items()}
    share, place = shares["communication"], f"{len(steps.whole)} steps, {where_measured(group)}"
    evidence = [f"Exposed communication is {_percent(share)} of a step on {group.iloc[0]['ranks']} ranks ({place})."]
    if "rank_wait" in shares:
        waiting = _percent(shares["rank_wait"])
        evidence.append(f"Waiting for the slowest rank is {waiting} of it, and no communication.")
    if "gather" in shares:
        gathers = _percent(shares["gather"])
        evidence.append(f"The loss's all-gathers, waits in them included, are {gathers} of it.")
    return Hypothesis(name, claim, steps.judged(share), (*evidence, *_late(group)))


def _late(group: pd.DataFrame) -> list[str]:
    """Return a sentence on the rank that the others wait for, where one comes last far more often than the others."""
    late = group[group["late_share"].notna()]
    if late.empty:
        return []
    worst, ranks = late.sort_values("late_share").iloc[-1], len(late)
    if worst["late_share"] < min(0.9, 1.5 / ranks):
        return [f"No rank is the straggler: the one that came last most often did so in {worst['late_share']:.0%}."]
    return [f"The straggler is {worst['where']}: it came last to {worst['late_share']:.0%} of all exchanges."]
