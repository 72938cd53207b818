"""What more ranks bring: throughput against the ideal, what a step exchanges, and the steps of an epoch."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import altair as alt
import numpy as np
import pandas as pd

from tclab.lab.charts import _colour, _plain, _shape, _steps, _title
from tclab.lab.colours import STAGE_COLOURS
from tclab.lab.published import RECORDS, steps_per_epoch
from tclab.lab.timeline import nothing
from tclab.sweeps import Link, Point, cores_slowdown, step_on_paper

_WIDTH, _HEIGHT = 300, 240
_KEY = ["model", "strategy", "ranks", "batch_size", "accumulate"]
_Row = dict[str, Any]
_EXCHANGE = ("gather", "waiting", "communication")


def rows_of_points(rows: pd.DataFrame, points: Iterable[Point]) -> pd.DataFrame:
    """Return the rows of some points of a sweep."""
    wanted = {tuple(getattr(point, name) for name in _KEY) for point in points}
    keys = pd.Series(list(zip(*(rows[name] for name in _KEY), strict=True)), index=rows.index)
    return rows[keys.isin(wanted)]


def scaling_table(rows: pd.DataFrame) -> pd.DataFrame:
    """Return a line for each number of ranks, of each model and strategy.

    `speedup` is samples a second over those of the fewest ranks; `ideal` as many times as there are more ranks;
    `cores_allow` the same, but no more than there are cores for; `efficiency` is speedup over ideal.
    """
    ok = rows[(rows["stage"] == "step") & (rows["status"] == "ok")]
    found = []
    for _, own in ok.groupby(["model", "strategy"], sort=False):
        each = _records(own.sort_values("ranks"))
        first = each[0]
        for row in each:
            ratio = row["samples_per_second"] / first["samples_per_second"]
            more = row["ranks"] / first["ranks"]
            room = row["cores"] / first["threads"] / first["ranks"] if row["device"] == "cpu" else more
            found.append(
                {name: row[name] for name in (*_KEY, "samples_per_second")}
                | {
                    "speedup": ratio,
                    "low": ratio * (first["q1_seconds"] / first["median_seconds"]) * _share(row, "q3_seconds"),
                    "high": ratio * (first["q3_seconds"] / first["median_seconds"]) * _share(row, "q1_seconds"),
                    "ideal": more,
                    "cores_allow": min(more, max(1.0, room)),
                    "efficiency": ratio / more,
                }
            )
    columns = [*_KEY, "samples_per_second", "speedup", "low", "high", "ideal", "cores_allow", "efficiency"]
    return pd.DataFrame(found, columns=columns)


def _share(row: _Row, name: str) -> float:
    return float(row["median_seconds"] / row[name])


def _records(frame: pd.DataFrame) -> list[_Row]:
    return [{str(name): value for name, value in row.items()} for row in frame.to_dict("records")]


def speed_up(strong: pd.DataFrame, weak: pd.DataFrame) -> Any:
    """Return speed-up over ranks, strong and weak side by side, against the ideal and what the cores allow."""
    panels = []
    for name, rows in (("strong: one batch shared", strong), ("weak: a batch for each rank", weak)):
        table = scaling_table(rows)
        if table.empty:
            continue
        panels.append(_speedup(table, name))
    if not panels:
        return nothing("No number of ranks was measured.")
    both = pd.concat([strong, weak])
    more = "line: quartiles of steps; dashed: ideal; dotted: what the cores allow"
    chart = alt.hconcat(*panels, spacing=30).resolve_scale(color="shared", shape="shared")
    return chart.properties(title=_title("Samples a second, over those of one rank", both, more))


def _speedup(table: pd.DataFrame, name: str) -> Any:
    frame = _plain(table, [*_KEY, "speedup", "low", "high", "ideal", "cores_allow", "efficiency"])
    frame["text"] = frame["efficiency"].map(lambda share: f"{share:.0%}")
    x = alt.X(
        "ranks:Q",
        scale=alt.Scale(domain=[0.5, frame["ranks"].max() + 0.5]),
        axis=alt.Axis(values=sorted(frame["ranks"].unique()), format="d", grid=False),
        title="ranks",
    )
    y = alt.Y("speedup:Q", title="times as many samples a second", scale=alt.Scale(zero=True))
    base = alt.Chart(frame)
    references = [
        base.mark_line(strokeDash=dash, color="#888888").encode(x=x, y=alt.Y(f"{column}:Q", title=None))
        for column, dash in (("ideal", [6, 4]), ("cores_allow", [2, 3]))
    ]
    own = base.encode(x=x, color=_colour(table), detail="model:N")
    layers = [
        *references,
        own.mark_rule(strokeWidth=2).encode(y=alt.Y("low:Q"), y2="high:Q"),
        own.mark_line().encode(y=y),
        own.mark_point(filled=True, size=70, opacity=1).encode(y=y, shape=_shape(table)),
        own.mark_text(align="left", dx=8, dy=-8, fontSize=10).encode(y=y, text="text:N"),
    ]
    title = alt.TitleParams(f"{name} (number: efficiency)", anchor="start", fontSize=12)
    return alt.layer(*layers).properties(width=_WIDTH, height=_HEIGHT, title=title)


def exchange_table(rows: pd.DataFrame) -> pd.DataFrame:
    """Return what each point's step spends on its ranks: mean over ranks, median over steps, in seconds.

    `communication` and `waiting` are exposed; `overlapped` hides behind the backward; `gather` is the loss's.
    `last` names the rank that came last most often, with its share of all exchanges.
    """
    ok = rows[(rows["status"] == "ok") & (rows["ranks"] > 1)]
    found = []
    for key, own in ok.groupby(_KEY, sort=False):
        step = _records(own[own["stage"] == "step"])[0]
        stages = own[own["where"] == step["where"]].set_index("stage")["median_seconds"]
        hidden = own[own["stage"] == "overlapped"]["median_seconds"]
        late = own[own["late_share"].notna()].sort_values("late_share")
        last = "".join(f"{row['where']} ({row['late_share']:.0%})" for row in _records(late.tail(1)))
        found.append(
            dict(zip(_KEY, key, strict=True))
            | {"step": step["median_seconds"]}
            | {name: stages.get(name) for name in _EXCHANGE}
            | {
                "overlapped": hidden.mean() if len(hidden) else None,
                "gradient_bytes": step["gradient_bytes"],
                "last": last,
            }
        )
    columns = [*_KEY, "step", *_EXCHANGE, "overlapped", "gradient_bytes", "last"]
    return pd.DataFrame(found, columns=columns)


def exchange(rows: pd.DataFrame) -> Any:
    """Return the share of a step that goes to its ranks: the loss's gather, waiting, exposed communication."""
    table = exchange_table(rows)
    if table.empty:
        return nothing("No point of several ranks was measured.")
    table["way"] = [
        f"{row['model']} · {row['ranks']} ranks × batch {row['batch_size']}"
        + (f" × {row['accumulate']} accumulated" if row["accumulate"] > 1 else "")
        for row in _records(table)
    ]
    parts = table.melt(["way", "step"], list(_EXCHANGE), "stage", "seconds").dropna(subset=["seconds"])
    flat = _plain(parts, ["way", "stage", "seconds", "step"])
    flat["share"] = flat["seconds"] / flat["step"]
    shown = [name for name in _EXCHANGE if name in set(flat["stage"])]
    colours = alt.Scale(domain=shown, range=[STAGE_COLOURS[name] for name in shown])
    bars = alt.Chart(flat).mark_bar().encode(
        y=alt.Y("way:N", sort=list(dict.fromkeys(table["way"])), title=None, axis=alt.Axis(labelLimit=320)),
        x=alt.X("share:Q", title="share of a step (mean over ranks)", axis=alt.Axis(format="%")),
        color=alt.Color("stage:N", scale=colours, title="stage"),
    )  # fmt: skip
    more = "waiting: for the slowest rank; communication: exposed"
    return bars.properties(
        width=420, height=alt.Step(28), title=_title("What a step spends on its ranks", rows, more)
    )


