"""What a results folder holds of the last sweep that was begun there."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd
import pyarrow as pa

from tclab.errors import InputError
from tclab.lab.panel_state import PanelState
from tclab.sweeps import Results
from tclab.sweeps.rows import SCHEMA, frame


@dataclass(frozen=True)
class Kept:
    """The last sweep of a folder, as far as it came.

    **Arguments:**

    - `rows`: its rows. `last`: what it was asked for; `None` where that cannot be known, or be gone on with, here.
    - `done`, `wanted`: points.
    - `words`: the same, for a person.
    """

    rows: pd.DataFrame = field(default_factory=lambda: frame(SCHEMA.empty_table()))
    last: PanelState | None = None
    done: int = 0
    wanted: int = 0
    words: str = ""


def kept_in(folder: Path, results: str) -> Kept:
    """Return what a results folder holds.

    **Raises:** `InputError` for a file that a newer version of tclab wrote.
    """
    kept = Results(folder).kept()
    number = f"{len(kept)} point{' is' if len(kept) == 1 else 's are'} here"
    last = PanelState.saved(results) or PanelState.of_points(kept, results)
    if last is None:
        return Kept(words=f"{number}, of settings that a panel has no field for." if kept else "")
    try:
        wanted = list(dict.fromkeys(last.points()))
    except InputError as error:  # a strategy that is not imported here, a graph folder that is gone
        rows = frame(pa.concat_tables([SCHEMA.empty_table(), *kept.values()]))
        return Kept(rows, words=f"{number}; the last sweep cannot go on here: {error}")
    there = [kept[point] for point in wanted if point in kept]
    left = " Resume goes on with it." if len(there) < len(wanted) else ""
    words = f"The last sweep here: {len(there)} of {len(wanted)} points.{left}"
    return Kept(frame(pa.concat_tables([SCHEMA.empty_table(), *there])), last, len(there), len(wanted), words)
