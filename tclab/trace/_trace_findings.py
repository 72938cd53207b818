"""Findings of a run: sentences with their figure, its unit and its place."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pandas as pd

from tclab._display import bytes_text, counted, us_text
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
    return Finding(f"Not enough in this trace to say {about} ({place}): {why}.", topic, place=place)


def short(name: object) -> str:
    """Return a name cut to 60 characters."""
    text = str(name)
    return text if len(text) <= 60 else text[:57] + "…"


def findings(ranks: list[RankWork], tables: dict[str, pd.DataFrame]) -> list[Finding]:
    """Return all findings of a run: per rank first, then across ranks."""
    found: list[Finding] = []
    for rank in ranks:
        found += _where_time_went(rank, tables["threads"])
        found += _idle(rank)
        found += _small_kernels(rank)
        found += _communication(rank)
        found += _steps(rank)
        found += _optimizer_holds_step(rank)
        found += _left_out(rank)
    for name, of_rank in (("syncs", _syncs), ("copies", _copies), ("memory", _memory)):
        for rank in ranks:
            found += of_rank(_of(tables[name], rank), rank)
    found += _stragglers(tables["collectives"], ranks)
    return found


def _where_time_went(rank: RankWork, threads: pd.DataFrame) -> Iterator[Finding]:
    place = rank.trace.label
    if rank.host.main is None:
        yield not_enough("host", "where the host's time went", "it has no host events", place)
        return
    thread = "{} {}".format(*rank.trace.tracks[rank.host.main])
    mine = _of(threads[(threads["thread"] == thread) & threads["is_main"].astype(bool)], rank)
    wall = float(mine["self_us"].sum())
    if wall <= 0:
        return
    top = mine.sort_values("self_us", ascending=False).head(3)
    parts = ", ".join(f"{row['category']} {row['share']:.1%}" for row in top.to_dict("records") if row["share"] > 0)
    text = f"The main thread's {us_text(wall)} went to {parts} (self time, {place}, process and thread {thread})."
    yield Finding(text, "host", float(top["share"].iloc[0]), "share", place)
    unrecorded = float(mine["unrecorded_us"].sum()) / wall
    if unrecorded > 0.2:
        text = (
            f"For {unrecorded:.1%} of the main thread's time no event was recorded ({place}): Python "
            "between operators; record with stacks to see it."
        )
        yield Finding(text, "host", unrecorded, "share", place)


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
    text = (
        f"{len(held)} of {int(is_step.sum())} Optimizer.step events contain a forward or backward (closures): "
        f"{us_text(trace.us(whole))} in all, {us_text(trace.us(own))} of it self time ({trace.label})."
    )
    yield Finding(text, "optimizer", float(trace.us(own)), "us", trace.label)


def _left_out(rank: RankWork) -> Iterator[Finding]:
    trace, place = rank.trace, rank.trace.label
    for reason, count in trace.left_out.items():
        yield Finding(f"Left out of all figures: {count} {reason} ({place}).", "reading", count, "events", place)
    overhead = trace.is_category({"overhead"})
    if overhead.any():
        spent = float(trace.us(trace.duration[overhead].sum()))
        text = f"The profiler reports {us_text(spent)} of its own overhead ({place})."
        yield Finding(text, "profiler", spent, "us", place)
    record = trace.settings["record"]
    ratio = record.get("overhead_ratio") if isinstance(record, dict) else None
    if isinstance(ratio, (int, float)):
        text = (
            f"Profiled steps took {ratio:.2f} × as long as {record.get('unprofiled_steps')} unprofiled ones "
            f"of the same run, median over median ({place})."
        )
        if ratio < 1:
            text += " A profiler makes no step faster: the others were slower for another reason, often warm-up."
        yield Finding(text, "profiler", float(ratio), "ratio", place)


def _syncs(syncs: pd.DataFrame, rank: RankWork) -> Iterator[Finding]:
    place = rank.trace.label
    if not rank.trace.settings["device_events"]:
        return
    if len(syncs) == 0:
        yield Finding(f"No call that waits for the device was recorded ({place}).", "syncs", 0, "calls", place)
        return
    top = syncs.iloc[0]
    calls, wait = int(syncs["calls"].sum()), float(syncs["wait_us"].sum())
    at = f" at {short(top['site'])}" if isinstance(top["site"], str) else ""
    op = f" in {short(top['op'])}" if isinstance(top["op"], str) else ""
    text = (
        f"{counted(calls, 'call')} waited for the device, {us_text(wait)} in all; most in "
        f"{top['call']}{op}{at}: {counted(int(top['calls']), 'call')}, {us_text(float(top['wait_us']))} "
        f"(stage: {top['stage']}, {place})."
    )
    yield Finding(text, "syncs", wait, "us", f"{place}{at}")
    if not rank.trace.settings["with_stack"]:
        yield not_enough("syncs", "which line waited", "it was recorded without stacks (with_stack=True)", place)


def _copies(copies: pd.DataFrame, rank: RankWork) -> Iterator[Finding]:
    place = rank.trace.label
    for row in copies.head(2).to_dict("records"):
        size = float(row["bytes"])
        known = not np.isnan(size)
        volume = f" moved {bytes_text(size)}" if known else " moved data (size not recorded)"
        rate = f" at {row['gb_per_s']:.2f} GB/s" if known and row["time_us"] > 0 else ""
        text = (
            f"{counted(row['copies'], 'copy', 'copies')} {_or(row['direction'], 'of unknown direction')}{volume} in "
            f"{us_text(row['time_us'])}{rate} ({_or(row['memory'], 'memory not named')}, each "
            f"{_or(row['size'], 'of unknown size')}, {place})."
        )
        yield Finding(text, "copies", size if known else None, "bytes", place)


def _memory(memory: pd.DataFrame, rank: RankWork) -> Iterator[Finding]:
    place = rank.trace.label
    memory = memory[memory["allocated_bytes"].notna()]
    if len(memory) == 0:
        why = "it was recorded without memory (profile_memory=True)"
        yield not_enough("memory", "how much memory was used when", why, place)
    for device, held in memory.groupby("device"):
        peak = held.iloc[int(held["allocated_bytes"].argmax())]
        growth = float(held["allocated_bytes"].iloc[-1] - held["allocated_bytes"].iloc[0])
        text = (
            f"Memory of {device} peaked at {bytes_text(float(peak['allocated_bytes']))} allocated, "
            f"{us_text(float(peak['time_us']))} into the trace; it ended {bytes_text(abs(growth))} "
            f"{'above' if growth >= 0 else 'below'} where it began ({place})."
        )
        yield Finding(text, "memory", float(peak["allocated_bytes"]), "bytes", f"{place}, {device}")


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
    text = (
        f"Of the time in {len(shared) // len(ranks)} shared collectives {float(wait.sum()) / total:.1%} was "
        f"waiting for another rank; rank {last} waited least ({us_text(float(wait.min()))}, the others up to "
        f"{us_text(float(wait.max()))}) and came last in {last_share:.0%} of them{some}."
    )
    yield Finding(text, "stragglers", float(wait.sum()) / total, "share", f"rank {last}")


def _or(value: object, otherwise: str) -> str:
    return value if isinstance(value, str) else otherwise


def _of(table: pd.DataFrame, rank: RankWork) -> pd.DataFrame:
    """Return a rank's rows of a table of all ranks."""
    if len(table) == 0:
        return table
    number = rank.trace.rank
    return table[table["rank"].isna() if number is None else (table["rank"] == number).fillna(False)]


