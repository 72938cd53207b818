"""Tables of a sweep, of a race, of several ranks, and of predicted steps."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pandas as pd

from tclab._display import Sentences, bytes_text
from tclab.errors import require
from tclab.lab.reports._cells import ratio_of_rows, records
from tclab.perturbation._dataset import TRAINING_SAMPLES, steps_per_epoch
from tclab.sweeps.config._fields import option_choices
from tclab.sweeps.config._point import Point
from tclab.sweeps.predict import Link, predict_step
from tclab.sweeps.store._row_files import Runs, rows_of
from tclab.sweeps.store._row_frame import varying_settings
from tclab.sweeps.store._rows import ENVIRONMENT_COLUMNS
from tclab.timing import environment
from tclab.timing._environment import busy_notes
from tclab.timing._race import Race
from tclab.timing._verdict import Pair
from tclab.training._distributed import BUCKET_MB

_POINT_COLUMNS = ("allocator_settings", "threads")  # columns of the environment that a point decides, on one machine
KEY = ["model", "strategy", "ranks", "batch_size", "accumulate"]
EXCHANGE = ("gather", "rank_wait", "communication")
_NO_RANKS = "No point of several ranks was measured: run it again, or raise budget_seconds."


def machine(rows: Runs | None = None) -> pd.DataFrame:
    """Return the machine and the versions of its software, one row each; missing ones are left out.

    **Arguments:**

    - `rows`: show the machines that measured these rows, a column each; this machine unless given.
    """
    if rows is None:
        made = pd.DataFrame([environment()])
        columns = list(made)
    else:
        made = rows_of(rows)
        made = made[made["torch"].notna()]
        columns = ["tclab", *(name for name in ENVIRONMENT_COLUMNS if name not in _POINT_COLUMNS)]
    made = made[columns].drop_duplicates().dropna(axis="columns", how="all")
    if "memory_bytes" in made:
        made["memory_bytes"] = made["memory_bytes"].astype(float).map(bytes_text, na_action="ignore")
    heads = [""] if len(made) == 1 else [f"machine {i + 1}" for i in range(len(made))]
    return made.astype("string").T.set_axis(heads, axis=1)


def equivalence(rows: Runs) -> pd.DataFrame:
    """Return the result of the equivalence check for each model and strategy, the worst over its points.

    `fp64_error` is the largest relative difference from `subgraph` of predictions or a parameter's gradient, on the
    part of the graph that the check uses; `seconds` is the shortest mean step, missing where none was measured.
    """
    rows = rows_of(rows)
    tried = rows[(rows["stage"] == "step") & rows["equivalence"].notna()]
    return tried.groupby(["model", "strategy"], sort=False).agg(
        equivalence=("equivalence", "last"),
        fp64_error=("equivalence_fp64_error", "max"),
        fp32_ratio=("equivalence_fp32_ratio", "max"),
        nodes=("equivalence_nodes", "max"),
        edges=("equivalence_edges", "max"),
        seconds=("mean_seconds", "min"),
    )


def steps(rows: Runs) -> pd.DataFrame:
    """Return one line a point: time of a step, bytes of a batch, host syncs, peak memory, status.

    `mask_bytes`, those of edge masks, are among `edge_bytes`, and these among `batch_bytes`. Settings that differ among
    the points are columns, and device, backend and number of ranks where any point has several ranks.
    """
    rows = rows_of(rows)
    whole = rows[rows["stage"] == "step"]
    settings = ["model", "strategy", "batch_size", "networks"]
    settings += ["device", "backend", "ranks"] if (whole["ranks"] > 1).any() else []
    found = ["mean_seconds", "low_seconds", "high_seconds", "median_seconds", "samples_per_second", "batch_bytes"]
    found += ["edge_bytes", "mask_bytes", "host_syncs", "peak_bytes", "status"]
    return whole[list(dict.fromkeys([*settings, *varying_settings(whole), *found]))].reset_index(drop=True)


def pairs_against(pairs: Iterable[Pair], arm: str) -> list[Pair]:
    """Return the pairs that an arm is in, each as the other arm against it."""
    pairs = list(pairs)
    for pair in pairs:
        require("a pair", pair, Pair, "Race.pairs, or pairs_of raw blocks")
    return [pair if pair.b == arm else pair.flipped() for pair in pairs if arm in (pair.a, pair.b)]


def race_findings(race: Race, against: str) -> Sentences:
    """Return the verdict on each arm of a race against one of them, the race's margin, and whether it was disturbed."""
    margin = f"{race.pairs[0].floor_text}: no smaller difference is claimed"
    verdicts = [pair.sentence for pair in pairs_against(race.pairs, against)]
    return Sentences([*verdicts, *busy_notes(race.busy_percent), margin])


