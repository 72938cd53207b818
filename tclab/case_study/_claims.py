"""What the case study's team published and claimed, next to the same as measured here; and what each overhead costs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from io import BytesIO
from math import exp, log, nan
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from tclab._display import Display, Shown, counted, seconds_text
from tclab._source import opened
from tclab.graph._synthetic_graph import NETWORK_SIZES
from tclab.lab.charts._marks import ratios
from tclab.lab.charts._style import chart_title, colours_of, empty_chart
from tclab.lab.reports._cells import one_point_each, ratio_of_rows, records, stage_parts, times_text
from tclab.masking._strategy import BASELINES
from tclab.perturbation._deletions import steps_per_epoch
from tclab.sweeps._advise import step_times
from tclab.sweeps._point import OVERHEADS
from tclab.sweeps._row_files import Runs, rows_of
from tclab.sweeps._rows import where_measured
from tclab.timing._step_means import MIN_OBSERVATIONS, Estimate, cycle_means, made_ahead, mean_step
from tclab.training._step import MODES

_COLUMNS = ["key", "model", "gpus", "batch_size", "what", "value", "unit", "standing", "caveat"]
# Pairs of figures, one of each model → the modes here that run what they named. 086a's "data pipeline only" ran
# a dummy backward and the optimizer in Lightning's loop: `empty` is nearer to it than `data`.
_PAIRS = {
    "086a": ("data", "empty"), "524": ("data", "empty"), "086b": ("model",), "epochs": ("step",), "trace": ("step",),
    "full_step": ("fixed_batch",),
}  # fmt: skip
_PUBLISHED_COLOUR = "#9a9a9a"
# of a timeline and stage, the key of the published figure of the same
_COMPONENTS = {
    ("worker", "mask"): "component_processor",
    ("worker", "collate"): "component_collation",
    ("host", "transfer"): "component_transfer",
    ("host", "forward"): "component_model_hetero",
}


def published_figures(path: str | Path) -> pd.DataFrame:
    """Return the table of published figures, missing words as empty ones."""
    with opened(path, "published figures") as content:
        return pd.read_csv(BytesIO(content), usecols=_COLUMNS, keep_default_na=False)[_COLUMNS]


def published_ratios(rows: Runs, figures: str | Path) -> pd.DataFrame:
    """Return how many times longer a step of the hetero model takes than DANGO's, by mode, published and measured.

    Columns: mode, figure (a strategy of this machine, or a published key), ratio, `low` and `high` (its 95 % interval,
    missing for what is published or has too few steps), batches (of both models), standing, caveat.

    **Arguments:**

    - `rows`: of points in several modes.
    - `figures`: the published ones, a CSV file with the columns of `data_samples/published_measurements.csv`.

    **Raises:** `InputError` for a file that is not there or lacks one of these columns.
    """
    measured = measured_ratios(rows_of(rows)).rename(columns={"strategy": "figure"})
    both = pd.concat([measured.assign(standing="measured here", caveat=""), ratios_of_figures(figures)])
    return both.sort_values("mode", key=lambda modes: modes.map([*MODES].index), kind="stable").reset_index(drop=True)


def ratios_of_figures(figures: str | Path) -> pd.DataFrame:
    """Return how many times longer the published hetero model took than DANGO, figure by figure.

    Ratios are of steps, as they were run: the two models' batch sizes were 28 and 64 except for `full_step`. A ratio of
    epochs is divided by that of their steps.
    """
    by_key = {row["key"]: row for row in published_figures(figures).to_dict("records")}
    found: list[dict[str, Any]] = []
    for key, modes in _PAIRS.items():
        hetero, dango = by_key.get(f"{key}_hetero"), by_key.get(f"{key}_dango")
        if hetero is None or dango is None:
            continue
        ratio = float(hetero["value"]) / float(dango["value"])
        if hetero["unit"] in ("it/s", "epoch"):  # a rate is high where a time is short
            ratio = 1 / ratio
        if hetero["unit"] == "epoch":
            steps = [steps_per_epoch(int(one["batch_size"]), int(one["gpus"])) for one in (hetero, dango)]
            ratio /= steps[0] / steps[1]
        batches = f"{hetero['batch_size']} and {dango['batch_size']}"
        more = {"batches": batches, "standing": hetero["standing"], "caveat": f"{hetero['what']}. {hetero['caveat']}"}
        found += [{"mode": mode, "figure": key, "ratio": ratio, "low": None, "high": None} | more for mode in modes]
    return pd.DataFrame(found)


def measured_ratios(rows: pd.DataFrame) -> pd.DataFrame:
    """Return how many times longer each hetero strategy's step takes than factored DANGO's, in each mode measured."""
    steps = one_point_each(rows)
    steps = steps[steps["stage"] == "step"]
    found = []
    for mode, group in steps.groupby("mode", sort=False):
        of_dango = group["model"] == "dango"
        for base in records(group[of_dango].head(1)):
            for row in records(group[~of_dango]):
                batches = f"{row['batch_size']} and {base['batch_size']}"
                found.append((mode, row["strategy"], *ratio_of_rows(row, base), batches))
    return pd.DataFrame(found, columns=["mode", "strategy", "ratio", "low", "high", "batches"])


def ratios_chart(table: pd.DataFrame, rows: Runs) -> Any:
    """Return the chart of `published_ratios`: each mode's measured ratios in colour, published ones in grey.

    **Arguments:**

    - `table`: of `published_ratios`. `rows`: those it was made of, for the title.
    """
    rows = rows_of(rows)
    here = table["standing"] == "measured here"
    published = "published " + table["figure"] + ", " + table["standing"]
    found = table.rename(columns={"ratio": "value"}).assign(
        line=table["mode"] + " · " + table["figure"].where(here, published),
        kind=table["figure"],
        sure=here,
        text=table["ratio"].map(times_text),
        why=table["caveat"],
    )
    steps, ratio = table[here & (table["mode"] == "step")], table["ratio"][~here]
    measured = "No step of both models was measured here"
    for row in records(steps[steps["figure"] == judged(steps["figure"])].head(1)):
        measured = f"A step of the hetero model takes {row['ratio']:.3g}× as long as DANGO's with {row['figure']}"
    title = chart_title(
        [f"{measured};", f"published: {ratio.min():.3g}× to {ratio.max():.3g}×"],
        "line: 95 % interval; here DANGO is factored; hollow: published (dense), another machine, batch size and code",
        rows=rows,
    )
    colours = {**dict.fromkeys(table["figure"], _PUBLISHED_COLOUR), **colours_of(table["figure"][here])}
    return ratios(found, title, axis="time of a step of the hetero model over DANGO's (logarithmic)", colours=colours)


def artefacts_chart(wrong: Mapping[str, float], right: Mapping[str, float], rows: Runs) -> Any:
    """Return the chart of wrong ratios, each next to the right one of the same runs.

    **Arguments:**

    - `wrong`, `right`: name of a published ratio and its mistake → how many times as slow, with the mistake and
      without.
    - `rows`: those they were made of, for the title.
    """
    both = pd.DataFrame({"wrong": wrong, "right": right}).rename_axis("line").reset_index()
    found = both.melt("line", var_name="kind").assign(low=None, high=None)
    found["text"], found["line"] = found["value"].map("{:.3g} ×".format), found["line"] + ", " + found["kind"]
    colours = {"wrong": "#d55e00", "right": "#009e73"}
    worst = max(wrong, key=lambda name: abs(log(wrong[name] / right[name])))
    said = f"The largest of {len(wrong)} errors turns a ratio of {right[worst]:.3g}× into {wrong[worst]:.3g}× ({worst})"
    title = chart_title(said, "names: the published ratio and its mistake; dots: measured here", rows=rows_of(rows))
    return ratios(found.sort_values("line"), title, axis="ratio of two times (logarithmic)", colours=colours)


def judged(strategies: Iterable[str]) -> str | None:
    """Return the strategy that stands for the team's: `edge_mask`, or else the first of some; `None` of none."""
    names = list(dict.fromkeys(strategies))
    return next((name for name in [*BASELINES, *names] if name in names), None)


