"""Rows, ledgers, verdicts and advice for other programs: MLflow, Weights & Biases, TensorBoard, Perfetto."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

import pandas as pd

from tclab._io import atomic_write, writing
from tclab.errors import InputError, need, require, unknown
from tclab.sweeps.analysis._compare_runs import Comparison
from tclab.sweeps.config._fields import declarations
from tclab.sweeps.config._point import Point
from tclab.sweeps.store._rows import python_value
from tclab.timing import Ledger
from tclab.timing._advice import Advice
from tclab.timing._race import Race
from tclab.timing._verdict import Pair

_MOST = 500  # metrics in one call of MLflow, which takes 1,000
_FIGURES = ("samples_per_second", "mean_seconds", "low_seconds", "high_seconds", "peak_bytes", "batch_bytes")


@dataclass
class _Run:
    """What is sent as one run: settings; (name, step, value) of its figures; tables and sentences by name."""

    name: str
    settings: dict[str, Any] = field(default_factory=dict)
    figures: list[tuple[str, int, float]] = field(default_factory=list)
    tables: dict[str, pd.DataFrame] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)

    def add(self, name: str, value: Any, step: int = 0) -> None:
        """Add a figure; one that is missing is left out, never sent as 0."""
        value = python_value(value)
        if value is not None:
            self.figures.append((name, step, float(value)))


Exported = pd.DataFrame | Ledger | Race | Comparison | Advice | Sequence[Pair]


def export(what: Exported, to: str, folder: str | Path, *, name: str = "tclab") -> Path:
    """Write rows, a ledger, verdicts or advice where another program reads them, offline, and return the place.

    Of rows each point becomes a run, with its settings, the figures of its step and the mean of each stage; of a ledger
    each stage a series over steps; of a race or a comparison each pair its ratio, interval and verdict; of advice each
    suggestion its predicted and measured ratio. Tables and sentences go with them. What is missing is left out.

    **Arguments:**

    - `what`: rows of `tclab.sweep`, a `Ledger`, a `Race`, a `Comparison`, some `Pair`s, or an `Advice`.
    - `to`: "mlflow", "wandb" or "tensorboard", each an extra of tclab; or "perfetto", for a ledger: a Chrome trace of
      its stages and of its workers' batches, which `tclab.trace.analyze` reads too.
    - `folder`: MLflow's file store (which later versions open with `MLFLOW_ALLOW_FILE_STORE=true`), W&B's folder of
      offline runs (`wandb sync` sends them), TensorBoard's log folder, or the trace's file.
    - `name`: of the experiment, of the project, or of the run.

    **Raises:** `MissingExtraError` where the package is not installed; `InputError` for anything else to export,
    or a folder that cannot be written.
    """
    if to not in (*_WRITERS, "perfetto"):
        raise unknown("program", to, (*_WRITERS, "perfetto"))
    place = Path(folder).expanduser().resolve()
    if to == "perfetto":
        require("what", what, Ledger, "a Ledger: a Chrome trace is of its timeline")
        assert isinstance(what, Ledger)
        with writing("folder", folder):
            return _perfetto(what, place)
    runs = list(_runs_of(what, name))
    module, write = _WRITERS[to]
    need(f"to={to!r}", to, module)
    with writing("folder", folder):
        place.mkdir(parents=True, exist_ok=True)
        write(runs, place, name)
    return place


def _runs_of(what: Exported, name: str) -> Iterator[_Run]:
    if isinstance(what, pd.DataFrame):
        yield from _runs_of_rows(what)
    elif isinstance(what, Ledger):
        run = _Run(name, texts={"ledger": str(what)}, tables={"ledger": what.frame()})
        for timeline, step, stage, seconds in what.rows():
            run.add(f"{timeline}/{stage}_seconds", seconds, step)
        yield run
    elif isinstance(what, Advice):
        run = _Run(name, texts={"advice": str(what)}, tables={"advice": what.frame().reset_index()})
        for one in what.suggestions:
            run.add(f"{_key(one.change)}/predicted_ratio", one.ratio)
            run.add(f"{_key(one.change)}/measured_ratio", one.measured.ratio if one.measured else None)
        yield run
    else:
        pairs = what.pairs if isinstance(what, (Race, Comparison)) else what
        if not isinstance(pairs, Sequence) or not pairs or not all(isinstance(pair, Pair) for pair in pairs):
            raise InputError(f"what is {type(what).__name__}, expected rows, a Ledger, Race, Comparison or Advice")
        yield _run_of_pairs(pairs, name)


def _runs_of_rows(rows: pd.DataFrame) -> Iterator[_Run]:
    names = [one for one in declarations(Point) if one in rows]
    missing = [one for one in ("stage", "status", "where") if one not in rows]
    if missing:
        raise InputError(f"the rows have no column {missing[0]!r}; expected what tclab.sweep or tclab.run returns")
    keys = [*names, "measured_at"] if "measured_at" in rows else names
    defaults = {one: declared.default for one, declared in declarations(Point).items()}
    for _, own in rows.groupby(keys, dropna=False, sort=False):
        first = own.iloc[0]
        settings = {one: python_value(first[one]) for one in names}
        changed = [f"{one} {settings[one]}" for one in names if settings[one] not in (None, defaults[one])]
        run = _Run(", ".join(changed)[:200] or "default", settings | {"status": first["status"]})
        for row in own[own["status"] == "ok"].to_dict("records"):
            if row["stage"] == "step":
                for figure in _FIGURES:
                    run.add(figure, row.get(figure))
            else:
                run.add(f"{row['where']}/{row['stage']}_seconds", row.get("mean_seconds"))
        run.tables["rows"] = own.drop(columns="samples_seconds", errors="ignore")
        yield run


def _run_of_pairs(pairs: Sequence[Pair], name: str) -> _Run:
    run = _Run(name, texts={"verdicts": "\n".join(str(pair) for pair in pairs)})
    lines = []
    for pair in pairs:
        low, high = pair.interval or (None, None)
        key = _key(f"{pair.cell + ', ' if pair.cell else ''}{pair.a} over {pair.b}")
        for figure, value in (("ratio", pair.ratio), ("low", low), ("high", high)):
            run.add(f"{key}/{figure}", value)
        lines.append(
            {"a": pair.a, "b": pair.b, "cell": pair.cell, "verdict": pair.verdict, "ratio": pair.ratio,
             "low": low, "high": high, "why": pair.why}
        )  # fmt: skip
    run.tables["verdicts"] = pd.DataFrame(lines)
    return run


def _key(text: str) -> str:
    """Return a name that every program takes: MLflow knows no signs but these."""
    return "".join(sign if sign.isalnum() or sign in "_-. " else "_" for sign in text)[:120].strip()


def _to_mlflow(runs: list[_Run], folder: Path, name: str) -> None:
    os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")  # later ones refuse it, and mlflow-skinny has no database
    entities = import_module("mlflow.entities")
    client = import_module("mlflow.tracking").MlflowClient(tracking_uri=folder.as_uri())
    known = client.get_experiment_by_name(name)
    experiment = known.experiment_id if known is not None else client.create_experiment(name)
    for run in runs:
        made = client.create_run(experiment, run_name=run.name).info.run_id
        settings = [entities.Param(key, str(value)[:500]) for key, value in run.settings.items() if value is not None]
        for at in range(0, len(settings), 100):
            client.log_batch(made, params=settings[at : at + 100])
        metrics = [entities.Metric(key, value, 0, step) for key, step, value in run.figures]
        for at in range(0, len(metrics), _MOST):
            client.log_batch(made, metrics=metrics[at : at + _MOST])
        for key, table in run.tables.items():
            client.log_text(made, table.to_csv(index=False), f"{key}.csv")
        for key, text in run.texts.items():
            client.log_text(made, text, f"{key}.txt")
        client.set_terminated(made)


def _to_wandb(runs: list[_Run], folder: Path, name: str) -> None:
    wandb = import_module("wandb")
    for run in runs:
        made = wandb.init(
            project=name, name=run.name[:128], dir=str(folder), config=run.settings, mode="offline", reinit="create_new"
        )
        by_step: dict[int, dict[str, float]] = {}
        for key, step, value in run.figures:
            by_step.setdefault(step, {})[key] = value
        for step, figures in sorted(by_step.items()):
            made.log(figures, step=step)
        last = max(by_step, default=0)
        tables = {key: wandb.Table(dataframe=_texts(table)) for key, table in run.tables.items()}
        made.log(tables | {key: wandb.Html(f"<pre>{text}</pre>") for key, text in run.texts.items()}, step=last)
        made.finish()


def _texts(table: pd.DataFrame) -> pd.DataFrame:
    """Return a table whose cells W&B takes: numbers and texts, missing ones None."""
    return pd.DataFrame({str(key): [python_value(value) for value in table[key]] for key in table}, dtype=object)


def _to_tensorboard(runs: list[_Run], folder: Path, name: str) -> None:
    from torch.utils.tensorboard import SummaryWriter

    for number, run in enumerate(runs):
        own = folder / name / (f"{number:03d} {_key(run.name)[:80]}" if len(runs) > 1 else "")
        with SummaryWriter(log_dir=str(own)) as writer:
            for key, step, value in run.figures:
                writer.add_scalar(key, value, step)
            settings = {key: value for key, value in run.settings.items() if value is not None}
            texts = {key: f"```\n{text}\n```" for key, text in run.texts.items()}
            texts |= {key: f"```\n{table.to_csv(index=False)}\n```" for key, table in run.tables.items()}
            texts |= {"settings": f"```\n{json.dumps(settings, indent=1, default=str)}\n```"} if settings else {}
            for key, text in texts.items():
                writer.add_text(key, text)


def _perfetto(ledger: Ledger, file: Path) -> Path:
    """Write a Chrome trace of the host's stages, its steps and the workers' batches, µs of `perf_counter`."""

    def span(name: str, begin: int, end: int, track: str, number: int) -> dict[str, Any]:
        return {"ph": "X", "cat": "user_annotation", "name": name, "pid": 0, "tid": number, "ts": begin / 1e3,
                "dur": (end - begin) / 1e3, "args": {"track": track}}  # fmt: skip

    events: list[dict[str, Any]] = [_named("process_name", 0, "tclab ledger"), _named("thread_name", 0, "loop")]
    for stage, begin, end in ledger.spans():
        events.append(span(f"ledger: {stage}", begin, end, "loop", 0))
    for number, (begin, end) in enumerate(_steps(ledger)):
        events.append(span(f"ProfilerStep#{number}", begin, end, "loop", 0))
    for timing in ledger.batch_timings:
        track = "batches made in the loop" if timing.worker is None else f"worker {timing.worker}"
        number = 1 if timing.worker is None else 2 + timing.worker
        if not any(event["tid"] == number for event in events):
            events.append(_named("thread_name", number, track))
        events.append(span("batch", timing.begin_ns, timing.end_ns, track, number))
    text = json.dumps({"traceEvents": events}).encode()
    file.parent.mkdir(parents=True, exist_ok=True)
    atomic_write(file, text)
    return file


def _named(kind: str, number: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "pid": 0, "tid": number, "ts": 0, "args": {"name": name}}


def _steps(ledger: Ledger) -> Iterator[tuple[int, int]]:
    """Yield the begin and end of each step: spans of a step lie end to end."""
    spans = list(ledger.spans())
    lengths = [seconds for line, _, stage, seconds in ledger.rows() if (line, stage) == ("host", "step")]
    at = 0
    for seconds in lengths:
        begin = spans[at][1]
        until = begin + round((seconds or 0.0) * 1e9)
        while at < len(spans) and spans[at][2] <= until + 1:
            at += 1
        yield begin, spans[at - 1][2]


_WRITERS: dict[str, tuple[str, Callable[[list[_Run], Path, str], None]]] = {
    "mlflow": ("mlflow", _to_mlflow),
    "wandb": ("wandb", _to_wandb),
    "tensorboard": ("tensorboard", _to_tensorboard),
}
