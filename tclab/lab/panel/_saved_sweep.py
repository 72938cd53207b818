"""The last sweep that was begun in a results folder, as far as it came."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd
import pyarrow as pa

from tclab.errors import InputError
from tclab.lab.panel._panel_state import PanelState
from tclab.sweeps.store._results import Results
from tclab.sweeps.store._rows import SCHEMA, frame


@dataclass(frozen=True)
class SavedSweep:
    """The last sweep of a folder, as far as it came.

    **Arguments:**

    - `rows`: its rows.
    - `state`: the panel's settings; `None` if they are unknown or cannot be run here.
    - `done`: how many of its points have rows. `wanted`: how many points it has.
    - `text`: the same in words.
    """

    rows: pd.DataFrame = field(default_factory=lambda: frame(SCHEMA.empty_table()))
    state: PanelState | None = None
    done: int = 0
    wanted: int = 0
    text: str = ""

    @classmethod
    def read(cls, folder: Path, results: str) -> SavedSweep:
        """Return the last sweep of a results folder; an empty sweep if there is no such folder.

        **Arguments:**

        - `folder`: an absolute path. `results`: the same as the panel's field has it.

        **Raises:** `InputError` for a file that a newer version of tclab wrote.
        """
        if not folder.is_dir():  # reading makes none
            return cls()
        tables = Results(folder).kept()
        number = f"{len(tables)} point{' is' if len(tables) == 1 else 's are'} here"
        state = PanelState.saved(results) or PanelState.of_points(tables, results)
        if state is None:
            return cls(text=f"{number}, of settings that a panel has no field for." if tables else "")
        try:
            wanted = list(dict.fromkeys(state.points()))
        except InputError as error:  # a strategy that is not imported here, a graph folder that is gone
            rows = frame(pa.concat_tables([SCHEMA.empty_table(), *tables.values()]))
            return cls(rows, text=f"{number}; the last sweep cannot go on here: {error}")
        done = [tables[point] for point in wanted if point in tables]
        more = " Resume goes on with it." if len(done) < len(wanted) else ""
        text = f"The last sweep here: {len(done)} of {len(wanted)} points.{more}"
        return cls(frame(pa.concat_tables([SCHEMA.empty_table(), *done])), state, len(done), len(wanted), text)
