"""Reports on a trace file, or on a folder of them: all tables and findings of a run."""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import pandas as pd

from tclab._display import Display, Shown, counted, us_text
from tclab.errors import require
from tclab.trace._categories import OUTSIDE, RULES, Rule
from tclab.trace._collectives import COLLECTIVE_COLUMNS, calls_of, pair_calls
from tclab.trace._device_work import RankWork, device_tables, gather_device, step_table
from tclab.trace._events import Trace, TraceError
from tclab.trace._host_work import STEP_MARK, host_tables, nest_host, sync_table, thread_table
from tclab.trace._read_trace import read_trace
from tclab.trace._trace_findings import findings, short
from tclab.trace._trust import trust_of


@dataclass(frozen=True, repr=False)
class Report(Shown):
    """The tables and findings of one run. Times in µs; what a trace lacks is null or a table without rows."""

    breakdown: pd.DataFrame  # one row per rank and device: rank, device, span_us, compute_us, non_compute_us, …
    kernels: pd.DataFrame  # kernel, copy or set, op, shapes, module, stage, count, time_us, bytes, …: what devices did
    categories: pd.DataFrame  # category, self_us, share: the main threads' wall time, with the backward they wait for
    stages: pd.DataFrame  # stage, self_us, share: the same wall time by the part of the step
    threads: pd.DataFrame  # as categories, for every thread of every rank, each event on its own thread
    steps: pd.DataFrame  # one row per ProfilerStep and rank
    ops: pd.DataFrame  # name, category, calls, self_us on all host threads, all ranks added; the steps' marks are a row
    gaps: pd.DataFrame  # the longest times without work of a device
    idle_causes: pd.DataFrame  # what the host did while the device was idle
    syncs: pd.DataFrame
    collectives: pd.DataFrame
    settings: pd.DataFrame  # one row per rank: how the trace was made
    findings: list[str]
    ranks: list[RankWork]
    trust: pd.DataFrame  # what speaks against the figures; `findings` begin with it

    @property
    def traces(self) -> list[Trace]:
        """The traces, in the order of their ranks."""
        return [rank.trace for rank in self.ranks]

    def _display(self) -> Display:
        files = ", ".join(trace.path.name for trace in self.traces)
        parts = shown_parts(self.stages, self.categories, ["self_us"])
        lines = [(by, name, us_text(row["self_us"]), f"{row['share']:.1%}") for by, name, row in parts]
        recorded = us_text(self.categories["self_us"].sum())
        title = f"Self time of the main threads in {files}; the whole recording takes {recorded}"
        return Display(title, ("by", "", "self time", "share"), lines, [*self._largest(), *self.findings])

    def _largest(self) -> Iterator[str]:
        """Yield a forward pass without a mark, the largest operations, and `other` where it is the largest kind."""
        yield from unmarked_forward(self)
        top = self.ops[self.ops["name"] != STEP_MARK].head(3).to_dict("records")
        named = [f"{short(op['name'])} {us_text(op['self_us'])} ({counted(op['calls'], 'call')})" for op in top]
        if named:
            yield f"The largest operations, by self time on all host threads: {', '.join(named)}."
        largest = self.categories.nlargest(1, "self_us").iloc[0]
        if largest["category"] == "other" and largest["self_us"] > 0:
            most = "".join(f", most in {short(name)}" for name in self.ops.query("category == 'other'")["name"].head(1))
            blank = f", and {us_text(largest['unrecorded_us'])} without any event" if largest["unrecorded_us"] else ""
            often = "often Python between operators, which a trace with stacks (with_stack=True) shows."
            yield f"“other” is time within events that no rule names{most}{blank}: {often}"


def shown_parts(stages: pd.DataFrame, categories: pd.DataFrame, times: list[str]) -> Iterator[tuple[str, str, Any]]:
    """Yield the rows that take time: the stages, unless all is outside any, then the kinds of work."""
    for by, column, table in (("stage", "stage", stages), ("kind of work", "category", categories)):
        shown = table[(table[times] > 0).any(axis=1)]
        if column == "category" or shown["stage"].ne(OUTSIDE).any():
            for row in shown.to_dict("records"):
                yield by, str(row[column]), row


