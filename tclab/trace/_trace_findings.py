"""Findings of a run: sentences, each with its figure, its unit and its place."""

from collections.abc import Iterator

import numpy as np
import pandas as pd

from tclab._display import bytes_text, counted, us_text
from tclab.trace._categories import OUTSIDE
from tclab.trace._device_work import DeviceWork, Idle, RankWork
from tclab.trace._events import US, Trace

# A kernel shorter than this costs about as much to launch as to run.
SMALL_KERNEL_US = 10.0


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
        trace, tables = rank.trace, rank.tables
        if not rank.devices:
            found.append(_not_enough("whether a device was idle", trace.label, "it has no device events"))
        by_device = tables["kernels"].groupby("device", sort=False)
        for (_, kernels), (device, idle) in zip(by_device, rank.devices, strict=True):
            found += [*_busy(device, kernels), *_kernels(trace, device), *_copies(device, kernels)]
            found += _idle(device, idle)
        found += [*_steps(trace, tables["steps"]), *_left_out(trace), *_syncs(trace, tables["syncs"])]
    return [*found, *_stragglers([rank.trace for rank in ranks], collectives)]


def _busy(device: DeviceWork, kernels: pd.DataFrame) -> Iterator[str]:
    """Yield what a device did with its time: by kind and stage, then by kernel and by what launched it."""
    busy = device.times["busy"].length
    share = f", {busy / device.span:.1%} of its span" if device.span else ""
    kinds, in_stages = _largest(kernels, "kind", 4), _largest(kernels, "stage", 3)
    by_stage = f"; by stage {in_stages}" if in_stages else ""
    yield f"The device worked for {us_text(busy / US)}{share}: {kinds}{by_stage} ({device.label})."
    top = kernels.groupby("kernel", sort=False)[["count", "time_us", "share"]].sum().nlargest(3, "time_us")
    named = [f"{short(name)} {share:.0%} ({n} ×, {us_text(us)})" for name, n, us, share in top.itertuples(name=None)]
    ops, unknown = _largest(kernels, "op", 3), kernels["share"][kernels["stage"].isna()].sum()
    launches = f". For {unknown:.0%} of it no launch is known" if unknown >= 0.01 else ""
    yield f"Most of its work: {'; '.join(named)}{f'. Launched by {ops}' if ops else ''}{launches} ({device.label})."


def _largest(kernels: pd.DataFrame, by: str, most: int) -> str:
    """Return the shares of a device's work that are largest, each of 1 % or more; of known stages alone."""
    shares = kernels[kernels[by] != OUTSIDE].groupby(by)["share"].sum().nlargest(most)
    return ", ".join(f"{short(name)} {share:.0%}" for name, share in shares.items() if share >= 0.01)


def _kernels(trace: Trace, device: DeviceWork) -> Iterator[str]:
    took = trace.duration[device.kernels] / US
    if len(took):
        small = took < SMALL_KERNEL_US
        time = f" and {took[small].sum() / took.sum():.1%} of their time" if took.any() else ""
        few = f"{small.mean():.1%} of the {len(took)} kernels are shorter than {SMALL_KERNEL_US:.0f} µs{time}"
        yield f"{few}; the median kernel takes {us_text(np.median(took))} ({device.label})."
    if ran := device.times["communication"].length:
        exposed = f"{device.exposed / ran:.1%} of it was exposed ({us_text(device.exposed / US)} with no other kernel"
        rest = f"running), the rest overlapped compute ({device.label})"
        yield f"Collectives ran for {us_text(ran / US)}; {exposed} {rest}."


def _idle(device: DeviceWork, idle: Idle) -> Iterator[str]:
    place, gaps = device.label, device.times["busy"].gaps
    total, span = gaps.length / US, device.span / US
    text = f"{us_text(total)} in {counted(len(gaps.start), 'gap')}, {place}"
    yield f"The device was idle for {total / (span or 1):.1%} of its {us_text(span)} ({text})."
    if total == 0:
        return
    if idle.split_us is None:
        yield _not_enough("whether the host launched late", place, "no launch call could be matched with a kernel")
    else:
        late, launch, queued = (us / total for us in idle.split_us)
        unknown = 1 - (late + launch + queued)
        rest = f"; for {unknown:.0%} no launch was recorded" if unknown >= 0.005 else ""
        before = f"{late:.0%} passed before the host launched the next work, {launch:.0%} between launch and start"
        yield f"Of the idle time {before}, and {queued:.0%} with work already launched{rest} ({place})."
    for cause in idle.causes[idle.causes["share"] >= 0.05].head(3).to_dict("records"):
        recorded = cause["host_category"] != "no event recorded"
        kind = f"in {cause['host_category']}" if recorded else "where no event was recorded"
        share = f"for {cause['share']:.0%} of the time (stage: {cause['stage']}, {place})"
        yield f"While the device was idle, the host was {kind} {share}."
    waiting = idle.causes[idle.causes["stage"] == "data_loading"]["idle_us"].sum() / total
    if waiting >= 0.01:
        yield f"The device waited for data during {waiting:.1%} of its idle time ({place})."
    gap = idle.gaps.iloc[0]
    doing = f"; the host was mostly in {short(gap['host_mostly_in'])}" if gap["host_mostly_in"] else ""
    between = f"between {short(gap['after'])} and {short(gap['before'])}{doing} ({place})"
    yield f"The longest gap took {us_text(gap['gap_us'])} from {us_text(gap['start_us'])} on, {between}."


