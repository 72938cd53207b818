"""Communication under DDP: how much of the gradient exchange is exposed or overlapped, and which rank comes last."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

from tclab.timing._ledger import Ledger

if TYPE_CHECKING:
    import pandas as pd


@dataclass
class _Exchange:
    """One bucket's all-reduce; its times are nanoseconds on the host, or CUDA events."""

    step: int
    bytes: int
    ready: Any
    done: Any = None


class Communication:
    """Records the all-reduce of every bucket of a DDP model, step by step of a ledger.

    Make it before the first step, call `finish` on every rank after the last one (it is a collective), then read
    `frame` and `late`. The columns of `frame`, for each step:

    - `exposed_seconds`: from the last bucket's gradients to the end of the last all-reduce. Nothing is left to
      compute then, so the step waits.
    - `overlapped_seconds`: the time in which any all-reduce ran, less `exposed_seconds`.
    - `all_reduce_seconds`: an all-reduce ends on no rank before the last one has joined. This is the sum of each
      all-reduce's shortest time over the ranks.
    - `rank_wait_seconds`: what this rank's all-reduces took in addition: the wait for later ranks.
    - `exposed_rank_wait_seconds`: `exposed_seconds` less the smallest over the ranks. On a CPU, after `finish`, the
      ledger's stage `rank_wait` holds this and the stage `communication` the rest of `exposed_seconds`; both are
      taken out of `backward`.

    **Arguments:**

    - `model`: a `DistributedDataParallel` without a communication hook; this registers one.
    - `ledger`: the ledger whose steps are recorded; `None` records nothing until `watch`.
    - `hook`: bucket → future of its mean over ranks; by default what DDP does without a hook.
    """

    def __init__(self, model: Any, ledger: Ledger | None = None, *, hook: Callable[[Any], Any] | None = None) -> None:
        from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

        self.ledger = ledger
        self._hook: Callable[[Any], Any] = hook or partial(allreduce_hook, None)  # type: ignore[arg-type]
        self._cuda = next(model.parameters()).is_cuda
        self._exchanges: list[_Exchange] = []
        # step → seconds of its all-reduces, this rank's wait in them, and the least exposed seconds of any rank
        self._over_ranks: dict[int, tuple[float, float, float]] = {}
        self.late: Counter[int] = Counter()  # rank → number of all-reduces that it joined last
        model.register_comm_hook(self, lambda record, bucket: _all_reduce(record, bucket))  # DDP checks annotations

    def watch(self, ledger: Ledger | None) -> None:
        """Drop earlier records and record the steps of another ledger; `None` records nothing."""
        self.ledger = ledger
        self._exchanges, self._over_ranks = [], {}
        self.late = Counter()

    def _now(self) -> Any:
        if not self._cuda:
            return perf_counter_ns()
        import torch

        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def _seconds(self, begin: Any, end: Any) -> float:
        return begin.elapsed_time(end) / 1e3 if self._cuda else (end - begin) / 1e9

    def _steps(self) -> dict[int, list[_Exchange]]:
        steps: dict[int, list[_Exchange]] = {}
        for exchange in self._exchanges:
            if exchange.done is not None and self.ledger is not None and exchange.step < len(self.ledger):
                steps.setdefault(exchange.step, []).append(exchange)
        return steps

    def finish(self) -> None:
        """Gather the times of all ranks and enter the exposed communication into the ledger; once, on every rank."""
        import torch
        from torch import distributed

        if self._cuda:
            torch.cuda.synchronize()
        steps = self._steps()
        durations = [self._seconds(e.ready, e.done) for exchanges in steps.values() for e in exchanges]
        exposed = [self._spans(exchanges)[1] for exchanges in steps.values()]
        device = "cuda" if self._cuda else "cpu"
        mine = torch.tensor(durations + exposed, dtype=torch.float64, device=device)
        every = [torch.empty_like(mine) for _ in range(distributed.get_world_size())]
        distributed.all_gather(every, mine)
        ranks = torch.stack(every).cpu()  # [ranks, all-reduces + steps]
        fastest = ranks[:, : len(durations)].min(0)
        self.late.update(fastest.indices.tolist())  # the last rank to join waits least
        least = ranks[:, len(durations) :].min(0).values.tolist()
        place = 0
        for (step, exchanges), least_exposed in zip(steps.items(), least, strict=True):
            end = place + len(exchanges)
            all_reduce = float(fastest.values[place:end].sum())
            self._over_ranks[step] = (all_reduce, sum(durations[place:end]) - all_reduce, least_exposed)
            place = end
            if not self._cuda and self.ledger is not None:
                begin, done = exchanges[-1].ready, max(e.done for e in exchanges)
                until = done - round(least_exposed * 1e9)
                self.ledger.reassign(step, begin, until, "rank_wait")
                self.ledger.reassign(step, until, done, "communication")

    def _spans(self, exchanges: list[_Exchange]) -> tuple[float, float]:
        """Return the seconds in which any all-reduce of a step ran, and those of them that are exposed."""
        begin = exchanges[0].ready
        busy, reached = 0.0, 0.0
        for ready, done in sorted((self._seconds(begin, e.ready), self._seconds(begin, e.done)) for e in exchanges):
            busy += max(0.0, done - max(ready, reached))
            reached = max(reached, done)
        return busy, max(0.0, reached - self._seconds(begin, exchanges[-1].ready))

    def frame(self) -> pd.DataFrame:
        """Return one row per step: `step`, `buckets`, `bytes` and the columns of seconds that the class describes."""
        import pandas as pd

        rows = []
        for step, exchanges in self._steps().items():
            busy, exposed = self._spans(exchanges)
            all_reduce, rank_wait, least = self._over_ranks.get(step, (None, None, None))
            rows.append(
                {
                    "step": step,
                    "buckets": len(exchanges),
                    "bytes": sum(e.bytes for e in exchanges),
                    "exposed_seconds": exposed,
                    "overlapped_seconds": busy - min(busy, exposed),
                    "all_reduce_seconds": all_reduce,
                    "rank_wait_seconds": rank_wait,
                    "exposed_rank_wait_seconds": None if least is None else exposed - least,
                }
            )
        return pd.DataFrame(rows)


def _all_reduce(record: Communication, bucket: Any) -> Any:
    """Run the all-reduce of a bucket, and record its begin and end if a ledger is attached."""
    if record.ledger is None:
        return record._hook(bucket)
    exchange = _Exchange(len(record.ledger), bucket.buffer().nbytes, record._now())
    record._exchanges.append(exchange)

    def done(future: Any) -> Any:
        exchange.done = record._now()
        return future.value()

    return record._hook(bucket).then(done)
