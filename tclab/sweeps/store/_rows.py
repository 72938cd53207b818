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
from tclab.sweeps.store._machine_label import contention_text
from tclab.sweeps.store._row_frame import Rows
from tclab.timing._step_means import mean_step

SCHEMA_VERSION = 8  # raised when a column or a stage changes its meaning: points of an earlier one are measured again

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
    **dict.fromkeys(("mean_seconds", "low_seconds", "high_seconds"), _REAL),
    "cycle_steps": _WHOLE,
    # of the steps that had the stage: a typical one, which may have waited for nothing
    **dict.fromkeys(("median_seconds", "q1_seconds", "q3_seconds"), _REAL),
    # of that stage, or of all together where stage = "step"; on a CPU the waits are those that a GPU would have
    "host_syncs": _WHOLE,
    # of the whole step, on rows with stage = "step" only
    "samples_per_second": _REAL,  # of all ranks together, by the mean step
    "batch_bytes": _WHOLE,  # all that travels with a batch
    "edge_bytes": _WHOLE,  # edges, weights and edge masks among it
    "mask_bytes": _WHOLE,  # edge masks among those
    "store_bytes": _WHOLE,  # of the LMDB files that samples and masks are read from; null where nothing is stored
    "peak_bytes": _WHOLE,  # of a process, the worst of several ranks
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
    "samples_report": _TEXT,  # what was read of `perturbations`, and what left out; null for synthetic samples
    "exact": _FLAG,
    # passed, failed or inexact, in fp64, in fp32 and as the point runs it; null where it was not run
    "equivalence": _TEXT,
    "equivalence_fp64_error": _REAL,  # the worst, compiled, checkpointed or sliced as the point is
    "equivalence_fp32_ratio": _REAL,  # the error over subgraph's own in fp32, or in the dtype where that is worse
    **dict.fromkeys(("equivalence_nodes", "equivalence_edges"), _WHOLE),
    # share of a wall clock of its own that the stages of a timeline account for
    **dict.fromkeys(("host_accounted", "device_accounted"), _REAL),
    "steady": _TEXT,  # whether warm-up was over: steady, not steady, null for too few steps, or cycles, to say
    "conditions": _TEXT,  # JSON, the machine's load before and after; see tclab.timing.conditions
    "contention": _TEXT,  # how other processes used the processors meanwhile; null where not, or not known
    "first_step_seconds": _REAL,  # the cold start: the first step of all, loader and caches included
    "measured_at": _TEXT,  # UTC, ISO 8601
    "tclab": _TEXT,
    "samples_seconds": pa.list_(_REAL),  # every step's time
}
ENVIRONMENT_COLUMNS = {
    **dict.fromkeys(("cpu", "gpu", "gpu_driver", "cuda", "os", "python", "torch", "torch_geometric", "numpy"), _TEXT),
    **dict.fromkeys(("commit", "allocator_settings"), _TEXT),
    **dict.fromkeys(("cores", "memory_bytes", "threads", "gpu_memory_bytes", "gpus"), _WHOLE),
    "cpu_limit_cores": _REAL,
}
SCHEMA = pa.schema(list({**POINT_COLUMNS, **MEASURED_COLUMNS, **MORE_COLUMNS, **ENVIRONMENT_COLUMNS}.items()))
_NULLABLE = {_TEXT: pd.StringDtype(), _WHOLE: pd.Int64Dtype(), _REAL: pd.Float64Dtype(), _FLAG: pd.BooleanDtype()}


def columns_of(point: Point) -> dict[str, Any]:
    """Return the columns that every row of a point has, measured or not."""
    columns = {name: declared.cell(getattr(point, name)) for name, declared in declarations(Point).items()}
    # what the ranks exchange through
    columns["backend"] = None if point.ranks == 1 else {"cuda": "nccl", "cpu": "gloo"}.get(point.device)
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
    if names is None:
        raise InputError("the row does not name the networks that its point was given, so it cannot be run again")
    fields["networks"] = tuple(names.split(","))
    fields["overheads"] = tuple(filter(None, (fields["overheads"] or "").split(",")))
    return Point(**fields)


def aligned(rows: pa.Table) -> pa.Table:
    """Return rows with the schema's columns, in its order: one that they lack is null, another one is left out.

    **Raises:** `pyarrow.ArrowInvalid` for a column of another type.
    """
    known = rows.select([name for name in rows.column_names if name in SCHEMA.names])
    return pa.concat_tables([SCHEMA.empty_table(), known], promote_options="permissive").cast(SCHEMA)


def python_value(value: Any) -> Any:
    """Return a value of a row as a Python object; `None` for any kind of missing value."""
    if value is None or value is pd.NA or value != value:
        return None
    return value.item() if isinstance(value, np.generic) else value


def keys_of(rows: pd.DataFrame, names: Iterable[str]) -> list[tuple[Any, ...]]:
    """Return the values that each row has in some columns, as Python objects."""
    return list(zip(*(map(python_value, rows[name]) for name in names), strict=True))


def table(rows: Iterable[Mapping[str, Any]]) -> pa.Table:
    """Return rows as an arrow table, with the column `contention`; a column that a row lacks is null.

    What UTF-8 cannot hold, such as half a character in an error's text, is written as `\\udcff`.
    """
    made = []
    for row in rows:
        texts = {name: value.encode("utf-8", "backslashreplace").decode() for name, value in row.items()
                 if isinstance(value, str)}  # fmt: skip
        made.append({"contention": contention_text(row), **row, **texts})
    return pa.Table.from_pylist(made, schema=SCHEMA)


def not_measured(point: Point, status: str) -> pa.Table:
    """Return the row of a point that was not measured, with why."""
    return table([{**columns_of(point), "stage": "step", "status": status}])


def frame(*tables: pa.Table) -> pd.DataFrame:
    """Return tables as rows whose missing values stay missing (pandas' nullable types)."""
    whole = pa.concat_tables([SCHEMA.empty_table(), *tables])
    whole = whole.combine_chunks()  # else pandas converts every column of every point by itself
    return Rows(whole.to_pandas(types_mapper=_NULLABLE.get))
