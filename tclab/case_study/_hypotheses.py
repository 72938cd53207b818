"""Four claims on why the hetero model is slow, each with a verdict and its evidence from rows."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from tclab._display import Display, Shown, counted, seconds_text
from tclab.case_study._published import judged, measured_ratios
from tclab.graph._synthetic_graph import NETWORK_SIZES
from tclab.lab.reports._cells import one_point_each, records, times_text
from tclab.perturbation._deletions import steps_per_epoch
from tclab.sweeps._advise import step_times
from tclab.sweeps._row_files import Runs, rows_of
from tclab.sweeps._rows import where_measured
from tclab.timing._step_means import MIN_OBSERVATIONS, made_ahead, mean_step

HOLDS, FAILS = "holds here", "does not hold here"
UNDECIDED, NOT_MEASURED = "undecided", "not measured here"
_MOST = 0.5  # "most of a step"
_CLAIMS = {
    "Data pipeline": "collation and transfer take most of a step",
    "Mask generation": "making the masks takes most of a step",
    "DDP, more steps": "an epoch of the hetero model has more steps than one of DANGO",
    "DDP, communication": "all-reduces take most of a step",
}
_NO_STEP = "Mode step was not measured."
_PUBLISHED_BATCHES, _PUBLISHED_RANKS = (28, 64), 4  # of the hetero model and DANGO
_WHICH_DANGO = "The published DANGO makes dense targets, as the overhead dense_targets does."
_PUBLISHED_EPOCH = 400 / 10  # epochs a day of DANGO over those of the hetero model, in real training


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


class _Steps:
    """The steps of a point, `times`, and what making one of its batches takes.

    `making` has the mean seconds of each stage in a worker, or in the process that trains.
    """

    def __init__(self, group: pd.DataFrame) -> None:
        self.point, self.where = group[group["stage"] == "step"].iloc[0], where_measured(group)
        self.times = step_times(group, self.point)
        self.whole, self.stages = self.times.whole, self.times.stages
        made = group[group["where"].isin(["worker", "loading"])]
        self.making = dict(zip(made["stage"], made["mean_seconds"].astype(float), strict=True))

    def mean(self, seconds: Any) -> float:
        return mean_step([seconds], self.times.cycle).value

    def judge(self, part: Any) -> tuple[str, str]:
        """Return the verdict on whether a part takes most of the steps' time, and its share as text.

        The share is total over total; a verdict needs its 95 % interval on one side of a half, of at least 6 steps.
        """
        share, (low, high) = replace(self.times, stages={"part": part}).share("part")
        verdict = UNDECIDED
        if len(self.whole) >= MIN_OBSERVATIONS and low > _MOST:
            verdict = HOLDS
        if len(self.whole) >= MIN_OBSERVATIONS and high < _MOST:
            verdict = FAILS
        return verdict, f"{share:.1%} [{low:.1%}, {high:.1%}]"


def hypotheses(rows: Runs, rank_rows: Runs | None = None) -> list[Hypothesis]:
    """Return four claims, judged by rows of mode `step`: the data pipeline, making masks, and two of DDP.

    The strategy judged is the case study's, `edge_mask`, where it was run. "Most of a step" means more than half; a
    verdict needs a 95 % interval of the share on one side of that, 6 steps and two cycles of the loader's workers at
    least, and workers whose own times do not contradict it. Rows of one machine say nothing of another: a faster device
    leaves the loader less time.

    **Arguments:**

    - `rows`: of points in mode `step`.
    - `rank_rows`: of points of several ranks, for communication; `rows` unless given.
    """
    rows = rows_of(rows)
    ranks = rows if rank_rows is None else rows_of(rank_rows)
    steps = _steps_of(rows)
    verdicts = [_data_pipeline(steps), _mask_generation(steps), _more_steps(rows), _communication(ranks)]
    named = zip(_CLAIMS, verdicts, strict=True)
    return [Hypothesis(name, _CLAIMS[name], verdict, tuple(evidence)) for name, (verdict, evidence) in named]


def _steps_of(rows: pd.DataFrame) -> _Steps | None:
    """Return the steps of the strategy that is judged; DANGO is left out."""
    chosen = one_point_each(rows)
    chosen = chosen[(chosen["mode"] == "step") & (chosen["strategy"] != "indices")]
    chosen = chosen[chosen["strategy"] == judged(chosen["strategy"])]
    return None if chosen.empty else _Steps(chosen)


def _judged_by(steps: _Steps) -> str:
    """Return a sentence that names the deciding rows, and whether their graph is far smaller than the real one."""
    row = steps.point
    words = f"Judged by {row['model']} with {row['strategy']}, batch {row['batch_size']}, "
    words += f"{counted(row['networks'], 'network')}, {len(steps.whole)} steps, {steps.where}; {row['edges']:,} edges"
    if row["edges"] < 0.5 * sum(size.edges for size in NETWORK_SIZES.values()):
        words += ", far fewer than the real 2.4 million, of which this says nothing"
    return f"{words}."


def _data_pipeline(steps: _Steps | None) -> tuple[str, list[str]]:
    if steps is None or not {"data_wait", "transfer"} <= {*steps.stages}:
        return NOT_MEASURED, [_NO_STEP]
    wait, transfer = steps.stages["data_wait"], steps.stages["transfer"]
    step, (verdict, share) = steps.mean(steps.whole), steps.judge(wait + transfer)
    text = f"Waiting for the loader and the transfer are {share} of a step of {seconds_text(step)}."
    evidence = [_judged_by(steps), text]
    workers, batch = steps.times.workers, steps.times.batch_seconds
    if workers and batch and verdict != UNDECIDED and (refusal := made_ahead(workers, batch, step)):
        evidence.append(f"The verdict “{verdict}” is refused: {refusal}.")
        verdict = UNDECIDED
    if batch:
        collate, mask = (seconds_text(steps.making.get(stage, 0.0)) for stage in ("collate", "mask"))
        evidence.append(f"Of {seconds_text(batch)} to make a batch, collating is {collate} and making masks {mask}.")
    return verdict, evidence


def _mask_generation(steps: _Steps | None) -> tuple[str, list[str]]:
    if steps is None or "mask" not in steps.stages:
        return NOT_MEASURED, [_NO_STEP]
    mask, made = steps.stages["mask"], steps.making.get("mask", 0.0)
    waits = steps.mean(steps.stages.get("data_wait", np.zeros_like(steps.whole)))
    verdict, share = steps.judge(mask + min(made, waits))
    text = f"Masks take {seconds_text(made)} a batch in the loader and {seconds_text(steps.mean(mask))} of a step: "
    return verdict, [_judged_by(steps), f"{text}together {share} of a step, if every wait were for masks."]


def _more_steps(rows: pd.DataFrame) -> tuple[str, list[str]]:
    """Return DDP's first claim, which the batch sizes decide; the evidence is how much of an epoch it explains."""
    text, longer = _steps_text(*_PUBLISHED_BATCHES)
    left = f"{_PUBLISHED_EPOCH / longer:.1f} × are left for each step"
    published = f"Published: {text}. Of {_PUBLISHED_EPOCH:.0f} × an epoch, {left}."
    found = measured_ratios(rows)
    found = found[found["mode"] == "step"]
    if found.empty:
        return NOT_MEASURED, ["The rows do not have both models in mode step.", published]
    strategy = judged(found["strategy"])
    row = records(found[found["strategy"] == strategy])[0]
    text, longer = _steps_text(*map(int, row["batches"].split(" and ")))
    times = times_text(row["ratio"], row["low"], row["high"])
    step = f"A step with {strategy} takes {times} as long as factored DANGO's, an epoch of as many samples "
    evidence = [f"Here: {text}.", f"{step}{times_text(row['ratio'] * longer)}. {_WHICH_DANGO}", published]
    return HOLDS if longer > 1 else FAILS, evidence


