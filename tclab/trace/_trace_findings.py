"""Findings of a run: sentences with their figure, its unit and its place."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pandas as pd

from tclab._format import bytes_text, us_text
from tclab.trace import _intervals as intervals
from tclab.trace._categories import nearest
from tclab.trace._device_work import DeviceWork, Idle
from tclab.trace._events import Trace
from tclab.trace._host_work import HostWork


@dataclass(frozen=True)
class RankWork:
    """One rank's trace with its device work, host work, steps and idle time."""

    trace: Trace
    device: DeviceWork
    host: HostWork
    steps: pd.DataFrame
    idle: Idle | None


NOT_ENOUGH = "Not enough in this trace to say"


class Finding(str):
    """A sentence with its topic, its figure and unit, and the place in the run that it is about."""

    topic: str
    figure: float | None
    unit: str
    place: str

    def __new__(
        cls, sentence: str, topic: str, figure: float | None = None, unit: str = "", place: str = ""
    ) -> "Finding":
        """Return the sentence as a string with these attributes."""
        finding = super().__new__(cls, sentence)
        finding.topic, finding.figure, finding.unit, finding.place = topic, figure, unit, place
        return finding


def not_enough(topic: str, about: str, why: str, place: str) -> Finding:
    """Return the finding that the trace does not show something, and what it would need."""
    return Finding(f"{NOT_ENOUGH} {about} ({place}): {why}.", topic, place=place)


def counted(count: int, noun: str, many: str = "") -> str:
    """Return a count with its noun: `1 step`, `2 steps`."""
    return f"{count} {noun}" if count == 1 else f"{count} {many or noun + 's'}"


def short(name: object) -> str:
    """Return a name cut to 60 characters."""
    text = str(name)
    return text if len(text) <= 60 else text[:57] + "…"


def findings(ranks: list[RankWork], tables: dict[str, pd.DataFrame]) -> list[Finding]:
    """Return all findings of a run: per rank first, then across ranks."""
    found: list[Finding] = []
    for rank in ranks:
        found += _where_time_went(rank, tables["threads"])
        found += device_findings(rank)
        found += _steps(rank)
        found += _optimizer_holds_step(rank)
        found += _left_out(rank)
    found += _syncs(tables["syncs"], ranks)
    found += _copies(tables["copies"], ranks)
    found += _memory(tables["memory"], ranks)
    found += _stragglers(tables["collectives"], ranks)
    return found


def _where_time_went(rank: RankWork, threads: pd.DataFrame) -> Iterator[Finding]:
    place = rank.trace.label
    if rank.host.main is None:
        yield not_enough("host", "where the host's time went", "it has no host events", place)
        return
    thread = "{} {}".format(*rank.trace.tracks[rank.host.main])
    mine = threads[(threads["thread"] == thread) & threads["is_main"].astype(bool)]
    mine = mine[(mine["rank"] == rank.trace.rank) | (mine["rank"].isna() & (rank.trace.rank is None))]
    wall = float(mine["self_us"].sum())
    if wall <= 0:
        return
    top = mine.sort_values("self_us", ascending=False).head(3)
    parts = ", ".join(f"{row.category} {row.share:.1%}" for row in top.itertuples() if float(str(row.share)) > 0)
    yield Finding(
        f"The main thread's {us_text(wall)} went to {parts} (self time, {place}, thread {thread}).",
        "host",
        float(top["share"].iloc[0]),
        "share",
        place,
    )
    unrecorded = float(mine["unrecorded_us"].sum())
    if unrecorded > 0.2 * wall:
        yield Finding(
            f"For {unrecorded / wall:.1%} of the main thread's time no event was recorded ({place}): Python "
            "between operators; record with stacks to see it.",
            "host",
            unrecorded / wall,
            "share",
            place,
        )


