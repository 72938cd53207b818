"""Findings of a run: sentences, each with its figure, its unit and its place."""

from collections.abc import Iterator

import numpy as np
import pandas as pd

from tclab._display import bytes_text, counted, us_text
from tclab.trace._categories import OUTSIDE
from tclab.trace._device_work import DeviceWork
from tclab.trace._events import Trace
from tclab.trace._host_work import HostWork
from tclab.trace._idle import Idle
from tclab.trace._rank_work import RankWork

SMALL_KERNEL_US = 10.0
"""A kernel shorter than this costs about as much to launch as to run."""


def _not_enough(about: str, place: str, why: str) -> str:
    """Return the finding that the trace does not show something, and what it would need."""
    return f"Not enough in this trace to say {about} ({place}): {why}."


def short(name: object) -> str:
    """Return a name cut to 60 characters."""
    text = str(name)
    return text if len(text) <= 60 else text[:57] + "…"


def findings(ranks: list[RankWork], collectives: pd.DataFrame) -> list[str]:
    """Return all findings of a run: per rank first, then across ranks.

    **Arguments:**

    - `collectives`: those of all ranks, as `pair_calls` returns them.
    """
    found: list[str] = []
    for rank in ranks:
        if not rank.devices:
            found.append(_not_enough("whether a device was idle", rank.trace.label, "it has no device events"))
        kernels = rank.tables["kernels"]
        for (pid, _), (device, idle) in zip(kernels.groupby("device", sort=False), rank.devices, strict=True):
            found += _busy(rank.trace, device, kernels[kernels["device"] == pid])
            found += [*_kernels(rank.trace, device), *_idle(rank.trace, device, idle)]
        found += [*_steps(rank.trace, rank.tables["steps"]), *_backward(rank.trace, rank.host), *_left_out(rank.trace)]
    for name, of_rank in (("syncs", _syncs), ("copies", _copies)):
        for rank in ranks:
            found += of_rank(rank.trace, rank.tables[name])
    return [*found, *_stragglers([rank.trace for rank in ranks], collectives)]


def _busy(trace: Trace, device: DeviceWork, kernels: pd.DataFrame) -> Iterator[str]:
    """Yield what a device did with its time: by kind and stage, then by kernel and by what launched it."""
    busy = device.times["busy"].length
    share = f", {busy / device.span:.1%} of its span" if device.span else ""
    kinds, in_stages = _largest(kernels, "kind", 4), _largest(kernels[kernels["stage"] != OUTSIDE], "stage", 3)
    by_stage = f"; by stage {', '.join(in_stages)}" if in_stages else ""
    yield f"The device worked for {us_text(trace.us(busy))}{share}: {', '.join(kinds)}{by_stage} ({device.label})."
    top = kernels.groupby("kernel", sort=False).agg({"count": "sum", "time_us": "sum", "share": "sum"})
    named = [
        f"{short(name)} {row['share']:.0%} ({row['count']:.0f} ×, {us_text(row['time_us'])})"
        for name, row in top.nlargest(3, "time_us").iterrows()
    ]
    ops = ", ".join(_largest(kernels, "op", 3))
    yield f"Most of its work: {'; '.join(named)}{f'. Launched by {ops}' if ops else ''} ({device.label})."


def _largest(kernels: pd.DataFrame, by: str, most: int) -> list[str]:
    """Return the shares of a device's work that are largest, each of 1 % or more."""
    shares = kernels.groupby(by)["share"].sum().nlargest(most)
    return [f"{short(name)} {share:.0%}" for name, share in shares.items() if share >= 0.01]


def _idle(trace: Trace, device: DeviceWork, idle: Idle) -> Iterator[str]:
    place = device.label
    busy = device.times["busy"]
    span = device.span
    total = float(trace.us(span - busy.length))
    share = (span - busy.length) / span if span else 0.0
    text = f"{us_text(total)} in {counted(len(busy.start) - 1, 'gap')}, {place}"
    yield f"The device was idle for {share:.1%} of its {us_text(trace.us(span))} ({text})."
    if total == 0:
        return
    if idle.split_us is None:
        why = "it has no launch calls to match with the kernels"
        yield _not_enough("whether the host launched late", place, why)
    else:
        late, launch, queued = (us / total for us in idle.split_us)
        unknown = 1 - (late + launch + queued)
        rest = f"; for {unknown:.0%} no launch was recorded" if unknown >= 0.005 else ""
        yield (
            f"Of the idle time {late:.0%} passed before the host launched the next work, "
            f"{launch:.0%} between launch and start, and {queued:.0%} with "
            f"work already launched{rest} ({place})."
        )
    for row in idle.causes.head(3).to_dict("records"):
        if row["share"] >= 0.05:
            what = row["host_category"]
            kind = f"in {what}" if what != "no event recorded" else "where no event was recorded"
            yield (
                f"While the device was idle, the host was {kind} for {row['share']:.0%} of the time "
                f"(stage: {row['stage']}, {place})."
            )
    waiting = float(idle.causes[idle.causes["stage"] == "data_loading"]["idle_us"].sum() / total)
    if waiting >= 0.01:
        yield f"The device waited for data during {waiting:.1%} of its idle time ({place})."
    for row in idle.gaps.head(1).to_dict("records"):
        doing = f"; the host was mostly in {short(row['host_mostly_in'])}" if row["host_mostly_in"] else ""
        yield (
            f"The longest gap took {us_text(row['gap_us'])} from {us_text(row['start_us'])} on, "
            f"between {short(row['after'])} and {short(row['before'])}{doing} ({place})."
        )


