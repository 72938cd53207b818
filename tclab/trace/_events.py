"""Traces as columns: one row per event with a duration, times in whole ticks since the first event."""

from collections.abc import Hashable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from tclab.errors import InputError

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

# Ticks in a µs: a tick is a nanosecond, which is what kineto writes. All times are counted in whole ticks.
US = 1e3
SECOND = 10**9  # ticks

# Kinds of event: work of a host thread; work of a device; neither (spans, overhead, marks, counters).
HOST, DEVICE, ANNOTATION = 0, 1, 2

COPY_CATEGORIES = {"gpu_memcpy", "memcpy"}
DEVICE_CATEGORIES = {"kernel", "gpu_memset", "memset"} | COPY_CATEGORIES
_MAKERS = ("cuda_", "xpu_", "mtia_", "privateuse1_", "glow_", "")
RUNTIME_CATEGORIES = {maker + kind for maker in _MAKERS for kind in ("runtime", "driver")}
OPERATOR_CATEGORIES = {"cpu_op", "operator"}
ANNOTATION_CATEGORIES = {
    "trace", "overhead", "gpu_user_annotation", "cuda_sync", "xpu_sync", "cuda_event", "cuda_profiler_range",
    "xpu_scope_profiler", "external_correlation", "mtia_insight", "mtia_counters", "gpu_pm_counter",
}  # fmt: skip
_HOST_CATEGORIES = OPERATOR_CATEGORIES | RUNTIME_CATEGORIES | {"user_annotation", "python_function"}
TORCH_CATEGORIES = _HOST_CATEGORIES | DEVICE_CATEGORIES | ANNOTATION_CATEGORIES
# Kernels of NCCL, RCCL, MSCCL, oneCCL, HCCL, NVSHMEM, DeepEP and Transformer Engine; one-shot, two-shot, fused and
# symmetric-memory collectives of torch, vLLM, SGLang, FlashInfer, TensorRT-LLM, aiter and quick reduce.
COLLECTIVE = (
    r"[nrmh]ccl|oneccl|msccl|hcom_|nvshmem|cross_device_reduce|multimem_|userbuffers|deep_ep::|reduce_?scatter_cross"
    r"|(^|[^a-z])(all_?(reduce|gather|to_?all|2all)|reduce_?scatter)|(one|two)_?shot_?all_?reduce"
    r"|(?-i:All(Reduce|Gather|ToAll|2All)|ReduceScatter)"
)
# All-reduces among the threads of one kernel, and kernels that inductor named after a collective before them.
IN_KERNEL = r"^triton_\w+_fused_|(warp|block|cta|group|lane|quad|wave|thread|tile|cluster)(_|::)?all_?(reduce|gather)"


class TraceError(InputError):
    """A file or folder that cannot be read as a torch.profiler trace; the message gives the place and the reason."""


