"""The columns of a row: types, units, meanings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from tclab.errors import InputError
from tclab.sweeps.config._fields import declarations
from tclab.sweeps.config._point import Point
from tclab.sweeps.store._row_frame import Rows
from tclab.timing._step_means import cycle_of, mean_step, steps_wait

# Raised when a column or a stage changes its name or its meaning. Rows of an earlier version are read under today's
# names (`upgraded`); a sweep measures their points again and never mixes them in.
SCHEMA_VERSION = 6

_TEXT, _WHOLE, _REAL, _FLAG = pa.string(), pa.int64(), pa.float64(), pa.bool_()

_TYPES = {"text": _TEXT, "whole": _WHOLE, "real": _REAL, "flag": _FLAG}
# a column for each field of a point, by its declaration; rows begin with those down to `dtype`
_POINT = {name: _TYPES[declared.column] for name, declared in declarations(Point).items()}
_LAST = list(_POINT).index("dtype") + 1
POINT_COLUMNS = dict(list(_POINT.items())[:_LAST])
MEASURED_COLUMNS = {
    "stage": _TEXT,
    # host, device or worker: whose time it is; loading: batches made within the host's wait. Of several ranks the
    # mean; each has rows of its own, too: "rank 0", …, whose step is the stage `whole`
    "where": _TEXT,
    "n": _WHOLE,  # steps that were timed, and had that stage
    # of all steps, total over number, so that stages add up to their step; its 95 % interval; the cycle of its blocks
    # (tclab.timing._step_means). Throughput and shares are made of it
    "mean_seconds": _REAL,
    "low_seconds": _REAL,
    "high_seconds": _REAL,
    "cycle_steps": _WHOLE,
    "median_seconds": _REAL,  # of the steps that had the stage: a typical one, which may have waited for nothing
    "q1_seconds": _REAL,
    "q3_seconds": _REAL,
    # of that stage, or of all together where stage = "step"; on a CPU the waits are those that a GPU would have
    "host_syncs": _WHOLE,
    "kernels": _WHOLE,  # operations that compute something
    "allocations": _WHOLE,  # results with memory of their own
    "allocated_bytes": _WHOLE,
    # of the whole step, on rows with stage = "step" only
    "samples_per_second": _REAL,  # of all ranks together, by the mean step
    "batch_bytes": _WHOLE,  # all that travels with a batch
    "edge_bytes": _WHOLE,  # edges, weights and edge masks among it
    "mask_bytes": _WHOLE,  # edge masks among those
    "store_bytes": _WHOLE,  # of the LMDB files that samples and masks are read from; null where nothing is stored
    "peak_bytes": _WHOLE,  # of a process, the worst of several ranks
    "cpu_seconds": _REAL,  # processor time of one batch, on rows of a worker's stage = "batch" only
    "status": _TEXT,  # ok, oom, wrong, skipped: …, failed: …, not run: …
}
MORE_COLUMNS = {
    "network_names": _TEXT,
    "edges": _WHOLE,
    "nodes": _WHOLE,
    **dict(list(_POINT.items())[_LAST:]),
    "backend": _TEXT,  # gloo or nccl; null for one rank, as the next ones
    "gradient_bytes": _WHOLE,  # of a step's gradients that ranks exchange, before compression
    "buckets": _WHOLE,  # that they are exchanged in
    "late_share": _REAL,  # of one rank: of all exchanges those that it came to last
    # of `perturbations`, null for synthetic samples: samples that the file has for this graph, its rows that are none,
    # distinct genes that the graph lacks, and all of it in words
    "file_samples": _WHOLE,
    "file_rows_left_out": _WHOLE,
    "unknown_genes": _WHOLE,
    "samples_report": _TEXT,
    "exact": _FLAG,
    # passed, failed or inexact, in fp64, in fp32 and as the point runs it; null where it was not run
    "equivalence": _TEXT,
    "equivalence_fp64_error": _REAL,  # the worst, compiled, checkpointed or sliced as the point is
    "equivalence_fp32_ratio": _REAL,  # the error over subgraph's own in fp32, or in the dtype where that is worse
    "equivalence_nodes": _WHOLE,
    "equivalence_edges": _WHOLE,
    # share of a wall clock of its own that the stages of a timeline account for; of several workers the worst
    "host_accounted": _REAL,
    "device_accounted": _REAL,
    "worker_accounted": _REAL,
    "steady": _TEXT,  # whether warm-up was over: steady, not steady, null for too few steps, or cycles, to say
    "conditions": _TEXT,  # JSON, the machine's load before and after; see tclab.timing.conditions
    "first_step_seconds": _REAL,  # the cold start: the first step of all, loader and caches included
    "measured_at": _TEXT,  # UTC, ISO 8601
    "tclab": _TEXT,
    "samples_seconds": pa.list_(_REAL),  # every step's time
}
ENVIRONMENT_COLUMNS = {
    "cpu": _TEXT,
    "cores": _WHOLE,
    "cpu_limit_cores": _REAL,
    "memory_bytes": _WHOLE,
    "threads": _WHOLE,
    "gpu": _TEXT,
    "gpu_memory_bytes": _WHOLE,
    "gpus": _WHOLE,
    "gpu_driver": _TEXT,
    "cuda": _TEXT,
    "os": _TEXT,
    "python": _TEXT,
    "torch": _TEXT,
    "torch_geometric": _TEXT,
    "numpy": _TEXT,
    "commit": _TEXT,
    "allocator_settings": _TEXT,
}
SCHEMA = pa.schema(list({**POINT_COLUMNS, **MEASURED_COLUMNS, **MORE_COLUMNS, **ENVIRONMENT_COLUMNS}.items()))
_NULLABLE = {
    _TEXT: pd.StringDtype(),
    _WHOLE: pd.Int64Dtype(),
    _REAL: pd.Float64Dtype(),
    _FLAG: pd.BooleanDtype(),
}


def columns_of(point: Point) -> dict[str, Any]:
    """Return the columns that every row of a point has, measured or not."""
    columns = {name: declared.cell(getattr(point, name)) for name, declared in declarations(Point).items()}
    columns["backend"] = point.backend
    if isinstance(point.networks, tuple):
        columns |= {"networks": len(point.networks), "network_names": columns["networks"]}
    return columns


def mean_columns(seconds: Sequence[float], cycle: int) -> dict[str, Any]:
    """Return a row's columns on the mean of its steps, 0 where one did not have the stage; see `_step_means`."""
    mean = mean_step([np.asarray(seconds, dtype=np.float64)], cycle)
    low, high = (mean.interval_of_ratio() if mean.value > 0 else None) or (None, None)
    return {"mean_seconds": mean.value, "low_seconds": low, "high_seconds": high, "cycle_steps": cycle}


