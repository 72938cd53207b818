"""The columns of a row, their types, and what they mean."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from tclab.errors import InputError
from tclab.sweeps.point import Point

# Raised when a column changes its meaning: rows of another version are measured again, never mixed in.
SCHEMA_VERSION = 4

_TEXT, _WHOLE, _REAL, _FLAG = pa.string(), pa.int64(), pa.float64(), pa.bool_()

POINT_COLUMNS = {
    "graph": _TEXT,
    "scale": _REAL,  # null for a graph that was read
    "model": _TEXT,
    "strategy": _TEXT,
    "batch_size": _WHOLE,
    "networks": _WHOLE,  # how many
    "mode": _TEXT,
    "device": _TEXT,
    "ranks": _WHOLE,
    "dtype": _TEXT,
}
MEASURED_COLUMNS = {
    "stage": _TEXT,
    # host, device or worker: whose time it is; loading: batches made within the host's wait. Of several ranks the
    # mean; each has rows of its own, too: "rank 0", …, whose step is the stage `whole`
    "where": _TEXT,
    "n": _WHOLE,  # steps that were timed, and had that stage
    "median_seconds": _REAL,
    "q1_seconds": _REAL,
    "q3_seconds": _REAL,
    # of that stage, or of all together where stage = "step"; on a CPU the waits are those that a GPU would have
    "host_syncs": _WHOLE,
    "kernels": _WHOLE,  # operations that compute something
    "allocations": _WHOLE,  # results with memory of their own
    "allocated_bytes": _WHOLE,
    # of the whole step, on rows with stage = "step" only
    "samples_per_second": _REAL,  # of all ranks together
    "batch_bytes": _WHOLE,  # all that travels with a batch
    "edge_bytes": _WHOLE,  # edges, weights and edge masks among it
    "peak_bytes": _WHOLE,
    "status": _TEXT,  # ok, oom, wrong, skipped: …, failed: …, not run: …
}
MORE_COLUMNS = {
    "network_names": _TEXT,
    "edges": _WHOLE,
    "nodes": _WHOLE,
    "steps": _WHOLE,
    "seed": _WHOLE,
    "deleted": _WHOLE,
    "metabolism": _TEXT,
    "self_loops": _FLAG,
    "ship_edges": _FLAG,
    "workers": _WHOLE,
    "store": _TEXT,  # where samples are read: memory, lmdb, json
    "collation": _TEXT,
    "pin_memory": _FLAG,  # null: as the device suggests
    "prefetch_factor": _WHOLE,  # null without workers, as the next two
    "start_method": _TEXT,
    "persistent_workers": _FLAG,
    "double_buffer": _FLAG,
    "warmup": _WHOLE,
    "allocator": _TEXT,
    "variant": _TEXT,
    "loop": _TEXT,
    "loss": _TEXT,
    "clip": _REAL,  # null where gradients are not clipped
    "optimizer": _TEXT,
    "accumulate": _WHOLE,
    "micro_batch": _WHOLE,  # null where a batch is gone through whole
    "checkpoint": _FLAG,
    "compile": _FLAG,
    "habits": _TEXT,  # with commas between; empty for none
    "machines": _WHOLE,  # that the ranks are on
    "backend": _TEXT,  # gloo or nccl; null for one rank, as the columns down to compression
    "no_sync": _FLAG,  # null where nothing is accumulated
    "bucket_cap_mb": _REAL,
    "find_unused_parameters": _FLAG,
    "static_graph": _FLAG,
    "compression": _TEXT,
    "gather_interval": _WHOLE,  # null for the loss's own
    "gradient_bytes": _WHOLE,  # of a step's gradients that ranks exchange, before compression
    "buckets": _WHOLE,  # that they are exchanged in
    "late_share": _REAL,  # of one rank: of all exchanges those that it came to last
    "hidden": _WHOLE,  # null for the model's own, as layers
    "layers": _WHOLE,
    "exact": _FLAG,
    # passed, failed or inexact, in fp64, in fp32 and as the point runs it; null where it was not run
    "gate": _TEXT,
    "gate_fp64_error": _REAL,  # the worst, compiled, checkpointed or sliced as the point is
    "gate_fp32_ratio": _REAL,  # the error over subgraph's own in fp32, or in the point's dtype where that is worse
    "gate_nodes": _WHOLE,
    "gate_edges": _WHOLE,
    # share of a wall clock of its own that the stages of a timeline account for; of several workers the worst
    "host_closure": _REAL,
    "device_closure": _REAL,
    "worker_closure": _REAL,
    "steady": _TEXT,  # whether warm-up was over: steady, not steady, null for too few steps to say
    "conditions": _TEXT,  # JSON, what went on beside it: before and after; see tclab.timing.conditions
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
    fields = point.to_dict()
    networks = fields.pop("networks")
    fields["habits"] = ",".join(fields["habits"])
    fields["backend"] = point.backend
    if isinstance(networks, tuple):
        return {**fields, "networks": len(networks), "network_names": ",".join(networks)}
    return {**fields, "networks": networks}


def point_of(row: Mapping[str, Any]) -> Point:
    """Return the point that a row of a measured step was made from.

    **Raises:** `InputError` where the row does not say which networks it had, or no such point can be.
    """
    told: dict[str, Any] = {}
    for name in (*Point.__dataclass_fields__, "network_names"):
        value = row[name]
        told[name] = None if value is pd.NA else value.item() if isinstance(value, np.generic) else value
    names = told.pop("network_names")
    if told["variant"] != "separate" or names is None:
        raise InputError("the row does not name the networks that its point was given, so it cannot be run again")
    told["networks"] = tuple(names.split(","))
    told["habits"] = tuple(filter(None, (told["habits"] or "").split(",")))
    return Point(**told)


def table(rows: Iterable[Mapping[str, Any]]) -> pa.Table:
    """Return rows as an arrow table; a column that a row lacks is null."""
    return pa.Table.from_pylist([dict(row) for row in rows], schema=SCHEMA)


def not_measured(point: Point, status: str) -> pa.Table:
    """Return the row of a point that was not measured, with why."""
    return table([{**columns_of(point), "stage": "step", "status": status}])


def frame(rows: pa.Table) -> pd.DataFrame:
    """Return a table as a DataFrame whose missing values stay missing (pandas' nullable types)."""
    made: pd.DataFrame = rows.to_pandas(types_mapper=_NULLABLE.get)
    return made
