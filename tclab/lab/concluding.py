"""One sentence that a sweep comes to, no surer than its verdict."""

from __future__ import annotations

from collections.abc import Iterable

import pandas as pd

from tclab.lab.comparable import against_the_fastest, alike, by_arms, ends, fullest
from tclab.sweeps.busy import pressures
from tclab.sweeps.measured_on import where_measured
from tclab.timing import FASTER, SAME, SLOWER, Pair, environment
from tclab.timing.units import bytes_text

_MACHINE = ("cpu", "cores", "memory_bytes", "gpu")


def conclusion(rows: pd.DataFrame, pairs: Iterable[Pair] = ()) -> list[str]:
    """Return what the rows come to, a sentence for rows that are alike: the fastest strategy against `edge_mask`.

    Alike are rows of one machine, one code, and the same settings but strategy, batch size and networks. Against
    the slowest, where `edge_mask` was not run. At the batch size and the networks that the most strategies were
    run at. A sentence claims what its verdict does: an interval that reaches across the margin is told as
    undecided, and steps that were not raced are told so.

    **Arguments:**

    - `rows`: of a sweep.
    - `pairs`: of a race of these points, whose arms have the strategies' names; they decide where they are given
      and all rows are alike: names alone do not tell which rows they are of.
    """
    without = rows["habits"].isna() | (rows["habits"] == "")
    ok = rows[(rows["stage"] == "step") & (rows["status"] == "ok") & without]
    modes = list(ok["mode"].dropna().unique())
    ok = ok[ok["mode"] == ("step" if "step" in modes else modes[0])] if modes else ok
    groups = alike(ok)
    known = by_arms(pairs, len(groups))
    said = [_sentence(own, words, known) for words, own in groups]
    return [sentence for sentence in said if sentence]


def place_of(there: pd.DataFrame, words: str) -> str:
    """Return where rows of one cell were measured, and of what, in words."""
    first = there.iloc[0]
    networks = f"{first['networks']} network{'' if first['networks'] == 1 else 's'}"
    place = f"{_machine(there)}, at batch {first['batch_size']} with {networks}, {first['model']}"
    return f"{place}, {words}" if words else place


def _sentence(ok: pd.DataFrame, words: str, known: dict[frozenset[str], Pair]) -> str:
    there = fullest(ok)
    if there["strategy"].nunique() < 2:
        return ""
    fast, slow = ends(there)
    pair = against_the_fastest(there, known)[slow]
    how = "" if frozenset((fast, slow)) in known else " (run one after the other, not raced)"
    sides = [there[there["strategy"] == name] for name in (slow, fast)]
    carried = _bytes(*(side["batch_bytes"].dropna() for side in sides))
    return f"{place_of(there, words)}: {_verdict(pair)}{how}{carried}."


def _machine(rows: pd.DataFrame) -> str:
    here, row = environment(), rows.iloc[0]
    same = all((None if pd.isna(row[name]) else row[name]) == here[name] for name in _MACHINE)
    if not same:
        return f"On {where_measured(rows)}"
    busy = pressures(rows)["others"].fillna(False).any()
    return "On this machine, which was busy" if busy else "On this machine"


def _verdict(pair: Pair) -> str:
    if pair.ratio is None:
        return f"{pair.a} against {pair.b} is undecided: {pair.why}"
    told = f"{1 / pair.ratio:.3g} ×"
    if pair.interval is not None:
        told += f" [{1 / pair.interval[1]:.3g}, {1 / pair.interval[0]:.3g}]"
    if pair.verdict == FASTER:
        return f"{pair.a} is {told} faster than {pair.b}"
    if pair.verdict == SLOWER:
        back = pair.flipped()
        return _verdict(back)
    if pair.verdict == SAME:
        return f"{pair.a} is as fast as {pair.b}, within ±{pair.margin:.1%}"
    return f"whether {pair.a} is faster than {pair.b} is undecided: {told}, and {pair.why}"


def _bytes(slow: pd.Series, fast: pd.Series) -> str:
    if slow.empty or fast.empty:
        return ""
    fewer = int(slow.median()) - int(fast.median())
    if not fewer:
        return ""
    return f"; {bytes_text(abs(fewer))} {'fewer' if fewer > 0 else 'more'} bytes per batch"