SMALL_KERNEL_US = 10.0
"""A kernel shorter than this costs about as much to launch as to run."""


def _idle(rank: RankWork) -> Iterator[Finding]:
    trace, place, idle = rank.trace, rank.trace.label, rank.idle
    if idle is None:
        yield not_enough("idle", "whether a device was idle", "it has no device events", place)
        return
    graphs = trace.names_match(r"^(cuda|hip)GraphLaunch")
    if graphs.any() and not np.isin(trace.correlation[rank.device.rows], trace.correlation[graphs]).any():
        why = "its kernels ran in graph replays, which this trace records without kernels"
        yield not_enough("idle", "whether the device was idle", why, place)
        return
    span = int(rank.device.busy.end[-1] - rank.device.busy.start[0])
    gap = span - rank.device.busy.length
    share = gap / span if span else 0.0
    text = f"{us_text(trace.us(gap))} in {counted(idle.count, 'gap')}, {place}"
    text = f"The device was idle for {share:.1%} of its {us_text(trace.us(span))} ({text})."
    yield Finding(text, "idle", share, "share", place)
    if gap == 0:
        return
    total = float(trace.us(gap))
    if idle.late_us is None or idle.launch_us is None or idle.queued_us is None:
        why = "it has no launch calls to match with the kernels"
        yield not_enough("idle", "whether the host launched late", why, place)
    else:
        unknown = 1 - (idle.late_us + idle.launch_us + idle.queued_us) / total
        rest = f"; for {unknown:.0%} no launch was recorded" if unknown >= 0.005 else ""
        text = (
            f"Of the idle time {idle.late_us / total:.0%} passed before the host launched the next work, "
            f"{idle.launch_us / total:.0%} between launch and start, and {idle.queued_us / total:.0%} with "
            f"work already launched{rest} ({place})."
        )
        yield Finding(text, "idle", idle.late_us / total, "share", place)
    for row in idle.causes.head(3).to_dict("records"):
        if row["share"] >= 0.05:
            what = row["host_category"]
            kind = f"in {what}" if what != "no event recorded" else "where no event was recorded"
            text = (
                f"While the device was idle, the host was {kind} for {row['share']:.0%} of the time "
                f"(stage: {row['stage']}, {place})."
            )
            yield Finding(text, "idle", row["share"], "share", place)
    waiting = float(idle.causes[idle.causes["stage"] == "data_loading"]["idle_us"].sum() / total)
    if waiting >= 0.01:
        text = f"The device waited for data during {waiting:.1%} of its idle time ({place})."
        yield Finding(text, "data", waiting, "share", place)
    for row in idle.gaps.head(1).to_dict("records"):
        doing = f"; the host was mostly in {short(row['host_mostly_in'])}" if row["host_mostly_in"] else ""
        text = (
            f"The longest gap took {us_text(row['gap_us'])} from {us_text(row['start_us'])} on, "
            f"between {short(row['after'])} and {short(row['before'])}{doing} ({place})."
        )
        yield Finding(text, "idle", row["gap_us"], "us", f"{place}, {row['start_us']} µs")


