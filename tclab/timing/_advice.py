"""What to change in a training loop: from the shares of its steps to suggestions, with what each would bring at best.

A stage that is gone saves at most its share of the time (Amdahl, AFIPS 1967, 483-485). Where a step waits for its
loader, the workers that would keep up are predicted from what a batch takes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from math import ceil, inf
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np

from tclab._display import Display, Shown, counted, first_of, say, seconds_text
from tclab.timing._environment import usable_cores
from tclab.timing._ledger import Ledger
from tclab.timing._loader_times import LoaderTimes
from tclab.timing._step_means import MIN_OBSERVATIONS, Reals, cycle_of, made_ahead, share_of, steady_state, steps_wait
from tclab.timing._verdict import FASTER, MARGIN, SAME, SLOWER, UNDECIDED, Pair, sentence_of

# the basis of a prediction
MEASURED = "from separate runs"  # both ran, at different times, twice or more
ONCE_EACH = "once each"  # both ran once, which cannot show how much two runs of the same differ
MODEL = "from a model of loading"  # computed from measured parts
AT_BEST = "at best"  # a part's whole time is gone, so no change of it can gain more
_MOST_OTHER = 0.2  # share of a step in no stage above which the stages do not explain it
_MOST_INSIDE = 0.5  # share of a step in forward and backward above which a look inside is worth it
_RACE_SECONDS = 15.0  # least budget of one race
_VERDICTS = (FASTER, None, UNDECIDED, SAME, SLOWER)  # the order of suggestions; None: not raced
# stage → what to change, and the setting that does it, by its usual name
_CHANGES: dict[str, tuple[str, dict[str, Any]]] = {
    "transfer": ("send less with a batch, or copy the next one while this one computes", {}),
    "mask": ("make the masks in the loader, or work without masks", {}),
    "clip": ("clip all gradients in one call (foreach), or not at all", {}),
    "optimizer": ("a fused optimizer, or several batches to one of its steps", {"optimizer": "fused"}),
    "communication": ("let the exchange of gradients overlap: other buckets, or fewer exchanges (no_sync)", {}),
    "rank_wait": ("give every rank as much to do", {}),
    "log": ("log every so many steps, and read the figures together", {}),
}


@dataclass(frozen=True, repr=False)
class Suggestion(Shown):
    """One change that is worth trying.

    **Arguments:**

    - `change`: what to change, in words.
    - `why`: the evidence, in words.
    - `ratio`: predicted time with the change over the time now: of a step, or of what `subject` says; `None` where
      the evidence predicts none.
    - `interval`: 95 % interval of `ratio`; `None` if it has none.
    - `basis`: what the ratio is from: "from separate runs", "once each", "from a model of loading", or "at best", which
      is a bound.
    - `setting`: the name of a setting → its new value; empty if the change is none of settings.
    - `measured`: the change compared with now by a race; `None` before `Advice.measure`.
    - `race`: runs that race, given `budget_seconds`; `None` where only the user can, by `tclab.timing.race`.
    - `subject`: what takes that time: "a step", or "the run".
    """

    change: str
    why: str
    ratio: float | None
    interval: tuple[float, float] | None
    basis: str
    setting: Mapping[str, Any] = field(default_factory=dict)
    measured: Pair | None = None
    race: Callable[..., Pair] | None = field(default=None, repr=False, compare=False)
    subject: str = "a step"

    @property
    def sentence(self) -> str:
        """The change, its predicted time, the evidence and, once tried, the measured time, in one line."""
        ends = "" if self.interval is None else f" [{self.interval[0]:.3g}, {self.interval[1]:.3g}]"
        time = "" if self.ratio is None else f"{self.ratio:.3g}× the time of {self.subject}{ends}"
        said = f"measured {time} (one run each)" if self.basis == ONCE_EACH else f"predicted {time} ({self.basis})"
        measured = "." if self.measured is None else f". Raced: {sentence_of(self.measured)}."
        why = self.why[:1].upper() + self.why[1:].removesuffix(".")
        return f"{self.change}: {said if time else 'no prediction'}. {why}{measured}"

    def _display(self) -> Display:
        return Display(notes=[self.sentence])


@dataclass(frozen=True, repr=False)
class Advice(Shown):
    """Suggestions, the largest predicted gain first and bounds last, or by verdict once measured; `print` shows them.

    **Arguments:**

    - `subject`: the measured workload, in words.
    - `suggestions`: each with its predicted gain and the evidence.
    - `missing`: what the evidence leaves unknown, and what would show it, a sentence each.
    - `where`: the machine of the measurement; `None` for this one.
    - `margin`: share of the time below which nothing is called better.
    - `busy`: that other processes used the processors, which weakens every figure, and what to do; else empty.
    - `unsure`: changes that look faster and are not certain, each with the reason; a race can settle it.
    - `refusal`: why the steps' times allow no advice yet, and what to do; else empty.
    """

    subject: str
    suggestions: tuple[Suggestion, ...]
    missing: tuple[str, ...] = ()
    where: str | None = None
    margin: float = MARGIN
    busy: str = ""
    unsure: tuple[Suggestion, ...] = ()
    refusal: str = ""

    def measure(self, n: int | None = None, *, budget_seconds: float = 60.0, **options: Any) -> Advice:
        """Race the changes against the current setting, in the order of the list, and return the advice with results.

        Then those that are FASTER come first, and those that are SLOWER last. What was unsure is a suggestion once it
        is measured. One whose race fails stays as it is, and `missing` says why.

        **Arguments:**

        - `n`: race only the first `n` that can be; as many as have 15 seconds each by default, one at least.
        - `budget_seconds`: wall time for all of them together; making the arms comes on top.
        - `options`: further arguments of each suggestion's `race`; `progress` is True unless given.
        """
        every, failures = [*self.suggestions, *self.unsure], []
        most = n or max(1, int(budget_seconds // _RACE_SECONDS))
        able = [(i, one.race) for i, one in enumerate(every) if one.race is not None][:most]
        if able:
            say(f"{counted(len(able), 'race')} in {budget_seconds:g} s; making the candidates of each comes on top")
            options = {"budget_seconds": budget_seconds / len(able), "progress": True, **options}
        for i, race in able:
            try:
                every[i] = replace(every[i], measured=race(**options))
            except Exception as error:  # one change must not cost the others' results
                why = (str(error).strip().splitlines() or [type(error).__name__])[0]
                failures.append(f"what {every[i].change!r} gives when it runs: {why}")
        unsure = [one for one in every[len(self.suggestions) :] if one.measured is None]
        suggestions = ranked([one for one in every if one not in unsure])
        return replace(self, suggestions=suggestions, unsure=tuple(unsure), missing=(*self.missing, *failures))

    def _display(self) -> Display:
        reasons: dict[str, list[str]] = {}  # → changes
        for one in self.unsure:
            reasons.setdefault(one.why, []).append(one.change)
        unknown = [f"whether there is a gain from {first_of(changes)}: {why}" for why, changes in reasons.items()]
        unknown += self.missing
        every = (*self.suggestions, *self.unsure)
        if any(one.race for one in every) and all(one.measured is None for one in every):
            unknown.append("whether the changes win a race: call advice.measure(), or add --measure")
        nothing = f"no change is known to save {self.margin:.0%} or more."
        if self.unsure:
            nothing = f"{counted(len(self.unsure), 'change')} may save time; a race decides."
        if self.refusal:
            nothing = f"no advice yet: {self.refusal}."
            unknown += [self.refusal] if self.suggestions else []
        suggestions = [f"{i}. {one.sentence}" for i, one in enumerate(self.suggestions, start=1)]
        notes = [*([self.busy] if self.busy else []), *suggestions, *(f"still open: {text}" for text in unknown)]
        title = f"What to change, {self.subject}:"
        return Display(title if self.suggestions else f"{title} {nothing}", notes=notes)


def ranked(suggestions: list[Suggestion]) -> tuple[Suggestion, ...]:
    """Return suggestions by verdict, FASTER first, and by gain, the largest first; predictions that are bounds last."""

    def place(one: Suggestion) -> tuple[int, bool, float]:
        verdict, ratio = (one.measured.verdict, one.measured.ratio) if one.measured else (None, one.ratio)
        return _VERDICTS.index(verdict), verdict is None and one.basis == AT_BEST, ratio or inf

    return tuple(sorted(suggestions, key=place))


# ---- the evidence


class StepTimes(NamedTuple):
    """The times of some steps, as the evidence for advice; what is not known is `None` or empty."""

    subject: str  # the measured workload, in words
    whole: Reals  # [steps] seconds of each step
    stages: Mapping[str, Reals]  # stage → [steps] seconds in each step, 0 where the step did not have it
    workers: int | None = None  # of the loader
    batch_seconds: float | None = None  # mean time in which a worker makes a batch
    cores: int | None = None  # that this process may use
    cycle: int = 1  # steps after which the loop does the same again; see `tclab.timing._step_means`
    parts: str = ""  # of a batch's making, in words

    def share(self, *names: str) -> tuple[float, tuple[float, float]]:
        """Return the share of the time that these stages take together, and its 95 % interval."""
        zeros = np.zeros_like(self.whole)
        share = share_of(np.sum([self.stages.get(name, zeros) for name in names], axis=0), self.whole, self.cycle)
        low, high = share.interval() or (0.0, 1.0)
        return share.value, (max(0.0, low), min(1.0, high))

    def refusal(self) -> str:
        """Return why there can be no advice from these times; empty if there can."""
        n = len(self.whole)
        waits = self.share("data_wait")[0] if n else 0.0
        waited = f"; {waits:.0%} of their time was waiting for batches" if waits >= MARGIN else ""
        least = max(MIN_OBSERVATIONS, 2 * self.cycle)  # two whole cycles
        if n < least:
            return f"{n} steps were timed, at least {least} are needed{waited}"
        if why := steady_state(self.whole.tolist(), self.cycle).why:
            return f"the steps were not steady ({why}); run more warm-up steps before those timed{waited}"
        return ""


def _step_times(ledger: Ledger, loaders: LoaderTimes | None) -> StepTimes:
    """Return the times of a ledger's steps, by the device's timeline on CUDA, with its workers where known.

    The first step of a pass waits for workers that start, which no cheaper batch would spare: it is left out where
    enough others are left.
    """
    frame = ledger.frame()
    own = frame[frame["timeline"] == ("device" if ledger.cuda else "host")]
    steps = own.pivot(index="step", columns="stage", values="seconds").astype(float).fillna(0.0)
    made, workers, left_out = ledger.batch_timings, ledger.workers, ""
    if loaders is not None and not made:  # batches that carry no times of their own
        passes = [one for one in loaders.passes if one.training]
        made = [batch for one in passes for batch in one.batches]
        workers = max((one.workers for one in passes), default=workers)
    later = steps.drop(index=ledger.begins)
    if workers and len(later) >= max(MIN_OBSERVATIONS, len(steps) / 2):
        left_out = f", without {len(steps) - len(later)} that waited for workers to start"
        steps = later
    stages = {str(name): steps[name].to_numpy() for name in steps}
    whole = stages.pop("step", np.zeros(0))
    subject = f"from {len(whole)} steps of this loop{left_out}"
    make = fmean(one.end_ns - one.begin_ns for one in made) / 1e9 if made else None
    waiting = steps_wait(stages.get("data_wait", np.zeros_like(whole)), whole)
    return StepTimes(subject, whole, stages, workers, make, usable_cores(), cycle_of(workers if waiting else 0))


def _loop_times(loaders: LoaderTimes) -> StepTimes:
    """Return the times of the steps over the DataLoader that was waited for longest, each from a batch to the next.

    The first step of a pass, which waits for workers that start, is left out.
    """
    loops = [passes for passes in loaders.by_loader().values() if any(len(one.batches) > 1 for one in passes)]
    if not loops:
        return StepTimes("from no DataLoader", np.zeros(0), {})
    passes = max(loops, key=lambda passes: sum(one.wait_seconds for one in passes))
    made = [batch for one in passes for batch in one.batches]
    steps = [step for one in passes for step in pairwise(one.batches)]
    whole = np.array([now.arrived_ns - before.arrived_ns for before, now in steps]) / 1e9
    waits = np.array([now.wait_ns for _, now in steps]) / 1e9
    make = fmean(one.end_ns - one.begin_ns for one in made) / 1e9
    collate = fmean(one.stages["collate"] for one in made) / 1e9
    subject, workers = f"from {len(whole)} steps over {passes[0].loader}", passes[0].workers
    parts = f" ({seconds_text(make - collate)} fetch, {seconds_text(collate)} collate)"
    return StepTimes(subject, whole, {"data_wait": waits}, workers, make, usable_cores(), cycle_of(workers), parts)


# ---- the rules


def advise(ledger: Ledger | None = None, *, loaders: LoaderTimes | None = None, margin: float = MARGIN) -> Advice:
    """Return suggestions for a training loop that a ledger timed, by predicted gain.

    Most predictions are bounds: removing a stage gains at most its share of the time (Amdahl's law). There are no
    suggestions from fewer than 6 steps, from steps that were not steady, or from a ledger that does not add up, and
    `refusal` says so; but loaders that started their workers anew are named whatever the steps.

    **Arguments:**

    - `ledger`: a ledger of steps after warm-up. Without one the advice is on the loader alone that was waited for
      longest, by all of its steps, steady or not.
    - `loaders`: what DataLoaders did meanwhile, from `tclab.timing.loader_times`.
    - `margin`: share of the time below which nothing is called better.
    """
    if ledger is None:
        times = _loop_times(loaders or LoaderTimes())
        suggestions, missing, refusal = [*_loading(times, margin)], list[str](), ""
    else:
        times = _step_times(ledger, loaders)
        refusal = times.refusal()
        if len(times.whole) and not ledger.adds_up():
            accounted = ", ".join(f"{line} {share:.1%}" for line, share in ledger.accounted.items())
            refusal = f"the ledger does not add up: its stages account for {accounted}"
        suggestions, missing = ([], []) if refusal else suggestions_from(times, margin)
    if loaders is not None:
        suggestions += _restarts(loaders, margin)
    return Advice(times.subject, ranked(suggestions), tuple(missing), margin=margin, refusal=refusal)


def suggestions_from(times: StepTimes, margin: float = MARGIN) -> tuple[list[Suggestion], list[str]]:
    """Return the suggestions from the times of steps that allow them, and sentences on what they leave unknown."""
    ahead = ""
    if times.workers and times.batch_seconds is not None:
        ahead = made_ahead(times.workers, times.batch_seconds, float(times.whole.mean()))
    suggestions = [] if ahead else [*_loading(times, margin)]
    for stage, (change, setting) in _CHANGES.items():
        suggestions += upper_bound(times, change, f"{stage} is {{}} of a step", stage, margin=margin, **setting)
    missing = [ahead] if ahead else []
    waits, (low, high) = times.share("data_wait")
    if low < margin <= waits and not ahead:
        bounds = f"but steps differ, so it may be {low:.0%} or {high:.0%}: time more steps"
        missing.append(f"what a faster loader would save: a step waits for its batch {waits:.0%} of its time, {bounds}")
    other, (low, _) = times.share("other")
    if low > _MOST_OTHER:
        missing.append(f"{other:.0%} of a step is in no stage: enter stages in more of the loop")
    inside, (low, _) = times.share("forward", "backward")
    if low > _MOST_INSIDE:
        missing.append(f"what takes time in forward and backward ({inside:.0%} of a step): tclab.trace shows it")
    return suggestions, missing


def upper_bound(
    times: StepTimes, change: str, why: str, *stages: str, margin: float = MARGIN, **setting: Any
) -> Iterator[Suggestion]:
    """Yield the change that removes at most these stages, if they surely take the margin; `why` has `{}` for it."""
    share, (low, high) = times.share(*stages)
    if low >= margin:
        text = why.format(f"{share:.0%} [{low:.0%}, {high:.0%}]")
        yield Suggestion(change, f"{text[:1].upper()}{text[1:]}.", 1 - share, (1 - high, 1 - low), AT_BEST, setting)


def _loading(times: StepTimes, margin: float) -> Iterator[Suggestion]:
    """Suggest more workers if they cannot keep up and cores are free for them, or else what spares the wait."""
    waits, (low, _) = times.share("data_wait") if len(times.whole) else (0.0, (0.0, 0.0))
    if low < margin:
        return
    make, workers, whole = times.batch_seconds, times.workers, float(times.whole.mean())
    rest, why = whole * (1 - waits), "a step waits for its batch for {} of its time"
    if make is None or workers is None:
        change = "make batches ahead: more workers, a deeper prefetch, fewer bytes"
        yield from upper_bound(times, change, why, "data_wait", margin=margin)
        return
    enough = max(1, ceil(make / rest))
    more = enough if times.cores is None else min(enough, times.cores - 1)
    each = f", so that {workers} workers give one each {seconds_text(make / workers)}" if workers > 1 else ""
    why += f"; a batch is made in {seconds_text(make)}{times.parts}{each}, "
    why += f"and the rest of a step takes {seconds_text(rest)}: "
    why += f"{counted(enough, 'worker')} could keep up" + f", on {times.cores} cores" * (more < enough)
    change = "make a batch cheaper, or carry less in it"
    if enough <= workers:
        change = "prefetch further ahead, and keep the workers between epochs: batches come unevenly, or late"
    (bound,) = upper_bound(times, change, why, "data_wait", margin=margin)
    # workers share cores with the step, which is not in it, so it has no interval
    ratio = max(rest, make / more) / whole if more > workers else 1.0
    if ratio > 1 - margin:
        yield bound
    else:
        change = f"load with {counted(more, 'worker')} instead of {workers or 'none'}"
        yield replace(bound, change=change, ratio=ratio, interval=None, basis=MODEL, setting={"workers": more})


def _restarts(loaders: LoaderTimes, margin: float) -> Iterator[Suggestion]:
    """Yield for each loader that started its workers anew what keeping them would bring."""
    for name, again in loaders.restarts().items():
        share = sum(one.seconds_saved_if_persistent for one in again) / loaders.seconds
        if share >= margin:
            once = "one DataLoader for all passes, with " if any(one.made_anew for one in again) else ""
            why = f"It started its workers ({again[0].workers}) anew {len(again)} ×, which took {share:.0%} of the run."
            change = f"{once}persistent_workers=True for {name}"
            yield Suggestion(change, why, 1 - share, None, MODEL, subject="the run")