def _kernels(trace: Trace, device: DeviceWork) -> Iterator[str]:
    place = device.label
    duration = trace.us(trace.duration[device.rows[device.is_kernel]])
    if len(duration):
        small, total = duration < SMALL_KERNEL_US, float(duration.sum())
        time = f" and {float(duration[small].sum()) / total:.1%} of their time" if total else ""
        yield (
            f"{small.mean():.1%} of the {len(duration)} kernels are shorter than {SMALL_KERNEL_US:.0f} µs{time}; the "
            f"median kernel takes {us_text(float(np.median(duration)))} ({place})."
        )
    whole, exposed = device.times["communication"].length, device.exposed
    if whole:
        yield (
            f"Collectives ran for {us_text(trace.us(whole))}; {exposed / whole:.1%} of it was exposed "
            f"({us_text(trace.us(exposed))} with no other kernel running), the rest overlapped compute ({place})."
        )


def _steps(trace: Trace, steps: pd.DataFrame) -> Iterator[str]:
    place, cut = trace.label, int((~steps["whole"].astype(bool)).sum())
    if len(steps) == 0:
        why = "it has no ProfilerStep marks; call the profiler's step() after each batch"
        yield _not_enough("how long a step takes", place, why)
        return
    steps = steps[steps["whole"].astype(bool)]
    wall = steps["wall_us"]
    text = f"{counted(len(wall), 'whole step' if cut else 'step')}, median {us_text(float(wall.median()))}"
    if len(wall) > 1:
        slowest = steps.iloc[int(wall.argmax())]
        ratio = float(wall.max() / wall.median()) if wall.median() else float("nan")
        text += f"; the slowest, {slowest['step']}, took {us_text(float(wall.max()))}, {ratio:.2f} × the median"
    yield f"{text} ({place})."


def _backward(trace: Trace, host: HostWork) -> Iterator[str]:
    moved = np.flatnonzero(host.on != host.track)
    if len(moved):
        threads = sorted({str(trace.tracks[track][1]) for track in host.track[moved].tolist()})
        spent = float(trace.us(host.spent()[moved].sum()))
        yield (
            f"The backward pass ran on {counted(len(threads), 'thread')} of autograd ({', '.join(threads)}) for "
            f"{us_text(spent)}, while the main thread waited; it counts there ({trace.label})."
        )


def _left_out(trace: Trace) -> Iterator[str]:
    place = trace.label
    for reason, count in trace.left_out.items():
        yield f"Left out of all figures: {count} {reason} ({place})."
    overhead = trace.is_category({"overhead"})
    if overhead.any():
        spent = float(trace.us(trace.duration[overhead].sum()))
        yield f"The profiler reports {us_text(spent)} of its own overhead ({place})."


def _syncs(trace: Trace, syncs: pd.DataFrame) -> Iterator[str]:
    place = trace.label
    if not trace.settings["device_events"]:
        return
    if len(syncs) == 0:
        yield f"No call that waits for the device was recorded ({place})."
        return
    top = syncs.iloc[0]
    calls, wait = int(syncs["calls"].sum()), float(syncs["wait_us"].sum())
    at = f" at {short(top['site'])}" if isinstance(top["site"], str) else ""
    op = f" in {short(top['op'])}" if isinstance(top["op"], str) else ""
    yield (
        f"{counted(calls, 'call')} waited for the device, {us_text(wait)} in all; most in "
        f"{top['call']}{op}{at}: {counted(int(top['calls']), 'call')}, {us_text(float(top['wait_us']))} "
        f"(stage: {top['stage']}, {place})."
    )
    if not trace.settings["with_stack"]:
        yield _not_enough("which line waited", place, "it was recorded without stacks (with_stack=True)")


def _copies(trace: Trace, copies: pd.DataFrame) -> Iterator[str]:
    unknown = {"direction": "of unknown direction", "memory": "memory not named", "size": "of unknown size"}
    for row in copies.head(2).astype(dict.fromkeys(unknown, object)).fillna(unknown).to_dict("records"):
        volume, rate = " moved data (size not recorded)", ""
        if not np.isnan(row["bytes"]):
            volume = f" moved {bytes_text(row['bytes'])}"
            rate = f" at {row['gb_per_s']:.2f} GB/s" if row["time_us"] > 0 else ""
        yield (
            f"{counted(row['copies'], 'copy', 'copies')} {row['direction']}{volume} in {us_text(row['time_us'])}{rate} "
            f"({row['memory']}, each {row['size']}, {trace.label})."
        )


def _stragglers(traces: list[Trace], collectives: pd.DataFrame) -> Iterator[str]:
    if len(collectives) == 0:
        return
    if len(traces) == 1:
        why = "it needs the traces of all ranks in one folder; the shortest time is that of the collective itself"
        yield _not_enough("who waited for whom", traces[0].label, why)
        return
    shared = collectives[collectives["own_us"].notna()]
    if len(shared) == 0:
        why = "no collective was recorded, and known for the same, on every rank in the folder"
        yield _not_enough("who waited for whom", "all ranks", why)
        return
    wait = shared.groupby("rank")["wait_us"].sum()
    share = float(wait.sum()) / float(shared["duration_us"].sum())
    world = max((trace.settings["world_size"] or 0 for trace in traces), default=0)
    some = f"; only {len(traces)} of {world} ranks are in the folder" if world > len(traces) else ""
    last = wait.idxmin()
    last_share = shared.loc[shared.groupby(["collective", "number"])["duration_us"].idxmin(), "rank"].eq(last).mean()
    yield (
        f"Of the time in {len(shared[['collective', 'number']].drop_duplicates())} shared collectives {share:.1%} was "
        f"waiting for another rank; rank {last} waited least ({us_text(float(wait.min()))}, the others up to "
        f"{us_text(float(wait.max()))}) and came last in {last_share:.0%} of them{some}."
    )
