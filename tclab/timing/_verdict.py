"""Verdicts of a race from its samples alone: FASTER, SLOWER, SAME or UNDECIDED.

A sample is a dict for one block of calls; `tclab.timing._race_blocks` describes it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from math import inf, log
from typing import Any

import numpy as np

from tclab._display import Display, Shown
from tclab.timing._noise_model import MIN_INDEPENDENT, Series, centre_of
from tclab.timing._statistics import ALPHA, MIN_OBSERVATIONS, alpha_of, false_discovery

FASTER, SLOWER, SAME, UNDECIDED = "FASTER", "SLOWER", "SAME", "UNDECIDED"
_OPPOSITE = {FASTER: SLOWER, SLOWER: FASTER}
MARGIN = 0.02  # a smaller difference is of no interest, unless another margin is given
LEAST_MARGIN = 0.01  # a difference below 1 % is never claimed
MOST_MARGIN = 0.1  # times that differ by more are never called the same because the machine is noisy

Sample = Mapping[str, Any]


@dataclass(frozen=True)
class Spread:
    """The distribution of one arm's time over its blocks in the race, in seconds a call.

    `least_seconds` is the least disturbed block; arms are not ranked by it.
    """

    blocks: int
    median_seconds: float
    q1_seconds: float
    q3_seconds: float
    p5_seconds: float
    p95_seconds: float
    least_seconds: float


@dataclass(frozen=True, repr=False)
class Pair(Shown):
    """The comparison of two arms; what could not be computed is `None`.

    **Arguments:**

    - `a`, `b`: names of the arms.
    - `verdict`: of `a`: FASTER or SLOWER if `decision_interval` lies wholly beyond the margin and `q` is at most
      `alpha`; SAME if it lies wholly within the margin, which noise has not made wider than 10 %; otherwise, or if an
      arm differs from itself, UNDECIDED.
    - `why`: the reason, in words.
    - `ratio`: time of `a` over time of `b`, the centre over rounds; `None` with fewer than 6 rounds.
    - `interval`: 95 % interval of `ratio`, which pays for noise with a memory; see `tclab.timing._noise_model`.
    - `decision_interval`: the wider interval, at level `1 - alpha`, that decides the verdict.
    - `alpha`: the allowed probability of a false verdict at this test, a share of the whole race's (0.05).
    - `p`: two-sided p value of equal times.
    - `q`: `p` adjusted over all comparisons of the race (Benjamini-Hochberg).
    - `margin`: the larger of the margin that was asked for, 2 % unless given, and `floor`.
    - `floor`: the A/A floor: the ratio, less 1, that an arm shows against itself.
    - `kept`: rounds that the comparison uses.
    - `dropped`: rounds that are incomplete.
    - `independent`: how many independent measurements would leave the ratio as uncertain as it is, at most 48.
    - `failed_control`: that an arm differs from itself, in words; `None` if none does.
    - `processes`: number of processes; what one process shows may be its luck, and `why` says so.
    - `of_a`, `of_b`: the distribution of each arm's time.
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
    dropped: int = 0
    independent: float | None = None
    failed_control: str | None = None
    processes: int = 0
    of_a: Spread | None = None
    of_b: Spread | None = None
    cell: str | None = None

    def flipped(self) -> Pair:
        """Return the same comparison with the arms exchanged."""
        ends = [e and (1 / e[1], 1 / e[0]) for e in (self.interval, self.decision_interval)]
        return replace(
            self,
            a=self.b,
            b=self.a,
            verdict=_OPPOSITE.get(self.verdict, self.verdict),
            ratio=None if self.ratio is None else 1 / self.ratio,
            interval=ends[0],
            decision_interval=ends[1],
            of_a=self.of_b,
            of_b=self.of_a,
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
    def needs_rounds(self) -> bool:
        """Whether more rounds could decide."""
        across = self.decision_interval is not None and self.failed_control is None
        return self.verdict == UNDECIDED and (across or self.kept < MIN_OBSERVATIONS)

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
        """Verdict, ratio and reason as text: "FASTER, a takes 0.523 × the time of b [0.51, 0.54]; beyond ±1 %"."""
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
    """Return the verdict of an interval [low, high] of log ratios for a margin (0.01 is 1 %), SAME up to `widest`."""
    edge = float(np.log1p(margin))
    if high < -edge:
        return FASTER
    if low > edge:
        return SLOWER
    return SAME if -edge < low and high < edge and margin <= widest else UNDECIDED


def undecided(low: float, high: float, margin: float, edge: str) -> str:
    """Return in words how an interval that decides nothing lies to a margin, whose text is `edge`."""
    if decide(low, high, margin, widest=inf) == SAME:
        return f"lies within {edge}, but beyond ±{MOST_MARGIN:.0%} noise calls nothing the same"
    return f"reaches across {edge}"


def _spread(samples: Iterable[Sample], arm: str) -> Spread | None:
    seconds = [s["seconds"] for s in samples if s["arm"] == arm and s["phase"] == "race"]
    if not seconds:
        return None
    p5, q1, median, q3, p95 = np.quantile(seconds, [0.05, 0.25, 0.5, 0.75, 0.95]).tolist()
    return Spread(len(seconds), median, q1, q3, p5, p95, min(seconds))


Rounds = dict[tuple[int, int], dict[str, list[Sample]]]


def _rounds(samples: Iterable[Sample], phase: str, key: str) -> Rounds:
    """Return (process, round) → arm or role → its blocks, in order."""
    rounds: Rounds = {}
    for sample in samples:
        if sample["phase"] == phase:
            blocks = rounds.setdefault((sample["process"], sample["round"]), {})
            blocks.setdefault(sample[key], []).append(sample)
    return dict(sorted(rounds.items()))


def _by_process(rounds: Rounds) -> Iterable[tuple[int, list[dict[str, list[Sample]]]]]:
    by_process: dict[int, list[dict[str, list[Sample]]]] = {}
    for (process, _), blocks in rounds.items():
        by_process.setdefault(process, []).append(blocks)
    return by_process.items()


def _log_median(blocks: Mapping[str, list[Sample]], arm: str) -> float:
    first, second = (sample["seconds"] for sample in blocks[arm])
    return log((first + second) / 2)  # the median of two


def _log_ratio(blocks: Mapping[str, list[Sample]], a: str, b: str) -> float | None:
    """Return the log ratio of the arms' medians over a round's blocks; `None` for an incomplete round."""
    if len(blocks.get(a, ())) != 2 or len(blocks.get(b, ())) != 2:
        return None
    return _log_median(blocks, a) - _log_median(blocks, b)


def _series(samples: Sequence[Sample], a: str, b: str) -> tuple[list[Series], dict[str, list[Series]], int]:
    """Return the log ratios of each process, each arm's against itself, and the number of incomplete rounds.

    An arm's two blocks of a round make its comparison with itself; which of them is the numerator alternates.
    """
    found: dict[str, dict[int, list[tuple[float, float, int]]]] = {"": {}, a: {}, b: {}}
    broken = 0
    for (process, number), blocks in _rounds(samples, "race", "arm").items():
        ratio = _log_ratio(blocks, a, b)
        if ratio is None:
            broken += 1
            continue
        own = [*blocks[a], *blocks[b]]
        when, order = max(s["spent_seconds"] for s in own), min(s["position"] for s in blocks[a])
        found[""].setdefault(process, []).append((ratio, when, order))
        for arm in (a, b):
            first, second = (s["seconds"] for s in blocks[arm])
            found[arm].setdefault(process, []).append(((-1) ** number * log(first / second), when, number % 2))
    made = {
        key: [
            Series(np.array(values), np.array(seconds), orders)
            for values, seconds, orders in (zip(*rounds, strict=True) for rounds in of.values())
        ]
        for key, of in found.items()
    }
    return made.pop(""), made, broken


def floor_of(samples: Sequence[Sample]) -> float | None:
    """Return the A/A floor: the ratio, less 1, that an arm shows against itself; `None` if nothing ran.

    It compares only blocks in the same position of their round, so that an effect of the position is not taken for
    noise, and takes the median over two kinds of comparison. Before the race the first arm runs against itself: two
    adjacent rounds give one comparison. Within the race each arm gives one comparison for every four of its rounds with
    the same order: the first and fourth against the second and third, which cancels linear drift.
    """
    differences: list[float] = []
    for _, rounds in _by_process(_rounds(samples, "floor", "role")):
        ratios = [r for r in (_log_ratio(blocks, "x", "y") for blocks in rounds) if r is not None]
        differences += [(x + y) / 2 for x, y in zip(ratios[::2], ratios[1::2], strict=False)]
    for _, rounds in _by_process(_rounds(samples, "race", "arm")):
        arms = list(dict.fromkeys(arm for blocks in rounds for arm in blocks))
        for arm in arms:
            by_place: dict[int, list[float]] = {}
            for blocks in rounds:
                if len(blocks.get(arm, ())) == 2:
                    place = min(sample["position"] for sample in blocks[arm])
                    by_place.setdefault(place, []).append(_log_median(blocks, arm))
            for logs in by_place.values():
                fours = np.array(logs[: len(logs) // 4 * 4]).reshape(-1, 4)
                differences += ((fours[:, 0] + fours[:, 3] - fours[:, 1] - fours[:, 2]) / 2).tolist()
    return float(np.expm1(abs(np.median(differences)))) if differences else None


def _compared(samples: Sequence[Sample], a: str, b: str, cell: str | None, margin: float) -> Pair:
    series, controls, broken = _series(samples, a, b)
    kept = sum(len(one.values) for one in series)
    floor = floor_of(samples)
    extension = max((s["extension"] for s in samples if s["phase"] == "race"), default=0)
    pair = Pair(
        a,
        b,
        UNDECIDED,
        "",
        alpha=alpha_of(extension),
        margin=max(margin, floor or 0.0),
        floor=floor,
        kept=kept,
        dropped=broken,
        processes=len(series),
        of_a=_spread(samples, a),
        of_b=_spread(samples, b),
        cell=cell,
    )
    if kept < MIN_OBSERVATIONS:
        return replace(pair, why=f"{kept} rounds ran, at least {MIN_OBSERVATIONS} are needed")
    centre = centre_of(series)
    ends = [centre.interval(level) for level in (0.95, 1 - pair.alpha)]
    pair = replace(
        pair,
        ratio=float(np.exp(centre.quantile(0.5))),
        interval=(float(np.exp(ends[0][0])), float(np.exp(ends[0][1]))),
        decision_interval=(float(np.exp(ends[1][0])), float(np.exp(ends[1][1]))),
        p=centre.p,
        independent=centre.independent,
    )
    decided = decide(*ends[1], pair.margin) != UNDECIDED
    return replace(pair, failed_control=_failed_control(controls, pair) if decided else None)


def _failed_control(controls: Mapping[str, Sequence[Series]], pair: Pair) -> str | None:
    """Return that an arm differs from itself, in words, by the same procedure that compares it with another."""
    for arm, series in controls.items():
        centre = centre_of(series)
        low, high = centre.interval(1 - pair.alpha)
        if decide(low, high, pair.margin) in _OPPOSITE:
            return f"the control failed: {arm} takes {np.exp(centre.quantile(0.5)):.4g} × the time of itself"
    return None


def _decided(pair: Pair, q: float) -> Pair:
    assert pair.decision_interval is not None
    assert pair.independent is not None
    low, high = pair.decision_interval
    verdict = decide(log(low), log(high), pair.margin)
    ends = f"the {1 - pair.alpha:.2%} interval [{pair.decision_interval[0]:.4g}, {pair.decision_interval[1]:.4g}]"
    edge = f"±{pair.margin:.2%}"
    if verdict == UNDECIDED:
        slow = ""
        if pair.independent < MIN_INDEPENDENT:
            slow = f"; too few independent rounds ({pair.kept} rounds count as {pair.independent:.1f}) for this noise"
        return replace(pair, q=q, why=f"{ends} {undecided(log(low), log(high), pair.margin, edge)}{slow}")
    if verdict in _OPPOSITE and q > pair.alpha:
        return replace(pair, q=q, why=f"{ends} lies beyond {edge}, and over all comparisons q = {q:.2g}")
    if pair.failed_control is not None:
        return replace(pair, q=q, why=pair.failed_control)
    words = "lies within" if verdict == SAME else "lies beyond"
    alone = "" if pair.processes > 1 else ", in this process"
    return replace(pair, q=q, verdict=verdict, why=f"{ends} {words} {edge}{alone}")


def verdicts_of(samples: Iterable[Sample], margin: float = MARGIN) -> dict[tuple[str | None, str, str], Pair]:
    """Return (cell, a, b) → comparison of every two arms of every cell, with p values adjusted over all of them.

    **Arguments:**

    - `samples`: those of a race, from `Race.samples` or `read_samples`.
    - `margin`: as for `race`.
    """
    cells: dict[str | None, list[Sample]] = {}
    for sample in samples:
        cells.setdefault(sample["cell"], []).append(sample)
    open_ = [
        _compared(of_cell, a, b, cell, margin)
        for cell, of_cell in cells.items()
        for a, b in combinations(dict.fromkeys(s["arm"] for s in of_cell if s["phase"] == "race"), 2)
    ]
    qs = iter(false_discovery([pair.p for pair in open_ if pair.p is not None]))
    pairs = [pair if pair.p is None else _decided(pair, next(qs)) for pair in open_]
    return {(pair.cell, pair.a, pair.b): pair for pair in pairs}
