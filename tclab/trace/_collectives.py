"""Collectives: their kinds, which calls of several ranks are one, and who waited for whom."""

import re

import numpy as np
import pandas as pd

from tclab.trace._device_work import DeviceWork
from tclab.trace._events import HOST, US, Trace

COLLECTIVE_COLUMNS = ["collective", "kind", "index", "rank", "start_us", "duration_us", "own_us", "wait_us", "paired"]
_KINDS = {
    "reduce_scatter": r"reduce_?scatter",
    "all_gather": r"all_?gather",
    "all_to_all": r"all_?to_?all|all2all|deep_ep::",
    "all_reduce": r"all_?reduce|cross_device_reduce",
    "broadcast": r"broadcast",
    "send_recv": r"send|recv",
    "other": r"",
}
_SAME_SIZE = ["reduce_scatter", "all_gather", "all_reduce", "broadcast"]  # kinds of which all ranks' messages are equal


def calls_of(trace: Trace, device: DeviceWork) -> pd.DataFrame:
    """Return a rank's collectives in the order of their start.

    Columns: rank, collective, kind, index, start_us, duration_us; begin and end on the machine's clock in ticks;
    sequence, the number in its group, and size, the elements of its message, null where not recorded; window, the steps
    that are recorded. `index` counts the calls of one name, from 0.
    """
    rows = device.rows[device.kind == "communication"]
    if len(rows) == 0:
        # on the host the backend's own thread marks each collective
        rows = np.flatnonzero((trace.kind == HOST) & trace.names_match(r"^gloo:"))
        rows = rows[np.argsort(trace.start[rows], kind="stable")]
    names = [name.replace("(anonymous namespace)::", "").split("(")[0] for name in trace.names_of(rows)]
    names = [trace.collectives[code] or name for code, name in zip(trace.collective[rows], names, strict=True)]
    columns = {
        "collective": names,
        "kind": [next(kind for kind, words in _KINDS.items() if re.search(words, name, re.I)) for name in names],
        "start_us": trace.start[rows] / US,
        "duration_us": trace.duration[rows] / US,
        "begin": trace.start[rows] + trace.clock,
        "end": trace.stop[rows] + trace.clock,
        "sequence": trace.sequence[rows],
        "size": trace.size[rows],
        "window": ", ".join(trace.steps["name"]),
    }
    calls = pd.DataFrame(columns)
    return trace.ranked(calls.assign(index=calls.groupby("collective").cumcount()))


def pair_calls(ranks: list[pd.DataFrame]) -> pd.DataFrame:
    """Return the calls of all ranks with number, paired, own_us and wait_us.

    Calls with one name, group and sequence number are one collective. Where no number is recorded, it is the n-th of
    its name on every rank, if this is sure: the messages' sizes agree, and the ranks recorded the same steps and as
    many calls, or at least these calls overlap in time. `paired` is "number", "order", or null where it is not sure.

    `own_us`, what a collective takes by itself, is the minimum over the ranks in the folder that take part; the rest of
    each rank's duration is `wait_us`. With ranks missing, the minimum is an upper bound. Both are null where the pair
    is not sure, for calls that not all these ranks made, and for a single rank.

    **Arguments:**

    - `ranks`: `calls_of` each rank.
    """
    calls = pd.concat(ranks, ignore_index=True)
    if len(ranks) == 1:
        return calls.assign(number=np.nan, paired=None, own_us=np.nan, wait_us=np.nan)
    calls["number"] = calls["sequence"].fillna(calls["index"])
    pairs = calls.groupby(["collective", "number"])
    takes_part = calls["collective"].map({name: _in_folder(name, ranks) for name in {*calls["collective"]}})
    complete = (pairs["rank"].transform("size") == takes_part) & (pairs["rank"].transform("nunique") == takes_part)
    sizes_differ = calls["kind"].isin(_SAME_SIZE) & (pairs["size"].transform("nunique") > 1)
    counts = calls.groupby(["collective", "rank"], dropna=False)["index"].transform("size")
    as_many = counts.groupby(calls["collective"]).transform("nunique") == 1
    overlap = pairs["begin"].transform("max") < pairs["end"].transform("min")
    in_order = ~sizes_differ.groupby(calls["collective"]).transform("any")
    in_order &= as_many & (calls["window"].nunique() <= 1) | overlap
    sure = {"number": calls["sequence"].notna(), "order": in_order}
    paired = pd.Series(np.select(list(sure.values()), list(sure), ""), dtype=object)
    calls["paired"] = paired.where(complete & (takes_part > 1) & (paired != ""), None)
    calls["own_us"] = pairs["duration_us"].transform("min").where(calls["paired"].notna())
    calls["wait_us"] = calls["duration_us"] - calls["own_us"]
    return calls.astype({"rank": "Int64"})


def _in_folder(name: str, ranks: list[pd.DataFrame]) -> int:
    """Return how many of the ranks take part in a collective, by the list at the end of its name; all without one."""
    here = {int(rank["rank"].iloc[0]) for rank in ranks if len(rank) and pd.notna(rank["rank"].iloc[0])}
    members = re.search(r"\[([\d, ]*)\]$", name)
    return len({*map(int, re.findall(r"\d+", members[1]))} & here) if members else len(ranks)
