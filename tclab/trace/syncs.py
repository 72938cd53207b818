"""Where the host waited for the device, with the line of the user's own code where stacks are recorded."""

import numpy as np
import pandas as pd

from tclab.trace.categories import OUTSIDE, nearest
from tclab.trace.events import RUNTIME_CATEGORIES, Trace, rank_column
from tclab.trace.host import HostWork

WAITING_CALL = r"Synchronize|^(cuda|hip)Memcpy(WithStream)?$|^(cuda|hip)(Malloc|Free)(Host)?$"
"""Runtime calls that return only when the device has caught up; an asynchronous copy may wait too, unseen."""
LIBRARY_CODE = r"^<|^torch[/.]|site-packages|^(threading|runpy|contextlib|functools)\.py|^nn\.Module"


def sync_table(trace: Trace, host: HostWork) -> pd.DataFrame:
    """One row per place: rank, call, op, site, stage, calls, wait_us; the longest wait first.

    `op` is the operator around the call (`aten::item`, say), `site` the nearest Python frame outside
    libraries; both null where nothing is recorded.
    """
    columns = ["call", "op", "site", "stage"]
    runtime = trace.is_category(RUNTIME_CATEGORIES) & trace.names_match(WAITING_CALL)
    found = np.flatnonzero(runtime[host.rows])
    if len(found) == 0:
        return pd.DataFrame(columns=["rank", *columns, "calls", "wait_us"])
    is_op = trace.is_category({"cpu_op", "operator"})[host.rows]
    is_frame = trace.is_category({"python_function"})[host.rows]
    is_own = is_frame & ~trace.names_match(LIBRARY_CODE)[host.rows]
    op, site = nearest(is_op, host.parent)[found], nearest(is_own, host.parent)[found]

    def names(rows: np.typing.NDArray[np.int64]) -> list[str | None]:
        return [None if r < 0 else trace.names[trace.name[host.rows[r]]] for r in rows.tolist()]

    table = pd.DataFrame(
        {
            "call": names(found),
            "op": names(op),
            "site": names(site),
            "stage": [OUTSIDE if s < 0 else host.names[s] for s in host.stage[found].tolist()],
            "wait_us": trace.us(trace.duration[host.rows[found]]),
        }
    )
    grouped = table.groupby(columns, dropna=False, sort=False)["wait_us"].agg(["size", "sum"]).reset_index()
    grouped = grouped.rename(columns={"size": "calls", "sum": "wait_us"})
    grouped.insert(0, "rank", rank_column(trace, len(grouped)))
    return grouped.sort_values("wait_us", ascending=False, ignore_index=True, kind="stable")