def _steps_text(hetero: int, dango: int) -> tuple[str, float]:
    """Return how many steps an epoch of both models has, by their batch sizes, as text, and their ratio."""
    steps = [steps_per_epoch(size, _PUBLISHED_RANKS) for size in (hetero, dango)]
    longer = steps[0] / steps[1]
    text = f"batches of {hetero} and {dango} on {_PUBLISHED_RANKS} ranks make {steps[0]:,} and {steps[1]:,} steps, "
    return f"{text}{longer:.2f} × as many (arithmetic)", longer


def _communication(rows: pd.DataFrame) -> tuple[str, list[str]]:
    """Return DDP's second claim, judged by the rows with the most ranks."""
    many = rows[(rows["status"] == "ok") & (rows["ranks"] > 1) & (rows["mode"] == "step")]
    steps = None if many.empty else _steps_of(many[many["ranks"] == many["ranks"].max()])
    if steps is None or "communication" not in steps.stages:
        tried = rows[(rows["ranks"] > 1) & (rows["status"] != "ok")]["status"]
        why = f" ({tried.iloc[0]})" if len(tried) else ""
        return NOT_MEASURED, [f"No row has the communication of several ranks{why}."]
    verdict, share = steps.judge(steps.stages["communication"])
    evidence = [f"Exposed communication is {share} of a step ({len(steps.whole)} steps, {steps.where})."]
    if "rank_wait" in steps.stages:
        waits = steps.judge(steps.stages["rank_wait"])[1]
        evidence.append(f"Waiting for the slowest rank, which is not communication: {waits}.")
    return verdict, evidence