def component_table(rows: Runs, figures: str | Path) -> pd.DataFrame:
    """Return the mean seconds of each stage of a training step, a column a model, and the published seconds.

    The stages of a timeline add up to it; a worker makes a batch while the host takes a step. The published seconds are
    estimates of the team's, never measured. What a model or the publication lacks is missing.

    **Arguments:**

    - `rows`: of points in mode `step`, each model with its own batch size (`batch_sizes="hetero_cell:28,dango:64"`). Of
      the hetero model the strategy `edge_mask` counts, which the publication was of, or else the first there is.
    - `figures`: the published ones, a CSV file with the columns of `data_samples/published_measurements.csv`.

    **Raises:** `InputError` for a file that is not there or lacks one of these columns.
    """
    parts = stage_parts(one_point_each(rows_of(rows)))
    parts = parts[(parts["mode"] == "step") & (parts["stage"] != "idle")]
    hetero = parts["model"] != "dango"
    parts = parts[~hetero | (parts["strategy"] == judged(parts[hetero]["strategy"]))]
    table = parts.pivot_table("seconds", ["where", "stage"], "model", sort=False)
    published = published_figures(figures).set_index("key")["value"].astype(float)
    table["published"] = [published.get(_COMPONENTS.get(at, "")) for at in table.index]
    return table