def point_of(row: Mapping[str, Any]) -> Point:
    """Return the point that a row of a measured step was made from.

    **Raises:** `InputError` where the row does not say which networks it had, or no such point can be.
    """
    fields = {name: python_value(row[name]) for name in declarations(Point)}
    names = python_value(row["network_names"])
    if fields["variant"] != "separate" or names is None:
        raise InputError("the row does not name the networks that its point was given, so it cannot be run again")
    fields["networks"] = tuple(names.split(","))
    fields["overheads"] = tuple(filter(None, (fields["overheads"] or "").split(",")))
    return Point(**fields)


# The names of version 4 and earlier -> those since version 5: columns, values of `stage`, fields of a point.
COLUMNS_UNTIL_4 = {
    "deleted": "num_deletions",
    "habits": "overheads",
    "gate": "equivalence",
    "gate_fp64_error": "equivalence_fp64_error",
    "gate_fp32_ratio": "equivalence_fp32_ratio",
    "gate_nodes": "equivalence_nodes",
    "gate_edges": "equivalence_edges",
    "host_closure": "host_accounted",
    "device_closure": "device_accounted",
    "worker_closure": "worker_accounted",
}
_STAGES_UNTIL_4 = {"wait": "data_wait", "waiting": "rank_wait"}


def column_types() -> dict[str, pa.DataType]:
    """Return the type of each column by its name, and by the names that it had in earlier versions."""
    types = {field.name: field.type for field in SCHEMA}
    return types | {old: types[new] for old, new in COLUMNS_UNTIL_4.items()}


