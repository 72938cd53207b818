"""One sentence that a sweep comes to, no surer than its verdict."""

from __future__ import annotations

from collections.abc import Iterable

import pandas as pd

from tclab.lab.charts import bytes_text
from tclab.lab.measured_on import where_measured
from tclab.sweeps.comparing import OF_THE_PLACE, SETTINGS, plain
from tclab.sweeps.run_verdicts import pairs_of_runs
from tclab.timing import FASTER, SAME, SLOWER, Pair, environment

_ORIGINAL = "edge_mask"  # what the original trained with: the others are told against it where it was run
_MARGIN = 0.05  # of runs that did not take turns
_MACHINE = ("cpu", "cores", "memory_bytes", "gpu")
# what is compared, or chosen among, within rows that are alike; and how much was run, which is no setting
_FREE = ("strategy", "batch_size", "networks", "network_names", "seed", "steps", "warmup")


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
    known = {frozenset((pair.a, pair.b)): pair for pair in pairs} if len(groups) == 1 else {}
    said = [_sentence(own, words, known) for words, own in groups]
    return [sentence for sentence in said if sentence]


def alike(ok: pd.DataFrame, free: tuple[str, ...] = ()) -> list[tuple[str, pd.DataFrame]]:
    """Return rows that may be compared, with the settings that tell them from the others, in words.

    **Arguments:**

    - `free`: settings that may differ within, beside strategy, batch size and networks.
    """
    if ok.empty:
        return []
    names = [name for name in (*SETTINGS, *OF_THE_PLACE) if name not in (*_FREE, *free)]
    keys = [tuple(plain(value) for value in values) for values in zip(*(ok[name] for name in names), strict=True)]
    vary = [place for place, values in enumerate(zip(*keys, strict=True)) if len(set(values)) > 1]
    found = []
    for key in dict.fromkeys(keys):
        told = [f"{names[p].replace('_', ' ')} {key[p]}" for p in vary if names[p] not in ("model", *_MACHINE)]
        found.append((", ".join(told), ok[[own == key for own in keys]]))
    return found


def ends(there: pd.DataFrame) -> tuple[str, str]:
    """Return the strategies that are compared: the fastest, and `edge_mask` or else the slowest."""
    medians = there.groupby("strategy", sort=False)["median_seconds"].median().sort_values()
    slow = _ORIGINAL if _ORIGINAL in medians.index[1:] else str(medians.index[-1])
    return str(medians.index[0]), slow


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
    sides = [there[there["strategy"] == name] for name in (slow, fast)]
    raced = known.get(frozenset((fast, slow)))
    if raced is not None:
        pair, how = raced if raced.a == fast else raced.flipped(), ""
    else:
        (pair,) = pairs_of_runs([("", sides[0], sides[1])], (slow, fast), margin=_MARGIN)
        how = " (run one after the other, not raced)"
    carried = _bytes(*(side["batch_bytes"].dropna() for side in sides))
    return f"{place_of(there, words)}: {_verdict(pair)}{how}{carried}."


def fullest(ok: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of the cell that the most exact strategies were run in, the largest of them."""
    ok = ok[ok["exact"].fillna(True).astype(bool)]
    if ok.empty:
        return ok
    cells = [ok["networks"], ok["network_names"].fillna(""), ok["batch_size"]]
    counts = ok.groupby(cells)["strategy"].nunique()
    networks, names, batch = sorted(counts[counts == counts.max()].index)[-1]
    return ok[(cells[0] == networks) & (cells[1] == names) & (cells[2] == batch)]


def _machine(rows: pd.DataFrame) -> str:
    here, row = environment(), rows.iloc[0]
    same = all((None if pd.isna(row[name]) else row[name]) == here[name] for name in _MACHINE)
    return "On this machine" if same else f"On {where_measured(rows)}"


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
