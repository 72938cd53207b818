"""The rules of `advise`: from the shares of a training loop's steps to suggestions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import ceil
from statistics import fmean
from typing import Any

import numpy as np

from tclab.timing._advice import AT_BEST, MODEL, WORTH, Advice, Suggestion, ranked
from tclab.timing._communication import Communication
from tclab.timing._environment import usable_cores
from tclab.timing._epoch_simulation import simulate
from tclab.timing._host_syncs import Syncs
from tclab.timing._ledger import Ledger
from tclab.timing._loader_pace import LoaderPace
from tclab.timing._loader_starts import start_trial
from tclab.timing._sample_parts import DECODE, VALIDATE
from tclab.timing._statistics import MIN_OBSERVATIONS, Reals
from tclab.timing._step_means import cycle_means, cycle_of, outliers, share_of, steps_wait
from tclab.timing._warmup import NOT_STEADY, steady_state

_MOST_OTHER = 0.2  # share of a step in no stage above which the stages do not explain it
_MOST_MORE = 4  # times the present workers: what is predicted is predicted from these
_PLACES = 3
_SIMULATED = 400  # batches: what comes before the first is little of them
_DEEPER = (2, 4, 8)  # times the present prefetch
_CLOSE = 0.1  # share of a step by which a simulation of the loader as it is may differ from what was seen
_OVERLAP = "let the exchange of gradients overlap: other buckets, or fewer exchanges (no_sync)"
_BALANCE = "give every rank as much to do"


@dataclass(frozen=True)
class StepTimes:
    """The times of some steps, as the evidence for advice; what is not known is `None` or empty."""

    subject: str  # the measured workload, in words
    whole: Reals  # [steps] seconds of each step
    stages: dict[str, Reals]  # stage → [steps] seconds in each step, 0 where the step did not have it
    workers: int | None = None  # of the loader
    batch_seconds: float | None = None  # mean time in which a worker makes a batch
    batch_cpu_seconds: float | None = None  # of which it has a processor
    cores: int | None = None  # that this process may use
    cuda: bool = False  # the steps ran on a GPU
    cycle: int = 1  # steps after which the loop does the same again; see `tclab.timing._step_means`
    made: Sequence[float] = ()  # [batches] seconds of making each, in order
    prefetch: int = 2  # batches that a worker makes ahead

    def share(self, *names: str) -> tuple[float, tuple[float, float]]:
        """Return the share of the time that these stages take together, and its 95 % interval."""
        zeros = np.zeros_like(self.whole)
        share = share_of(np.sum([self.stages.get(name, zeros) for name in names], axis=0), self.whole, self.cycle)
        low, high = share.interval() or (0.0, 1.0)
        return share.value, (max(0.0, low), min(1.0, high))


def step_times_of(ledger: Ledger) -> StepTimes:
    """Return the times of a ledger's steps, by the device's timeline on CUDA, with its workers where known."""
    steps: dict[int, dict[str, float]] = {}
    timeline = "device" if ledger.cuda else "host"
    for line, number, stage, seconds in ledger.rows():
        if line == timeline:
            steps.setdefault(number, {})[stage] = seconds or 0.0
    names = list(dict.fromkeys(stage for stages in steps.values() for stage in stages))
    by_stage = {name: np.array([stages.get(name, 0.0) for stages in steps.values()]) for name in names}
    left_out = ""
    if ledger.workers and "data_wait" in by_stage:
        # the first step of a pass waits for workers that start: no cheaper batch would spare it
        later = ~np.isin(np.array(list(steps)), ledger.begins())
        if later.sum() >= max(MIN_OBSERVATIONS, len(later) / 2):
            by_stage = {name: seconds[later] for name, seconds in by_stage.items()}
            left_out = f", without {int((~later).sum())} that waited for workers to start"
    whole = by_stage.pop("step", np.zeros(0))
    timings = ledger.batch_timings
    made = [(timing.end_ns - timing.begin_ns) / 1e9 for timing in timings]
    cpu = [timing.cpu_ns for timing in timings if timing.cpu_ns is not None]
    waits = by_stage.get("data_wait", np.zeros_like(whole))
    return StepTimes(
        f"from {len(whole)} steps of this loop{left_out}",
        whole,
        by_stage,
        ledger.workers,
        fmean(made) if made else None,
        fmean(cpu) / 1e9 if cpu else None,
        usable_cores(),
        bool(ledger.cuda),
        cycle_of(ledger.workers if steps_wait(waits, whole) else 0),
        made,
        ledger.prefetch_factor or 2,
    )


def advise(ledger: Ledger, *, syncs: Syncs | None = None, communication: Communication | None = None) -> Advice:
    """Return suggestions for a training loop that a ledger timed, by predicted gain.

    Most predictions are bounds: removing a stage gains at most its share of the time (Amdahl's law). There are no
    suggestions from fewer than 6 steps, from steps that were still changing, or from a ledger that does not add up.
    With `Ledger(lines=True)` also: records that are decoded and validated for each sample, and, whatever the steps,
    loaders that started their workers anew, whose gain `measure` tries on passes over the loader.

    **Arguments:**

    - `ledger`: a ledger of steps after warm-up.
    - `syncs`: the host-device synchronisations of one step, from `tclab.timing.syncs`.
    - `communication`: that of the same steps, after `finish()`.
    """
    step_times = step_times_of(ledger)
    suggestions: list[Suggestion] = []
    if ledger.queued:
        missing = ["a queued ledger shows the device alone, not steps as they run"]
    elif len(step_times.whole) and not ledger.adds_up():
        missing = [f"the ledger does not add up ({str(ledger).splitlines()[0]})"]
    else:
        suggestions, missing = suggestions_from(step_times)
        steady = no_advice_reason(step_times) is None
        if communication is not None and steady:
            suggestions += exchange_suggestions(step_times, communication)
        if ledger.samples_lines and steady:
            suggestions += _packed(ledger, step_times)
    if ledger.samples_lines and not ledger.queued:
        suggestions += _restarts(ledger)  # of the loaders' own clock: steps that do not add up leave it as it is
    if syncs is not None and syncs.count:
        places = ", ".join(f"{place} ({times} ×)" for place, times, _ in syncs.ranked()[:_PLACES])
        missing.append(host_sync_text(syncs.count, step_times.cuda, places))
    return Advice(step_times.subject, ranked(suggestions), tuple(missing))


def host_sync_text(count: int, cuda: bool, places: str = "") -> str:
    """Return a sentence on a step's host-device synchronisations, whose cost a ledger does not show."""
    where = f" at {places}" if places else ""
    if cuda:
        return f"the host waits for the device {count} times a step{where}; a trace (tclab.trace) shows what it costs"
    return f"on a GPU the host would wait {count} times a step{where}; only a run on one can show what it costs"


def no_advice_reason(step_times: StepTimes) -> str | None:
    """Return why there can be no advice from these times; `None` if there can."""
    if len(step_times.whole) < MIN_OBSERVATIONS:
        return f"{len(step_times.whole)} steps were timed, at least {MIN_OBSERVATIONS} are needed"
    if len(step_times.whole) < 2 * step_times.cycle:
        return f"{len(step_times.whole)} steps were timed, at least two cycles of {step_times.cycle} are needed"
    state = steady_state(cycle_means(step_times.whole, step_times.cycle).tolist())
    if state.verdict == NOT_STEADY:
        return f"the steps were still changing ({state.why}): warm up longer (a point's warmup; a loop's first steps)"
    return None


def suggestions_from(step_times: StepTimes) -> tuple[list[Suggestion], list[str]]:
    """Return the suggestions from the times of steps, and sentences on what they leave unknown."""
    why = no_advice_reason(step_times)
    if why is not None:
        return [], [why]
    refusal = ""
    if step_times.workers and step_times.batch_seconds is not None:  # steps shorter than their workers give batches
        pace = LoaderPace(step_times.workers, step_times.batch_seconds, float(step_times.whole.mean()), 0.0)
        refusal = pace.impossible()
    missing = [text for text in (outliers(step_times.whole, step_times.cycle), refusal) if text]
    suggestions = [] if refusal else _loading(step_times)
    suggestions += _stages(step_times)
    other, (low, _) = step_times.share("other")
    if low > _MOST_OTHER:
        missing.append(f"{other:.0%} of a step is in no stage: enter stages in more of the loop")
    inside, (low, _) = step_times.share("forward", "backward")
    if low > 0.5:
        missing.append(
            f"what is in forward and backward, {inside:.0%} of a step: tclab.trace divides them, "
            "and of a point tclab.sweeps.inside(point)"
        )
    return suggestions, missing


def _loading(step_times: StepTimes) -> list[Suggestion]:
    """Suggest more workers if they cannot keep up and cores are free for them, or else cheaper batches."""

    def at_best(change: str, why: str) -> list[Suggestion]:
        return [upper_bound(change, why, wait, (low, high))]

    wait, (low, high) = step_times.share("data_wait")
    if low < WORTH:
        return []
    whole = float(step_times.whole.mean())
    rest = whole * (1 - wait)
    waits = f"a step waits for its batch for {wait:.0%} [{low:.0%}, {high:.0%}] of its time"
    make, workers = step_times.batch_seconds, step_times.workers
    cores = step_times.cores
    if workers and make is None and cores is not None and workers >= cores - 1:
        none_free = f"none of {cores} cores is free for another worker, unless these are idle (lines=True tells)"
        return at_best("make a batch cheaper, or carry less in it", f"{waits}; {none_free}")
    if make is None or workers is None:
        return at_best("make batches ahead: more workers, a deeper prefetch, fewer bytes", waits)
    enough = max(1, ceil(make / rest))
    wanted = min(enough, _MOST_MORE * max(workers, 1))
    why = f"{waits}; a batch is made in {make:.3g} s, and the rest of a step takes {rest:.3g} s"
    if enough <= workers:
        why = f"{why}, so {workers} could keep up: batches come unevenly, or late"
        deeper = _deeper_prefetch(step_times, why)
        return [deeper] if deeper else at_best("prefetch further ahead, and keep the workers between epochs", why)
    cheaper = "make a batch cheaper, or carry less in it"
    busy = 1.0 if step_times.batch_cpu_seconds is None else min(1.0, step_times.batch_cpu_seconds / make)
    room = wanted if step_times.cores is None or not busy else int((step_times.cores - 1) / busy)
    if room <= workers:
        none_free = f"none of {step_times.cores} cores is free for another"
        return at_best(cheaper, f"{why}: {enough} workers could keep up, and {none_free}")
    affordable = min(wanted, room)
    more = f"{affordable} worker{'s' if affordable > 1 else ''}"
    # this ignores that workers share cores with the step, so it has no interval
    ratio = max(rest, make / affordable) / whole
    if ratio > 1 - WORTH:
        return at_best(cheaper, f"{why}: {more} on {step_times.cores} cores would change nothing")
    if affordable < enough:
        why = f"{why}; {enough} workers could keep up"
    change = f"load with {more} instead of {workers or 'none'}"
    return [Suggestion(change, f"{_capital(why)}.", ratio, None, MODEL, {"workers": affordable})]


def _deeper_prefetch(step_times: StepTimes, why: str) -> Suggestion | None:
    """Return the shallowest prefetch that gains what the deepest does, by simulation of the batches that were made.

    `None` if none gains, and where a simulation of the present one does not give the steps that were seen.
    """
    number = min(len(step_times.made), len(step_times.whole))
    if not step_times.workers or number < MIN_OBSERVATIONS:
        return None
    times = ceil(_SIMULATED / number)
    load = [*step_times.made[:number]] * times
    rest = (step_times.whole - step_times.stages["data_wait"])[:number].tolist() * times

    def pace(ahead: int) -> float:
        return simulate(load, rest, workers=step_times.workers or 1, prefetch_factor=ahead) / len(load)

    now = pace(step_times.prefetch)
    if abs(now / float(step_times.whole.mean()) - 1) > _CLOSE:
        return None
    paces = {step_times.prefetch * more: pace(step_times.prefetch * more) for more in _DEEPER}
    ahead = next(ahead for ahead, seconds in paces.items() if seconds <= (1 + WORTH) * min(paces.values()))
    if paces[ahead] > (1 - WORTH) * now:
        return None
    change = f"prefetch_factor {ahead} in place of {step_times.prefetch}"
    why = f"{_capital(why)}. A simulation of the batches as they were made has the present steps within {_CLOSE:.0%}."
    return Suggestion(change, why, paces[ahead] / now, None, MODEL, {"loader": {"prefetch_factor": ahead}})


def _restarts(ledger: Ledger) -> Iterator[Suggestion]:
    """Yield for each loader that started its workers anew what keeping them would bring."""
    whole, loaders = ledger.epoch.whole_seconds, ledger.loaders
    for number in dict.fromkeys(one.loader for one in loaders.passes):
        again = loaders.restarts(number)
        share = sum(one.seconds_saved_if_persistent for one in again) / whole if again else 0.0
        if share < WORTH:
            continue
        once = "one DataLoader for all passes, with " if again[-1].objects > 1 else ""
        yield Suggestion(
            f"{once}persistent_workers=True for the loader at {again[0].place}",
            f"It started its workers ({again[0].workers}) anew {len(again)} ×, which took {share:.0%} of the run.",
            1 - share,
            None,
            MODEL,
            race=start_trial(ledger.loader(number), len(again) / whole),
            subject="the run",
        )


def _packed(ledger: Ledger, step_times: StepTimes) -> Iterator[Suggestion]:
    """Yield what it would bring if samples were neither decoded nor validated: records packed once, as arrays."""
    parts = ledger.samples.parts()
    sample = sum(parts.values())
    wait, (low, _) = step_times.share("data_wait")
    if low < WORTH or not sample or step_times.batch_seconds is None:
        return
    share = (parts[DECODE] + parts[VALIDATE]) / sample
    whole = float(step_times.whole.mean())
    make, rest, workers = step_times.batch_seconds, whole * (1 - wait), step_times.workers
    packed = make * (1 - share)
    # of what batches take, not of the waits that were seen: those of workers that start would be there
    saved = max(rest, make / workers) - max(rest, packed / workers) if workers else make - packed
    ratio = max(rest, whole - saved) / whole
    if ratio <= 1 - WORTH:
        why = (
            f"Decoding and validating are {share:.0%} of the {sample:.3g} s of a sample, and a step waits for its "
            f"batch for {wait:.0%} of its time; reading what was packed is not in this."
        )
        yield Suggestion("pack the records once, as arrays, and read those", why, ratio, None, AT_BEST)


def upper_bound(change: str, why: str, share: float, ends: tuple[float, float], **setting: Any) -> Suggestion:
    """Return the suggestion of a change that removes at most a share of a step; `ends` is its 95 % interval."""
    low, high = ends
    return Suggestion(change, f"{_capital(why)}.", 1 - share, (max(0.0, 1 - high), min(1.0, 1 - low)), AT_BEST, setting)


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


# stage → what to change, and the field of a point that does it
_CHANGES: dict[str, tuple[str, dict[str, Any]]] = {
    "transfer": ("send less with a batch", {}),
    "mask": ("make the masks in the loader, or use a strategy without masks", {}),
    "clip": ("clip all gradients in one call (foreach), or not at all", {}),
    "optimizer": ("a fused optimizer, or several batches to one of its steps", {"optimizer": "fused"}),
    "communication": (_OVERLAP, {}),
    "rank_wait": (_BALANCE, {}),
    "log": ("log every so many steps, and read the figures together", {}),
}
_CHANGES_ON_CUDA = {**_CHANGES, "transfer": ("copy the next batch while this one computes, on a stream of its own", {})}


def _stages(step_times: StepTimes) -> Iterator[Suggestion]:
    """Yield a change for each stage that takes at least `WORTH` of a step."""
    for stage, (change, setting) in (_CHANGES_ON_CUDA if step_times.cuda else _CHANGES).items():
        share, (low, high) = step_times.share(stage)
        if low >= WORTH:
            why = f"{stage} is {share:.0%} [{low:.0%}, {high:.0%}] of a step"
            yield upper_bound(change, why, share, (low, high), **setting)


def exchange_suggestions(step_times: StepTimes, communication: Communication) -> list[Suggestion]:
    """Return suggestions from a `Communication`'s exposed seconds, for the stages that the ledger does not have."""
    frame = communication.frame()
    if frame.empty:
        return []
    waiting = frame["exposed_rank_wait_seconds"].astype(float)
    suggestions = []
    for stage, seconds, change, text in (
        ("communication", frame["exposed_seconds"] - waiting, _OVERLAP, "the exchange of gradients is exposed for"),
        ("rank_wait", waiting, _BALANCE, "waiting for the slowest rank takes"),
    ):
        known = seconds.dropna().to_numpy(float)
        if len(known) < MIN_OBSERVATIONS or np.any(step_times.stages.get(stage, 0)):
            continue
        steps = min(len(known), len(step_times.whole))
        exposed = replace(step_times, whole=step_times.whole[:steps], stages={stage: np.asarray(known[:steps])})
        share, ends = exposed.share(stage)
        if ends[0] >= WORTH:
            why = f"{text} {share:.0%} [{ends[0]:.0%}, {ends[1]:.0%}] of a step"
            suggestions.append(upper_bound(change, why, share, ends))
    return suggestions