def unmarked_forward(report: Report) -> Iterator[str]:
    """Yield that the forward pass has no mark, where there is a stage of backward and none of forward."""
    spent = report.stages.set_index("stage")["self_us"]
    if spent["backward"] > 0 and spent["model_forward"] == 0:
        mark = 'with record_function("forward"): around it makes it a stage.'
        yield f"The forward pass has no mark here and is within “{OUTSIDE}”; {mark}"


def analyze(path: str | Path, rules: Mapping[str, str] | None = None) -> Report:
    """Return the report of a torch.profiler trace, or of a folder with one trace per rank as one run.

    **Arguments:**

    - `path`: a `.json` file, gzipped or not, or a folder of them.
    - `rules`: category → regular expression (RE2), ignoring case, of the names of events that belong to it, tried in
      this order and before tclab's own rules: `{"graph_processing": "my_mask|my_sampler"}`. A category may be new.

    **Raises:** `InputError` for what is no path, or no such mapping; `TraceError` for a path that does not exist, a
    file that is no trace (with the position where its JSON breaks), and files whose ranks are unknown or the same.
    """
    require("path", path, (str, os.PathLike), "a trace file, or a folder of them")
    require("rules", rules or {}, Mapping, "category → regular expression")
    table = (*(Rule(category, name, sure=True) for category, name in (rules or {}).items()), *RULES)
    traces = sorted(map(read_trace, _files(Path(path))), key=lambda t: (t.rank is None, t.rank or 0))
    _refuse_unclear_ranks(traces)
    ranks = [_analyze_rank(trace, table) for trace in traces]
    tables: dict[str, Any] = {name: _joined([rank.tables[name] for rank in ranks]) for name in ranks[0].tables}
    tables |= host_tables([(rank.trace, rank.host, None) for rank in ranks])
    calls = pair_calls([rank.tables["collectives"] for rank in ranks])
    tables["collectives"] = calls[COLLECTIVE_COLUMNS]
    lacks = "" if tables["settings"]["device_events"].any() else ", which has no device events"
    for name, frame in tables.items():
        frame.attrs["empty"] = f"No {name.replace('_', ' ')} in this trace{lacks}."  # a notebook shows it
    trust, verdict = trust_of(ranks, calls)
    return Report(**tables, findings=[verdict, *trust["what"], *findings(ranks, calls)], ranks=ranks, trust=trust)


def _analyze_rank(trace: Trace, rules: tuple[Rule, ...]) -> RankWork:
    """Return the work of one rank."""
    host, device = nest_host(trace, rules), gather_device(trace)
    devices, tables = device_tables(trace, host)
    tables |= {
        "threads": thread_table(trace, host),
        "steps": step_table(trace, device),
        "syncs": sync_table(trace, host),
        "collectives": calls_of(trace, device),
        "settings": pd.DataFrame([trace.settings]).astype({"rank": "Int64", "world_size": "Int64"}),
    }
    return RankWork(trace, host, device, devices, tables)


def _files(path: Path) -> list[Path]:
    """Return the path itself, or a folder's `.json` and `.json.gz` files."""
    if not path.is_dir():
        return [path]
    found = [p for p in path.iterdir() if p.is_file() and p.name.endswith((".json", ".json.gz"))]
    if not found:
        raise TraceError(f"{path}: has no .json or .json.gz file; expected one trace per rank")
    return sorted(found)


def _refuse_unclear_ranks(traces: list[Trace]) -> None:
    """Raise an error where two traces, in the order of their ranks, have one rank, or one has none."""
    one_file = "two windows of one process? name one file"
    for trace, after in pairwise(traces):
        if after.rank is None:
            nameless = f"{(trace if trace.rank is None else after).path.name} does not give its rank"
            expected = "`distributedInfo` in the file or `rank<number>` in its name"
            raise TraceError(f"{nameless}, one of {len(traces)}; expected {expected}; {one_file}")
        if after.rank == trace.rank:
            both = f"{after.path.name} and {trace.path.name} are both rank {after.rank}"
            raise TraceError(f"{both}; expected one trace per rank of one run; {one_file}")


def _joined(tables: list[pd.DataFrame]) -> pd.DataFrame:
    """Return the ranks' tables concatenated; a table without rows gives its columns only."""
    return pd.concat([table for table in tables if len(table)] or tables[:1], ignore_index=True)
