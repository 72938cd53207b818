"""The closing table of the case study: seconds, ratio and share of each component, measured and published."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import pandas as pd

from tclab._display import Display, Shown, seconds_text
from tclab.errors import InputError
from tclab.lab.reports._comparable_rows import ratio_of_rows
from tclab.lab.reports._stage_parts import one_point_each, stage_parts, times_text
from tclab.masking._strategy import BASELINES
from tclab.sweeps.store._row_files import Runs, rows_of
from tclab.timing._statistics import MIN_OBSERVATIONS


class _Component(NamedTuple):
    """A line of the table: stages of one timeline, and the published figures of the same."""

    name: str
    stages: tuple[str, ...]
    published: str = ""


_LOADING = (
    _Component("reading samples, making masks", ("sample", "mask"), "component_processor"),
    _Component("collation", ("collate",), "component_collation"),
)
_STEP = (
    _Component("waiting for a batch", ("data_wait",)),
    _Component("transfer", ("transfer",), "component_transfer"),
    _Component("masks on the device", ("mask",)),
    _Component("forward and loss", ("forward", "loss"), "component_model"),
    _Component("backward", ("backward",)),
    _Component("clip and optimizer", ("clip", "optimizer")),
)
_COLUMNS = ["of", "component", "hetero s", "DANGO s", "hetero : dango", "share", "published s", "published share"]


@dataclass(frozen=True, repr=False)
class ComponentTable(Shown):
    """A line a component of a training step, displayed with a sentence each on what it says of the published one.

    **Arguments:**

    - `table`: by `of` ("making a batch" or "step") and `component`: hetero's and DANGO's mean seconds, their ratio,
      hetero's share, and the published seconds and share.
    - `sentences`: see above.
    """

    table: pd.DataFrame
    sentences: list[str]

    def _display(self) -> Display:
        texts = {" s": seconds_text, "share": "{:.1%}".format}
        shown = [
            self.table[name]
            .map(next((text for end, text in texts.items() if name.endswith(end)), "{:.3g}".format), na_action="ignore")
            .fillna("")
            for name in _COLUMNS[2:]
        ]
        lines = [[*map(str, place), *cells] for place, *cells in zip(self.table.index, *shown, strict=True)]
        return Display("", tuple(name.removesuffix(" s") for name in _COLUMNS), lines, self.sentences)


def component_table(rows: Runs, figures: pd.DataFrame, *, strategy: str | None = None) -> ComponentTable:
    """Return each component of a training step: hetero's and DANGO's mean seconds, their ratio, hetero's share.

    Components of the step add up to it; those of making a batch, which a worker does meanwhile, to that. A share is
    of the whole that the component belongs to. The published ones are estimates of the team's: each share is of the
    published components together.

    **Arguments:**

    - `rows`: of both models in mode `step`, each with its own batch size (`batch_sizes="hetero_cell:28,dango:64"`).
    - `figures`: as `published_figures` returns them.
    - `strategy`: of the hetero model; `edge_mask`, which the table was of, unless given, or else the first there is.

    Where a budget left one of the models out, there are no lines, and a sentence says so.

    **Raises:** `InputError` where the rows hold no step by that strategy.
    """
    rows = rows_of(rows)
    parts = stage_parts(one_point_each(rows)).query("mode == 'step'")
    hetero, dango = parts[parts["model"] != "dango"], parts[parts["model"] == "dango"]
    if hetero.empty or dango.empty:
        missing = "the hetero model" if hetero.empty else "dango"
        empty = pd.DataFrame(columns=_COLUMNS).set_index(["of", "component"])
        return ComponentTable(empty, [f"Not measured here: the rows hold no step of {missing}; see budget_seconds."])
    hetero = _by(hetero[hetero["model"] == hetero["model"].iloc[0]], strategy)
    by_key = {str(row["key"]): float(row["value"]) for _, row in figures.iterrows()}
    whole = sum(value for key, value in by_key.items() if key.startswith("component_") and not key.endswith("_dango"))
    lines: list[tuple[Any, ...]] = []
    for of, where, components in (("making a batch", ("worker", "loading"), _LOADING), ("step", (), _STEP)):
        stages = [_seconds(side, where) for side in (hetero, dango)]
        named = {stage for component in components for stage in component.stages}
        rest = _Component("the rest", tuple(dict.fromkeys(name for one in stages for name in one if name not in named)))
        for component in (*components, rest, _Component("all", tuple({*named, *rest.stages}))):
            took = [_sum_of(one, component.stages) for one in stages]
            every = _sum_of(stages[0], tuple(stages[0]))
            published = by_key.get(component.published, by_key.get(f"{component.published}_hetero"))
            ratio = took[0] / took[1] if took[0] and took[1] else None
            share = took[0] / every if took[0] is not None and every else None
            share_published = published / whole if published else None
            lines.append((of, component.name, *took, ratio, share, published, share_published))
    table = pd.DataFrame(lines, columns=_COLUMNS).astype(dict.fromkeys(_COLUMNS[2:], float))
    table = table[table["hetero s"].notna() | table["DANGO s"].notna()].set_index(["of", "component"])
    return ComponentTable(table, _sentences(rows, hetero, by_key))


def _sentences(rows: pd.DataFrame, hetero: pd.DataFrame, by_key: dict[str, float]) -> list[str]:
    """Return what measured rows say of the published table, a sentence each."""
    first = hetero.iloc[0]
    chosen = one_point_each(rows)
    chosen = chosen[chosen["mode"] == "step"]
    step = chosen[(chosen["model"] == first["model"]) & (chosen["strategy"] == first["strategy"])]
    size = step[step["stage"] == "step"].iloc[0]
    other = chosen[(chosen["model"] == "dango") & (chosen["stage"] == "step")].iloc[0]
    sentences = [
        f"A step of {first['model']} ({first['strategy']}, batch {size['batch_size']}) takes "
        f"{times_text(ratio_of_rows(size, other)[0])} as long as one of dango (batch {other['batch_size']})."
    ]
    made = step[step["where"].isin(["worker", "loading"])].set_index("stage")
    if "component_processor" in by_key and {"mask", "collate", "batch"} <= {*made.index}:
        samples = made.loc["sample"] if "sample" in made.index else None
        ratio, low, high = ratio_of_rows(made.loc["mask"], made.loc["collate"])
        once = by_key["component_processor"] / by_key["component_collation"]
        enough = size["n"] >= MIN_OBSERVATIONS
        verdict = "refuted here" if enough and high < 1 else "so here" if enough and low > 1 else "undecided here"
        reading = "" if samples is None else f"reading samples {seconds_text(samples['mean_seconds'])}, "
        sentences.append(
            f"The published table has {by_key['component_processor']:g} s for samples and masks and "
            f"{by_key['component_collation']:g} s for collation, {times_text(once)}, estimates, never measured. Of "
            f"{seconds_text(made.loc['batch']['mean_seconds'])} a batch, {reading}making masks "
            f"{seconds_text(made.loc['mask']['mean_seconds'])} and collating "
            f"{seconds_text(made.loc['collate']['mean_seconds'])}, {times_text(ratio)}: that masks are the greater "
            f"part is {verdict}, with {first['strategy']} and {size['edges']:,} edges."
        )
    return sentences


def _by(hetero: pd.DataFrame, strategy: str | None) -> pd.DataFrame:
    """Return the stages of the hetero model's step by one strategy."""
    names = list(dict.fromkeys(hetero["strategy"]))
    named = strategy or next((name for name in BASELINES if name in names), names[0])
    if named not in names:
        raise InputError(f"strategy is {named!r}, and the rows have {', '.join(names)}")
    return hetero[hetero["strategy"] == named]


def _seconds(side: pd.DataFrame, where: tuple[str, ...]) -> dict[str, float]:
    """Return stage → mean seconds on a timeline; without `where`, on the one that the step is timed on."""
    if not where:
        where = ("device",) if (side["where"] == "device").any() else ("host",)
    chosen = side[side["where"].isin(where) & (side["stage"] != "idle")]
    return dict(zip(chosen["stage"], chosen["seconds"].astype(float), strict=True))


def _sum_of(seconds: dict[str, float], stages: tuple[str, ...]) -> float | None:
    found = [seconds[stage] for stage in stages if stage in seconds]
    return sum(found) if found else None
