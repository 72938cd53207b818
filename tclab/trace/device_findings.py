"""What is wrong on the device: idle and why, small kernels, exposed communication."""

from collections.abc import Iterator

import numpy as np

from tclab.trace import intervals
from tclab.trace.rank import RankWork
from tclab.trace.words import Finding, counted, not_enough, short, time_of

SMALL_KERNEL_US = 10.0
"""A kernel shorter than this costs about as much to launch as to run."""


def device_findings(rank: RankWork) -> Iterator[Finding]:
    """What one rank's device did, or that the trace cannot say."""
    yield from _idle(rank)
    yield from _small_kernels(rank)
    yield from _communication(rank)


def _idle(rank: RankWork) -> Iterator[Finding]:
    trace, place, idle = rank.trace, rank.trace.label, rank.idle
    if idle is None:
        yield not_enough("idle", "whether a device was idle", "it holds no device events", place)
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
        f"The device was idle for {share:.1%} of its {time_of(trace.us(span))} ({time_of(trace.us(gap))} in "
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
        why = "it holds no launch calls to join with the kernels"
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
                f"While the device stood idle, the host was {kind} for {row.share:.0%} of the time "
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
        length, begin = time_of(float(str(row.gap_us))), time_of(float(str(row.start_us)))
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
        f"kernel takes {time_of(float(np.median(duration)))} ({rank.trace.label}).",
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
        f"Collectives ran for {time_of(us(whole))}; {(whole - hidden) / whole:.1%} of it was exposed "
        f"({time_of(us(whole - hidden))} with no other kernel running), the rest overlapped compute "
        f"({place}).",
        "communication",
        (whole - hidden) / whole,
        "share",
        place,
    )