def _steps(rank: RankWork) -> Iterator[Finding]:
    place, wall = rank.trace.label, rank.steps["wall_us"]
    if len(wall) == 0:
        why = "it has no ProfilerStep marks; call the profiler's step() after each batch"
        yield not_enough("steps", "how long a step takes", why, place)
        return
    text = f"{counted(len(wall), 'step')}, median {us_text(float(wall.median()))}"
    if len(wall) > 1:
        slowest = rank.steps.iloc[int(wall.argmax())]
        ratio = float(wall.max() / wall.median()) if wall.median() else float("nan")
        text += f"; the slowest, {slowest['step']}, took {us_text(float(wall.max()))}, {ratio:.2f} × the median"
    yield Finding(f"{text} ({place}).", "steps", float(wall.median()), "us", place)


def _optimizer_holds_step(rank: RankWork) -> Iterator[Finding]:
    """Yield a finding if `Optimizer.step` runs a closure: its duration then includes forward and backward."""
    trace, host = rank.trace, rank.host
    is_step = trace.names_match(r"^Optimizer\.step")[host.rows]
    inside = nearest(is_step, host.parent)
    part = np.array([name in ("model_forward", "backward") for name in host.names])[host.category]
    held = np.unique(inside[part & (inside >= 0)])
    if len(held) == 0:
        return
    whole, own = trace.duration[host.rows[held]].sum(), host.self_time[held].sum()
    times = f"{us_text(trace.us(whole))} in all, {us_text(trace.us(own))} of it self time ({trace.label})."
    yield Finding(
        f"{len(held)} of {int(is_step.sum())} Optimizer.step events contain a forward or backward (closures): {times}",
        "optimizer",
        float(trace.us(own)),
        "us",
        trace.label,
    )


def _left_out(rank: RankWork) -> Iterator[Finding]:
    for reason, count in rank.trace.left_out.items():
        place = rank.trace.label
        yield Finding(f"Left out of all figures: {count} {reason} ({place}).", "reading", count, "events", place)
    overhead = rank.trace.is_category({"overhead"})
    if overhead.any():
        spent = float(rank.trace.us(rank.trace.duration[overhead].sum()))
        yield Finding(
            f"The profiler reports {us_text(spent)} of its own overhead ({rank.trace.label}).",
            "profiler",
            spent,
            "us",
            rank.trace.label,
        )
    record = rank.trace.settings["record"]
    ratio = record.get("overhead_ratio") if isinstance(record, dict) else None
    if isinstance(ratio, (int, float)):
        yield Finding(
            f"Profiled steps took {ratio:.2f} × as long as {record.get('unprofiled_steps')} unprofiled ones "
            f"of the same run, median over median ({rank.trace.label}).",
            "profiler",
            float(ratio),
            "ratio",
            rank.trace.label,
        )


def _syncs(syncs: pd.DataFrame, ranks: list[RankWork]) -> Iterator[Finding]:
    for rank in ranks:
        place = rank.trace.label
        if not rank.trace.settings["device_events"]:
            continue
        mine = syncs[_of(syncs, rank)] if len(syncs) else syncs
        if len(mine) == 0:
            yield Finding(f"No call that waits for the device was recorded ({place}).", "syncs", 0, "calls", place)
            continue
        top = mine.iloc[0]
        calls, wait = int(mine["calls"].sum()), float(mine["wait_us"].sum())
        at = f" at {short(top['site'])}" if isinstance(top["site"], str) else ""
        op = f" in {short(top['op'])}" if isinstance(top["op"], str) else ""
        yield Finding(
            f"{counted(calls, 'call')} waited for the device, {us_text(wait)} in all; most in "
            f"{top['call']}{op}{at}: {counted(int(top['calls']), 'call')}, {us_text(float(top['wait_us']))} "
            f"(stage: {top['stage']}, {place}).",
            "syncs",
            wait,
            "us",
            f"{place}{at}",
        )
        if not rank.trace.settings["with_stack"]:
            why = "it was recorded without stacks (with_stack=True)"
            yield not_enough("syncs", "which line waited", why, place)


