"""Rows of points and of whole training steps, made by hand, so that every figure in them is known."""

import numpy as np

from tclab.sweeps._rows import mean_columns

# what the stages of host and worker take, in ms, for three ways
HOST = {
    "edge_mask": {"data_wait": 60, "transfer": 5, "mask": 1, "forward": 14, "loss": 1, "backward": 16, "clip": 1,
                  "optimizer": 1, "other": 1},
    "node_mask": {"data_wait": 1, "transfer": 0.1, "mask": 1, "forward": 6, "loss": 1, "backward": 8, "clip": 1,
                  "optimizer": 1, "other": 0.9},
    "indices": {"data_wait": 0.5, "transfer": 0.1, "mask": 0.1, "forward": 1.5, "loss": 0.2, "backward": 2, "clip": 0.2,
                "optimizer": 0.2, "other": 0.2},
}  # fmt: skip
WORKER = {
    "edge_mask": {"sample": 1, "mask": 4, "collate": 90, "other": 1},
    "node_mask": {"sample": 0.2, "mask": 0.001, "collate": 0.1, "other": 0.01},
    "indices": {"sample": 0.2, "mask": 0.001, "collate": 0.1, "other": 0.01},
}
RUN = {
    "data": ("data_wait", "transfer", "other"),
    "empty": ("data_wait", "transfer", "mask", "loss", "backward", "optimizer", "other"),
    "model": ("data_wait", "transfer", "mask", "forward", "loss", "backward", "other"),
    "step": tuple(HOST["edge_mask"]),
    "fixed_batch": tuple(name for name in HOST["edge_mask"] if name != "data_wait"),
}
BYTES = {"edge_mask": 70_900, "node_mask": 232, "indices": 232}


def row(strategy, seconds, **fields):
    batch = fields.get("batch_size", 4)
    return {
        "graph": "synthetic", "scale": 0.1, "model": "hetero_cell", "strategy": strategy, "batch_size": 4,
        "networks": 9, "mode": "step", "device": "cpu", "ranks": 1, "dtype": "float32", "stage": "step",
        "where": "host", "n": 5, "mean_seconds": seconds,
        "low_seconds": seconds * 0.9, "high_seconds": seconds * 1.1, "cycle_steps": 1,
        "median_seconds": seconds, "samples_per_second": batch / seconds, "batch_bytes": 200, "host_syncs": 0,
        "status": "ok", "exact": True, "equivalence": "passed", "equivalence_fp64_error": 1e-13,
        "equivalence_fp32_ratio": 1.0, "equivalence_nodes": 100, "equivalence_edges": 1000,
        "cpu": "Made Up", "cores": 2, **fields,
    }  # fmt: skip


def point_rows(strategy, mode="step", *, steps=8, scatter=0.05, seed=0, factor=1.0, accounted=1.0, **more):
    """The rows of one point: each step's stages are known, and scatter the same way in each."""
    model = "dango" if strategy == "indices" else "hetero_cell"
    generator = np.random.default_rng([seed, len(mode), len(strategy)])
    swing = 1e-3 * factor * (1 + scatter * generator.standard_normal(steps))
    fields = {"model": model, "strategy": strategy, "mode": mode, "seed": seed, "edges": 2_423_370, "workers": 1,
              "overheads": "", "batch_bytes": None, **more}  # fmt: skip

    def one(stage, place, samples, **extra):
        times = mean_columns(samples, fields.get("cycle_steps", 1)) | {"median_seconds": float(np.median(samples))}
        return row(seconds=1.0, **{**fields, "stage": stage, "where": place, **extra}) | times | {
            "n": len(samples), "samples_seconds": list(map(float, samples)), "samples_per_second": None}  # fmt: skip

    made = {stage: HOST[strategy][stage] * swing for stage in RUN[mode]}
    rows = [one(stage, "host", samples) for stage, samples in made.items()]
    whole = sum(made.values())
    rows.append(one("step", "host", whole, batch_bytes=BYTES[strategy], host_accounted=accounted))
    if mode != "fixed_batch":
        making = {stage: took * swing for stage, took in WORKER[strategy].items()}
        rows += [one(stage, "worker", samples) for stage, samples in making.items()]
        rows.append(one("batch", "worker", sum(making.values())))
        # nothing is known of a worker before its first batch
        rows.append(one("idle", "worker", np.maximum(0, whole - sum(making.values()))[1:]))
    return rows


def lost(strategy, status, **more):
    """The one row of a point that has no time."""
    return row(strategy, 1.0, overheads="", **more) | {"status": status, "median_seconds": None}


def every_mode(**more):
    return [made for mode in RUN for strategy in HOST for made in point_rows(strategy, mode, **more)]


def drawn(chart, column):
    """The rows of a chart that have a column."""
    return [line for data in chart.to_dict()["datasets"].values() for line in data if column in line]
