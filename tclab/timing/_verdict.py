"""Verdicts of a race from its samples alone: FASTER, SLOWER, SAME or UNDECIDED.

A sample is a dict for one block of calls; `tclab.timing._race_blocks` describes it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from itertools import chain, combinations
from math import exp, expm1, inf, log, log1p
from pathlib import Path

import numpy as np

from tclab._display import Display, Shown, counted
from tclab.timing._race_blocks import ROUNDS_THAT_FIT, Sample, read_samples
from tclab.timing._statistics import Centre, Series, centre_of

FASTER, SLOWER, SAME, UNDECIDED = "FASTER", "SLOWER", "SAME", "UNDECIDED"
_OPPOSITE = {FASTER: SLOWER, SLOWER: FASTER}
ALPHA = 0.05  # probability of a false verdict in a race
LOOKS = 2  # a race is tested at half of its budget and at its end, each with half of alpha
# Parts of a race that must agree. In both looks they agree by chance with a probability of at most 2 · 2 · 2⁻⁸ = 1.6 %.
PARTS = 8
MARGIN = 0.02  # a smaller difference is of no interest, unless another margin is given
MOST_MARGIN = 0.1  # times that differ by more are never called the same because the machine is noisy
_MOST_LONGER = 100  # times this race's seconds, beyond which no length is named


@dataclass(frozen=True, repr=False)
class Pair(Shown):
    """The comparison of two arms; what could not be computed is `None`.

    **Arguments:**

    - `a`, `b`: names of the arms.
    - `verdict`: of `a`: FASTER or SLOWER if `interval` lies wholly beyond the margin and `q` is at most `alpha`; SAME
      if it lies wholly within the margin, and noise has not made the margin wider than 10 %; otherwise UNDECIDED, and
      also if an arm differs from itself.
    - `reason`: why no interval decides, in words; empty where one does.
    - `ratio`: time of `a` over time of `b`, the centre over rounds; `None` with fewer rounds than parts of a race.
    - `interval`: of `ratio`, at level `1 - alpha`; it decides the verdict. A race's pays for noise with a memory (see
      `tclab.timing._statistics`), and is made wider where needed so that it holds the centre of each of its 8 parts.
    - `alpha`: the allowed probability of a false verdict at this test, half of the whole race's (0.05).
    - `p`: two-sided p value of equal times.
    - `q`: `p` adjusted over all comparisons of the race (Benjamini-Hochberg).
    - `margin`: the larger of the margin that was asked for, 2 % unless given, and `floor`.
    - `floor`: the A/A floor: the ratio, less 1, that an arm shows against itself.
    - `kept`: rounds that the comparison uses; an incomplete one is left out.
    - `needs_seconds`: about how long a race would have to be to decide; `None` if this one has, or if none would.
    - `processes`: number of processes; what one process shows may be its luck, and `why` says so.
    - `cell`: name of the cell in a race of several.
    - `basis`: what `interval` is, in words.
    - `notes`: what else belongs to the reason.
    - `why`: the reason of the verdict in words, made of the others: how the interval lies to the margin, the largest
      difference that is excluded, unless the interval spans more than a factor of 10, and `notes`.
    """

    a: str
    b: str
    verdict: str
    reason: str = ""
    ratio: float | None = None
    interval: tuple[float, float] | None = None
    alpha: float = ALPHA
    p: float | None = None
    q: float | None = None
    margin: float = MARGIN
    floor: float | None = None
    kept: int = 0
    needs_seconds: float | None = None
    processes: int = 0
    cell: str | None = None
    basis: str = "its interval"
    notes: tuple[str, ...] = ()
    why: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "why", self.reason or self._by_interval())

    def _by_interval(self) -> str:
        if self.interval is None:
            return ""
        edge = f"±{100 * self.margin:.3g}%"
        lies = decide(*self.interval, self.margin, widest=inf)
        where = {SAME: f"lies within {edge}", UNDECIDED: f"reaches across {edge}"}.get(lies, f"lies beyond {edge}")
        if lies == SAME and self.verdict != SAME:
            where += ", a margin so wide by noise that nothing is called the same"
        alone = ["it is of this process alone"] if self.processes == 1 and self.verdict != UNDECIDED else []
        excluded = f"differences above {_about(100 * (self.excluded or 0.0))}% are excluded"
        if self.is_wide:
            excluded = "measurements differ too much from one another to say more"
        return "; ".join([f"{self.basis} {where}", excluded, *self.notes, *alone])

    def flipped(self) -> Pair:
        """Return the same comparison with the arms exchanged."""
        verdict, ratio = _OPPOSITE.get(self.verdict, self.verdict), self.ratio and 1 / self.ratio
        interval = self.interval and (1 / self.interval[1], 1 / self.interval[0])
        return replace(self, a=self.b, b=self.a, verdict=verdict, ratio=ratio, interval=interval)

    @property
    def excluded(self) -> float | None:
        """The share above which differences are excluded: 0.031 if `a` takes at most 3.1 % more or less than `b`."""
        return None if self.interval is None else max(self.interval[1] - 1, 1 - self.interval[0])

    @property
    def is_wide(self) -> bool:
        """Whether the interval spans more than a factor of 10: it excludes and predicts nothing of use."""
        return self.interval is not None and self.interval[1] > 10 * self.interval[0]

    @property
    def sentence(self) -> str:
        """The comparison in one line: "a against b: FASTER, 0.523 × the time [0.51, 0.54]; …"."""
        return "; ".join(filter(None, (f"{self.a} against {self.b}: {self.verdict}, {self.ratio_text}", self.why)))

    @property
    def floor_text(self) -> str:
        """A/A floor and margin as text: "A/A floor 0.4%, margin ±2.0%"."""
        floor = "not measured" if self.floor is None else f"{self.floor:.1%}"
        return f"A/A floor {floor}, margin ±{self.margin:.1%}"

    @property
    def ratio_text(self) -> str:
        """The ratio and its interval as text: "0.523 × the time [0.51, 0.54]"; "no ratio" without one."""
        if self.ratio is None:
            return "no ratio"
        ends = f" [{self.interval[0]:.4g}, {self.interval[1]:.4g}]" if self.interval else ""
        return f"{self.ratio:.4g} × the time{ends}"

    def _display(self) -> Display:
        return pairs_display([self])


class _PairsDisplay(Display):
    """Comparisons as a table; as text each is a line of the verdict and, below it in full width, its reason."""

    def text(self) -> str:
        pairs = [(f"{named}: {verdict}, {ratio}", f"  {why}") for named, verdict, ratio, why in self.lines]
        return Display(self.title, notes=[*chain.from_iterable(pairs), *self.notes]).text()


def pairs_display(pairs: Iterable[Pair], title: str = "", notes: Iterable[str] = ()) -> Display:
    """Return some comparisons to be shown, with their cells where they have any."""
    lines = [
        (" · ".join(filter(None, (pair.cell, f"{pair.a} against {pair.b}"))), pair.verdict, pair.ratio_text, pair.why)
        for pair in pairs
    ]
    columns = ("comparison", "verdict", "ratio [interval]", "why") if lines else ()
    return _PairsDisplay(title, columns, lines, tuple(notes))


def decide(low: float, high: float, margin: float, *, widest: float = MOST_MARGIN) -> str:
    """Return the verdict of an interval [low, high] of ratios for a margin (0.02 is 2 %), SAME up to `widest`."""
    if high < 1 / (1 + margin):
        return FASTER
    if low > 1 + margin:
        return SLOWER
    within = 1 / (1 + margin) < low and high < 1 + margin
    return SAME if within and margin <= widest else UNDECIDED


def _about(value: float) -> str:
    """Return two digits of a value, without an exponent where it has few."""
    return f"{float(f'{value:.2g}'):g}"


Round = dict[str, list[Sample]]  # arm → its two blocks


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


def _seconds(one: Round, arm: str) -> float:
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
        for arm, (first, _) in one.items():
            by_order.setdefault((first["process"], arm, first["position"]), []).append(log(_seconds(one, arm)))
    for logs in by_order.values():
        fours = np.array(logs[: len(logs) // 4 * 4]).reshape(-1, 4)
        differences += (fours @ [0.5, -0.5, -0.5, 0.5]).tolist()
    return expm1(abs(np.median(differences))) if differences else None


def _interval(series: Series, centre: Centre) -> tuple[float, float]:
    """Return the interval of ratios that decides: the model's, up to the outermost part of the race."""
    (low, high), of_parts = centre.interval(1 - ALPHA / LOOKS), series.parts(PARTS)
    return exp(min(low, float(of_parts.min()))), exp(max(high, float(of_parts.max())))


