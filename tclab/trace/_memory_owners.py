"""What holds memory at the peak, by stage and line: from torch's memory snapshot, or a trace with memory events."""

import re
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from tclab._display import Display, Shown, bytes_text
from tclab.trace._categories import OUTSIDE, RULES, nearest
from tclab.trace._events import Trace, read_trace
from tclab.trace._host_work import LIBRARY_CODE, host_work
from tclab.trace._read_trace import TraceError
from tclab.trace._snapshot import Frame, read_snapshot

BEFORE = "held before the record began"
MOMENTS = 2048  # of a timeline: each is the most that was held around it
_LIBRARY = re.compile(r"site-packages|dist-packages|(^|/)torch/|^<|^\?\?|^$|\.(cpp|cc|cu|h|c)$|/python3\.\d+/")
_STAGES = (  # in a frame's name or file, the innermost match counts
    ("optimizer", re.compile(r"torch/optim/|optimizer", re.IGNORECASE)),
    ("backward", re.compile(r"torch::autograd|autograd/|backward", re.IGNORECASE)),
    ("loss_computation", re.compile(r"loss", re.IGNORECASE)),
    ("data_loading", re.compile(r"utils/data/|dataloader", re.IGNORECASE)),
    ("model_forward", re.compile(r"nn/modules/|\bforward\b", re.IGNORECASE)),
)


@dataclass(frozen=True, repr=False)
class MemoryOwners(Shown):
    """Who held memory when most was held; see `memory_owners`."""

    owners: pd.DataFrame
    peaks: pd.DataFrame
    timeline: pd.DataFrame

    def _display(self) -> Display:
        lines = [
            (
                row["device"],
                row["stage"],
                row["line"],
                str(row["blocks"]),
                bytes_text(row["bytes"]),
                f"{row['share']:.0%}",
            )
            for row in self.owners.head(12).to_dict("records")
        ]
        peaks = [f"{row['device']} held at most {bytes_text(row['bytes'])}" for row in self.peaks.to_dict("records")]
        return Display("; ".join(peaks), ("device", "stage", "line", "blocks", "bytes", "share"), lines)


class _Replay:
    """A device's allocations, one after the other, and what was held at the peak.

    Only what has changed since the highest peak so far is kept beside what is held now, and is undone at the end.
    """

    def __init__(self) -> None:
        self.held: dict[int, tuple[int, int]] = {}  # address -> bytes, owner
        self.total = self.peak = 0
        self.peak_us: float = 0.0
        self._log = (array("Q"), array("q"), array("q"))  # since the peak: address, bytes, owner of what was freed
        self.moments: list[tuple[float, int]] = []
        self._every, self._seen = 1, 0

    def take(self, address: int, size: int, owner: int, us: float) -> None:
        self.held[address] = (size, owner)
        self.total += size
        if self.total > self.peak or not self.moments:
            self.peak, self.peak_us = self.total, us
            for column in self._log:
                del column[:]
        else:
            self._note(address, size, -1)
        self._moment(us)

    def free(self, address: int, size: int, us: float) -> None:
        known = self.held.pop(address, None)
        size = size if known is None else known[0]
        self.total -= size
        self._note(address, size, -2 if known is None else known[1])
        self._moment(us)

    def _note(self, address: int, size: int, owner: int) -> None:
        addresses, sizes, owners = self._log
        addresses.append(address)
        sizes.append(size)
        owners.append(owner)

    def _moment(self, us: float) -> None:
        self._seen += 1
        if self._seen % self._every == 0 or not self.moments:
            self.moments.append((us, self.total))
            if len(self.moments) >= 2 * MOMENTS:
                pairs = zip(self.moments[::2], self.moments[1::2], strict=True)
                self.moments = [max(pair, key=lambda moment: moment[1]) for pair in pairs]
                self._every *= 2
        elif self.total > self.moments[-1][1]:
            self.moments[-1] = (us, self.total)

    def at_peak(self) -> tuple[dict[int, tuple[int, int]], int]:
        """Return what was held at the peak, address -> (bytes, owner), and the bytes that were freed since, unknown."""
        held, before = dict(self.held), 0
        for address, size, owner in zip(*(reversed(column) for column in self._log), strict=True):
            if owner == -1:
                held.pop(address, None)
            elif owner == -2:
                before += size
            else:
                held[address] = (size, owner)
        return held, before