def _small_kernels(rank: RankWork) -> Iterator[Finding]:
    rows = rank.device.rows[rank.device.is_kernel]
    if len(rows) == 0:
        return
    duration = rank.trace.us(rank.trace.duration[rows])
    small = duration < SMALL_KERNEL_US
    total = float(duration.sum())
    share = float(small.mean())
    time = f" and {float(duration[small].sum()) / total:.1%} of their time" if total else ""
    text = (
        f"{share:.1%} of the {len(rows)} kernels are shorter than {SMALL_KERNEL_US:.0f} µs{time}; the median "
        f"kernel takes {us_text(float(np.median(duration)))} ({rank.trace.label})."
    )
    yield Finding(text, "kernels", share, "share", rank.trace.label)


def _communication(rank: RankWork) -> Iterator[Finding]:
    whole = rank.device.communication.length
    if whole == 0:
        return
    exposed = whole - intervals.overlap(rank.device.communication, rank.device.compute)
    us, place = rank.trace.us, rank.trace.label
    text = (
        f"Collectives ran for {us_text(us(whole))}; {exposed / whole:.1%} of it was exposed "
        f"({us_text(us(exposed))} with no other kernel running), the rest overlapped compute ({place})."
    )
    yield Finding(text, "communication", exposed / whole, "share", place)
