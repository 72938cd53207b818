"""Verdicts of a race from its samples alone: FASTER, SLOWER, SAME or UNDECIDED.

A sample is a dict for one block of calls; `tclab.timing._race_blocks` describes it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from math import exp, expm1, inf, log, log1p
from typing import Any

import numpy as np

from tclab._display import Display, Shown
from tclab.timing._statistics import ALPHA, Centre, Series, alpha_of, centre_of, false_discovery

FASTER, SLOWER, SAME, UNDECIDED = "FASTER", "SLOWER", "SAME", "UNDECIDED"
_OPPOSITE = {FASTER: SLOWER, SLOWER: FASTER}
_MIN_INDEPENDENT = 6  # with fewer independent batches, the memory is named as the reason of UNDECIDED
MARGIN = 0.02  # a smaller difference is of no interest, unless another margin is given
MOST_MARGIN = 0.1  # times that differ by more are never called the same because the machine is noisy
# Parts of a race that must agree; one more for each larger budget, which halves what chance can do. With the test at
# half of each budget (`race`) they agree by chance with a probability of at most Σ 2 · 2 · 2⁻⁽⁸⁺ᵏ⁾ = 3.1 %.
PARTS = 8
_MOST_LONGER = 100  # times this race's seconds, beyond which no length is named

Sample = Mapping[str, Any]


@dataclass(frozen=True, repr=False)
class Pair(Shown):
    """The comparison of two arms; what could not be computed is `None`.

    **Arguments:**

    - `a`, `b`: names of the arms.
    - `verdict`: of `a`: FASTER or SLOWER if `decision_interval` lies wholly beyond the margin and `q` is at most
      `alpha`; SAME if it lies wholly within the margin, which noise has not made wider than 10 %; otherwise, or if an
      arm differs from itself, UNDECIDED.
    - `why`: the reason, in words, the largest difference that is excluded, and how long a race would have to be.
    - `ratio`: time of `a` over time of `b`, the centre over rounds; `None` with fewer rounds than parts of a race.
    - `interval`: 95 % interval of `ratio`, which pays for noise with a memory; see `tclab.timing._statistics`.
    - `decision_interval`: decides the verdict: the interval at level `1 - alpha`, and where the centre of any of the
      race's 8 parts lies beyond it, up to that.
    - `alpha`: the allowed probability of a false verdict at this test, a share of the whole race's (0.05).
    - `p`: two-sided p value of equal times.
    - `q`: `p` adjusted over all comparisons of the race (Benjamini-Hochberg).
    - `margin`: the larger of the margin that was asked for, 2 % unless given, and `floor`.
    - `floor`: the A/A floor: the ratio, less 1, that an arm shows against itself.
    - `kept`: rounds that the comparison uses; an incomplete one is left out.
    - `independent`: how many independent measurements would leave the ratio as uncertain as it is, at most 48.
    - `needs_seconds`: about how long a race would have to be to decide; `None` if this one has, or if none would.
    - `failed_control`: that an arm differs from itself, in words; `None` if none does.
    - `processes`: number of processes; what one process shows may be its luck, and `why` says so.
    - `cell`: name of the cell in a race of several.
    """

    a: str
    b: str
    verdict: str
    why: str
    ratio: float | None = None
    interval: tuple[float, float] | None = None
    decision_interval: tuple[float, float] | None = None
    alpha: float = ALPHA
    p: float | None = None
    q: float | None = None
    margin: float = MARGIN
    floor: float | None = None
    kept: int = 0
    independent: float | None = None
    needs_seconds: float | None = None
    failed_control: str | None = None
    processes: int = 0
    cell: str | None = None

    def flipped(self) -> Pair:
        """Return the same comparison with the arms exchanged."""
        ends = [e and (1 / e[1], 1 / e[0]) for e in (self.interval, self.decision_interval)]
        verdict, ratio = _OPPOSITE.get(self.verdict, self.verdict), self.ratio and 1 / self.ratio
        return replace(
            self, a=self.b, b=self.a, verdict=verdict, ratio=ratio, interval=ends[0], decision_interval=ends[1]
        )

    def rescaled(self, scale: Callable[[float], float], why: str) -> Pair:
        """Return the comparison of other times: with `scale` of the ratio, and the verdict of its scaled interval."""
        if self.ratio is None or self.interval is None or self.decision_interval is None:
            return self
        interval, decisive = ((scale(low), scale(high)) for low, high in (self.interval, self.decision_interval))
        verdict = UNDECIDED if self.failed_control else decide(log(decisive[0]), log(decisive[1]), self.margin)
        scaled = replace(self, ratio=scale(self.ratio), interval=interval, decision_interval=decisive)
        return replace(scaled, verdict=verdict, q=None, why=why)

    @property
    def excluded(self) -> float | None:
        """The share above which differences are excluded: 0.031 if `a` takes at most 3.1 % more or less than `b`."""
        ends = self.decision_interval
        return None if ends is None else max(ends[1] - 1, 1 - ends[0])

    @property
    def sentence(self) -> str:
        """The comparison in one line: "a against b: FASTER, a takes 0.523 × the time of b [0.51, 0.54]; …"."""
        return f"{self.a} against {self.b}: {self.outcome}"

    @property
    def ratio_text(self) -> str:
        """The ratio and its 95 % interval as text: "0.523 × the time [0.51, 0.54]"; "no ratio" without one."""
        return "no ratio" if self.ratio is None else f"{self.ratio:.4g} × the time{self._ends}"

    @property
    def _ends(self) -> str:
        return f" [{self.interval[0]:.4g}, {self.interval[1]:.4g}]" if self.interval else ""

    @property
    def outcome(self) -> str:
        """Verdict, ratio and reason as text: "FASTER, a takes 0.523 × the time of b [0.51, 0.54]; beyond ±2 %"."""
        if self.ratio is None:
            return f"{self.verdict}, no ratio; {self.why}"
        return f"{self.verdict}, {self.a} takes {self.ratio:.4g} × the time of {self.b}{self._ends}; {self.why}"

    def _display(self) -> Display:
        return pairs_display([self])


def pairs_display(pairs: Iterable[Pair], *, notes: Iterable[str] = ()) -> Display:
    """Return the table of some comparisons, with their cells where they have any."""
    lines = [
        (" · ".join(filter(None, (pair.cell, f"{pair.a} against {pair.b}"))), pair.verdict, pair.ratio_text, pair.why)
        for pair in pairs
    ]
    return Display("", ("comparison", "verdict", "ratio [95 % interval]", "why"), lines, tuple(notes))


def decide(low: float, high: float, margin: float, *, widest: float = MOST_MARGIN) -> str:
    """Return the verdict of an interval [low, high] of log ratios for a margin (0.02 is 2 %), SAME up to `widest`."""
    edge = log1p(margin)
    if high < -edge:
        return FASTER
    if low > edge:
        return SLOWER
    return SAME if -edge < low and high < edge and margin <= widest else UNDECIDED


def lies(low: float, high: float, margin: float, widest: float = MOST_MARGIN) -> str:
    """Return in words how an interval of log ratios lies to a margin, and which differences it excludes."""
    edge = f"±{100 * margin:.3g}%"
    verdict = decide(low, high, margin, widest=inf)
    words = {SAME: f"lies within {edge}", UNDECIDED: f"reaches across {edge}"}.get(verdict, f"lies beyond {edge}")
    if verdict == SAME and margin > widest:
        words += f", but beyond ±{widest:.0%} noise calls nothing the same"
    return f"{words}; differences above {_about(100 * max(expm1(high), -expm1(low)))}% are excluded"


@dataclass
class _Round:
    """One round of one process."""

    process: int
    i: int
    ended: float = 0.0  # seconds of the budget
    blocks: dict[str, list[float]] = field(default_factory=dict)  # arm → seconds of its two blocks
    position: dict[str, int] = field(default_factory=dict)  # of the first of them

    def has(self, *arms: str) -> bool:
        return all(len(self.blocks.get(arm, ())) == 2 for arm in arms)

    def log_ratio(self, a: str, b: str) -> float:
        return log(sum(self.blocks[a]) / sum(self.blocks[b]))  # of means, which of two are the medians


def _rounds(samples: Iterable[Sample]) -> list[_Round]:
    """Return the rounds of all processes, one process after the other."""
    found: dict[tuple[int, int], _Round] = {}
    for sample in samples:
        place = sample["process"], sample["round"]
        one = found.setdefault(place, _Round(*place))
        one.ended = max(one.ended, sample["spent_seconds"])
        one.blocks.setdefault(sample["arm"], []).append(sample["seconds"])
        one.position.setdefault(sample["arm"], sample["position"])
    return [found[place] for place in sorted(found)]


def _series(rounds: Sequence[_Round], values: Iterable[float], orders: Iterable[int]) -> Series:
    """Return the series of a log ratio of each round, and which order its arms had."""
    seconds, process = zip(*((one.ended, one.process) for one in rounds), strict=True)
    return Series.of(np.array([*values]), np.array(seconds), np.array(process), np.array([*orders]))


def _against_itself(rounds: Sequence[_Round], arm: str) -> Series:
    """Return the log ratios of an arm's two blocks of each round, of which the numerator alternates."""
    logs = [log(one.blocks[arm][0] / one.blocks[arm][1]) for one in rounds]
    odd = [one.i % 2 for one in rounds]
    return _series(rounds, [(-1) ** one * value for one, value in zip(odd, logs, strict=True)], odd)