def _unlike_itself(rounds: Sequence[Round], arm: str, margin: float) -> str:
    """Return that an arm's two blocks of each round differ, the control; empty where they do not.

    Which block is the numerator alternates.
    """
    blocks = [one[arm][0] for one in rounds]
    odd = [block["round"] % 2 for block in blocks]
    ratios = [one[arm][0]["seconds"] / one[arm][1]["seconds"] for one in rounds]
    series = _series(blocks, [(-1) ** is_odd * log(ratio) for is_odd, ratio in zip(odd, ratios, strict=True)], odd)
    centre = centre_of(series)
    if decide(*_interval(series, centre), margin) not in _OPPOSITE:
        return ""
    return f"the control failed: {arm} takes {exp(centre.quantile(0.5)):.4g} × the time of itself"


def _short_blocks(samples: Sequence[Sample], round_seconds: float) -> tuple[str, ...]:
    """Return that blocks are no whole periods, and a budget that has room for these; nothing where they are whole.

    `round_seconds` is what a round of each process takes.
    """
    periods = [sample["period"] for sample in samples if sample["calls"] % sample.get("period", 1)]
    if not periods:
        return ()
    period, calls = max(periods), min(sample["calls"] for sample in samples)
    needs = f"whole ones need a budget of about {_about(1.5 * ROUNDS_THAT_FIT * round_seconds * period / calls)} s"
    return (f"blocks of {counted(calls, 'call')} are shorter than a period of {period}: {needs}",)


