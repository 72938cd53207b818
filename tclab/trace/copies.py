"""Copies between host and devices, by direction and kind of memory."""

import re

import numpy as np
import pandas as pd

from tclab.trace.events import COPY_CATEGORIES, Trace, rank_column
from tclab.trace.idle import launches

_DIRECTION = re.compile(r"(HtoD|DtoH|DtoD|HtoH|PtoP|AtoH|HtoA|AtoD|DtoA)")
_MEMORY = re.compile(r"\(([^()]*->[^()]*)\)")


def copy_table(trace: Trace) -> pd.DataFrame:
    """One row per direction, kind of memory and size class, with copies, bytes, time_us, gb_per_s.

    `bytes` is null where the trace does not give every copy's size. Sizes that ROCm writes on the runtime
    call only are taken from there. Times are sums of durations; copies on two streams may overlap.
    """
    rows = np.flatnonzero(trace.is_category(COPY_CATEGORIES))
    columns = [
        "rank",
        "direction",
        "memory",
        "size",
        "copies",
        "bytes",
        "time_us",
        "median_bytes",
        "gb_per_s",
    ]
    if len(rows) == 0:
        return pd.DataFrame(columns=columns)
    size = trace.size[rows]
    call = launches(trace, rows)
    size = np.where(np.isnan(size) & (call >= 0), trace.size[call], size)
    names = [trace.names[i] for i in trace.name[rows].tolist()]
    table = pd.DataFrame(
        {
            "direction": [found[1] if (found := _DIRECTION.search(name[:200])) else None for name in names],
            "memory": [found[1] if (found := _MEMORY.search(name[:200])) else None for name in names],
            "size": [_size_class(count) for count in size.tolist()],
            "bytes": size,
            "time_us": trace.us(trace.duration[rows]),
        }
    )
    groups = table.groupby(["direction", "memory", "size"], dropna=False, sort=False)
    answer = groups.agg(
        copies=("time_us", "size"),
        bytes=("bytes", lambda sizes: sizes.sum(skipna=False)),
        time_us=("time_us", "sum"),
        median_bytes=("bytes", "median"),
    ).reset_index()
    answer["gb_per_s"] = answer["bytes"] / answer["time_us"].where(answer["time_us"] > 0) / 1e3
    answer.insert(0, "rank", rank_column(trace, len(answer)))
    return answer.sort_values("time_us", ascending=False, ignore_index=True)[columns]


def _size_class(count: float) -> str | None:
    """A copy of a few kB costs its launch, one of many MB its bandwidth; null where the size is not known."""
    if count != count:
        return None
    return "below 16 kB" if count < 16e3 else "16 kB to 1 MB" if count < 1e6 else "1 MB and more"


def memory_table(trace: Trace) -> pd.DataFrame:
    """The allocator over time: rank, device, time_us, allocated_bytes, reserved_bytes."""
    memory = trace.memory
    return pd.DataFrame(
        {
            "rank": rank_column(trace, len(memory.start)),
            "device": memory.device,
            "time_us": trace.us(memory.start),
            "allocated_bytes": memory.allocated,
            "reserved_bytes": memory.reserved,
        }
    )
