"""Recordings: rows that one machine measured, of a GPU most of all, to be shown on any other."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow.parquet as pq

from tclab.errors import unknown
from tclab.lab._notebook import project_path
from tclab.lab.charts._stage_charts import stages
from tclab.lab.charts._throughput_charts import throughput
from tclab.sweeps.store._rows import SCHEMA, frame

FOLDER = "data_samples/recordings"
_RECORDS = "`make gpu` on a machine with one writes one there"


@dataclass(frozen=True)
class Recording:
    """The rows and the environment that `benchmarks/gpu.py` wrote on one machine.

    **Arguments:**

    - `name`: of its folder, after the device; empty where nothing is recorded.
    - `rows`: of every point. `rooflines`: a row for each kernel and network.
    - `environment`: of the machine; see `tclab.timing.environment`.
    """

    name: str = ""
    rows: pd.DataFrame = field(default_factory=lambda: frame(SCHEMA.empty_table()))
    rooflines: pd.DataFrame = field(default_factory=pd.DataFrame)
    environment: dict[str, Any] = field(default_factory=dict)

    @property
    def on_gpu(self) -> bool:
        """Whether a GPU ran the points."""
        return bool((self.rows["device"] == "cuda").any())

    def __str__(self) -> str:
        if not self.name:
            return f"Nothing is recorded in {FOLDER}: {_RECORDS}."
        steps = self.rows[self.rows["stage"] == "step"]
        ok = steps[steps["status"] == "ok"]
        scales = ", ".join(f"{scale:g}" for scale in sorted(ok["scale"].dropna().unique()))
        where = self.environment.get("gpu") if self.on_gpu else f"{self.environment.get('cpu')}, no GPU"
        text = f"Recorded on {where}: {len(ok)} of {len(steps)} points were measured, at scale {scales or 'none'}."
        return text if self.on_gpu else f"{text} An example of what a GPU's would show: {_RECORDS}."

    def charts(self) -> list[Any]:
        """Return charts of throughput over batch size and networks, and of stages; none for an empty recording."""
        ok = self.rows[(self.rows["mode"] == "step") & (self.rows["dtype"] == "float32")]
        if ok.empty:
            return []
        return [throughput(ok, "batch_size"), throughput(ok, "networks"), stages(ok)]


def recording(name: str = "", *, folder: str | Path = FOLDER) -> Recording:
    """Return a machine's recording; an empty one, whose text says so, where there is none.

    **Arguments:**

    - `name`: of its folder; a GPU's, if there is one, unless given.
    - `folder`: of the recordings.

    **Raises:** `InputError` for a name that is not there, with the nearest one.
    """
    places = sorted(path.parent for path in project_path(str(folder)).glob("*/rows.parquet"))
    if name and name not in [place.name for place in places]:
        raise unknown("recording", name, [place.name for place in places])
    recordings = [_read(place) for place in places if name in ("", place.name)]
    return next(iter(sorted(recordings, key=lambda one: not one.on_gpu)), Recording())


def _read(place: Path) -> Recording:
    return Recording(
        place.name,
        frame(pq.read_table(place / "rows.parquet").replace_schema_metadata(None).cast(SCHEMA)),
        pd.read_csv(place / "rooflines.csv"),
        json.loads((place / "environment.json").read_text()),
    )
