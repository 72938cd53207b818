"""What to change in a training loop, from where its steps' time went."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING, Any

import numpy as np

from tclab.timing.advice import AT_BEST, MODEL, Advice, Suggestion, ranked
from tclab.timing.environment import usable_cores
from tclab.timing.statistics import FEWEST, Reals, intervals
from tclab.timing.warmup import NOT_STEADY, settled

if TYPE_CHECKING:
    from tclab.timing.communication import Communication
    from tclab.timing.ledger import Ledger
    from tclab.timing.syncs import Syncs

WORTH = 0.05  # of a step: what takes less is not worth a change
_MOST_OTHER = 0.2  # of a step, on no stage: more of it and the stages do not tell enough
_PLACES = 3
_OVERLAP = "let the exchange of gradients overlap: other buckets, or fewer exchanges (no_sync)"
_AS_MUCH = "give every rank as much to do"


@dataclass(frozen=True)
class StepAccount:
    """Where the time of some steps went, as advice is made from it.

    **Arguments:**

    - `of`: what the steps are of, in words.
    - `whole`: seconds of each step. `stages`: stage → seconds in each step, 0 where it had none.
    - `workers`: processes that load, 0 for none; `None` where it is not known. `batch_seconds`: in which one of
      them makes a batch.
    - `cores`: that may be used. `cuda`: the steps ran on a GPU.
    """

    of: str
    whole: Reals
    stages: dict[str, Reals]
    workers: int | None = None
    batch_seconds: float | None = None
    cores: int | None = None
    cuda: bool = False

    def share(self, *names: str) -> tuple[float, tuple[float, float]]:
        """Return the median share of a step that some stages take together, and its 95 % interval over steps."""
        none = np.zeros_like(self.whole)
        shares = np.sum([self.stages.get(name, none) for name in names], axis=0) / self.whole
        return float(np.median(shares)), intervals([shares], [0.95])[0]


def account_of(ledger: Ledger) -> StepAccount:
    """Return the account of a ledger's steps, by the device on CUDA, and of its workers if it knows any."""
    steps: dict[int, dict[str, float]] = {}
    made: dict[str, list[float]] = {}
    timeline = "device" if ledger.cuda else "host"
    for line, number, stage, seconds in ledger.rows():
        if line == timeline:
            steps.setdefault(number, {})[stage] = seconds or 0.0
        elif stage == "batch" and seconds is not None:
            made.setdefault(line, []).append(seconds)
    names = list(dict.fromkeys(stage for found in steps.values() for stage in found))
    every = {name: np.array([found.get(name, 0.0) for found in steps.values()]) for name in names}
    whole = every.pop("step", np.zeros(0))
    workers = sum(line.startswith("worker") for line in made)
    batches = [seconds for own in made.values() for seconds in own]
    return StepAccount(
        f"from {len(whole)} steps of this loop",
        whole,
        every,
        workers if made else None,
        float(np.median(batches)) if batches else None,
        usable_cores(),
        bool(ledger.cuda),
    )


def advise(ledger: Ledger, *, syncs: Syncs | None = None, communication: Communication | None = None) -> Advice:
    """Return what is worth changing in a loop that ran under a ledger, ranked by what it is predicted to gain.

    Most of it is a bound: a stage that is gone altogether gains its share and no more (Amdahl). There is none from
    fewer than 6 steps, from steps that were still changing, or from a ledger that does not close.

    **Arguments:**

    - `ledger`: of steps after warm-up.
    - `syncs`: of one step, from `tclab.timing.syncs`.
    - `communication`: of the same steps, after its `finish()`.
    """
    account = account_of(ledger)
    found: list[Suggestion] = []
    if ledger.queued:
        missing = ["a queued ledger tells of the device alone, not of steps as they run"]
    elif len(account.whole) and not ledger.closed():
        missing = [f"the ledger does not close ({str(ledger).splitlines()[0]})"]
    else:
        found, missing = rules(account)
        if communication is not None and thin(account) is None:
            found += _exchange(account, communication)
    if syncs is not None and syncs.count:
        places = ", ".join(f"{place} ({times} ×)" for place, times in syncs.places.most_common(_PLACES))
        missing.append(waits_words(syncs.count, account.cuda, places))
    return Advice(account.of, ranked(found), tuple(missing))


def waits_words(count: int, cuda: bool, places: str = "") -> str:
    """Return what can be said of host waits whose cost no ledger shows."""
    where = f" at {places}" if places else ""
    if cuda:
        return (
            f"the host waits for the device {count} times a step{where}; a trace (tclab.trace) shows what it costs"
        )
    return f"on a GPU the host would wait {count} times a step{where}; only a run on one can show what it costs"


def thin(account: StepAccount) -> str | None:
    """Return why an account carries no advice, where it carries none."""
    if len(account.whole) < FEWEST:
        return f"{len(account.whole)} steps were timed, at least {FEWEST} are needed"
    found = settled(account.whole.tolist())
    if found.verdict == NOT_STEADY:
        return f"the steps were still changing ({found.why}): warm up longer"
    return None


