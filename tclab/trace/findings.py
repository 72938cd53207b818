"""What is wrong with this run, in sentences with their figure and their place."""

from collections.abc import Iterator

import numpy as np
import pandas as pd

from tclab.trace.categories import nearest
from tclab.trace.device_findings import device_findings
from tclab.trace.rank import RankWork
from tclab.trace.words import Finding, counted, not_enough, short, size_of, time_of


def findings(ranks: list[RankWork], tables: dict[str, pd.DataFrame]) -> list[Finding]:
    """All findings of a run: per rank first, then across ranks."""
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
        yield not_enough("host", "where the host's time went", "it holds no host events", place)
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
        f"The main thread's {time_of(wall)} went to {parts} (self time, {place}, thread {thread}).",
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
    text = f"{counted(len(wall), 'step')}, median {time_of(float(wall.median()))}"
    if len(wall) > 1:
        slowest = rank.steps.iloc[int(wall.argmax())]
        ratio = float(wall.max() / wall.median()) if wall.median() else float("nan")
        text += f"; the slowest, {slowest['step']}, took {time_of(float(wall.max()))}, {ratio:.2f} × the median"
    yield Finding(f"{text} ({place}).", "steps", float(wall.median()), "us", place)


def _optimizer_holds_step(rank: RankWork) -> Iterator[Finding]:
    """A closure: `Optimizer.step` around the forward and the backward, whose whole duration means nothing."""
    trace, host = rank.trace, rank.host
    is_step = trace.names_match(r"^Optimizer\.step")[host.rows]
    inside = nearest(is_step, host.parent)
    part = np.array([name in ("model_forward", "backward") for name in host.names])[host.category]
    held = np.unique(inside[part & (inside >= 0)])
    if len(held) == 0:
        return
    whole, own = trace.duration[host.rows[held]].sum(), host.self_time[held].sum()
    times = f"{time_of(trace.us(whole))} in whole, {time_of(trace.us(own))} of their own ({trace.label})."
    yield Finding(
        f"{len(held)} of {int(is_step.sum())} Optimizer.step events hold a forward or a backward "
        f"(a closure): {times}",
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
            f"The profiler reports {time_of(spent)} of its own overhead ({rank.trace.label}).",
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
            f"{counted(calls, 'call')} waited for the device, {time_of(wait)} in all; most in "
            f"{top['call']}{op}{at}: {counted(int(top['calls']), 'call')}, {time_of(float(top['wait_us']))} "
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
            volume = f" moved {size_of(size)}" if known else " moved data (size not recorded)"
            rate = f" at {row.gb_per_s:.2f} GB/s" if known and float(str(row.time_us)) > 0 else ""
            yield Finding(
                f"{counted(int(str(row.copies)), 'copy', 'copies')} "
                f"{_or(row.direction, 'of unknown direction')}{volume} in "
                f"{time_of(float(str(row.time_us)))}{rate} ({_or(row.memory, 'memory not named')}, each "
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
                f"Memory of {device} peaked at {size_of(float(peak['allocated_bytes']))} allocated, "
                f"{time_of(float(peak['time_us']))} into the trace; it ended {size_of(abs(growth))} "
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
        why = "it takes the traces of all ranks in one folder; the shortest one's time is the collective's own"
        yield not_enough("stragglers", "who waited for whom", why, ranks[0].trace.label)
        return
    shared = collectives[collectives["own_us"].notna()]
    if len(shared) == 0:
        why = "no collective was recorded on every rank at hand"
        yield not_enough("stragglers", "who waited for whom", why, "all ranks")
        return
    wait = shared.groupby("rank")["wait_us"].sum()
    total = float(shared["duration_us"].sum())
    worlds = {rank.trace.settings["world_size"] for rank in ranks} - {None}
    some = f"; only {len(ranks)} of {max(worlds)} ranks are at hand" if worlds and max(worlds) > len(ranks) else ""
    last = wait.idxmin()
    last_share = shared.loc[shared.groupby(["collective", "index"])["duration_us"].idxmin(), "rank"].eq(last).mean()
    yield Finding(
        f"Of the time in {len(shared) // len(ranks)} shared collectives {float(wait.sum()) / total:.1%} was "
        f"waiting for another rank; rank {last} waited least ({time_of(float(wait.min()))}, the others up to "
        f"{time_of(float(wait.max()))}) and came last in {last_share:.0%} of them{some}.",
        "stragglers",
        float(wait.sum()) / total,
        "share",
        f"rank {last}",
    )


def _or(said: object, otherwise: str) -> str:
    return said if isinstance(said, str) else otherwise


def _of(table: pd.DataFrame, rank: RankWork) -> "pd.Series[bool]":
    return table["rank"].isna() if rank.trace.rank is None else (table["rank"] == rank.trace.rank).fillna(False)
