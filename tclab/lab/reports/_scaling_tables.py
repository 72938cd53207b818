"""Tables of several ranks, of predicted steps at more ranks, and of predicted epochs."""

from __future__ import annotations

from collections.abc import Iterable
from math import isnan
from typing import Any

import numpy as np
import pandas as pd

from tclab._display import counted
from tclab.errors import unknown
from tclab.lab.reports._comparable_rows import ratio_of_rows, records
from tclab.perturbation._dataset import TRAINING_SAMPLES, steps_per_epoch
from tclab.sweeps.config._fields import option_choices
from tclab.sweeps.config._point import Point
from tclab.sweeps.predict._epoch import Epoch
from tclab.sweeps.predict._more_ranks import Link, cores_slowdown, predict_step
from tclab.sweeps.store._row_files import Runs, rows_of
from tclab.sweeps.store._row_frame import varying_settings
from tclab.training._distributed import BUCKET_MB

KEY = ["model", "strategy", "ranks", "batch_size", "accumulate"]
_Row = dict[str, Any]
EXCHANGE = ("gather", "rank_wait", "communication")
_NO_RANKS = "No point of several ranks was measured: run it again, or raise budget_seconds."


def rows_of_points(rows: Runs, points: Iterable[Point]) -> pd.DataFrame:
    """Return the rows of some points of a sweep."""
    rows = rows_of(rows)
    wanted = {tuple(getattr(point, name) for name in KEY) for point in points}
    keys = pd.Series(list(zip(*(rows[name] for name in KEY), strict=True)), index=rows.index)
    return rows[keys.isin(wanted)]


def scaling_table(rows: Runs, of: str = "ranks") -> pd.DataFrame:
    """Return a table of what several processes bring and cost, for each model and strategy.

    **Arguments:**

    - `rows`: of a sweep.
    - `of`: "ranks", a row for each number of ranks: `speedup` is samples a second over those of the fewest ranks;
      `ideal` as many times as there are more ranks; `cores_allow` the same, but no more than there are cores for;
      `efficiency` is speedup over ideal.

        "exchange", the seconds of a step that each point spends on its ranks, the mean over ranks and steps, with a
        column for each setting that differs:
        `communication_seconds` and `rank_wait_seconds` are exposed; `overlapped_seconds` are hidden by the backward;
        `gather_seconds` are the loss's, of all steps, those without a gather among them. `last` names the rank that
        came last most often, with its share of all exchanges.

    **Raises:** `InputError` for another `of`.
    """
    if of not in _TABLES:
        raise unknown("table of scaling", of, _TABLES)
    return _TABLES[of](rows_of(rows))


def _saying(table: pd.DataFrame, empty: str) -> pd.DataFrame:
    """Return a table that a notebook shows as a sentence where it is empty."""
    table.attrs["empty"] = empty
    return table