def rules(account: StepAccount) -> tuple[list[Suggestion], list[str]]:
    """Return what an account suggests, and what it cannot tell."""
    why = thin(account)
    if why is not None:
        return [], [why]
    missing: list[str] = []
    found = _loading(account)
    found += [one for rule in _RULES if (one := rule(account)) is not None]
    other, (low, _) = account.share("other")
    if low > _MOST_OTHER:
        missing.append(f"{other:.0%} of a step is on no stage: put more of the loop into stages")
    inside, (low, _) = account.share("forward", "backward")
    if low > 0.5:
        missing.append(
            f"forward and backward are {inside:.0%} of a step; a ledger does not see into them, tclab.trace does"
        )
    return found, missing


# ---- a rule each


def _loading(account: StepAccount) -> list[Suggestion]:
    """Judge the wait for batches: more workers, if they could not keep up and there is a core for one more."""
    wait, (low, high) = account.share("wait")
    if low < WORTH:
        return []
    whole = float(np.median(account.whole))
    rest = float(np.median(account.whole - account.stages["wait"]))
    waits = f"a step waits for its batch for {wait:.0%} [{low:.0%}, {high:.0%}] of its time"
    make, workers = account.batch_seconds, account.workers
    if make is None or workers is None:
        change = "make batches ahead: more workers, a deeper prefetch, fewer bytes"
        return [_bound(account, change, "wait", waits)]
    wanted = max(1, ceil(make / rest))
    free = None if account.cores is None else account.cores - 1
    told = f"{waits}; a batch is made in {make:.3g} s, and the rest of a step takes {rest:.3g} s"
    if wanted <= workers:
        why = f"{told}, so {workers} could keep up: batches come unevenly, or late"
        return [_bound(account, "prefetch further ahead, and keep the workers between epochs", "wait", why)]
    cheaper = "make a batch cheaper, or carry less in it"
    if free is not None and free <= workers:
        why = f"{told}: {wanted} workers could keep up, and {account.cores} cores have no room for another"
        return [_bound(account, cheaper, "wait", why)]
    given = wanted if free is None else min(wanted, free)
    # a worker's own share of the cores is not in this arithmetic, so it is no interval either
    ratio = max(rest, make / given) / whole
    if ratio > 1 - WORTH:
        why = f"{told}: {given} worker{'s' if given > 1 else ''} on {account.cores} cores would change nothing"
        return [_bound(account, cheaper, "wait", why)]
    change = f"load with {given} worker{'s' if given > 1 else ''} instead of {workers or 'none'}"
    return [Suggestion(change, f"{_capital(told)}.", ratio, None, MODEL, {"workers": given})]


def bound(change: str, why: str, share: float, ends: tuple[float, float], **setting: Any) -> Suggestion:
    """Return what a change is worth at best, that takes a share of a step away altogether.

    **Arguments:**

    - `share`: 0 … 1, and `ends`: its interval.
    """
    low, high = ends
    return Suggestion(
        change, f"{_capital(why)}.", 1 - share, (max(0.0, 1 - high), min(1.0, 1 - low)), AT_BEST, setting
    )


def _bound(account: StepAccount, change: str, stage: str, why: str, **setting: Any) -> Suggestion:
    return bound(change, why, *account.share(stage), **setting)


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _stage(stage: str, change: str, **setting: Any) -> Callable[[StepAccount], Suggestion | None]:
    """Return the rule that a stage may gain its whole share, where that is worth it."""

    def rule(account: StepAccount) -> Suggestion | None:
        share, (low, high) = account.share(stage)
        if low < WORTH:
            return None
        why = f"{stage} is {share:.0%} [{low:.0%}, {high:.0%}] of a step"
        return _bound(account, change, stage, why, **setting)

    return rule


def _transfer(account: StepAccount) -> Suggestion | None:
    if account.cuda:
        return _stage("transfer", "copy the next batch while this one computes", double_buffer=True)(account)
    return _stage("transfer", "send less with a batch")(account)


_RULES = (
    _transfer,
    _stage("mask", "make the masks where batches are loaded, or none at all"),
    _stage("clip", "clip all gradients in one call (foreach), or not at all"),
    _stage("optimizer", "a fused optimizer, or several batches to one of its steps", optimizer="fused"),
    _stage("communication", _OVERLAP),
    _stage("waiting", _AS_MUCH),
    _stage("log", "log every so many steps, and read the figures together"),
)


def _exchange(account: StepAccount, communication: Communication) -> list[Suggestion]:
    """Judge what a `Communication` saw and the ledger has no stage for."""
    frame = communication.frame()
    if frame.empty:
        return []
    waiting = frame["exposed_waiting_seconds"].astype(float)
    found = []
    for stage, seconds, change, words in (
        ("communication", frame["exposed_seconds"] - waiting, _OVERLAP, "the exchange of gradients is exposed for"),
        ("waiting", waiting, _AS_MUCH, "waiting for the slowest rank takes"),
    ):
        known = seconds.dropna().to_numpy(float)
        if len(known) < FEWEST or np.any(account.stages.get(stage, 0)):
            continue
        shares = known[: len(account.whole)] / account.whole[: len(known)]
        (ends,) = intervals([shares], [0.95])
        share = float(np.median(shares))
        if ends[0] >= WORTH:
            why = f"{words} {share:.0%} [{ends[0]:.0%}, {ends[1]:.0%}] of a step"
            found.append(bound(change, why, share, ends))
    return found