def accumulation(rows: pd.DataFrame) -> Any:
    """Return samples a second at one effective batch, by more ranks or by more accumulated batches."""
    ok = rows[(rows["stage"] == "step") & (rows["status"] == "ok")]
    if ok.empty:
        return nothing("No accumulation was measured.")
    frame = _plain(_steps(ok), [*_KEY, "samples_per_second", "low", "high"])
    frame["way"] = [
        f"{row['ranks']:.0f} rank{'s' if row['ranks'] > 1 else ''} × {row['accumulate']:.0f} batches of "
        f"{row['batch_size']:.0f}"
        for row in _records(frame)
    ]
    effective = sorted({int(row["ranks"] * row["batch_size"] * row["accumulate"]) for row in _records(frame)})
    y = alt.Y("way:N", sort=list(dict.fromkeys(frame.sort_values("ranks")["way"])), title=None)
    base = alt.Chart(frame).encode(y=y, yOffset="model:N", color=_colour(ok))
    layers = [
        base.mark_rule(strokeWidth=2).encode(x=alt.X("low:Q", title="samples a second"), x2="high:Q"),
        base.mark_point(filled=True, size=70, opacity=1).encode(x="samples_per_second:Q", shape=_shape(ok)),
    ]
    more = f"effective batch {' and '.join(map(str, effective))}; line: quartiles of optimizer steps"
    title = _title("More ranks, or more batches to a step of the optimizer", rows, more)
    return alt.layer(*layers).properties(width=420, height=alt.Step(24), title=title)


