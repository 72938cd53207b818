"""Verdicts of a race from its samples alone: FASTER, SLOWER, SAME or UNDECIDED.

A sample is a dict for one block of calls; `tclab.timing._race_blocks` describes it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
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
      `alpha`; SAME if the interval lies wholly within the margin, and noise has not made the margin wider than 10 %;
      otherwise UNDECIDED, and also if an arm differs from itself.
    - `why`: the reason, in words, the largest difference that is excluded, and how long a race would have to be.
    - `ratio`: time of `a` over time of `b`, the centre over rounds; `None` with fewer rounds than parts of a race.
    - `interval`: 95 % interval of `ratio`, which pays for noise with a memory; see `tclab.timing._statistics`.
    - `decision_interval`: decides the verdict: the interval at level `1 - alpha`, made wider where needed so that it
      holds the centre of each of the race's 8 parts.
    - `alpha`: the allowed probability of a false verdict at this test, a share of the whole race's (0.05).
    - `p`: two-sided p value of equal times.
    - `q`: `p` adjusted over all comparisons of the race (Benjamini-Hochberg).
    - `margin`: the larger of the margin that was asked for, 2 % unless given, and `floor`.
    - `floor`: the A/A floor: the ratio, less 1, that an arm shows against itself.
    - `kept`: rounds that the comparison uses; an incomplete one is left out.
    - `independent`: how many independent measurements would leave the ratio as uncertain as it is, at most 48.
    - `needs_seconds`: about how long a race would have to be to decide; `None` if this one has, or if none would.
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
    processes: int = 0
    cell: str | None = None

    def flipped(self) -> Pair:
        """Return the same comparison with the arms exchanged."""
        ends = [e and (1 / e[1], 1 / e[0]) for e in (self.interval, self.decision_interval)]
        verdict, ratio, why = _OPPOSITE.get(self.verdict, self.verdict), self.ratio and 1 / self.ratio, self.why
        if self.decision_interval and ends[1]:
            for text in (_ends_text, _excluded_text):
                why = why.replace(text(*self.decision_interval), text(*ends[1]))
        return replace(
            self, a=self.b, b=self.a, verdict=verdict, ratio=ratio, why=why, interval=ends[0], decision_interval=ends[1]
        )

    def rescaled(self, factor: float, why: str) -> Pair:
        """Return the comparison of other times: with a multiple of the ratio, and the verdict of its interval.

        It stays UNDECIDED where another reason than the interval made it so.
        """
        if self.ratio is None or self.interval is None or self.decision_interval is None:
            return self
        interval, decisive = ((factor * low, factor * high) for low, high in (self.interval, self.decision_interval))
        low, high = self.decision_interval
        by_interval = decide(log(low), log(high), self.margin, widest=self.margin)
        scaled = decide(log(decisive[0]), log(decisive[1]), self.margin)
        return replace(
            self, verdict=scaled if by_interval == self.verdict else UNDECIDED, why=why, ratio=factor * self.ratio,
            interval=interval, decision_interval=decisive, q=None,
        )  # fmt: skip

    @property
    def excluded(self) -> float | None:
        """The share above which differences are excluded: 0.031 if `a` takes at most 3.1 % more or less than `b`."""
        ends = self.decision_interval
        return None if ends is None else max(ends[1] - 1, 1 - ends[0])

    @property
    def sentence(self) -> str:
        """The comparison in one line: "a against b: FASTER, 0.523 × the time [0.51, 0.54]; …"."""
        return f"{self.a} against {self.b}: {self.outcome}"

    @property
    def outcome(self) -> str:
        """Verdict, ratio and reason as text: "FASTER, 0.523 × the time [0.51, 0.54]; beyond ±2 %"."""
        return f"{self.verdict}, {self.ratio_text}; {self.why}"

    @property
    def floor_text(self) -> str:
        """A/A floor and margin as text: "A/A floor 0.4%, margin ±2.0%"."""
        floor = "not measured" if self.floor is None else f"{self.floor:.1%}"
        return f"A/A floor {floor}, margin ±{self.margin:.1%}"

    @property
    def ratio_text(self) -> str:
        """The ratio and its 95 % interval as text: "0.523 × the time [0.51, 0.54]"; "no ratio" without one."""
        if self.ratio is None:
            return "no ratio"
        ends = f" {_ends_text(*self.interval)}" if self.interval else ""
        return f"{self.ratio:.4g} × the time{ends}"

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
    return f"{words}; {_excluded_text(exp(low), exp(high))}"


def _ends_text(low: float, high: float) -> str:
    return f"[{low:.4g}, {high:.4g}]"


def _excluded_text(low: float, high: float) -> str:
    return f"differences above {_about(100 * max(high - 1, 1 - low))}% are excluded"


Round = dict[str, list[Sample]]  # arm → its two blocks; fewer where an interrupt has ended the round


def _rounds(samples: Iterable[Sample]) -> list[Round]:
    """Return the rounds of all processes, one process after the other."""
    found: dict[tuple[int, int], Round] = {}
    for sample in samples:
        one = found.setdefault((sample["process"], sample["round"]), {})
        one.setdefault(sample["arm"], []).append(sample)
    return [found[place] for place in sorted(found)]


def _series(blocks: Sequence[Sample], values: Sequence[float], orders: Sequence[int]) -> Series:
    """Return the series of a log ratio of each round, given a block of it and which order its arms had."""
    seconds, process = ([block[name] for block in blocks] for name in ("spent_seconds", "process"))
    return Series.of(np.array(values), np.array(seconds), np.array(process), np.array(orders))


def _against_itself(rounds: Sequence[Round], arm: str) -> Series:
    """Return the log ratios of an arm's two blocks of each round; which block is the numerator alternates."""
    first, second = ([one[arm][i] for one in rounds] for i in (0, 1))
    odd = [block["round"] % 2 for block in first]
    logs = [log(a["seconds"] / b["seconds"]) for a, b in zip(first, second, strict=True)]
    return _series(first, [(-1) ** one * value for one, value in zip(odd, logs, strict=True)], odd)