# ---- several ranks


def rows_of_points(rows: Runs, points: Iterable[Point]) -> pd.DataFrame:
    """Return the rows of some points of a sweep."""
    rows = rows_of(rows)
    wanted = {tuple(getattr(point, name) for name in KEY) for point in points}
    keys = pd.Series(list(zip(*(rows[name] for name in KEY), strict=True)), index=rows.index)
    return rows[keys.isin(wanted)]


def scaling_table(rows: Runs) -> pd.DataFrame:
    """Return what several processes bring: a row for each number of ranks of each model and strategy.

    `speedup` is samples a second over those of the fewest ranks, with its 95 % interval; `ideal` as many times as there
    are more ranks; `cores_allow` the same, but no more than there are cores for; `efficiency` is speedup over ideal.
    """
    rows = rows_of(rows)
    found = []
    ok = rows[(rows["stage"] == "step") & (rows["status"] == "ok")].sort_values("ranks")
    for _, group in ok.groupby(["model", "strategy"], sort=False):
        first, *_ = each = records(group)
        for row in each:
            more = row["ranks"] / first["ranks"]
            speedup = row["samples_per_second"] / first["samples_per_second"]
            times, low, high = ratio_of_rows(first, row)
            cores = row["cores"] / first["threads"] / first["ranks"] if row["device"] == "cpu" else more
            found.append(
                {name: row[name] for name in (*KEY, "samples_per_second")}
                | {
                    "speedup": speedup,
                    "low": speedup * (low / times if low == low else 1.0),
                    "high": speedup * (high / times if high == high else 1.0),
                    "ideal": more,
                    "cores_allow": min(more, max(1.0, cores)),
                    "efficiency": speedup / more,
                }
            )
    columns = [*KEY, "samples_per_second", "speedup", "low", "high", "ideal", "cores_allow", "efficiency"]
    return _saying(pd.DataFrame(found, columns=columns))


def _saying(table: pd.DataFrame, empty: str = _NO_RANKS) -> pd.DataFrame:
    """Return a table that a notebook shows as a sentence where it is empty."""
    table.attrs["empty"] = empty
    return table


def exchange_table(rows: Runs) -> pd.DataFrame:
    """Return the seconds of a step that each point spends on its ranks, the mean over ranks and steps.

    `communication_seconds` and `rank_wait_seconds` are exposed; `overlapped_seconds` are hidden by the backward;
    `gather_seconds` are the loss's. `last` names the rank that came last most often, with its share of all exchanges.
    Each setting that differs is a column.
    """
    rows = rows_of(rows)
    ok = rows[(rows["status"] == "ok") & (rows["ranks"] > 1)]
    of_models = ok[ok["stage"] == "step"].groupby("model", sort=False)
    names = list(dict.fromkeys([*KEY, "networks", *(name for _, one in of_models for name in varying_settings(one))]))
    found = []
    for key, group in ok.groupby(names, sort=False, dropna=False):
        step = records(group[group["stage"] == "step"])[0]
        stages = group[group["where"] == step["where"]].set_index("stage")["mean_seconds"]
        late = group[group["late_share"].notna()].sort_values("late_share").tail(1)
        found.append(
            dict(zip(names, key, strict=True))
            | {"step_seconds": step["mean_seconds"]}
            | {f"{name}_seconds": stages.get(name) for name in EXCHANGE}
            | {
                "overlapped_seconds": group[group["stage"] == "overlapped"]["mean_seconds"].mean(),
                "gradient_bytes": step["gradient_bytes"],
                "last": "".join(f"{row['where']} ({row['late_share']:.0%})" for row in records(late)),
            }
        )
    seconds = [f"{name}_seconds" for name in ("step", *EXCHANGE, "overlapped")]
    return _saying(pd.DataFrame(found, columns=[*names, *seconds, "gradient_bytes", "last"]))