def memory_owners(path: str | Path | Trace) -> MemoryOwners:
    """Return what holds memory at each device's peak, by stage and line of your own code.

        with tclab.trace.record("traces", memory=True, stacks=True) as recorder: ...    # on a CPU, or anywhere
        print(tclab.trace.memory_owners(recorder.path))

        torch.cuda.memory._record_memory_history()                                      # on CUDA
        ...
        torch.cuda.memory._dump_snapshot("snapshot.pickle")
        print(tclab.trace.memory_owners("snapshot.pickle"))

    Of a trace the line is that of the function whose call allocated, where stacks were recorded, or else the operator;
    memory that was held before the window is in no figure. Of a snapshot it is the line itself. A snapshot is a
    pickle: it is read in a stream as plain data, and anything in it that could run code is refused.

    **Arguments:**

    - `path`: a snapshot (pickle, or the same as JSON), a trace file, or one of `report.traces`.

    **Returns:** an object to print, with the tables

    - `owners`: device, stage, line, blocks, bytes, share: at each device's peak, the most first. Memory that was held
      before the record began has no line; of a snapshot it has one where it is still held at the end.
    - `peaks`: device, time_us (since the first event), bytes.
    - `timeline`: device, time_us, bytes: the most that was held, at up to 2,048 moments.

    **Raises:** `TraceError` for a file that is neither, or one without memory events.
    """
    if isinstance(path, Trace):
        return _of_trace(path)
    path = Path(path)
    try:
        with path.open("rb") as file:
            head = file.read(1 << 16)
    except OSError as error:
        raise TraceError(f"{path}: cannot be opened ({error.strerror})") from error
    is_trace = head[:2] == b"\x1f\x8b" or b"traceEvents" in head or (head[:1] == b"[" and b'"ph"' in head)
    if is_trace:
        return _of_trace(read_trace(path))
    return _of_snapshot(path)


def _of_snapshot(path: Path) -> MemoryOwners:
    replays: dict[int, _Replay] = {}
    names: dict[tuple[str, str], int] = {}
    known: dict[Frame, tuple[str | None, str | None]] = {}
    owner_at: dict[int, int] = {}  # id of a stack, which lives as long as the file is read
    begin: list[float] = []

    def owner_of(frames: Sequence[Frame]) -> int:
        line, stage, last = None, None, None
        for frame in frames:
            found = known.get(frame)
            if found is None:
                known[frame] = found = _line_and_stage(frame)
            line, stage = line or found[0], stage or found[1]
            last = last or frame.name
        key = (stage or OUTSIDE, line or (last or "no stack recorded")[:100])
        return names.setdefault(key, len(names))

    def take(number: int, event: dict[str, Any]) -> None:
        action, address, size = event.get("action"), event.get("addr"), event.get("size")
        if not isinstance(address, int) or not isinstance(size, int):
            return
        us = event.get("time_us")
        us = float(us) if isinstance(us, (int, float)) else 0.0
        begin[:] = begin or [us]
        replay = replays.setdefault(number, _Replay())
        if action == "alloc":
            stack = event["frames"]
            owner = owner_at.get(id(stack)) if stack else None
            if owner is None:
                owner_at[id(stack)] = owner = owner_of(stack)
            replay.take(address, size, owner, us - begin[0])
        elif action in ("free_completed", "free"):
            replay.free(address, size, us - begin[0])

    snapshot = read_snapshot(path, take)
    if not replays:
        raise TraceError(f"{path}: has no allocation; record with torch.cuda.memory._record_memory_history()")
    found = []
    for number, replay in replays.items():
        device = snapshot.devices.get(number, number)
        still: list[tuple[int, int]] = []  # held at the end, and taken before the record began
        for segment in snapshot.segments:
            if segment.get("device", 0) != device:
                continue
            address = segment.get("address", 0)
            blocks = segment.get("blocks")
            for block in blocks if isinstance(blocks, list) else []:
                if not isinstance(block, dict) or not isinstance(size := block.get("size"), int):
                    continue
                address, frames = block.get("address", address), block.get("frames")
                address = address if isinstance(address, int) else 0
                if str(block.get("state", "")).startswith("active") and address not in replay.held:
                    stack = frames if isinstance(frames, (list, tuple)) else ()
                    still.append((size, owner_of([one for one in stack if isinstance(one, Frame)])))
                address += size
        found.append((f"device {device}", replay, still))
    return _owners(found, list(names))


