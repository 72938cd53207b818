"""Collectives across ranks: what one took by itself, and what ranks spent waiting for the last to come."""

import numpy as np
import pandas as pd

from tclab.trace.device import DeviceWork
from tclab.trace.events import HOST, Trace, rank_column

HOST_COLLECTIVE = r"^gloo:"  # on the host the backend's own thread marks each collective
COLUMNS = ["collective", "index", "rank", "start_us", "duration_us", "own_us", "wait_us"]


def collective_table(traces: list[Trace], work: list[DeviceWork]) -> pd.DataFrame:
    """One row per collective and rank: collective, index, rank, start_us, duration_us, own_us, wait_us.

    The n-th call of a kind is the same collective on every rank. Its own time is the minimum over the ranks
    at hand, the rest of each rank's duration is waiting. With some ranks missing the minimum is an upper
    bound of the own time. Both are null for calls that not all ranks at hand made, and for one rank alone.
    """
    found = pd.concat([_calls(t, w) for t, w in zip(traces, work, strict=True)], ignore_index=True)
    if len(found) == 0:
        return pd.DataFrame(columns=COLUMNS)
    found["index"] = found.groupby(["place", "collective"]).cumcount()
    calls = found.groupby(["collective", "index"])["duration_us"]
    shared = (calls.transform("size") == len(traces)) & (len(traces) > 1)
    found["own_us"] = calls.transform("min").where(shared)
    found["wait_us"] = found["duration_us"] - found["own_us"]
    return found[COLUMNS].astype({"rank": "Int64"})


def _calls(trace: Trace, work: DeviceWork) -> pd.DataFrame:
    rows = work.rows[work.is_collective]
    if len(rows) == 0:
        rows = np.flatnonzero((trace.kind == HOST) & trace.names_match(HOST_COLLECTIVE))
        rows = rows[np.argsort(trace.start[rows], kind="stable")]

    def kind(row: int) -> str:
        name = trace.names[trace.name[row]].split("(")[0]
        said = int(trace.collective[row])
        return name if said < 0 else "{1} of group {0}".format(*trace.collectives[said])

    return pd.DataFrame(
        {
            "collective": [kind(row) for row in rows.tolist()],
            "rank": rank_column(trace, len(rows)),
            "place": str(trace.path),
            "start_us": trace.us(trace.start[rows]),
            "duration_us": trace.us(trace.duration[rows]),
        }
    )