def epoch_steps(rows: pd.DataFrame, *, samples: int = RECORDS) -> Any:
    """Return the steps of an epoch over ranks × batch: plain arithmetic, with the published runs on it."""
    ok = rows[(rows["stage"] == "step") & (rows["status"] == "ok")]
    pairs = {(int(row["ranks"]), int(row["batch_size"])): "here" for row in _records(ok)}
    pairs |= {(4, 28): "published: hetero", (4, 64): "published: DANGO"}
    frame = pd.DataFrame(
        [
            {"samples": r * b, "steps": steps_per_epoch(b, r, samples), "what": what,
             "text": f"{r} × {b}: {steps_per_epoch(b, r, samples):,}"}
            for (r, b), what in pairs.items()
        ]
    )  # fmt: skip
    hetero, dango = steps_per_epoch(28, 4, samples), steps_per_epoch(64, 4, samples)
    x = alt.X("samples:Q", scale=alt.Scale(type="log"), title="ranks × batch", axis=alt.Axis(format="~g"))
    y = alt.Y("steps:Q", scale=alt.Scale(type="log"), title="steps an epoch", axis=alt.Axis(format="~s"))
    base = alt.Chart(frame).encode(x=x, y=y)
    layers = [
        base.mark_line(color="#bbbbbb"),
        base.mark_point(filled=True, size=70, opacity=1).encode(color=alt.Color("what:N", title=None)),
        base.mark_text(align="left", dx=8, dy=-6, fontSize=10).encode(text="text:N"),
    ]
    more = f"hetero at 4 × 28 takes {hetero / dango:.2f} × the steps of DANGO at 4 × 64"
    subtitle = f"{samples:,} samples; arithmetic, nothing measured: {more}"
    title = alt.TitleParams("Steps of an epoch", subtitle=[subtitle], anchor="start", offset=10)
    return alt.layer(*layers).properties(width=520, height=_HEIGHT, title=title)


def steps_on_paper(rows: pd.DataFrame, link: Link, *, ranks: Iterable[int], samples: int = RECORDS) -> pd.DataFrame:
    """Return what a step, and an epoch, would take at other numbers of ranks, for each model and strategy.

    Of the steps at the fewest ranks above one that were measured, each rank with the same batch: what DDP itself
    costs is in them, waiting and exchange are taken out. See `step_on_paper` for what is assumed. Seconds.

    The numbers above one that were measured have a row too, with ranks that share this machine's cores, and with
    what was `measured` there, and `ratio`, predicted over measured; both are missing in all other rows.

    **Arguments:**

    - `rows`: of a sweep over ranks.
    - `link`: of each rank. `ranks`: how many. `samples`: of an epoch.
    """
    ok = rows[(rows["status"] == "ok") & (rows["accumulate"] == 1)]
    found: list[_Row] = []
    for (model, strategy), own in ok.groupby(["model", "strategy"], sort=False):
        own = own[own["ranks"] > 1]  # what ranks exchange, and what DDP itself costs, is not known of one alone
        size = own["gradient_bytes"].dropna()
        if size.empty:
            continue
        fewest = own[own["ranks"] == own["ranks"].min()]
        step = _records(fewest[fewest["stage"] == "step"])[0]
        stages = fewest[fewest["where"] == step["where"]].set_index("stage")["samples_seconds"]
        if "backward" not in stages:
            continue
        backward = np.asarray(stages["backward"], dtype=np.float64)
        rest = np.asarray(stages["step"], dtype=np.float64) - backward
        for name in (n for n in _EXCHANGE if n in stages and len(stages[n]) == len(rest)):
            rest = rest - np.asarray(stages[name], dtype=np.float64)
        batch = int(step["batch_size"])
        cap: dict[str, float] = {}
        if pd.notna(step["bucket_cap_mb"]):
            cap["bucket_cap_mb"] = float(step["bucket_cap_mb"])
        same = own[(own["stage"] == "step") & (own["batch_size"] == batch)]
        measured = {int(row["ranks"]): row for row in _records(same)}
        for number in sorted({*ranks, *measured}):
            there = measured.get(number)
            made = step_on_paper(
                backward.tolist(), rest.tolist(), gradient_bytes=float(size.max()), ranks=number, link=link,
                slowdown=1.0 if there is None else _slowdown(there) / _slowdown(step), **cap,
            )  # fmt: skip
            took = None if there is None else float(there["median_seconds"])
            steps = steps_per_epoch(batch, number, samples)
            found.append(
                {"model": model, "strategy": strategy, "ranks": number, "batch_size": batch, "step": made.seconds,
                 "compute": made.compute_seconds, "waiting": made.waiting_seconds,
                 "communication": made.exposed_seconds, "overlapped": made.overlapped_seconds,
                 "measured": took, "ratio": None if took is None else made.seconds / took,
                 "steps an epoch": steps, "epoch": steps * made.seconds}
            )  # fmt: skip
    columns = ["model", "strategy", "ranks", "batch_size", "step", "compute", "waiting", "communication"]
    return pd.DataFrame(found, columns=[*columns, "overlapped", "measured", "ratio", "steps an epoch", "epoch"])


def _slowdown(row: _Row) -> float:
    """Return how many times slower a point's ranks computed, as they shared the cores of their machine."""
    if row["device"] != "cpu":
        return 1.0
    machines: int = 1 if pd.isna(row["machines"]) else int(row["machines"])
    return cores_slowdown(int(row["ranks"]) // machines, float(row["cores"]), int(row["threads"]))