def _line_and_stage(frame: Frame) -> tuple[str | None, str | None]:
    own = None if _LIBRARY.search(frame.filename) else f"{Path(frame.filename).name}:{frame.line} {frame.name}"
    text = f"{frame.filename} {frame.name}"
    return own, next((stage for stage, pattern in _STAGES if pattern.search(text)), None)


def _owners(found: list[tuple[str, _Replay, list[tuple[int, int]]]], names: list[tuple[str, str]]) -> MemoryOwners:
    owners, peaks, timeline = [], [], []
    for device, replay, still in found:
        held, before = replay.at_peak()
        of: dict[int, list[int]] = {}
        for size, owner in [*held.values(), *still]:
            of.setdefault(owner, []).append(size)
        total = sum(map(sum, of.values())) + before
        rows = [(device, *names[owner], len(sizes), sum(sizes)) for owner, sizes in of.items()]
        rows += [(device, OUTSIDE, BEFORE, 0, before)] if before else []
        owners += [(*row, row[-1] / total if total else 0.0) for row in sorted(rows, key=lambda row: -row[-1])]
        peaks.append((device, replay.peak_us, total))
        timeline += [(device, us, held_then + total - replay.peak) for us, held_then in replay.moments]
    return MemoryOwners(
        pd.DataFrame(owners, columns=["device", "stage", "line", "blocks", "bytes", "share"]),
        pd.DataFrame(peaks, columns=["device", "time_us", "bytes"]),
        pd.DataFrame(timeline, columns=["device", "time_us", "bytes"]),
    )


def _of_trace(trace: Trace) -> MemoryOwners:
    memory = trace.memory
    use = np.isfinite(memory.bytes) & np.isfinite(memory.address)
    if not use.any():
        raise TraceError(f"{trace.path}: has no memory events with addresses; record with memory=True")
    host = host_work(trace, RULES)
    around = _event_around(trace, host.start, host.end, host.owner, trace.track[host.rows[host.owner]])
    is_frame = trace.is_category({"python_function"})[host.rows]
    own = nearest(is_frame & ~trace.names_match(LIBRARY_CODE)[host.rows], host.parent)
    op = nearest(trace.is_category({"cpu_op", "operator"})[host.rows], host.parent)
    names: dict[tuple[str, str], int] = {}
    replays: dict[str, _Replay] = {}
    for row in np.flatnonzero(use).tolist():
        size, address = int(memory.bytes[row]), int(memory.address[row])
        replay = replays.setdefault(memory.device[row], _Replay())
        us = float(trace.us(memory.start[row]))
        if size < 0:
            replay.free(address, -size, us)
            continue
        at = int(around[row])
        line, stage = "no event recorded", OUTSIDE
        if at >= 0:
            by = own[at] if own[at] >= 0 else op[at] if op[at] >= 0 else at
            line = trace.names[trace.name[host.rows[by]]][:120]
            stage = OUTSIDE if host.stage[at] < 0 else host.names[host.stage[at]]
        replay.take(address, size, names.setdefault((stage, line), len(names)), us)
    return _owners([(device, replay, []) for device, replay in replays.items()], list(names))


def _event_around(trace: Trace, start: Any, end: Any, owner: Any, track: Any) -> Any:
    """Return for each memory event the host event that its thread was in, [M]; -1 outside all."""
    events = pd.DataFrame({"time": trace.memory.start, "track": trace.memory.track})
    stretches = pd.DataFrame({"time": start, "track": track, "end": end, "owner": owner})
    found = pd.merge_asof(events, stretches.sort_values("time", kind="stable"), on="time", by="track")
    return found["owner"].where(found["end"] >= found["time"], -1).to_numpy(dtype=np.int64)
