"""What was recorded on a machine, with a GPU most of all, and can be looked at on any other."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow.parquet as pq

from tclab.errors import unknown
from tclab.lab.charts import stages, throughput_by_batch_size, throughput_by_networks
from tclab.lab.live import project_path
from tclab.sweeps.rows import SCHEMA, frame

FOLDER = "data_samples/recordings"
_RECORDS = "`make record` on a machine with a GPU writes one there"


@dataclass(frozen=True)
class Recording:
    """What `benchmarks/record_gpu.py` wrote on one machine; `print` it for what it is.

    **Arguments:**

    - `name`: of its folder, after the device; empty where nothing is recorded.
    - `rows`: of every point. `rooflines`: of each kernel and network.
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
        said = f"Recorded on {where}: {len(ok)} of {len(steps)} points were measured, at scale {scales or 'none'}."
        return said if self.on_gpu else f"{said} An example of what a GPU's would show: {_RECORDS}."

    def charts(self) -> list[Any]:
        """Return throughput over batch size and networks, and the stages of a step; none where nothing is there."""
        ok = self.rows[(self.rows["mode"] == "step") & (self.rows["dtype"] == "float32")]
        if ok.empty:
            return []
        return [throughput_by_batch_size(ok), throughput_by_networks(ok), stages(ok)]


def recording(name: str = "", *, folder: str | Path = FOLDER) -> Recording:
    """Return what was recorded on a machine; an empty recording, which says so, where nothing was on any.

    **Arguments:**

    - `name`: of its folder; unless given, a GPU's if there is one.
    - `folder`: where recordings lie.

    **Raises:** `InputError` for a name that is not there, with the nearest one.
    """
    places = sorted(path.parent for path in project_path(str(folder)).glob("*/rows.parquet"))
    if name and name not in [place.name for place in places]:
        raise unknown("recording", name, [place.name for place in places])
    found = [_read(place) for place in places if name in ("", place.name)]
    return next(iter(sorted(found, key=lambda one: not one.on_gpu)), Recording())


def _read(place: Path) -> Recording:
    return Recording(
        place.name,
        frame(pq.read_table(place / "rows.parquet").replace_schema_metadata(None).cast(SCHEMA)),
        pd.read_csv(place / "rooflines.csv"),
        json.loads((place / "environment.json").read_text()),
    )