def _copies(copies: pd.DataFrame, ranks: list[RankWork]) -> Iterator[Finding]:
    for rank in ranks:
        mine = copies[_of(copies, rank)] if len(copies) else copies
        for row in mine.head(2).itertuples():
            size = float(str(row.bytes))
            known = not np.isnan(size)
            volume = f" moved {bytes_text(size)}" if known else " moved data (size not recorded)"
            rate = f" at {row.gb_per_s:.2f} GB/s" if known and float(str(row.time_us)) > 0 else ""
            yield Finding(
                f"{counted(int(str(row.copies)), 'copy', 'copies')} "
                f"{_or(row.direction, 'of unknown direction')}{volume} in "
                f"{us_text(float(str(row.time_us)))}{rate} ({_or(row.memory, 'memory not named')}, each "
                f"{_or(row.size, 'of unknown size')}, "
                f"{rank.trace.label}).",
                "copies",
                size if known else None,
                "bytes",
                rank.trace.label,
            )


def _memory(memory: pd.DataFrame, ranks: list[RankWork]) -> Iterator[Finding]:
    for rank in ranks:
        place = rank.trace.label
        mine = memory[_of(memory, rank)] if len(memory) else memory
        mine = mine[mine["allocated_bytes"].notna()] if len(mine) else mine
        if len(mine) == 0:
            why = "it was recorded without memory (profile_memory=True)"
            yield not_enough("memory", "how much memory was used when", why, place)
            continue
        for device, held in mine.groupby("device"):
            peak = held.iloc[int(held["allocated_bytes"].argmax())]
            growth = float(held["allocated_bytes"].iloc[-1] - held["allocated_bytes"].iloc[0])
            yield Finding(
                f"Memory of {device} peaked at {bytes_text(float(peak['allocated_bytes']))} allocated, "
                f"{us_text(float(peak['time_us']))} into the trace; it ended {bytes_text(abs(growth))} "
                f"{'above' if growth >= 0 else 'below'} where it began ({place}).",
                "memory",
                float(peak["allocated_bytes"]),
                "bytes",
                f"{place}, {device}",
            )


def _stragglers(collectives: pd.DataFrame, ranks: list[RankWork]) -> Iterator[Finding]:
    if len(collectives) == 0:
        return
    if len(ranks) == 1:
        why = "it needs the traces of all ranks in one folder; the shortest time is that of the collective itself"
        yield not_enough("stragglers", "who waited for whom", why, ranks[0].trace.label)
        return
    shared = collectives[collectives["own_us"].notna()]
    if len(shared) == 0:
        why = "no collective was recorded on every rank in the folder"
        yield not_enough("stragglers", "who waited for whom", why, "all ranks")
        return
    wait = shared.groupby("rank")["wait_us"].sum()
    total = float(shared["duration_us"].sum())
    worlds = {rank.trace.settings["world_size"] for rank in ranks} - {None}
    some = (
        f"; only {len(ranks)} of {max(worlds)} ranks are in the folder" if worlds and max(worlds) > len(ranks) else ""
    )
    last = wait.idxmin()
    last_share = shared.loc[shared.groupby(["collective", "index"])["duration_us"].idxmin(), "rank"].eq(last).mean()
    yield Finding(
        f"Of the time in {len(shared) // len(ranks)} shared collectives {float(wait.sum()) / total:.1%} was "
        f"waiting for another rank; rank {last} waited least ({us_text(float(wait.min()))}, the others up to "
        f"{us_text(float(wait.max()))}) and came last in {last_share:.0%} of them{some}.",
        "stragglers",
        float(wait.sum()) / total,
        "share",
        f"rank {last}",
    )


def _or(value: object, otherwise: str) -> str:
    return value if isinstance(value, str) else otherwise


def _of(table: pd.DataFrame, rank: RankWork) -> "pd.Series[bool]":
    return table["rank"].isna() if rank.trace.rank is None else (table["rank"] == rank.trace.rank).fillna(False)


SMALL_KERNEL_US = 10.0
"""A kernel shorter than this costs about as much to launch as to run."""


def device_findings(rank: RankWork) -> Iterator[Finding]:
    """Yield what one rank's device did, or that the trace does not show it."""
    yield from _idle(rank)
    yield from _small_kernels(rank)
    yield from _communication(rank)


