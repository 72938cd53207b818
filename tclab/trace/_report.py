"""Reports on a trace file, or on a folder of them: all tables and findings of a run."""

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from tclab._display import Display, Shown, counted, us_text
from tclab.errors import require
from tclab.trace._categories import OUTSIDE, RULES, Rule
from tclab.trace._device_work import (
    TIMES,
    breakdown,
    collective_table,
    copy_table,
    device_work,
    idle,
    memory_table,
    steps,
)
from tclab.trace._events import Trace, read_trace, step_windows
from tclab.trace._host_work import (
    host_work,
    main_threads,
    op_table,
    stage_table,
    step_category_table,
    sync_table,
    thread_table,
)
from tclab.trace._read_trace import TraceError
from tclab.trace._trace_findings import Finding, RankWork, findings, short
from tclab.trace._trust import Trust, check_traces

_EMPTY = {  # what a table without rows shows
    "gaps": "No idle time of a device in this trace.",
    "syncs": "No call in this trace waits for a device.",
    "copies": "No copy to, from or on a device in this trace.",
    "collectives": "No collective of ranks in this trace.",
}


@dataclass(frozen=True, repr=False)
class Report(Shown):
    """The tables and findings of one run. Times in µs; what a trace lacks is null or a table without rows."""

    breakdown: pd.DataFrame  # one row per rank: rank, span_us, compute_us, non_compute_us, idle_us, …
    categories: pd.DataFrame  # category, self_us, share: the main threads' wall time, each event once
    stages: pd.DataFrame  # stage, self_us, share: the same wall time by the part of the step
    threads: pd.DataFrame  # as categories, for every thread of every rank
    steps: pd.DataFrame  # one row per ProfilerStep and rank
    step_categories: pd.DataFrame  # as categories, for every step: rank, step, category, self_us, share
    ops: pd.DataFrame  # name, category, calls, self_us on all host threads, all ranks added
    gaps: pd.DataFrame  # the longest times without device work
    idle_causes: pd.DataFrame  # what the host did while the device was idle
    syncs: pd.DataFrame
    copies: pd.DataFrame
    collectives: pd.DataFrame
    memory: pd.DataFrame
    settings: pd.DataFrame  # one row per rank: how the trace was made
    findings: list[Finding]
    traces: list[Trace]
    trust: Trust  # what speaks against the figures; `findings` begin with its verdict

    def _display(self) -> Display:
        files = ", ".join(trace.path.name for trace in self.traces)
        lines = [
            (by, name, us_text(row["self_us"]), f"{row['share']:.1%}")
            for by, name, row in shown_parts(self.stages, self.categories, ["self_us"])
        ]
        title = f"Self time of the main threads in {files}"
        return Display(title, ("by", "", "self time", "share"), lines, [*self._largest(), *self.findings])

    def _largest(self) -> Iterator[str]:
        """Yield the largest operations, and what `other` is where that is the largest kind of work."""
        is_step = self.ops["name"].str.startswith("ProfilerStep").astype(bool)
        whole = float(self.ops["self_us"].sum())
        top = self.ops[~is_step].head(3).to_dict("records")
        if whole > 0 and top:
            named = ", ".join(
                f"{short(op['name'])} {op['self_us'] / whole:.1%} ({counted(op['calls'], 'call')})" for op in top
            )
            yield f"The largest operations, of the {us_text(whole)} recorded on all host threads: {named}."
        kinds = self.categories.set_index("category")
        if len(kinds) and kinds["self_us"].max() > 0 and kinds["self_us"].idxmax() == "other":
            other = self.ops[self.ops["category"] == "other"]
            largest = f", most in {short(other['name'].iloc[0])}" if len(other) else ""
            unrecorded = float(kinds["unrecorded_us"]["other"])
            blank = f", and {us_text(unrecorded)} without any event" if unrecorded else ""
            yield (
                f"“other” is time within events that no rule names{largest}{blank}: "
                "often Python between operators, which a trace with stacks (with_stack=True) shows."
            )


def shown_parts(
    stages: pd.DataFrame, categories: pd.DataFrame, times: list[str]
) -> Iterator[tuple[str, str, dict[Any, Any]]]:
    """Yield the rows that take time: the stages, unless all is outside any, then the kinds of work."""
    for by, column, table in (("stage", "stage", stages), ("kind of work", "category", categories)):
        shown = table[(table[times] > 0).any(axis=1)]
        if column == "category" or shown["stage"].ne(OUTSIDE).any():
            for row in shown.to_dict("records"):
                yield by, str(row[column]), row


