"""The conclusion of a sweep: one sentence, no more certain than its verdict."""

from __future__ import annotations

from collections.abc import Iterable

import pandas as pd

from tclab._format import bytes_text
from tclab.lab.reports._comparable_rows import against_the_fastest, alike, by_arms, fastest_and_reference, fullest
from tclab.sweeps.analysis._cpu_pressure import pressures
from tclab.sweeps.analysis._machine_label import where_measured
from tclab.timing import FASTER, SAME, SLOWER, Pair
from tclab.timing._environment import fingerprint


def conclusion(rows: pd.DataFrame, pairs: Iterable[Pair] = ()) -> list[str]:
    """Compare the fastest strategy with `edge_mask`, one sentence for each group of rows that are alike.

    Alike are rows of one machine, one code, and the same settings but strategy, batch size and networks. Where
    `edge_mask` was not run, the slowest strategy stands for it. The comparison is made at the batch size and the
    networks that the most strategies were run at. A sentence claims what its verdict does: an interval that reaches
    across the margin is undecided, and a sentence on steps that were not raced says so.

    **Arguments:**

    - `rows`: of a sweep.
    - `pairs`: of a race of these points, whose arms have the strategies' names. They decide where all rows are
      alike; among several groups names alone do not tell which rows they belong to.
    """
    without = rows["overheads"].isna() | (rows["overheads"] == "")
    ok = rows[(rows["stage"] == "step") & (rows["status"] == "ok") & without]
    modes = list(ok["mode"].dropna().unique())
    ok = ok[ok["mode"] == ("step" if "step" in modes else modes[0])] if modes else ok
    groups = alike(ok)
    known = by_arms(pairs, len(groups))
    sentences = [_sentence(group, setting, known) for setting, group in groups]
    return [sentence for sentence in sentences if sentence]


def place_text(cell: pd.DataFrame, setting: str) -> str:
    """Return where and with what settings the rows of one cell were measured."""
    first = cell.iloc[0]
    networks = f"{first['networks']} network{'' if first['networks'] == 1 else 's'}"
    place = f"{_machine(cell)}, at batch {first['batch_size']} with {networks}, {first['model']}"
    return f"{place}, {setting}" if setting else place


def _sentence(ok: pd.DataFrame, setting: str, known: dict[frozenset[str], Pair]) -> str:
    cell = fullest(ok)
    if cell["strategy"].nunique() < 2:
        return ""
    fast, slow = fastest_and_reference(cell)
    pair = against_the_fastest(cell, known)[slow]
    how = "" if frozenset((fast, slow)) in known else " (run one after the other, not raced)"
    sides = [cell[cell["strategy"] == name] for name in (slow, fast)]
    carried = _bytes(*(side["batch_bytes"].dropna() for side in sides))
    return f"{place_text(cell, setting)}: {_verdict(pair)}{how}{carried}."


def _machine(rows: pd.DataFrame) -> str:
    row = rows.iloc[0]
    same = all((None if pd.isna(row[name]) else row[name]) == value for name, value in fingerprint("hardware").items())
    if not same:
        return f"On {where_measured(rows)}"
    busy = pressures(rows)["others"].fillna(False).any()
    return "On this machine, which was busy" if busy else "On this machine"


def _verdict(pair: Pair) -> str:
    if pair.ratio is None:
        return f"{pair.a} against {pair.b} is undecided: {pair.why}"
    times = f"{1 / pair.ratio:.3g} ×"
    if pair.interval is not None:
        times += f" [{1 / pair.interval[1]:.3g}, {1 / pair.interval[0]:.3g}]"
    if pair.verdict == FASTER:
        return f"{pair.a} is {times} faster than {pair.b}"
    if pair.verdict == SLOWER:
        return _verdict(pair.flipped())
    if pair.verdict == SAME:
        return f"{pair.a} is as fast as {pair.b}, within ±{pair.margin:.1%}"
    return f"whether {pair.a} is faster than {pair.b} is undecided: {times}, and {pair.why}"


def _bytes(slow: pd.Series, fast: pd.Series) -> str:
    if slow.empty or fast.empty:
        return ""
    fewer = int(slow.median()) - int(fast.median())
    if not fewer:
        return ""
    return f"; {bytes_text(abs(fewer))} {'fewer' if fewer > 0 else 'more'} bytes per batch"