def _idle(rank: RankWork) -> Iterator[Finding]:
    trace, place, idle = rank.trace, rank.trace.label, rank.idle
    if idle is None:
        yield not_enough("idle", "whether a device was idle", "it has no device events", place)
        return
    graphs = trace.names_match(r"^(cuda|hip)GraphLaunch")
    if graphs.any():
        replayed = np.isin(trace.correlation[rank.device.rows], trace.correlation[graphs]).any()
        if not replayed:
            why = "its kernels ran in graph replays, which this trace records without kernels"
            yield not_enough("idle", "whether the device was idle", why, place)
            return
    span = int(rank.device.busy.end[-1] - rank.device.busy.start[0])
    gap = span - rank.device.busy.length
    share = gap / span if span else 0.0
    yield Finding(
        f"The device was idle for {share:.1%} of its {us_text(trace.us(span))} ({us_text(trace.us(gap))} in "
        f"{counted(idle.count, 'gap')}, {place}).",
        "idle",
        share,
        "share",
        place,
    )
    if gap == 0:
        return
    total = float(trace.us(gap))
    if idle.late_us is None or idle.launch_us is None or idle.queued_us is None:
        why = "it has no launch calls to match with the kernels"
        yield not_enough("idle", "whether the host launched late", why, place)
    else:
        unknown = 1 - (idle.late_us + idle.launch_us + idle.queued_us) / total
        rest = f"; for {unknown:.0%} no launch was recorded" if unknown >= 0.005 else ""
        yield Finding(
            f"Of the idle time {idle.late_us / total:.0%} passed before the host launched the next work, "
            f"{idle.launch_us / total:.0%} between launch and start, and {idle.queued_us / total:.0%} with "
            f"work already launched{rest} ({place}).",
            "idle",
            idle.late_us / total,
            "share",
            place,
        )
    for row in idle.causes.head(3).itertuples():
        if float(str(row.share)) >= 0.05:
            what = str(row.host_category)
            kind = f"in {what}" if what != "no event recorded" else "where no event was recorded"
            yield Finding(
                f"While the device was idle, the host was {kind} for {row.share:.0%} of the time "
                f"(stage: {row.stage}, {place}).",
                "idle",
                float(str(row.share)),
                "share",
                place,
            )
    waiting = idle.causes[idle.causes["stage"] == "data_loading"]["idle_us"].sum() / total
    if waiting >= 0.01:
        yield Finding(
            f"The device waited for data during {waiting:.1%} of its idle time ({place}).",
            "data",
            float(waiting),
            "share",
            place,
        )
    for row in idle.gaps.head(1).itertuples():
        doing = f"; the host was mostly in {short(row.host_mostly_in)}" if row.host_mostly_in else ""
        length, begin = us_text(float(str(row.gap_us))), us_text(float(str(row.start_us)))
        yield Finding(
            f"The longest gap took {length} from {begin} on, "
            f"between {short(row.after)} and {short(row.before)}{doing} ({place}).",
            "idle",
            float(str(row.gap_us)),
            "us",
            f"{place}, {row.start_us} µs",
        )


def _small_kernels(rank: RankWork) -> Iterator[Finding]:
    rows = rank.device.rows[rank.device.is_kernel]
    if len(rows) == 0:
        return
    duration = rank.trace.us(rank.trace.duration[rows])
    small = duration < SMALL_KERNEL_US
    total = float(duration.sum())
    share = float(small.mean())
    time = f" and {float(duration[small].sum()) / total:.1%} of their time" if total else ""
    yield Finding(
        f"{share:.1%} of the {len(rows)} kernels are shorter than {SMALL_KERNEL_US:.0f} µs{time}; the median "
        f"kernel takes {us_text(float(np.median(duration)))} ({rank.trace.label}).",
        "kernels",
        share,
        "share",
        rank.trace.label,
    )


def _communication(rank: RankWork) -> Iterator[Finding]:
    whole = rank.device.communication.length
    if whole == 0:
        return
    hidden = intervals.overlap(rank.device.communication, rank.device.compute)
    us, place = rank.trace.us, rank.trace.label
    yield Finding(
        f"Collectives ran for {us_text(us(whole))}; {(whole - hidden) / whole:.1%} of it was exposed "
        f"({us_text(us(whole - hidden))} with no other kernel running), the rest overlapped compute "
        f"({place}).",
        "communication",
        (whole - hidden) / whole,
        "share",
        place,
    )