def analyze(path: str | Path, rules: tuple[Rule, ...] = RULES) -> Report:
    """Return the report of a torch.profiler trace, or of a folder with one trace per rank as one run.

    **Arguments:**

    - `path`: a `.json` file, gzipped or not, or a folder of them.
    - `rules`: which events belong to which category.

    **Raises:** `InputError` for what is no path; `TraceError` for one that does not exist, a file that is no trace
    (with the position where its JSON breaks), and files whose ranks are unknown or the same.
    """
    traces = read_ranks(path)
    ranks = []
    for trace in traces:
        device, host = device_work(trace), host_work(trace, rules)
        ranks.append(RankWork(trace, device, host, steps(trace, device), idle(trace, device, host)))
    threads = _joined([thread_table(r.trace, r.host) for r in ranks])
    stages = _joined([stage_table(r.trace, r.host) for r in ranks])
    tables: dict[str, Any] = {
        "breakdown": pd.DataFrame([breakdown(r.trace, r.device) for r in ranks]).astype(
            {"rank": "Int64", **dict.fromkeys(TIMES, "float64")}
        ),
        "categories": main_threads(threads, "category"),
        "stages": main_threads(stages, "stage"),
        "threads": threads,
        "steps": _joined([r.steps for r in ranks]),
        "step_categories": _joined([step_category_table(r.trace, r.host, step_windows(r.trace)) for r in ranks]),
        "ops": _ops([op_table(r.trace, r.host) for r in ranks]),
        "gaps": _joined([r.idle.gaps for r in ranks if r.idle]),
        "idle_causes": _joined([r.idle.causes for r in ranks if r.idle]),
        "syncs": _joined([sync_table(r.trace, r.host) for r in ranks]),
        "copies": _joined([copy_table(t) for t in traces]),
        "collectives": collective_table(traces, [r.device for r in ranks]),
        "memory": _joined([memory_table(t) for t in traces]),
        "settings": pd.DataFrame([{"rank": t.rank, "file": t.path.name} | t.settings for t in traces]),
    }
    for name, sentence in _EMPTY.items():
        tables[name].attrs["empty"] = sentence
    tables["settings"] = tables["settings"].astype({"rank": "Int64", "world_size": "Int64"})
    trusted = check_traces(traces, [rank.device for rank in ranks])
    return Report(**tables, findings=trusted.findings + findings(ranks, tables), traces=traces, trust=trusted)


def trust(trace: str | Path | Trace | Report) -> Trust:
    """Return what speaks against the figures of a trace, before any is believed.

    Looked for are launches without kernels, kernels before their launch, first collectives that are really the other
    ranks' profilers starting, duplicated correlation ids, zero and negative durations, first and last steps that are
    not whole, and clocks of ranks that differ.

    **Arguments:**

    - `trace`: a trace file or a folder with one per rank, one of `report.traces`, or a report.

    **Returns:** an object to print, with

    - `table`: one row per pathology and rank: rank, file, pathology, how many events, concerned_us, the window from
      start_us to end_us (since the trace's first event), the tables of `Report` that it spoils, and a sentence.
    - `clocks`: one row per rank: how far its clock is ahead of the first one's, and the error of that; null where
      ranks share too few collectives.
    - `verdict`: a sentence.

    **Raises:** as `analyze`.
    """
    if isinstance(trace, Report):
        return trace.trust
    if isinstance(trace, Trace):
        return check_traces([trace])
    return check_traces(read_ranks(trace))


def read_ranks(path: str | Path) -> list[Trace]:
    """Return the trace of a file, or those of a folder's ranks in the order of the ranks.

    **Raises:** as `analyze`.
    """
    require("path", path, (str, os.PathLike), "a trace file, or a folder of them")
    traces = sorted(map(read_trace, trace_files(Path(path))), key=lambda t: (t.rank is None, t.rank or 0))
    _refuse_unclear_ranks(traces)
    return traces


def trace_files(path: Path) -> list[Path]:
    """Return the path itself, or a folder's `.json` and `.json.gz` files, 2 before 10."""
    if not path.exists():
        near = sorted(p.name for p in path.parent.glob("*.json*"))[:5] if path.parent.is_dir() else []
        raise TraceError(f"{path}: does not exist" + (f"; in its folder are {', '.join(near)}" if near else ""))
    if not path.is_dir():
        return [path]
    found = [p for p in path.iterdir() if p.is_file() and p.name.endswith((".json", ".json.gz"))]
    if not found:
        raise TraceError(f"{path}: has no .json or .json.gz file; expected one trace per rank")
    return sorted(found, key=lambda p: [int(s) if s.isdigit() else s for s in re.split(r"([0-9]+)", p.name)])


def _refuse_unclear_ranks(traces: list[Trace]) -> None:
    of_rank: dict[int, Trace] = {}
    for trace in traces if len(traces) > 1 else []:
        if trace.rank is None:
            raise TraceError(
                f"{trace.path.name} does not give its rank, one of {len(traces)}; expected "
                "`distributedInfo` in the file or `rank<number>` in its name"
            )
        if (other := of_rank.setdefault(trace.rank, trace)) is not trace:
            raise TraceError(
                f"{trace.path.name} and {other.path.name} are both rank {trace.rank}; "
                "expected one trace per rank of one run"
            )


def _joined(tables: list[pd.DataFrame]) -> pd.DataFrame:
    """Return the ranks' tables concatenated; a table without rows gives its columns only."""
    full = [table for table in tables if len(table)]
    if full:
        return pd.concat(full, ignore_index=True)
    return tables[0] if tables else pd.DataFrame()


def _ops(tables: list[pd.DataFrame]) -> pd.DataFrame:
    added = pd.concat(tables).groupby(["name", "category"], sort=False).sum().reset_index()
    return added.sort_values(["self_us", "name"], ascending=[False, True], ignore_index=True)