def predicted_steps(rows: Runs, link: Link, *, ranks: Iterable[int], samples: int = TRAINING_SAMPLES) -> pd.DataFrame:
    """Predict the seconds of a step and an epoch at other numbers of ranks, for each model and strategy.

    The prediction starts from the steps at the fewest ranks above one that were measured, each rank with the same
    batch: they contain DDP's own cost, while waiting and exchange are subtracted. `predict_step` has the
    assumptions. Each number of ranks above one that was measured has a row too, with ranks that share this machine's
    cores, `measured_seconds`, and `ratio`, predicted over measured; both are missing in all other rows.

    **Arguments:**

    - `rows`: of a sweep over ranks.
    - `link`: of each rank. `ranks`: how many. `samples`: of an epoch.
    """
    rows = rows_of(rows)
    ok = rows[(rows["status"] == "ok") & (rows["accumulate"] == 1) & (rows["ranks"] > 1)]
    found: list[dict[str, Any]] = []
    for (model, strategy), group in ok.groupby(["model", "strategy"], sort=False):
        steps_ = group[group["stage"] == "step"].sort_values("ranks")
        step = records(steps_)[0]
        stages = group[(group["ranks"] == step["ranks"]) & (group["where"] == step["where"])].set_index("stage")
        if "backward" not in stages.index or steps_["gradient_bytes"].isna().all():
            continue
        backward, rest = _without_exchange(stages["samples_seconds"], step)
        (ddp,) = option_choices("ddp", None if pd.isna(step["ddp"]) else step["ddp"])
        measured = {row["ranks"]: row for row in records(steps_) if row["batch_size"] == step["batch_size"]}
        for number in sorted({*ranks, *measured}):
            of_number = measured.get(number)
            made = predict_step(
                backward, rest, gradient_bytes=float(steps_["gradient_bytes"].max()), ranks=number, link=link,
                slowdown=1.0 if of_number is None else _slowdown(of_number) / _slowdown(step),
                bucket_cap_mb=float(ddp.get("bucket_cap_mb", BUCKET_MB)),
            )  # fmt: skip
            took = None if of_number is None else float(of_number["mean_seconds"])
            epoch = steps_per_epoch(int(step["batch_size"]), number, samples)
            found.append(
                {"model": model, "strategy": strategy, "ranks": number, "batch_size": step["batch_size"], **made,
                 "measured_seconds": took, "ratio": None if took is None else made["step_seconds"] / took,
                 "steps an epoch": epoch, "epoch_seconds": epoch * made["step_seconds"]}
            )  # fmt: skip
    return _saying(pd.DataFrame(found))


def _without_exchange(stages: pd.Series, step: dict[str, Any]) -> tuple[list[float], list[float]]:
    """Return the seconds of backward, and of the rest without what ranks exchange, of the last steps of whole cycles.

    Each is [steps].
    """
    backward, whole = (np.asarray(stages[name], dtype=np.float64) for name in ("backward", "step"))
    rest = whole - backward
    for name in (n for n in EXCHANGE if n in stages and len(stages[n]) == len(rest)):
        rest = rest - np.asarray(stages[name], dtype=np.float64)
    cycle = 1 if pd.isna(step["cycle_steps"]) else int(step["cycle_steps"])
    kept = len(rest) - len(rest) % cycle or len(rest)
    return backward[-kept:].tolist(), rest[-kept:].tolist()


def _slowdown(row: dict[str, Any]) -> float:
    """Return how many times slower a point's ranks computed because they shared the cores of their machine."""
    if row["device"] != "cpu":
        return 1.0
    return max(1.0, float(row["ranks"] * row["threads"] / row["cores"]))
