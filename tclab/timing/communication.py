"""The exchange of gradients under DDP: what the step waits for, what hides behind the backward, who is late."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

from tclab.timing.ledger import Ledger

if TYPE_CHECKING:
    import pandas as pd


@dataclass
class _Exchange:
    """One bucket's all-reduce; times are nanoseconds on the host, or events on CUDA."""

    step: int
    bytes: int
    ready: Any
    done: Any = None


class Communication:
    """Watches a DDP model's all-reduces, bucket by bucket, beside a ledger.

    Make it before the first step, call `finish` on every rank after the last one (it is a collective), then read
    `frame` and `late`. For each step:

    - `exposed_seconds`: from the last bucket's gradients to the end of the last all-reduce; nothing is left to
      compute then, so the step stands still. On a CPU the ledger's stage `communication` holds it after `finish`,
      taken out of `backward`.
    - `overlapped_seconds`: the time in which some all-reduce ran, less what is exposed.
    - `waiting_seconds`: an all-reduce takes on every rank until the last one has come. Its own time is the shortest
      over the ranks; what a rank spent beyond that it waited for the others.

    **Arguments:**

    - `model`: a `DistributedDataParallel` without a communication hook; it gets one that does what DDP does by
      itself, the mean over ranks.
    - `ledger`: whose steps are meant.
    """

    def __init__(self, model: Any, ledger: Ledger) -> None:
        self.ledger = ledger
        self._cuda = next(model.parameters()).is_cuda
        self._exchanges: list[_Exchange] = []
        self._waiting: dict[int, float] = {}
        self._own: dict[int, float] = {}
        self.late: Counter[int] = Counter()  # rank → all-reduces that it came to last
        model.register_comm_hook(self, lambda watch, bucket: _all_reduce(watch, bucket))  # DDP reads annotations

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
        found: dict[int, list[_Exchange]] = {}
        for exchange in self._exchanges:
            if exchange.done is not None and exchange.step < len(self.ledger):
                found.setdefault(exchange.step, []).append(exchange)
        return found

    def finish(self) -> None:
        """Exchange what each rank saw, and enter what is exposed into the ledger; call it once, on every rank."""
        import torch
        from torch import distributed

        if self._cuda:
            torch.cuda.synchronize()
        steps = self._steps()
        own = [self._seconds(e.ready, e.done) for exchanges in steps.values() for e in exchanges]
        device = "cuda" if self._cuda else "cpu"
        mine = torch.tensor(own, dtype=torch.float64, device=device)
        every = [torch.empty_like(mine) for _ in range(distributed.get_world_size())]
        distributed.all_gather(every, mine)
        ranks = torch.stack(every).cpu()  # [ranks, exchanges]
        fastest = ranks.min(0)
        self.late.update(fastest.indices.tolist())  # who came last waited least
        place = 0
        for step, exchanges in steps.items():
            end = place + len(exchanges)
            self._own[step] = float(fastest.values[place:end].sum())
            self._waiting[step] = sum(own[place:end]) - self._own[step]
            place = end
            if not self._cuda:
                self.ledger.reassign(step, exchanges[-1].ready, max(e.done for e in exchanges), "communication")

    def frame(self) -> pd.DataFrame:
        """Return one row per step: `buckets`, `bytes`, and the seconds that the class tells of."""
        import pandas as pd

        rows = []
        for step, exchanges in self._steps().items():
            begin = exchanges[0].ready
            spans = sorted((self._seconds(begin, e.ready), self._seconds(begin, e.done)) for e in exchanges)
            busy, reached = 0.0, 0.0
            for ready, done in spans:
                busy += max(0.0, done - max(ready, reached))
                reached = max(reached, done)
            exposed = max(0.0, reached - self._seconds(begin, exchanges[-1].ready))
            rows.append(
                {
                    "step": step,
                    "buckets": len(exchanges),
                    "bytes": sum(e.bytes for e in exchanges),
                    "exposed_seconds": exposed,
                    "overlapped_seconds": busy - min(busy, exposed),
                    "own_seconds": self._own.get(step),
                    "waiting_seconds": self._waiting.get(step),
                }
            )
        return pd.DataFrame(rows)


def _all_reduce(watch: Communication, bucket: Any) -> Any:
    """Do what DDP does without a hook: the mean over ranks; and keep when it began and ended."""
    from torch import distributed

    exchange = _Exchange(len(watch.ledger), bucket.buffer().nbytes, watch._now())
    watch._exchanges.append(exchange)
    buffer = bucket.buffer().div_(distributed.get_world_size())

    def done(future: Any) -> Any:
        exchange.done = watch._now()
        return future.value()[0]

    return distributed.all_reduce(buffer, async_op=True).get_future().then(done)
