"""A step at more ranks than there are, predicted from measured stages, gradient bytes and a link (α-β model)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

import numpy as np

from tclab.errors import InputError, check_whole
from tclab.training._distributed import BUCKET_MB

MEBIBYTE = 2**20
_DRAWS = 2000


@dataclass(frozen=True)
class Link:
    """The link of a rank to the next one in the ring.

    **Arguments:**

    - `bytes_per_second`: each way, of one rank. `latency_seconds`: of one message, software included.
    """

    bytes_per_second: float
    latency_seconds: float

    def all_reduce_seconds(self, size: float, ranks: int) -> float:
        """Return how long a ring all-reduce of so many bytes takes: 2 (R − 1) messages of size / R each way.

        Thakur, Rabenseifner and Gropp, Optimization of collective communication operations in MPICH, International
        Journal of High Performance Computing Applications 19 (2005), section 4.5 (α-β model).
        """
        messages = 2 * (ranks - 1)
        return messages * (self.latency_seconds + size / ranks / self.bytes_per_second)


@dataclass(frozen=True)
class PredictedStep:
    """A predicted step.

    **Arguments:**

    - `seconds`: the whole; `compute_seconds`, `waiting_seconds` (for the slowest rank) and `exposed_seconds` (of
      the exchange, after the backward) add up to it. `overlapped_seconds`: of the exchange, within the backward.
    """

    seconds: float
    compute_seconds: float
    waiting_seconds: float
    exposed_seconds: float
    overlapped_seconds: float


def predict_step(
    backward: Sequence[float],
    rest: Sequence[float],
    *,
    gradient_bytes: float,
    ranks: int,
    link: Link,
    bucket_cap_mb: float = BUCKET_MB,
    slowdown: float = 1.0,
) -> PredictedStep:
    """Return how long a step takes at a number of ranks.

    What is assumed:

    - Each rank has the same samples a step as those that were measured, and computes as fast, but for `slowdown`.
    - Every step waits for the slowest rank, and ranks are slow independently of one another: the compute of a step
      is the mean of the largest of `ranks` draws from the steps that were measured.
    - Gradients come evenly over the backward, the last at its end, and leave in equal buckets of at most
      `bucket_cap_mb`, one after the other, each by a ring all-reduce over equal links that carry no other traffic.
    - The exchange takes nothing from the compute that it hides behind: so on a GPU, hardly on a CPU.

    **Arguments:**

    - `ranks`: that take the step together. `link`: of each.
    - `backward`, `rest`: [steps] seconds of each measured step: its backward, and all that is not exchange. With
      several loader workers, of a whole number of their rounds.
    - `gradient_bytes`: that one rank has to exchange in a step.
    - `slowdown`: how many times slower a rank computes next to those that share its machine: `cores_slowdown` of it,
      or a ratio that was measured.
    - `bucket_cap_mb`: of DDP's buckets, in MiB.

    **Raises:** `InputError` for less than one rank, or a link of no bytes a second.
    """
    check_whole("ranks is", ranks, least=1)
    if not link.bytes_per_second > 0 or not link.latency_seconds >= 0:
        raise InputError(f"{link} is no link, expected bytes_per_second above 0 and latency_seconds of at least 0")
    whole = slowdown * (np.asarray(backward, dtype=np.float64) + np.asarray(rest, dtype=np.float64))
    mean = float(np.mean(whole))  # not a typical step: with several workers most steps wait for nothing
    drawn = np.random.default_rng(0).choice(whole, (_DRAWS, ranks)).max(axis=1) if ranks > 1 else whole
    waiting = max(0.0, float(np.mean(drawn)) - mean)
    span = slowdown * float(np.mean(backward))
    exchange, exposed = _exchange(span, gradient_bytes, ranks, link, bucket_cap_mb)
    return PredictedStep(mean + waiting + exposed, mean, waiting, exposed, exchange - exposed)


def _exchange(backward: float, size: float, ranks: int, link: Link, bucket_cap_mb: float) -> tuple[float, float]:
    """Return the seconds of all buckets' exchange, and those after the backward's end, of `backward` seconds.

    Of n buckets of one size bucket i leaves i / n of the backward in, or once the one before has arrived: so the last
    arrives a bucket after the backward's end, or n buckets after the first has left, whichever is later.
    """
    if ranks == 1 or not size:
        return 0.0, 0.0
    buckets = ceil(size / (bucket_cap_mb * MEBIBYTE))
    each = link.all_reduce_seconds(size / buckets, ranks)
    return buckets * each, max(each, buckets * each - backward * (1 - 1 / buckets))


def cores_slowdown(ranks: int, cores: float, threads: int = 1) -> float:
    """Return how many times slower ranks compute that share cores fairly, each with so many threads."""
    return max(1.0, ranks * threads / cores)
