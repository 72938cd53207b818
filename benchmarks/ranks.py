"""A step at 1, 2 and 4 ranks as predicted, against the same step as it was run.

`python benchmarks/ranks.py [--ranks 1,2,4] [--scale 0.1] [--batch 4] [--networks 3] [--blocks 6] [--steps 6]`

Each number of ranks is one launch of torchrun. In it blocks take turns, so that all see the same machine: rank 0's
steps by itself while the others wait; every rank's steps beside one another without exchange; all-reduces without
steps, which give the link; and DDP's steps. Two predictions: from rank 0 alone and the cores that ranks share, and
from the steps beside one another. What DDP itself costs a step (its buckets, its hooks) is taken from one
rank, where it exchanges nothing, as a share of the plain step beside it: one rank is no check, the others are.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from time import perf_counter

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", default="1,2,4")
    parser.add_argument("--model", default="hetero_cell")
    parser.add_argument("--strategy", default="node_mask")
    parser.add_argument("--scale", type=float, default=0.1)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--networks", type=int, default=3)
    parser.add_argument("--blocks", type=int, default=6)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--out", default="")
    return parser.parse_args()


def measure(given):
    """Measure on this rank; rank 0 writes what all saw."""
    import torch
    from torch import distributed

    import tclab
    from tclab import masking
    from tclab.perturbation import synthetic_perturbations
    from tclab.timing import Ledger
    from tclab.training._distributed import Exchange
    from tclab.training._loading import Batches, Loader
    from tclab.training._loops import run_plain
    from tclab.training._step import Step

    distributed.init_process_group("gloo")
    rank, ranks = distributed.get_rank(), distributed.get_world_size()
    graph = tclab.CellGraph.synthetic(given.scale).without_metabolism().select(given.networks)
    strategy, kind = masking.get(given.strategy), tclab.models.get(given.model)
    samples = synthetic_perturbations(graph, given.batch * ranks * given.steps)
    data = Batches(strategy(graph), samples, given.batch, shard=(rank, ranks))
    batches = list(Loader(data, workers=0))
    plain, ddp = (Step(kind, strategy(graph), exchange=how) for how in (None, Exchange()))

    class Together(list):
        """The batches, all ranks beginning each step together."""

        def __iter__(self):
            for batch in super().__iter__():
                distributed.barrier()
                yield batch

    def steps(step, given_batches):
        with Ledger(cuda=False) as ledger:
            run_plain(step, given_batches, steps=len(batches), ledger=ledger)
        seconds = ledger.seconds()
        rest = np.asarray(seconds["step"]) - np.asarray(seconds["data_wait"])
        return {"step": rest.tolist(), "backward": seconds["backward"], "whole": seconds["step"]}

    def all_reduce(size):
        tensor = torch.zeros(size // 4)
        took = []
        for _ in range(given.steps):
            distributed.barrier()
            begin = perf_counter()
            distributed.all_reduce(tensor)
            took.append(perf_counter() - begin)
        return took

    size = 4 * sum(p.numel() for p in plain.model.parameters())
    for step in (plain, ddp):
        run_plain(step, batches, steps=len(batches))
    found = {"alone": [], "beside": [], "ddp": [], "small": [], "large": []}
    for _ in range(given.blocks):
        distributed.barrier()
        if rank == 0:
            found["alone"].append(steps(plain, batches))
        distributed.barrier()
        found["beside"].append(steps(plain, Together(batches)))
        if ranks > 1:
            found["small"] += all_reduce(64)
            found["large"] += all_reduce(size)
        distributed.barrier()
        found["ddp"].append(steps(ddp, batches))
    Path(given.out, f"{rank}.json").write_text(json.dumps({**found, "size": size}))
    distributed.barrier()
    distributed.destroy_process_group()


def own_share(folder):
    """Return what a step of one rank takes under DDP, over the plain step beside it."""
    (seen,) = (json.loads(path.read_text()) for path in Path(folder).glob("*.json"))
    ratios = [np.median(ddp["whole"]) / np.median(plain["step"])
              for ddp, plain in zip(seen["ddp"], seen["alone"], strict=True)]  # fmt: skip
    return float(np.median(ratios))


def report(ranks, folder, own):
    """Print one number of ranks: what was predicted, and what was measured.

    `own` is what DDP itself makes of a plain step; it lies beside the backward, where nothing hides behind it.
    """
    from tclab.sweeps.execution._worker_pool import threads_of
    from tclab.sweeps.predict import Link, predict_step
    from tclab.sweeps.predict._more_ranks import cores_slowdown

    seen = [json.loads(Path(folder, f"{rank}.json").read_text()) for rank in range(ranks)]
    size = seen[0]["size"]

    def steps(name, key, rank=0):
        return np.concatenate([block[key] for block in seen[rank][name]])

    alone, backward = steps("alone", "step"), steps("alone", "backward")
    each = np.stack([steps("beside", "step", rank) for rank in range(ranks)])
    measured = float(np.median(np.stack([steps("ddp", "whole", rank) for rank in range(ranks)]).mean(0)))
    link, words = Link(1e12, 0.0), "no check: where DDP's own cost is taken from"
    if ranks > 1:
        small, large = (float(np.median(np.stack([s[name] for s in seen]).min(0))) for name in ("small", "large"))
        hops = 2 * (ranks - 1)
        per_byte = max((large - small) / hops / (size / ranks), 1e-13)
        link = Link(1 / per_byte, max(small / hops - 64 / ranks * per_byte, 0.0))
        words = f"link {link.bytes_per_second / 1e9:.2f} GB/s, {link.latency_seconds * 1e6:.0f} µs"
    cores = len(os.sched_getaffinity(0))
    by_cores = predict_step(
        backward.tolist(), (own * alone - backward).tolist(), gradient_bytes=size, ranks=ranks, link=link,
        slowdown=cores_slowdown(ranks, cores, threads_of(ranks)),
    )  # fmt: skip
    beside = steps("beside", "backward")
    by_beside = predict_step(  # the slowest rank of each step is in what was measured: nothing to draw
        beside.tolist(), (own * each.max(0) - beside).tolist(), gradient_bytes=size, ranks=ranks, link=link
    )
    from_beside = by_beside.compute_seconds + by_beside.exposed_seconds
    for name, seconds in (("rank 0 alone and the cores", by_cores.seconds), ("steps side by side", from_beside)):
        print(
            f"{ranks} ranks, from {name}: predicted {1e3 * seconds:.1f} ms, measured {1e3 * measured:.1f} ms, "
            f"predicted over measured {seconds / measured:.3f} ({words})"
        )
    return {"ranks": ranks, "by_cores": by_cores.seconds / measured, "by_beside": from_beside / measured}


def main():
    given = arguments()
    if "RANK" in os.environ:
        measure(given)
        return
    from tclab._torchrun import command
    from tclab.sweeps.execution._worker_pool import threads_of

    print(f"load {os.getloadavg()[0]:.1f} on {len(os.sched_getaffinity(0))} cores; {vars(given)}")
    own = None
    for ranks in dict.fromkeys([1, *map(int, given.ranks.split(","))]):
        with tempfile.TemporaryDirectory() as folder:
            line = command(ranks, folder + "/logs", "ranks", *sys.argv[1:], "--out", folder)
            path = os.pathsep.join([str(ROOT), str(ROOT / "benchmarks")])
            environment = {
                **os.environ,
                "PYTHONPATH": path,
                "OMP_NUM_THREADS": str(threads_of(ranks)),
                "TMPDIR": folder,
            }
            subprocess.run(line, env=environment, check=True)
            if own is None:
                own = own_share(folder)
                print(f"1 rank: a step under DDP takes {own:.3f} times the plain one")
            report(ranks, folder, own)


if __name__ == "__main__":
    main()