def ranks_table(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the `scaling_table` of ranks."""
    ok = rows[(rows["stage"] == "step") & (rows["status"] == "ok")]
    found = []
    for _, group in ok.groupby(["model", "strategy"], sort=False):
        each = records(group.sort_values("ranks"))
        first = each[0]
        for row in each:
            ratio = row["samples_per_second"] / first["samples_per_second"]
            more = row["ranks"] / first["ranks"]
            mean, low, high = ratio_of_rows(first, row)
            cores = row["cores"] / first["threads"] / first["ranks"] if row["device"] == "cpu" else more
            found.append(
                {name: row[name] for name in (*KEY, "samples_per_second")}
                | {
                    "speedup": ratio,
                    "low": ratio if isnan(low) else ratio * low / mean,
                    "high": ratio if isnan(high) else ratio * high / mean,
                    "ideal": more,
                    "cores_allow": min(more, max(1.0, cores)),
                    "efficiency": ratio / more,
                }
            )
    columns = [*KEY, "samples_per_second", "speedup", "low", "high", "ideal", "cores_allow", "efficiency"]
    return _saying(
        pd.DataFrame(found, columns=columns), "No point was measured: run it again, or raise budget_seconds."
    )


def exchange_table(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the `scaling_table` of what ranks exchange."""
    ok = rows[(rows["status"] == "ok") & (rows["ranks"] > 1)]
    steps = ok[ok["stage"] == "step"].groupby("model", sort=False)
    names = list(dict.fromkeys([*KEY, "networks", *(name for _, one in steps for name in varying_settings(one))]))
    found = []
    for key, group in ok.groupby(names, sort=False, dropna=False):
        step = records(group[group["stage"] == "step"])[0]
        stages = group[group["where"] == step["where"]].set_index("stage")["mean_seconds"]
        hidden = group[group["stage"] == "overlapped"]["mean_seconds"]
        late = group[group["late_share"].notna()].sort_values("late_share")
        last = "".join(f"{row['where']} ({row['late_share']:.0%})" for row in records(late.tail(1)))
        found.append(
            dict(zip(names, key, strict=True))
            | {"step_seconds": step["mean_seconds"]}
            | {f"{name}_seconds": stages.get(name) for name in EXCHANGE}
            | {
                "overlapped_seconds": hidden.mean() if len(hidden) else None,
                "gradient_bytes": step["gradient_bytes"],
                "last": last,
            }
        )
    seconds = [f"{name}_seconds" for name in ("step", *EXCHANGE, "overlapped")]
    return _saying(pd.DataFrame(found, columns=[*names, *seconds, "gradient_bytes", "last"]), _NO_RANKS)


_TABLES = {"ranks": ranks_table, "exchange": exchange_table}


def predicted_steps(rows: Runs, link: Link, *, ranks: Iterable[int], samples: int = TRAINING_SAMPLES) -> pd.DataFrame:
    """Predict the seconds of a step and an epoch at other numbers of ranks, for each model and strategy.

    The prediction starts from the steps at the fewest ranks above one that were measured, each rank with the same
    batch: they contain DDP's own cost, while waiting and exchange are subtracted. `predict_step` has the
    assumptions.

    Each number of ranks above one that was measured has a row too, with ranks that share this machine's cores,
    `measured_seconds`, and `ratio`, predicted over measured; both are missing in all other rows.

    **Arguments:**

    - `rows`: of a sweep over ranks.
    - `link`: of each rank. `ranks`: how many. `samples`: of an epoch.
    """
    rows = rows_of(rows)
    ok = rows[(rows["status"] == "ok") & (rows["accumulate"] == 1)]
    found: list[_Row] = []
    for (model, strategy), group in ok.groupby(["model", "strategy"], sort=False):
        group = group[group["ranks"] > 1]  # one rank exchanges nothing and has none of DDP's cost
        size = group["gradient_bytes"].dropna()
        if size.empty:
            continue
        fewest = group[group["ranks"] == group["ranks"].min()]
        step = records(fewest[fewest["stage"] == "step"])[0]
        stages = fewest[fewest["where"] == step["where"]].set_index("stage")["samples_seconds"]
        if "backward" not in stages:
            continue
        backward = np.asarray(stages["backward"], dtype=np.float64)
        rest = np.asarray(stages["step"], dtype=np.float64) - backward
        for name in (n for n in EXCHANGE if n in stages and len(stages[n]) == len(rest)):
            rest = rest - np.asarray(stages[name], dtype=np.float64)
        cycle = 1 if pd.isna(step["cycle_steps"]) else int(step["cycle_steps"])
        whole = len(rest) - len(rest) % cycle or len(rest)  # steps of whole cycles, the last ones
        backward, rest = backward[-whole:], rest[-whole:]
        batch = int(step["batch_size"])
        (ddp,) = option_choices("ddp", None if pd.isna(step["ddp"]) else step["ddp"])
        bucket = float(ddp.get("bucket_cap_mb", BUCKET_MB))
        same = group[(group["stage"] == "step") & (group["batch_size"] == batch)]
        measured = {int(row["ranks"]): row for row in records(same)}
        for number in sorted({*ranks, *measured}):
            there = measured.get(number)
            made = predict_step(
                backward.tolist(), rest.tolist(), gradient_bytes=float(size.max()), ranks=number, link=link,
                slowdown=1.0 if there is None else _slowdown(there) / _slowdown(step), bucket_cap_mb=bucket,
            )  # fmt: skip
            took = None if there is None else float(there["mean_seconds"])
            steps = steps_per_epoch(batch, number, samples)
            found.append(
                {"model": model, "strategy": strategy, "ranks": number, "batch_size": batch,
                 "step_seconds": made.seconds, "compute_seconds": made.compute_seconds,
                 "rank_wait_seconds": made.waiting_seconds,
                 "communication_seconds": made.exposed_seconds, "overlapped_seconds": made.overlapped_seconds,
                 "measured_seconds": took, "ratio": None if took is None else made.seconds / took,
                 "steps an epoch": steps, "epoch_seconds": steps * made.seconds}
            )  # fmt: skip
    seconds = [f"{name}_seconds" for name in ("step", "compute", "rank_wait", "communication", "overlapped")]
    columns = ["model", "strategy", "ranks", "batch_size", *seconds, "measured_seconds", "ratio", "steps an epoch"]
    return _saying(pd.DataFrame(found, columns=[*columns, "epoch_seconds"]), _NO_RANKS)


def _slowdown(row: _Row) -> float:
    """Return how many times slower a point's ranks computed because they shared the cores of their machine."""
    if row["device"] != "cpu":
        return 1.0
    return cores_slowdown(int(row["ranks"]), float(row["cores"]), int(row["threads"]))


def epoch_name(epoch: Epoch) -> str:
    point, workers = epoch.point, counted(epoch.point.workers, "worker")
    return f"{point.model} · {point.strategy} · {point.mode} · batch {point.batch_size} · {workers}"


def epoch_table(epochs: Iterable[Epoch]) -> pd.DataFrame:
    """Return a row an epoch: when it was predicted and begun, both times, what bounds it, and the full epoch."""
    return pd.DataFrame(
        [
            {
                "epoch": epoch_name(epoch),
                "steps": epoch.predicted.steps,
                "predicted at (UTC)": epoch.written_at[11:23],
                "begun at (UTC)": epoch.began_at[11:23],
                "predicted s": epoch.predicted.seconds,
                "5 % to 95 %": f"{epoch.predicted.low:.3g} to {epoch.predicted.high:.3g}",
                "measured s": epoch.measured_seconds,
                "predicted over measured": epoch.ratio,
                "bound by": epoch.predicted.binds,
                "drift": epoch.drift,
                "load": epoch.load,
                "busy": "busy" * (epoch.busy_percent is not None),
                "full epoch steps": epoch.full.steps,
                "full epoch s, predicted": epoch.full.seconds,
            }
            for epoch in epochs
        ]
    ).set_index("epoch")


def model_ratios(epochs: Iterable[Epoch]) -> pd.DataFrame:
    """Return how many times as long each model's epoch takes as that of the fastest model, predicted and measured.

    Epochs of the same mode, workers and steps are compared: each with those of the fastest model at the same batch
    size or, where there are none, with all of its. `a sample` is the measured ratio of samples, not of steps. A full
    epoch has as many steps as the model's batch size makes of all training samples.
    """
    groups: dict[tuple[str, int, int], list[Epoch]] = {}
    for epoch in epochs:
        groups.setdefault((epoch.point.mode, epoch.point.workers, epoch.predicted.steps), []).append(epoch)
    rows = []
    for (mode, workers, steps), group in groups.items():
        fastest = min(group, key=lambda epoch: epoch.measured_seconds).point.model
        bases = [epoch for epoch in group if epoch.point.model == fastest]
        for other in (epoch for epoch in group if epoch.point.model != fastest):
            alike = [base for base in bases if base.point.batch_size == other.point.batch_size]
            rows += [
                {
                    "models": f"{other.point.model} : {base.point.model}",
                    "strategies": f"{other.point.strategy} : {base.point.strategy}",
                    "batches": f"{other.point.batch_size} : {base.point.batch_size}",
                    "mode": mode,
                    "workers": workers,
                    "steps": steps,
                    "predicted": other.predicted.seconds / base.predicted.seconds,
                    "measured": other.measured_seconds / base.measured_seconds,
                    "a sample": other.measured_seconds
                    / base.measured_seconds
                    * (base.point.batch_size / other.point.batch_size),
                    "full epoch, predicted": other.full.seconds / base.full.seconds,
                }
                for base in alike or bases
            ]
    columns = ["models", "strategies", "batches", "mode", "workers", "steps", "predicted", "measured", "a sample"]
    table = pd.DataFrame(rows, columns=[*columns, "full epoch, predicted"]).set_index("models")
    return _saying(table, "Epochs of two models are needed for a ratio.")