# ---- four claims on why the hetero model is slow, each with a verdict and its evidence from rows

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
        return mean_step(seconds, self.times.cycle).value

    def judge(self, part: Any) -> tuple[str, str]:
        """Return the verdict on whether a part takes most of the steps' time, and its share as text.

        The share is total over total; a verdict needs its 95 % interval on one side of a half, of at least 6 steps.
        """
        share, (low, high) = self.times._replace(stages={"part": part}).share("part")
        decides = len(self.whole) >= MIN_OBSERVATIONS and not low <= _MOST <= high
        verdict = UNDECIDED if not decides else HOLDS if low > _MOST else FAILS
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
    step = steps.mean(steps.whole)
    verdict, share = steps.judge(steps.stages["data_wait"] + steps.stages["transfer"])
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


# ---- the time of a step with an overhead over one without, with an interval and a verdict

_AT = ["model", "strategy", "batch_size", "networks", "mode"]
_NOTHING = "No overhead was measured together with a step without it."


def overhead_costs(rows: Runs) -> pd.DataFrame:
    """Return how many times as long a step takes with each overhead, a line for each model, strategy and overhead.

    Columns: model, strategy, overhead, ratio, `low` and `high` (its 95 % interval), rounds, verdict ("costs", "saves"
    or "undecided"), what. Points of one seed are one round, on the same batches: step `i` with the overhead is compared
    with step `i` without; where steps wait for several workers, whole cycles of them (`tclab.timing._step_means`). A
    round's value is the median of these ratios, and the interval is Student's of the rounds. One round has no interval
    and decides nothing.

    **Arguments:**

    - `rows`: of the points of `tclab.sweeps.config.with_each_overhead`.
    """
    rows = rows_of(rows)
    steps = rows[(rows["stage"] == "step") & (rows["status"] == "ok")]
    named = steps["overheads"].fillna("")
    bases = steps[named == ""].drop_duplicates([*_AT, "seed"], keep="last")
    both = steps[named.isin(OVERHEADS)].merge(bases, on=[*_AT, "seed"], suffixes=("", "_without"))
    found: list[tuple[Any, ...]] = []
    for key, group in both.groupby([*_AT, "overheads"], sort=False):
        model, strategy, overhead = map(str, (key[0], key[1], key[-1]))
        medians = np.array([np.median(_log_ratios(row)) for _, row in group.iterrows()])
        mean, n = float(medians.mean()), len(medians)
        error = float(medians.std(ddof=1)) / n**0.5 if n > 1 else None
        ends = Estimate(mean, error, n - 1).interval()
        low, high = (nan, nan) if ends is None else np.exp(ends).tolist()
        verdict = "costs" if low > 1 else "saves" if high < 1 else "undecided"
        found.append((model, strategy, overhead, exp(mean), low, high, n, verdict, OVERHEADS[overhead].what))
    columns = ["model", "strategy", "overhead", "ratio", "low", "high", "rounds", "verdict", "what"]
    table = pd.DataFrame(found, columns=columns)
    table.attrs["empty"] = _NOTHING
    return table


def _log_ratios(row: pd.Series) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Return the logarithm of each step's time, or each cycle's, over that of the same step without the overhead."""
    steps, cycle = min(row["n"], row["n_without"]), max(row["cycle_steps"], row["cycle_steps_without"])
    means = (cycle_means(np.asarray(row[f"samples_seconds{side}"])[:steps], cycle) for side in ("", "_without"))
    return np.log(np.divide(*means))


def overheads_chart(costs: pd.DataFrame, rows: Runs) -> Any:
    """Return the chart of each overhead's cost with its interval; hollow where it is undecided.

    **Arguments:**

    - `costs`: of `overhead_costs`. `rows`: those it was made of, for the title.
    """
    rows = rows_of(rows)
    if costs.empty:
        return empty_chart(_NOTHING)
    found = costs.rename(columns={"ratio": "value", "what": "why"}).assign(
        line=costs["model"] + " · " + costs["strategy"] + " · " + costs["overhead"],
        kind=costs["strategy"],
        sure=costs["verdict"] != "undecided",
        text=costs["ratio"].map("{:.2f} × ".format) + costs["verdict"],
    )
    rounds = " to ".join(map(str, dict.fromkeys((costs["rounds"].min(), costs["rounds"].max()))))
    said = f"rounds: {rounds}; line: 95 % interval; hollow: undecided"
    sure = costs[costs["verdict"] == "costs"]["ratio"]
    text = f"{len(sure)} of {counted(len(costs), 'overhead')} certainly cost time"
    text += f", up to {sure.max():.2f}× the time of a step without it" if len(sure) else ""
    title = chart_title(text, said, rows=rows)
    return ratios(found, title, axis="time of a step with the overhead over without (logarithmic; right costs more)")
