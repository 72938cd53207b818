"""Record the full-size sweeps of a GPU, with its environment, so that notebooks can show them on any machine.

    python benchmarks/record_gpu.py [--device cuda] [--scale 1.0] [--out data_samples/recordings] [--minutes 60]

Writes one folder, named after the device: `rows.parquet`, the rows of every point (strategies over batch sizes 1 to
128 at all networks, over 1 to 9 networks at the middle one, both for DANGO too; all of them in bfloat16 at the
middle one; and the modes of a step for both models, whose stages are the ledger), `rooflines.csv`, and
`environment.json`. It needs no notebook package; `tclab.lab.recording` shows what is there. Points that do not fit
are rows that say so. Stopped, it goes on where it was, from `rows/`. A try:

    python benchmarks/record_gpu.py --device cpu --scale 0.02 --batch-sizes 1,2 --networks 1 --minutes 2 --out DIR
"""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path

import pandas as pd
import pyarrow.parquet as pq

import tclab
from tclab.masking import get, names
from tclab.sweeps import Point, Progress, sweep
from tclab.sweeps.config import in_each_mode
from tclab.sweeps.execution import close_workers
from tclab.sweeps.predict import ceilings, roofline
from tclab.sweeps.store._rows import table
from tclab.timing import environment


def points(device: str, scale: float, batch_sizes: list[int], networks: list[int], steps: int) -> list[Point]:
    """Return every point, what matters most first."""
    masked = [name for name in names() if get(name).masks_graph]
    common = {"device": device, "scale": scale, "steps": steps, "workers": 2}
    middle = batch_sizes[len(batch_sizes) // 2]
    found = [
        Point(strategy=name, batch_size=size, **common)
        for size in [middle, *(s for s in batch_sizes if s != middle)]
        for name in masked
    ]
    dango = {"model": "dango", "strategy": "indices"}
    found += [Point(**dango, batch_size=size, **common) for size in batch_sizes]
    ways: list[dict[str, str]] = [*({"strategy": name} for name in masked), dango]
    found += [Point(**way, batch_size=middle, networks=count, **common) for count in networks for way in ways]
    found += [Point(**way, batch_size=middle, dtype="bfloat16", **common) for way in ways]
    gpus = 1 if device == "cuda" else 0
    more = {"scale": scale, "steps": steps, "batch_sizes": middle, "gpus": gpus, "workers": 2}
    found += in_each_mode(models="hetero_cell,dango", strategies="edge_mask,node_mask,fastest,indices", **more)
    return list(dict.fromkeys(found))


def main() -> None:
    """Run the points and write the recording."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--batch-sizes", default="1,2,4,8,16,32,64,128")
    parser.add_argument("--networks", default="1,2,3,4,5,6,7,8,9")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--out", default=str(Path(__file__).parents[1] / "data_samples" / "recordings"))
    options = parser.parse_args()
    sizes, counts = ([int(n) for n in text.split(",")] for text in (options.batch_sizes, options.networks))
    here = environment()
    name = re.sub(r"[^a-z0-9]+", "-", str(here["gpu"] if options.device == "cuda" else here["cpu"]).lower()).strip("-")
    folder = Path(options.out) / name
    wanted = points(options.device, options.scale, sizes, counts, options.steps)
    print(f"{len(wanted)} points into {folder}", flush=True)

    def told(progress: Progress) -> None:
        print(progress, flush=True)

    seconds = 60 * options.minutes
    rows = sweep(wanted, results=folder / "rows", budget_seconds=seconds, progress=told, refuse=True)
    close_workers()
    records = [{k: (None if v is pd.NA else v) for k, v in row.items()} for row in rows.to_dict("records")]
    pq.write_table(table(records), folder / "rows.parquet")
    graph = tclab.CellGraph.synthetic(options.scale).without_metabolism()
    limits = ceilings(device=options.device)
    lines = [
        roofline(graph, network, batch_size=sizes[len(sizes) // 2], device=options.device, limits=limits).assign(
            network=network, bytes_per_second_ceiling=limits.bytes_per_second, flops_ceiling=limits.flops
        )
        for network in graph.networks
    ]
    pd.concat(lines).to_csv(folder / "rooflines.csv", index=False)
    (folder / "environment.json").write_text(json.dumps(here, indent=1) + "\n")
    left = sum(rows["status"].str.startswith("not run: the budget"))
    print(f"recorded in {folder}" + (f"; {left} points are left: run it again" if left else ""))


if __name__ == "__main__":
    main()