def _steps(trace: Trace, steps: pd.DataFrame) -> Iterator[str]:
    if len(steps) == 0:
        why = "it has no ProfilerStep marks; call the profiler's step() after each batch"
        yield _not_enough("how long a step takes", trace.label, why)
        return
    whole = steps[steps["whole"].astype(bool)]
    wall, noun = whole["wall_us"], "step" if len(whole) == len(steps) else "whole step"
    text = f"{counted(len(wall), noun)}, median {us_text(wall.median())}"
    if len(wall) > 1:
        ratio = wall.max() / (wall.median() or np.nan)
        slowest = whole["step"].iloc[int(wall.argmax())]
        text += f"; the slowest, {slowest}, took {us_text(wall.max())}, {ratio:.2f} × the median"
    marks = trace.is_category({"user_annotation"}) & trace.names_match(r"^ProfilerStep")
    if (others := int(marks.sum()) - len(steps)) > 0:
        text += f"; {others} more on other threads, as in a file merged of several ranks, are not counted"
    yield f"{text} ({trace.label})."


def _left_out(trace: Trace) -> Iterator[str]:
    for reason, count in trace.left_out.items():
        yield f"Left out of all figures: {count} {reason} ({trace.label})."
    overhead = trace.is_category({"overhead"})
    if overhead.any():
        us = trace.duration[overhead].sum() / US
        yield f"The profiler reports {us_text(us)} of its own overhead ({trace.label})."


def _syncs(trace: Trace, syncs: pd.DataFrame) -> Iterator[str]:
    if not trace.settings["device_events"]:
        return
    if len(syncs) == 0:
        yield f"No call that waits for the device was recorded ({trace.label})."
        return
    top = syncs.iloc[0]
    around = [f" {word} {short(top[by])}" for word, by in (("in", "op"), ("at", "site")) if isinstance(top[by], str)]
    calls, us = counted(int(syncs["calls"].sum()), "call"), us_text(syncs["wait_us"].sum())
    most = f"{top['call']}{''.join(around)}: {counted(top['calls'], 'call')}, {us_text(top['wait_us'])}"
    yield f"{calls} waited for the device, {us} in all; most in {most} (stage: {top['stage']}, {trace.label})."
    if not trace.settings["with_stack"]:
        yield _not_enough("which line waited", trace.label, "it was recorded without stacks (with_stack=True)")


def _copies(device: DeviceWork, kernels: pd.DataFrame) -> Iterator[str]:
    copies = kernels[kernels["kind"] == "copy"].astype({"size": object}).fillna({"size": "of unknown size"})
    known = {"bytes": lambda values: values.sum(skipna=False)}  # null where any is
    sums = copies.groupby(["kernel", "size"]).agg({"count": "sum", "time_us": "sum", **known})
    for (kernel, each), count, us, size in sums.nlargest(2, "time_us").itertuples(name=None):
        volume, rate = "data (size not recorded)", ""
        if not np.isnan(size):
            volume, rate = bytes_text(size), f" at {size / us / 1e3:.2f} GB/s" if us > 0 else ""
        copied = f"{counted(count, 'copy', 'copies')} moved {volume} in {us_text(us)}{rate}"
        yield f"{copied} ({short(kernel)}, each {each}, {device.label})."


def _stragglers(traces: list[Trace], collectives: pd.DataFrame) -> Iterator[str]:
    if len(collectives) == 0:
        return
    shared = collectives[collectives["own_us"].notna()]
    if len(shared) == 0:
        place, why = "all ranks", "no collective was recorded, and known for the same, on every rank in the folder"
        if len(traces) == 1:
            place, why = traces[0].label, "it needs the traces of all ranks in one folder"
        yield _not_enough("who waited for whom", place, why)
    else:
        wait, pairs = shared.groupby("rank")["wait_us"].sum(), shared.groupby(["collective", "number"])["duration_us"]
        world = max(trace.settings["world_size"] or 0 for trace in traces)
        some = f"; only {len(traces)} of {world} ranks are in the folder" if world > len(traces) else ""
        share, last = wait.sum() / shared["duration_us"].sum(), wait.idxmin()
        came_last = f"came last in {(shared['rank'][pairs.idxmin()] == last).mean():.0%} of them{some}"
        least = f"rank {last} waited least ({us_text(wait.min())}, the others up to {us_text(wait.max())})"
        text = f"Of the time in {len(pairs)} shared collectives {share:.1%} was waiting for another rank"
        yield f"{text}; {least} and {came_last}."
