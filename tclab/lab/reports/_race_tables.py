"""Tables and sentences about races."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import pandas as pd

from tclab._display import Sentences, bytes_text
from tclab.errors import require
from tclab.sweeps.store._row_files import Runs, rows_of
from tclab.timing._environment import busy_notes
from tclab.timing._race import Race
from tclab.timing._verdict import FASTER, SAME, SLOWER, Pair

_CELL = re.compile(r"batch (\d+), (\d+) networks")


def pairs_against(pairs: Iterable[Pair], arm: str) -> list[Pair]:
    """Return the pairs that an arm is in, each as the other arm against it."""
    pairs = list(pairs)
    for pair in pairs:
        require("a pair", pair, Pair, "Race.pairs, or pairs_of raw blocks")
    return [pair if pair.b == arm else pair.flipped() for pair in pairs if arm in (pair.a, pair.b)]


def race_findings(race: Race, against: str) -> Sentences:
    """Return the verdict on each arm of a race against one of them, the race's margin, and whether it was disturbed."""
    floor = "was not measured" if race.floor is None else f"is {race.floor:.1%}"
    margin = f"an arm's difference from itself {floor}, so no difference within ±{race.margin:.1%} is claimed"
    verdicts = [pair.sentence for pair in pairs_against(race.pairs, against)]
    return Sentences([*verdicts, *busy_notes(race.busy_percent), margin])


def race_card(rows: Runs, pairs: Iterable[Pair], against: str) -> pd.DataFrame:
    """Return what decides between strategies: equivalence, time with interval and verdict, syncs, bytes, peak memory.

    **Arguments:**

    - `rows`: of a sweep, for all but the times; the arms have the names of its strategies.
    - `pairs`: of a race of these strategies. `against`: the arm that is 1.
    """
    rows = rows_of(rows)
    steps = rows[rows["stage"] == "step"].drop_duplicates("strategy").set_index("strategy")
    lines = {}
    for pair in pairs_against(pairs, against):
        lines[pair.a] = {f"time over {against}": pair.ratio_text, "verdict": pair.verdict}
    table = pd.DataFrame(
        {
            strategy: {
                "equivalence": step["equivalence"],
                **lines.get(strategy, {f"time over {against}": "1 × the time", "verdict": ""}),
                "host syncs": step["host_syncs"],
                "kernels": step["kernels"],
                "bytes of a batch": _bytes(step["batch_bytes"]),
                "peak memory": _bytes(step["peak_bytes"]),
            }
            for strategy, step in steps.to_dict("index").items()
            if strategy in lines or strategy == against
        }
    ).T
    return table.rename_axis("strategy")


def _bytes(number: object) -> str | None:
    return None if pd.isna(number) else bytes_text(float(number))  # type: ignore[arg-type, call-overload]


def winner_of(pairs: Sequence[Pair]) -> str:
    """Return the arm of one cell that is faster than every other, "tie" for the same at the top, or "undecided"."""
    arms = list(dict.fromkeys(arm for pair in pairs for arm in (pair.a, pair.b)))

    def verdicts(arm: str) -> set[str]:
        return {pair.verdict for pair in pairs_against(pairs, arm)}  # on the others against this arm

    beaten_by_none = [arm for arm in arms if FASTER not in verdicts(arm)]
    for arm in arms:
        if verdicts(arm) == {SLOWER}:
            return arm
    if len(beaten_by_none) > 1 and all(verdicts(arm) <= {SLOWER, SAME} for arm in beaten_by_none):
        return "tie"
    return "undecided"


def winner_table(pairs: Iterable[Pair]) -> pd.DataFrame:
    """Return the winner of each cell of a `race_grid`: batch_size, networks, winner, and its lead over the slowest."""
    cells: dict[str, list[Pair]] = {}
    for pair in pairs:
        cells.setdefault(pair.cell or "", []).append(pair)
    rows = []
    for cell, cell_pairs in cells.items():
        sizes = _CELL.fullmatch(cell)
        if sizes is None:
            raise ValueError(
                f"cell is {cell!r}, expected a name such as 'batch 4, 3 networks', as sweeps.race_grid gives"
            )
        winner = winner_of(cell_pairs)
        # over the slowest
        lead = max((pair.ratio for pair in pairs_against(cell_pairs, winner) if pair.ratio), default=None)
        rows.append((int(sizes[1]), int(sizes[2]), winner, "" if lead is None else f"{lead:.1f} ×"))
    return pd.DataFrame(rows, columns=["batch_size", "networks", "winner", "lead"])