def upgraded(rows: pa.Table, *, whole: bool = False) -> pa.Table:
    """Return rows that any version of tclab wrote as today's: names of today, in the schema's order.

    A column that the rows lack is null; where they are `whole`, with every column of their version, a field of a point
    that they lack came later, and what ran without it ran with its default. No name of an earlier version has another
    meaning today, so that a file need not say which version wrote it.

    **Raises:** `ValueError` for a column that no version has; `pyarrow.ArrowInvalid` for one of another type.
    """
    if rows.schema.equals(SCHEMA):  # as all of this version are; what follows takes milliseconds a file
        return rows
    names = [name if name in SCHEMA.names else COLUMNS_UNTIL_4.get(name, name) for name in rows.column_names]
    for name in names:
        if name not in SCHEMA.names or names.count(name) > 1:
            raise ValueError(f"it has a column {name!r}")
    rows = rows.rename_columns(names)
    defaults = columns_of(Point()) if whole else {}
    for name in SCHEMA.names:
        if name not in names:
            values = pa.array([defaults.get(name)] * len(rows), SCHEMA.field(name).type)
            rows = rows.append_column(name, values)
    rows = rows.select(SCHEMA.names).cast(SCHEMA)
    rows = rows if "mean_seconds" in names else _with_means(rows)
    stages = [_STAGES_UNTIL_4.get(stage, stage) for stage in rows["stage"].to_pylist()]
    return rows.set_column(SCHEMA.get_field_index("stage"), SCHEMA.field("stage"), pa.array(stages, _TEXT))


def _with_means(rows: pa.Table) -> pa.Table:
    """Return rows of version 5 or earlier with means of their steps, and the throughput of these.

    Such rows do not say which steps had a stage that not every step has: its total counts for all steps.
    """
    made = rows.to_pylist()
    ok = [row for row in made if row["samples_seconds"]]
    runs: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    of_a_run = [*_POINT, "measured_at"]
    for row in ok:
        runs.setdefault(tuple(row[name] for name in of_a_run), []).append(row)
    for run in runs.values():
        by_stage = {row["stage"]: row for row in run if row["where"] == _clock(row)}
        step = by_stage.get("step")
        if step is None:
            continue
        whole = np.asarray(step["samples_seconds"])
        waits = by_stage.get("data_wait", by_stage.get("wait"))
        waiting = waits is not None and steps_wait(np.asarray(waits["samples_seconds"]), whole)
        gathers = step["gather_interval"] if "gather" in by_stage else None
        cycle = cycle_of(step["workers"] if waiting else 0, step["accumulate"], gathers)
        for row in run:
            seconds = row["samples_seconds"]
            if row["where"] == step["where"] and len(seconds) < len(whole):
                row |= {"mean_seconds": sum(seconds) / len(whole), "cycle_steps": cycle}
            else:
                row |= mean_columns(seconds, 1 if row["stage"] == "idle" else cycle)
        step["samples_per_second"] = step["batch_size"] * step["ranks"] / step["mean_seconds"]
    return table(made)


def _clock(row: Mapping[str, Any]) -> str:
    """Return the timeline that a row's step is timed on."""
    return "device" if row["device"] == "cuda" else "host"


def python_value(value: Any) -> Any:
    """Return a value of a row as a Python object; `None` for any kind of missing value."""
    if value is None or value is pd.NA or value != value:
        return None
    return value.item() if isinstance(value, np.generic) else value


def keys_of(rows: pd.DataFrame, names: Iterable[str]) -> list[tuple[Any, ...]]:
    """Return the values that each row has in some columns, as Python objects."""
    return list(zip(*(map(python_value, rows[name]) for name in names), strict=True))


def table(rows: Iterable[Mapping[str, Any]]) -> pa.Table:
    """Return rows as an arrow table; a column that a row lacks is null.

    What UTF-8 cannot hold, such as half a character in an error's text, is written as `\\udcff`.
    """
    return pa.Table.from_pylist([{name: _utf8(value) for name, value in row.items()} for row in rows], schema=SCHEMA)


def _utf8(value: Any) -> Any:
    if isinstance(value, str) and not value.isascii():
        return value.encode("utf-8", "backslashreplace").decode()
    return value


def not_measured(point: Point, status: str) -> pa.Table:
    """Return the row of a point that was not measured, with why."""
    return table([{**columns_of(point), "stage": "step", "status": status}])


def frame(rows: pa.Table) -> pd.DataFrame:
    """Return a table as rows whose missing values stay missing (pandas' nullable types)."""
    whole = rows.combine_chunks()  # else pandas converts every column of every point by itself
    return Rows(whole.to_pandas(types_mapper=_NULLABLE.get))
