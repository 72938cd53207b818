"""Verdicts of a race from its samples alone: FASTER, SLOWER, SAME or UNDECIDED.

A race has at least 8 turns, each of one process, and a turn is a part of the race. A part's value is the centre of its
rounds' log ratios; FASTER and SLOWER need all parts beyond the margin. If parts are independent and as likely to favour
one arm as the other, all 8 lie on one side of the true ratio with probability 2 / 2⁸ = 0.8 %, whatever the form and
strength of the noise, as in a sign test. The rest of the 5 % is for noise of one arm that neighbouring parts share, and
for up to five comparisons; more of them take more parts. There is one look, at the end, so nothing is tested twice.
`benchmarks/verdicts.py` attacks it.

A sample is a dict for one block of calls; `tclab.timing._race_blocks` describes it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, combinations, groupby
from math import ceil, comb, exp, log, log1p, log2
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tclab._display import Display, Shown, counted
from tclab.timing._race_blocks import ROUNDS_THAT_FIT, Sample, read_samples

FASTER, SLOWER, SAME, UNDECIDED = "FASTER", "SLOWER", "SAME", "UNDECIDED"
OPPOSITE = {FASTER: SLOWER, SLOWER: FASTER}
ONCE, BUSY = "once", "busy"  # a side was run once, or while other programs used the processors
ALPHA = 0.05  # probability of a false verdict
PARTS = 8  # of a race, at least
_BY_CHANCE = 0.04  # probability of a false verdict of any pair by independent noise; the rest is for what parts share
LASTS = 12  # noise of one arm may last a twelfth of the race: of any strength, it makes at most 5 % of verdicts false
MARGIN = 0.02  # a smaller difference is of no interest, unless another margin is given
_OF_AN_ORDER = 4  # rounds; of fewer, one that is wild would move all others
_MANY = 500  # values
_MOST_LONGER = 100  # times this race's seconds, beyond which no length is named
_WIDE = 10.0  # high end over low end of runs' interval, beyond which it says nothing of use
_SPARE = 2.0  # a race that is just long enough decides every other time, so twice as much is asked for


@dataclass(frozen=True, repr=False)
class Pair(Shown):
    """The comparison of two arms, in numbers; `explain` says them in words. What is not known is `None`.

    **Arguments:**

    - `a`, `b`: names of the arms.
    - `verdict`: of `a`: FASTER or SLOWER if `interval` is beyond the margin, SAME if it is within, else UNDECIDED.
    - `ratio`: time of `a` over time of `b`: of a race the median of `parts`.
    - `interval`: of `ratio`, which decides: of a race from the smallest of `parts` to the largest, and where SAME is in
      question half-way from these to the next, or a little beyond them if processes ran two parts each; of runs
      Student's at 95 %.
    - `parts`: the ratio in each part of a race.
    - `margin`: a share of the time that is no difference worth a verdict.
    - `kept`: rounds of a race, or steps of the runs, that the comparison uses.
    - `least`: rounds that a verdict needs.
    - `processes`: number of processes that ran the race.
    - `differ`: whether these differ by more than their rounds do, which a longer race does not change.
    - `lasts_seconds`: how long noise of one arm may last at a time without making more than 5 % of verdicts false.
    - `needs_seconds`: about how long a race would have to be to decide; `None` if this one has, or if none would.
    - `period`: where blocks are shorter than a whole period, its calls and the budget in seconds that has room for it.
    - `runs`: number of runs of `b` and of `a`, if the comparison is of runs and not of a race.
    - `cell`: name of the cell in a race of several.
    - `reason`: why there is no verdict, where no figure of this says it.
    - `obstacle`: which reason it is, of those that are acted on: `ONCE` or `BUSY`; else empty.
    """

    a: str
    b: str
    verdict: str = UNDECIDED
    ratio: float | None = None
    interval: tuple[float, float] | None = None
    parts: tuple[float, ...] = ()
    margin: float = MARGIN
    kept: int = 0
    least: int = PARTS
    processes: int = 0
    differ: bool = False
    lasts_seconds: float | None = None
    needs_seconds: float | None = None
    period: tuple[int, float] | None = None
    runs: tuple[int, int] | None = None
    cell: str | None = None
    reason: str = ""
    obstacle: str = ""

    def flipped(self) -> Pair:
        """Return the same comparison with the arms exchanged."""
        ratio, interval = self.ratio and 1 / self.ratio, self.interval and (1 / self.interval[1], 1 / self.interval[0])
        verdict, runs = OPPOSITE.get(self.verdict, self.verdict), self.runs and self.runs[::-1]
        other = replace(self, a=self.b, b=self.a, verdict=verdict, ratio=ratio, interval=interval, runs=runs)
        return replace(other, parts=tuple(1 / part for part in self.parts))

    @property
    def excluded(self) -> float | None:
        """The share above which differences are excluded: 0.031 if `a` takes at most 3.1 % more or less than `b`."""
        return None if self.interval is None else max(self.interval[1] - 1, 1 - self.interval[0])

    @property
    def tells_nothing(self) -> bool:
        """Whether two runs of a side differ so much that nothing is decided, and the interval is of no use either."""
        wide = self.interval is not None and self.interval[1] > _WIDE * self.interval[0]
        return wide and self.runs is not None and self.verdict == UNDECIDED

    def _display(self) -> Display:
        return pairs_display([self])


def decide(low: float, high: float, margin: float) -> str:
    """Return the verdict of an interval [low, high] of ratios for a margin (0.02 is 2 %)."""
    if high < 1 / (1 + margin):
        return FASTER
    if low > 1 + margin:
        return SLOWER
    return SAME if 1 / (1 + margin) < low and high < 1 + margin else UNDECIDED


# ---- words


def ratio_text(pair: Pair) -> str:
    """Return the ratio and its interval: "0.523× the time [0.51, 0.54]", without one that tells nothing; "no ratio"."""
    if pair.ratio is None:
        return "no ratio"
    ends = f" [{pair.interval[0]:.4g}, {pair.interval[1]:.4g}]" if pair.interval and not pair.tells_nothing else ""
    return f"{pair.ratio:.4g}× the time{ends}"


def explain(pair: Pair) -> str:
    """Return what a verdict excludes and when it is valid, or what would bring one, in words."""
    return "; ".join(filter(None, _words(pair)))


def sentence_of(pair: Pair) -> str:
    """Return a comparison in one line: "a against b: FASTER, 0.523× the time [0.51, 0.54]; valid unless …"."""
    return "; ".join(filter(None, (f"{pair.a} against {pair.b}: {pair.verdict}, {ratio_text(pair)}", explain(pair))))


def _words(pair: Pair) -> Iterator[str]:
    edge = f"±{100 * pair.margin:.3g} %"
    needs = f"about {about(pair.needs_seconds)} s" if pair.needs_seconds else ""
    if pair.reason:
        yield pair.reason
    elif pair.interval is None:
        yield f"{counted(pair.kept, 'round')} ran, at least {pair.least} are needed: a race of {needs} may decide"
    elif pair.tells_nothing:
        yield "runs of the same side differ too much to tell anything: measure more of them, on a quiet machine"
    elif pair.verdict == UNDECIDED:
        yield f"the interval crosses {edge}"
        if pair.differ:
            yield (
                f"the {pair.processes} processes differ from one another, so a longer race will not help: use more "
                "processes, or this process alone (processes=None, --processes 0)"
            )
        elif pair.runs is None:
            yield f"a race of {needs} may decide" if needs else f"a race {_MOST_LONGER} times as long would not decide"
    else:
        if pair.verdict == SAME:
            yield f"any difference is below {about(100 * (pair.excluded or 0.0))} %"
        if pair.lasts_seconds is not None:
            here = {1: " in this process,", 2: " in these 2 processes,", 3: " in these 3 processes,"}
            valid, lasts = "valid" + here.get(pair.processes, ""), about(pair.lasts_seconds)
            yield f"{valid} unless a disturbance hit only one of them for more than {lasts} s"
    if pair.runs is not None and not pair.reason:
        yield f"from {pair.runs[0]} and {counted(pair.runs[1], 'run')}"
    if pair.period is not None:
        calls, seconds = pair.period
        yield f"work repeats every {calls} calls, but blocks had fewer; a race of about {about(seconds)} s suffices"


def about(value: float) -> str:
    """Return two digits of a value, without an exponent where it has few."""
    return f"{float(f'{value:.2g}'):g}"


class _PairsDisplay(Display):
    """Comparisons as a table; as text each is a line of the verdict and, below it in full width, its reason."""

    def text(self) -> str:
        pairs = [(f"{named}: {verdict}, {ratio}", f"  {why}") for named, verdict, ratio, why in self.lines]
        return Display(self.title, notes=[*chain.from_iterable(pairs), *self.notes]).text()


def pairs_display(pairs: Iterable[Pair], title: str = "", notes: Iterable[str] = ()) -> Display:
    """Return some comparisons to be shown, with their cells where they have any."""
    named = ((" · ".join(filter(None, (pair.cell, f"{pair.a} against {pair.b}"))), pair) for pair in pairs)
    lines = [(name, pair.verdict, ratio_text(pair), explain(pair)) for name, pair in named]
    columns = ("comparison", "verdict", "ratio [interval]", "why") if lines else ()
    return _PairsDisplay(title, columns, lines, tuple(notes))


# ---- the procedure

Round = list[Sample]
Reals = NDArray[np.float64]


def parts_for(comparisons: int) -> int:
    """Return how many parts a race needs for so many comparisons, each of which may agree by chance."""
    return max(PARTS, 1 + ceil(log2(max(comparisons, 1) / _BY_CHANCE)))


def _parts(rounds: Sequence[Round], least: int) -> list[NDArray[np.intp]]:
    """Return the places of each part's rounds: a turn, or a piece of one where there are too few turns.

    A record of an earlier version has no turns: there a turn is what a process ran without a break.
    """
    in_turns = groupby(rounds, lambda blocks: blocks[0].get("turn", blocks[0]["process"]))
    lengths = [len(list(turn)) for _, turn in in_turns]
    turns = np.split(np.arange(len(rounds)), np.cumsum(lengths)[:-1])
    pieces = [1] * len(turns)
    while sum(pieces) < min(least, len(rounds)):
        pieces[max(range(len(turns)), key=lambda i: len(turns[i]) / pieces[i])] += 1
    return [part for turn, n in zip(turns, pieces, strict=True) for part in np.array_split(turn, n)]


def _centre(values: Reals) -> float:
    """Return the median of the means of every two values; of three or of very many values their median.

    Of values in two states it lies in between, where a median jumps (Hodges and Lehmann, Annals of Mathematical
    Statistics 34, 1963, 598-611). Of three values one outlier would move it, and of many a median is as good.
    """
    if len(values) == 3 or len(values) > _MANY:
        return float(np.median(values))
    return float(np.median(np.add.outer(values, values))) / 2


def _log_ratios(rounds: Sequence[Round], a: str, b: str) -> Reals:
    """Return the log ratio of each round, [rounds], without the effect of which arm it began with.

    A position in the round may cost time, which is no noise. Where each order has enough rounds, all orders are shifted
    to the same centre.
    """
    found, orders = [], []
    for blocks in rounds:
        seconds = [sum(block["seconds"] for block in blocks if block["arm"] == arm) for arm in (a, b)]
        found.append(log(seconds[0] / seconds[1]))
        orders.append(next(block["position"] for block in blocks if block["arm"] == a))
    values, kinds = np.array(found), [np.equal(orders, order) for order in set(orders)]
    if min(kind.sum() for kind in kinds) >= _OF_AN_ORDER:
        centres = [_centre(values[kind]) for kind in kinds]
        for kind, centre in zip(kinds, centres, strict=True):
            values[kind] += np.mean(centres) - centre
    return values


def _ends(parts: Reals, margin: float, *, apart: bool = True) -> tuple[str, float, float]:
    """Return the verdict of a race whose parts have these centres, and the interval that decides it.

    A difference is found if all parts agree. SAME rests on two tests of one side each (Schuirmann, Journal of
    Pharmacokinetics and Biopharmaceutics 15, 1987, 657-680): of arms that differ by the margin, all parts or all but
    one are on the near side of it with probability 9 / 2⁸ = 3.5 %. So its ends are half-way from the outermost part to
    the next, which leaves something for noise that parts share. Parts that share their processes' luck in twos are not
    `apart`: if nothing but luck differs, four processes are on the near side with probability 1 / 2⁴ = 6.2 %. So their
    ends lie beyond the outermost parts, by an eighth of the way back to the next process's: with the rounds' own noise
    that was wrong in 4.4 % of 1,000 made-up races.
    """
    low, below, third, *_ = up = np.sort(parts).tolist()
    high, above, before, *_ = up[::-1]
    verdict = decide(exp(low), exp(high), margin)
    if verdict in OPPOSITE:
        return verdict, exp(low), exp(high)
    ends = ((low + below) / 2, (high + above) / 2) if apart else (low - (third - low) / 8, high + (high - before) / 8)
    same = decide(exp(ends[0]), exp(ends[1]), margin)
    return (same, exp(ends[0]), exp(ends[1])) if SAME in (verdict, same) else (UNDECIDED, exp(low), exp(high))


def _with_needs(pair: Pair, logs: Reals, processes: Sequence[int], seconds: float) -> Pair:
    """Return an undecided comparison with how long a race would have to be, or that no length would do.

    The interval of a race that is k times as long is 1/√k as wide, unless processes differ by more than their parts.
    """
    low, below, *_, above, high = np.sort(logs).tolist()
    middle, edge = float(np.median(logs)), log1p(pair.margin)
    width = high - middle if middle < 0 else middle - low
    if abs(middle) <= edge:  # more likely the same
        width = max((high + above) / 2 - middle, middle - (low + below) / 2)
    times = (width / max(abs(abs(middle) - edge), 1e-9)) ** 2
    by_process = [logs[np.equal(processes, process)] for process in set(processes)]
    if 1 < len(by_process) < len(logs):
        within = np.mean([own.var() for own in by_process])
        if np.var([own.mean() for own in by_process], ddof=1) > 4 * within:
            return replace(pair, differ=True)
    return pair if times > _MOST_LONGER else replace(pair, needs_seconds=_SPARE * seconds * max(times, 1.0))


def _short_blocks(samples: Sequence[Sample], round_seconds: float) -> tuple[int, float] | None:
    """Return the period that blocks are shorter than, and a budget that has room for whole ones."""
    periods = [sample["period"] for sample in samples if sample["calls"] % sample.get("period", 1)]
    if not periods:
        return None
    period, calls = max(periods), min(sample["calls"] for sample in samples)
    return period, _SPARE * ROUNDS_THAT_FIT * round_seconds * period / calls


def verdicts_of(samples: Iterable[Sample] | str | Path, margin: float = MARGIN, *, comparisons: int = 1) -> list[Pair]:
    """Return the comparison of every two arms, in their order; empty without a sample.

    **Arguments:**

    - `samples`: those of a race, from `Race.samples`; or its record, a file, which may have been made on any machine.
    - `margin`: a share of the time that is no difference worth a verdict: 0.02 is 2 %.
    - `comparisons`: of all races that answer one question, if they are more than those of this race.

    **Raises:** `InputError` for a file that is no record of a race, or is damaged.
    """
    samples = read_samples(samples) if isinstance(samples, str | Path) else [*samples]
    if not samples:
        return []
    rounds = [list(blocks) for _, blocks in groupby(samples, lambda block: (block["process"], block["round"]))]
    arms = [*dict.fromkeys(sample["arm"] for sample in samples)]
    least, seconds = parts_for(max(comparisons, comb(len(arms), 2))), max(sample["spent_seconds"] for sample in samples)
    parts = _parts(rounds, least)
    processes = [rounds[part[0]][0]["process"] for part in parts]
    common = Pair(
        "", "", margin=margin, kept=len(rounds), least=least, processes=len(set(processes)),
        period=_short_blocks(samples, seconds / len(rounds)),
    )  # fmt: skip
    pairs = []
    for a, b in combinations(arms, 2):
        pair = replace(common, a=a, b=b)
        if len(parts) < least:
            pairs.append(replace(pair, needs_seconds=_SPARE * least / len(rounds) * seconds))
            continue
        values = _log_ratios(rounds, a, b)
        logs = np.array([_centre(values[part]) for part in parts])
        verdict, low, high = _ends(logs, margin, apart=common.processes in (1, len(parts)))
        ratio, ratios = exp(np.median(logs)), tuple(map(exp, logs))
        lasts = None if verdict == UNDECIDED else seconds / LASTS
        pair = replace(pair, verdict=verdict, ratio=ratio, interval=(low, high), parts=ratios, lasts_seconds=lasts)
        pairs.append(_with_needs(pair, logs, processes, seconds) if lasts is None else pair)
    return pairs