@dataclass(frozen=True)
class Trace:
    """One file's events as columns of equal length, in the order of the file."""

    path: Path
    settings: dict[str, Any]  # a row of `Report.settings`
    clock: int  # the time of tick 0 on the clock of its machine, ticks
    start: Ints  # ticks
    duration: Ints  # ticks, never negative
    name: Ints  # index into `names`
    category: Ints  # index into `categories`
    track: Ints  # index into `tracks`
    correlation: Ints  # the same in a launch and its kernel; 0 or less where there is none
    size: Floats  # bytes of a copy or set, elements of a collective's message; null elsewhere
    shapes: Ints  # index into `shape_texts`
    collective: Ints  # index into `collectives`
    sequence: Floats  # the number of a collective in its group; null where it is not recorded
    names: list[str]
    categories: list[str]  # in lower case
    tracks: list[tuple[Hashable, Hashable]]  # (pid, tid)
    shape_texts: list[str]  # "[[64, 256], [256]]", of an operator's inputs; "" where it is not recorded
    collectives: list[str]  # "allreduce of group 0 [0, 1]"; "" where it is not recorded
    links: pd.DataFrame  # from a forward thread to its backward: caller, track (indices into `tracks`), at (ticks)
    left_out: dict[str, int]  # reason → how many events

    def is_category(self, wanted: set[str]) -> Bools:
        """Return which events have one of the `wanted` categories (in lower case), [N]."""
        return np.array([c in wanted for c in self.categories], dtype=bool)[self.category]

    def names_match(self, pattern: str) -> Bools:
        """Return which events' names contain the regular expression, ignoring case, [N]."""
        return matches(self.name_bytes, pattern)[self.name]

    @cached_property
    def name_bytes(self) -> pa.Array:
        """The names as an Arrow column; a lone surrogate, which UTF-8 does not have, becomes a question mark."""
        return pa.array([name.encode("utf-8", "replace") for name in self.names], pa.large_binary())

    @cached_property
    def stop(self) -> Ints:
        """The end of each event, [N] ticks."""
        return self.start + self.duration

    @cached_property
    def kind(self) -> npt.NDArray[np.int8]:
        """`HOST`, `DEVICE` or `ANNOTATION` per event, [N]."""
        on_device, is_annotation = self.is_category(DEVICE_CATEGORIES), self.is_category(ANNOTATION_CATEGORIES)
        return np.select([on_device, is_annotation], [DEVICE, ANNOTATION], HOST).astype(np.int8)

    @cached_property
    def main(self) -> int:
        """The thread that runs the steps, index into `tracks`; -1 without host events.

        It is the one with a `ProfilerStep` and other events; else the process's first thread (on Linux its id is the
        process's); else the one with the most events, of equals the one that begins first.
        """
        rows = np.flatnonzero(self.kind == HOST)
        if len(rows) == 0:
            return -1
        track, stepping = self.track[rows], {*self.track[self.names_match(r"^ProfilerStep")].tolist()}

        def order(thread: int) -> tuple[int, int, int]:
            of, (pid, tid) = track == thread, self.tracks[thread]
            rule = 0 if thread in stepping and of.sum() > 1 else 1 if pid == tid else 2
            return rule, -int(of.sum()), int(self.start[rows[of]].min())

        return min(np.unique(track).tolist(), key=order)

    @cached_property
    def steps(self) -> pd.DataFrame:
        """The `ProfilerStep` marks of the main thread, by time; of the device where no host thread has them.

        Columns: name, start and end in ticks, marked_on ("host" or "device"). Another thread's marks count where the
        main thread has none: a file merged of several ranks has each step once per rank. A device marks a step once per
        stream; its window runs from the first mark's start to the last one's end.
        """
        is_step = self.names_match(r"^ProfilerStep")
        on_host = is_step & self.is_category({"user_annotation"})
        on_main = on_host & (self.track == self.main)
        rows, marked_on = np.flatnonzero(on_main if on_main.any() else on_host), "host"
        if len(rows) == 0:
            rows, marked_on = np.flatnonzero(is_step & self.is_category({"gpu_user_annotation"})), "device"
        marks = pd.DataFrame({"name": self.names_of(rows), "start": self.start[rows], "end": self.stop[rows]})
        if marked_on == "device":  # a name may come twice on the host
            marks = marks.groupby(self.name[rows]).agg({"name": "first", "start": "min", "end": "max"})
        return marks.assign(marked_on=marked_on).sort_values("start", kind="stable", ignore_index=True)

    @cached_property
    def is_op(self) -> Bools:
        """Which events are operators, [N]."""
        return self.is_category(OPERATOR_CATEGORIES)

    @cached_property
    def is_runtime(self) -> Bools:
        """Which events are calls of a runtime or driver on the host, [N]: they launch work, or wait for it."""
        return self.is_category(RUNTIME_CATEGORIES)

    @cached_property
    def launch(self) -> Ints:
        """The runtime call that launched each device event, by correlation, [N] rows; -1 where none is recorded.

        Of several calls with one number, as of two windows in a file, it is the last that began before the event; it is
        unknown where calls of several processes have it, as in a file that was merged from several ranks.
        """
        number, process = self.correlation, pd.factorize(np.array([str(pid) for pid, _ in self.tracks]))[0][self.track]
        events, calls = (np.flatnonzero(of & (number > 0)) for of in (self.kind == DEVICE, self.is_runtime))
        calls = calls[(pd.Series(process[calls]).groupby(number[calls]).transform("nunique") == 1).to_numpy()]
        calls = calls[np.lexsort((self.start[calls], number[calls]))]
        events = events[np.isin(number[events], number[calls])]
        both = np.concatenate([calls, events])
        order = np.lexsort((self.start[both], number[both]))  # of one instant calls come first
        begun = np.empty(len(both), dtype=np.int64)
        begun[order] = np.cumsum(order < len(calls))
        first = np.searchsorted(number[calls], number[events])  # it began after the event where the clocks differ
        launch = np.full(len(self.start), -1, dtype=np.int64)
        launch[events] = calls[np.maximum(begun[len(calls) :] - 1, first)]
        return launch

    @property
    def rank(self) -> Any:
        """The rank that the file or its name gives, None where neither does."""
        return self.settings["rank"]

    @property
    def label(self) -> str:
        """The name of this trace in findings: its rank, or its file where the rank is not known."""
        return self.path.name if self.rank is None else f"rank {self.rank}"

    def ranked(self, table: pd.DataFrame) -> pd.DataFrame:
        """Return a table with the trace's rank as first column, null where it is not known."""
        table.insert(0, "rank", pd.Series([self.rank] * len(table), dtype="Int64", index=table.index))
        return table

    def names_of(self, rows: Ints) -> list[Any]:
        """Return events' names, None for row -1."""
        return [None if row < 0 else self.names[self.name[row]] for row in rows.tolist()]


def matches(names: pa.Array, pattern: str) -> Bools:
    """Return which names contain the regular expression, ignoring case (RE2: time linear in a name's length)."""
    found = pc.match_substring_regex(names, pattern, ignore_case=True)
    return np.asarray(found.to_numpy(zero_copy_only=False), dtype=bool)