def floor_of(rounds: Iterable[_Round]) -> float | None:
    """Return the A/A floor: the ratio, less 1, that an arm shows against itself; `None` with too few rounds.

    It compares only blocks in the same position of their round, so that an effect of the position is not taken for
    noise. Each arm gives one comparison for every four of its rounds with the same order: the first and fourth against
    the second and third, which cancels linear drift. The floor is their median.
    """
    differences: list[float] = []
    by_order: dict[tuple[int, str, int], list[float]] = {}
    for one in rounds:
        for arm in filter(one.has, one.blocks):
            by_order.setdefault((one.process, arm, one.position[arm]), []).append(log(sum(one.blocks[arm])))
    for logs in by_order.values():
        fours = np.array(logs[: len(logs) // 4 * 4]).reshape(-1, 4)
        differences += (fours @ [0.5, -0.5, -0.5, 0.5]).tolist()
    return expm1(abs(np.median(differences))) if differences else None


def _interval(series: Series, centre: Centre, alpha: float, parts: int) -> tuple[float, float]:
    """Return the interval of log ratios that decides: the model's, up to the outermost part of the race."""
    (low, high), of_parts = centre.interval(1 - alpha), series.parts(parts)
    return min(low, float(of_parts.min())), max(high, float(of_parts.max()))


def _compared(samples: Sequence[Sample], a: str, b: str, cell: str | None, margin: float) -> Pair:
    """Return the comparison of two arms, before the others are known."""
    every = _rounds(samples)
    rounds = [one for one in every if one.has(a, b)]
    extension = max(sample["extension"] for sample in samples)
    parts, floor = PARTS + extension, floor_of(every)
    pair = Pair(
        a, b, UNDECIDED, f"{len(rounds)} rounds ran, at least {parts} are needed", alpha=alpha_of(extension),
        margin=max(margin, floor or 0.0), floor=floor, kept=len(rounds),
        processes=len({one.process for one in rounds}), cell=cell,
    )  # fmt: skip
    if not rounds:
        return pair
    if len(rounds) < parts:
        needs = 1.5 * parts / len(rounds) * max(one.ended for one in rounds)
        return replace(pair, why=f"{pair.why}: a race of about {_about(needs)} s has them", needs_seconds=needs)
    series = _series(rounds, (one.log_ratio(a, b) for one in rounds), (one.position[a] for one in rounds))
    centre = centre_of(series)
    low, high = _interval(series, centre, pair.alpha, parts)
    widest = max(MOST_MARGIN, margin)
    level, ends = f"{100 * (1 - pair.alpha):.4g}%", centre.interval(0.95)
    words = f"[{exp(low):.4g}, {exp(high):.4g}], the {level} interval with all {parts} parts of the race,"
    pair = replace(
        pair, verdict=decide(low, high, pair.margin, widest=widest),
        why=f"{words} {lies(low, high, pair.margin, widest)}", ratio=exp(centre.quantile(0.5)),
        interval=(exp(ends[0]), exp(ends[1])), decision_interval=(exp(low), exp(high)),
        p=centre.p, independent=centre.independent,
    )  # fmt: skip
    seconds = float(series.seconds[-1])
    if pair.verdict == UNDECIDED:
        return _with_needs(pair, centre.is_of_luck, seconds)
    for arm in (a, b):
        itself = _against_itself(rounds, arm)
        found = centre_of(itself)
        if decide(*_interval(itself, found, pair.alpha, parts), pair.margin) in _OPPOSITE:
            failed = f"the control failed: {arm} takes {exp(found.quantile(0.5)):.4g} × the time of itself"
            return replace(pair, verdict=UNDECIDED, failed_control=failed, why=failed)
    alone = "" if pair.processes > 1 else ", in this process"
    return replace(
        pair, why=f"{pair.why}{alone}, unless noise of one arm lasts longer than {_about(seconds / parts)} s"
    )


def _with_needs(pair: Pair, is_of_luck: bool, seconds: float) -> Pair:
    """Return an undecided comparison with how long a race would have to be.

    The interval of a race that is k times as long is 1/√k as wide, but for the processes' luck. One that just reaches
    the margin decides every other race, so half as much again is asked for.
    """
    assert pair.ratio is not None
    assert pair.decision_interval is not None
    assert pair.independent is not None
    centre, edge, (low, high) = log(pair.ratio), log1p(pair.margin), map(log, pair.decision_interval)
    towards_edge = high - centre if centre < 0 else centre - low
    width = towards_edge if abs(centre) > edge else max(high - centre, centre - low)
    times = (width / max(abs(abs(centre) - edge), 1e-9)) ** 2
    why, needs = pair.why, None
    if pair.independent < _MIN_INDEPENDENT:
        why += f"; too few independent rounds ({pair.kept} rounds count as {pair.independent:.1f}) for this noise"
    if pair.margin > MOST_MARGIN and abs(centre) < edge:
        return replace(pair, why=why)
    if is_of_luck:
        why += f"; the luck of {pair.processes} processes limits it: more of them may decide, more seconds may not"
    elif times > _MOST_LONGER:
        why += f"; a race would have to be more than {_MOST_LONGER} times as long to decide"
    else:
        needs = 1.5 * seconds * max(times, 1.0)
        why += f"; a race of about {_about(needs)} s may decide"
    return replace(pair, why=why, needs_seconds=needs)


def _about(value: float) -> str:
    """Return two digits of a value, without an exponent where it has few."""
    return f"{float(f'{value:.2g}'):g}"


def over_all(pair: Pair, q: float) -> Pair:
    """Return a comparison with its p value over all, by which FASTER and SLOWER must hold, too."""
    if pair.verdict in _OPPOSITE and q > pair.alpha:
        return replace(pair, q=q, verdict=UNDECIDED, why=f"{pair.why}; over all comparisons q = {q:.2g}")
    return replace(pair, q=q)


def verdicts_of(samples: Iterable[Sample], margin: float = MARGIN) -> dict[tuple[str | None, str, str], Pair]:
    """Return (cell, a, b) → comparison of every two arms of every cell, with p values adjusted over all of them.

    **Arguments:**

    - `samples`: those of a race, from `Race.samples` or `read_samples`.
    - `margin`: a share of the time that is no difference worth a verdict: 0.02 is 2 %.
    """
    cells: dict[str | None, list[Sample]] = {}
    for sample in samples:
        cells.setdefault(sample.get("cell"), []).append(sample)
    pairs = [
        _compared(of_cell, a, b, cell, margin)
        for cell, of_cell in cells.items()
        for a, b in combinations(dict.fromkeys(sample["arm"] for sample in of_cell), 2)
    ]
    qs = iter(false_discovery([pair.p for pair in pairs if pair.p is not None]))
    pairs = [pair if pair.p is None else over_all(pair, next(qs)) for pair in pairs]
    return {(pair.cell, pair.a, pair.b): pair for pair in pairs}