def _total_seconds(one: Round, arm: str) -> float:
    return float(sum(block["seconds"] for block in one[arm]))


def floor_of(rounds: Iterable[Round]) -> float | None:
    """Return the A/A floor: the ratio, less 1, that an arm shows against itself; `None` with too few rounds.

    It compares only blocks in the same position of their round, so that an effect of the position is not taken for
    noise. Each arm gives one comparison for every four of its rounds with the same order: the first and fourth against
    the second and third, which cancels linear drift. The floor is their median.
    """
    differences: list[float] = []
    by_order: dict[tuple[int, str, int], list[float]] = {}
    for one in rounds:
        for arm, blocks in one.items():
            if len(blocks) == 2:
                order = blocks[0]["process"], arm, blocks[0]["position"]
                by_order.setdefault(order, []).append(log(_total_seconds(one, arm)))
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
    rounds = [one for one in every if all(len(one.get(arm, ())) == 2 for arm in (a, b))]
    extension = max(sample["extension"] for sample in samples)
    parts, floor = PARTS + extension, floor_of(every)
    blocks = [one[a][0] for one in rounds]  # one of each round
    pair = Pair(
        a, b, UNDECIDED, f"{len(rounds)} rounds ran, at least {parts} are needed", alpha=alpha_of(extension),
        margin=max(margin, floor or 0.0), floor=floor, kept=len(rounds),
        processes=len({block["process"] for block in blocks}), cell=cell,
    )  # fmt: skip
    if not rounds:
        return pair
    seconds = max(block["spent_seconds"] for block in blocks)
    if len(rounds) < parts:
        needs = 1.5 * parts / len(rounds) * seconds
        return replace(pair, why=f"{pair.why}: a race of about {_about(needs)} s has them", needs_seconds=needs)
    logs = [log(_total_seconds(one, a) / _total_seconds(one, b)) for one in rounds]
    series = _series(blocks, logs, [block["position"] for block in blocks])
    centre = centre_of(series)
    low, high = _interval(series, centre, pair.alpha, parts)
    widest = max(MOST_MARGIN, margin)
    level, ends = f"{100 * (1 - pair.alpha):.4g}%", centre.interval(0.95)
    words = f"{_ends_text(exp(low), exp(high))}, the {level} interval with all {parts} parts of the race,"
    pair = replace(
        pair, verdict=decide(low, high, pair.margin, widest=widest),
        why=f"{words} {lies(low, high, pair.margin, widest)}", ratio=exp(centre.quantile(0.5)),
        interval=(exp(ends[0]), exp(ends[1])), decision_interval=(exp(low), exp(high)),
        p=centre.p, independent=centre.independent,
    )  # fmt: skip
    if pair.verdict == UNDECIDED:
        return _with_needs(pair, centre, low, high, seconds)
    for arm in (a, b):
        itself = _against_itself(rounds, arm)
        found = centre_of(itself)
        if decide(*_interval(itself, found, pair.alpha, parts), pair.margin) in _OPPOSITE:
            failed = f"the control failed: {arm} takes {exp(found.quantile(0.5)):.4g} × the time of itself"
            return replace(pair, verdict=UNDECIDED, why=failed)
    alone = "" if pair.processes > 1 else ", in this process"
    return replace(
        pair, why=f"{pair.why}{alone}, unless noise of one arm lasts longer than {_about(seconds / parts)} s"
    )


def _with_needs(pair: Pair, centre: Centre, low: float, high: float, seconds: float) -> Pair:
    """Return an undecided comparison with how long a race would have to be.

    The interval of a race that is k times as long is 1/√k as wide, but for the processes' luck. One that just reaches
    the margin decides every other race, so half as much again is asked for.
    """
    middle, edge, independent = centre.quantile(0.5), log1p(pair.margin), centre.independent
    towards_edge = high - middle if middle < 0 else middle - low
    width = towards_edge if abs(middle) > edge else max(high - middle, middle - low)
    times = (width / max(abs(abs(middle) - edge), 1e-9)) ** 2
    why, needs = pair.why, None
    if independent < _MIN_INDEPENDENT:
        why += f"; too few independent rounds ({pair.kept} rounds count as {independent:.1f}) for this noise"
    if pair.margin > MOST_MARGIN and abs(middle) < edge:
        return replace(pair, why=why)
    if centre.is_of_luck:
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


def over_all(pairs: Iterable[Pair]) -> list[Pair]:
    """Return comparisons with their p values adjusted over all of them, by which FASTER and SLOWER must hold, too."""
    found = list(pairs)
    qs = iter(false_discovery([pair.p for pair in found if pair.p is not None]))
    return [pair if pair.p is None else _adjusted(pair, next(qs)) for pair in found]


def _adjusted(pair: Pair, q: float) -> Pair:
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
    return {(pair.cell, pair.a, pair.b): pair for pair in over_all(pairs)}
