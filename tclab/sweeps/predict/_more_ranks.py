"""A step at more ranks than there are, predicted from measured stages, gradient bytes and a link (α-β model)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

import numpy as np

from tclab.errors import InputError, check_whole
from tclab.training._distributed import BUCKET_MB

MEBIBYTE = 2**20


@dataclass(frozen=True)
class Link:
    """The link of a rank to the next one in the ring.

    **Arguments:**

    - `bytes_per_second`: each way, of one rank. `latency_seconds`: of one message, software included.
    """

    bytes_per_second: float
    latency_seconds: float


def predict_step(
    backward: Sequence[float],
    rest: Sequence[float],
    *,
    gradient_bytes: float,
    ranks: int,
    link: Link,
    bucket_cap_mb: float = BUCKET_MB,
    slowdown: float = 1.0,
) -> dict[str, float]:
    """Return how long a step takes at a number of ranks, in seconds.

    `step_seconds` is the whole: `compute_seconds`, `rank_wait_seconds` (for the slowest rank) and
    `communication_seconds` (of the exchange, after the backward). `overlapped_seconds` of the exchange are within the
    backward. What is assumed:

    - Each rank has the same samples a step as those that were measured, and computes as fast, but for `slowdown`.
    - Every step waits for the slowest rank, and ranks are slow independently of one another: a step takes the mean of
      the largest of `ranks` draws from the steps that were measured.
    - Gradients come evenly over the backward, the last at its end, and leave in equal buckets of at most
      `bucket_cap_mb`, one after the other, each by a ring all-reduce over equal links that carry no other traffic:
      2 (R - 1) messages of size / R each way (Thakur, Rabenseifner and Gropp, Optimization of collective communication
      operations in MPICH, International Journal of High Performance Computing Applications 19 (2005), section 4.5).
    - The exchange takes nothing from the compute that it hides behind: so on a GPU, hardly on a CPU.

    **Arguments:**

    - `ranks`: that take the step together. `link`: of each.
    - `backward`, `rest`: [steps] seconds of each measured step: its backward, and all that is not exchange. With
      several loader workers, of a whole number of their rounds.
    - `gradient_bytes`: that one rank has to exchange in a step.
    - `slowdown`: how many times slower a rank computes next to those that share its machine.
    - `bucket_cap_mb`: of DDP's buckets, in MiB.

    **Raises:** `InputError` for less than one rank, or a link of no bytes a second.
    """
    check_whole("ranks is", ranks, least=1)
    if not link.bytes_per_second > 0 or not link.latency_seconds >= 0:
        raise InputError(f"{link} is no link, expected bytes_per_second above 0 and latency_seconds of at least 0")
    steps = slowdown * np.sort(np.add(backward, rest, dtype=np.float64))
    compute = float(np.mean(steps))  # not a typical step: with several workers most steps wait for nothing
    within = (np.arange(len(steps) + 1) / len(steps)) ** ranks  # chance that all ranks have one of the i fastest steps
    wait = max(0.0, float(np.diff(within) @ steps) - compute)
    buckets = max(1, ceil(gradient_bytes / (bucket_cap_mb * MEBIBYTE)))
    messages = 2 * (ranks - 1) if gradient_bytes else 0
    bucket = messages * (link.latency_seconds + gradient_bytes / buckets / ranks / link.bytes_per_second)
    # bucket i leaves i / buckets of the backward in, or once the one before has arrived: so the last arrives a bucket
    # after the backward's end, or all of them after the first has left, whichever is later
    hides = slowdown * float(np.mean(backward)) * (1 - 1 / buckets)
    exposed = max(bucket, buckets * bucket - hides)
    return {
        "step_seconds": compute + wait + exposed,
        "compute_seconds": compute,
        "rank_wait_seconds": wait,
        "communication_seconds": exposed,
        "overlapped_seconds": buckets * bucket - exposed,
    }
