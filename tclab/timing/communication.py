"""The exchange of gradients under DDP: what the step waits for, what hides behind the backward, who is late."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
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
      compute then, so the step stands still.
    - `overlapped_seconds`: the time in which some all-reduce ran, less what is exposed.
    - `waiting_seconds`: an all-reduce takes on every rank until the last one has come. Its own time is the shortest
      over the ranks; what a rank spent beyond that it waited for the others.
    - `exposed_waiting_seconds`: what is exposed on this rank beyond the least over the ranks. On a CPU the
      ledger's stage `waiting` holds it after `finish`, and the stage `communication` the rest of what is exposed,
      both taken out of `backward`.

    **Arguments:**

    - `model`: a `DistributedDataParallel` without a communication hook; it gets one that does what DDP does by
      itself, the mean over ranks.
    - `ledger`: whose steps are meant; `None` until `watch` says which.
    - `hook`: what the model's hook is to do in place of that, from a bucket to a future of its mean over ranks.
    """

    def __init__(
        self, model: Any, ledger: Ledger | None = None, *, hook: Callable[[Any], Any] | None = None
    ) -> None:
        self.ledger = ledger
        self._hook = _mean if hook is None else hook
        self._cuda = next(model.parameters()).is_cuda
        self._exchanges: list[_Exchange] = []
        self._waiting: dict[int, float] = {}
        self._own: dict[int, float] = {}
        self._least: dict[int, float] = {}  # exposed on the rank where it is least
        self.late: Counter[int] = Counter()  # rank → all-reduces that it came to last
        model.register_comm_hook(self, lambda watch, bucket: _all_reduce(watch, bucket))  # DDP reads annotations

    def watch(self, ledger: Ledger | None) -> None:
        """Begin anew, beside another ledger; `None` looks away."""
        self.ledger = ledger
        self._exchanges, self._waiting, self._own, self._least = [], {}, {}, {}
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
        found: dict[int, list[_Exchange]] = {}
        for exchange in self._exchanges:
            if exchange.done is not None and self.ledger is not None and exchange.step < len(self.ledger):
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
        exposed = [self._spans(exchanges)[1] for exchanges in steps.values()]
        device = "cuda" if self._cuda else "cpu"
        mine = torch.tensor(own + exposed, dtype=torch.float64, device=device)
        every = [torch.empty_like(mine) for _ in range(distributed.get_world_size())]
        distributed.all_gather(every, mine)
        ranks = torch.stack(every).cpu()  # [ranks, exchanges and steps]
        fastest = ranks[:, : len(own)].min(0)
        self.late.update(fastest.indices.tolist())  # who came last waited least
        least = ranks[:, len(own) :].min(0).values.tolist()
        place = 0
        for number, (step, exchanges) in enumerate(steps.items()):
            end = place + len(exchanges)
            self._own[step] = float(fastest.values[place:end].sum())
            self._waiting[step] = sum(own[place:end]) - self._own[step]
            self._least[step] = least[number]
            place = end
            if not self._cuda and self.ledger is not None:
                begin, done = exchanges[-1].ready, max(e.done for e in exchanges)
                until = done - round(least[number] * 1e9)
                self.ledger.reassign(step, begin, until, "waiting")
                self.ledger.reassign(step, until, done, "communication")

    def _spans(self, exchanges: list[_Exchange]) -> tuple[float, float]:
        """Return the seconds in which some all-reduce of a step ran, and those of them that are exposed."""
        begin = exchanges[0].ready
        busy, reached = 0.0, 0.0
        for ready, done in sorted((self._seconds(begin, e.ready), self._seconds(begin, e.done)) for e in exchanges):
            busy += max(0.0, done - max(ready, reached))
            reached = max(reached, done)
        return busy, max(0.0, reached - self._seconds(begin, exchanges[-1].ready))

    def frame(self) -> pd.DataFrame:
        """Return one row per step: `buckets`, `bytes`, and the seconds that the class tells of."""
        import pandas as pd

        rows = []
        for step, exchanges in self._steps().items():
            busy, exposed = self._spans(exchanges)
            least = self._least.get(step)
            rows.append(
                {
                    "step": step,
                    "buckets": len(exchanges),
                    "bytes": sum(e.bytes for e in exchanges),
                    "exposed_seconds": exposed,
                    "overlapped_seconds": busy - min(busy, exposed),
                    "own_seconds": self._own.get(step),
                    "waiting_seconds": self._waiting.get(step),
                    "exposed_waiting_seconds": None if least is None else exposed - least,
                }
            )
        return pd.DataFrame(rows)


def _all_reduce(watch: Communication, bucket: Any) -> Any:
    """Exchange a bucket, and keep when that began and ended, where somebody looks."""
    if watch.ledger is None:
        return watch._hook(bucket)
    exchange = _Exchange(len(watch.ledger), bucket.buffer().nbytes, watch._now())
    watch._exchanges.append(exchange)

    def done(future: Any) -> Any:
        exchange.done = watch._now()
        return future.value()

    return watch._hook(bucket).then(done)


def _mean(bucket: Any) -> Any:
    """Do what DDP does without a hook: the mean over ranks."""
    from torch import distributed

    buffer = bucket.buffer().div_(distributed.get_world_size())
    return distributed.all_reduce(buffer, async_op=True).get_future().then(lambda future: future.value()[0])