def pairs_of(samples: Sequence[Sample], margin: float) -> Iterator[Pair]:
    """Yield the comparison of every two arms, before the others are known."""
    if not samples:
        return
    rounds = _rounds(samples)
    floor, seconds = floor_of(rounds), max(sample["spent_seconds"] for sample in samples)
    processes = len({sample["process"] for sample in samples})
    pair = Pair(
        "", "", UNDECIDED, alpha=ALPHA / LOOKS, margin=max(margin, floor or 0.0), floor=floor, kept=len(rounds),
        processes=processes, notes=_short_blocks(samples, processes * seconds / len(rounds)),
        basis=f"the {100 * (1 - ALPHA / LOOKS):.4g}% interval with all {PARTS} parts of the race",
    )  # fmt: skip
    control = cache(partial(_unlike_itself, rounds, margin=pair.margin))
    for a, b in combinations(dict.fromkeys(sample["arm"] for sample in samples), 2):
        named = replace(pair, a=a, b=b)
        if len(rounds) < PARTS:
            needs = 1.5 * PARTS / len(rounds) * seconds
            ran = f"{counted(len(rounds), 'round')} ran, at least {PARTS} are needed"
            reason = "; ".join([f"{ran}: a race of about {_about(needs)} s has them", *pair.notes])
            yield replace(named, reason=reason, needs_seconds=needs)
            continue
        blocks = [one[a][0] for one in rounds]
        logs = [log(_seconds(one, a) / _seconds(one, b)) for one in rounds]
        series = _series(blocks, logs, [block["position"] for block in blocks])
        centre = centre_of(series)
        interval = _interval(series, centre)
        verdict = decide(*interval, pair.margin, widest=max(MOST_MARGIN, margin))
        found = replace(named, verdict=verdict, ratio=exp(centre.quantile(0.5)), interval=interval, p=centre.p)
        if verdict == UNDECIDED:
            yield _with_needs(found, centre, seconds)
        elif failed := control(a) or control(b):
            yield replace(found, verdict=UNDECIDED, reason="; ".join([failed, *found.notes]))
        else:
            held = f"it holds unless noise of one arm lasts longer than {_about(seconds / PARTS)} s"
            yield replace(found, notes=(held, *found.notes))


def _with_needs(pair: Pair, centre: Centre, seconds: float) -> Pair:
    """Return an undecided comparison with how long a race would have to be.

    The interval of a race that is k times as long is 1/√k as wide, but for the processes' luck. One that just reaches
    the margin decides every other race, so half as much again is asked for.
    """
    assert pair.interval is not None
    low, high = map(log, pair.interval)
    middle, edge = centre.quantile(0.5), log1p(pair.margin)
    towards_edge = high - middle if middle < 0 else middle - low
    width = towards_edge if abs(middle) > edge else max(high - middle, middle - low)
    times = (width / max(abs(abs(middle) - edge), 1e-9)) ** 2
    if pair.margin > MOST_MARGIN and abs(middle) < edge:
        return pair
    needs = None
    if centre.is_of_luck or (pair.processes > 1 and pair.is_wide):
        note = (
            f"the luck of {pair.processes} processes limits it, not the seconds: more processes may decide, or "
            "this one alone (processes=None, on the command line --processes 0)"
        )
    elif times > _MOST_LONGER:
        note = f"a race would have to be more than {_MOST_LONGER} times as long to decide"
    else:
        needs = 1.5 * seconds * max(times, 1.0)
        note = f"a race of about {_about(needs)} s may decide"
    return replace(pair, notes=(note, *pair.notes), needs_seconds=needs)


def over_all(pairs: Iterable[Pair]) -> list[Pair]:
    """Return comparisons with their p values adjusted over all of them, by which FASTER and SLOWER must hold, too."""
    from scipy.stats import false_discovery_control

    found = list(pairs)
    ps = [pair.p for pair in found if pair.p is not None]
    qs = iter(false_discovery_control(ps).tolist() if ps else [])
    return [pair if pair.p is None else _adjusted(pair, next(qs)) for pair in found]


def _adjusted(pair: Pair, q: float) -> Pair:
    if pair.verdict in _OPPOSITE and q > pair.alpha:
        return replace(pair, q=q, verdict=UNDECIDED, notes=(f"over all comparisons q = {q:.2g}", *pair.notes[1:]))
    return replace(pair, q=q)


def verdicts_of(samples: Iterable[Sample] | str | Path, margin: float = MARGIN) -> list[Pair]:
    """Return the comparison of every two arms, in their order, with p values adjusted over all; empty without a sample.

    **Arguments:**

    - `samples`: those of a race, from `Race.samples`; or its record, a file, which may have been made on any machine.
    - `margin`: a share of the time that is no difference worth a verdict: 0.02 is 2 %.

    **Raises:** `InputError` for a file that is no record of a race, or is damaged.
    """
    return over_all(pairs_of(read_samples(samples) if isinstance(samples, str | Path) else [*samples], margin))
