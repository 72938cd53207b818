"""Communication under DDP: how much of the gradient exchange is exposed or overlapped, and which rank comes last."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from tclab.timing._ledger import MOST_UNREAD, Cut, Ledger, moment

if TYPE_CHECKING:
    import pandas as pd

Moment = tuple[int, Any]


@dataclass
class _Exchange:
    """One bucket's all-reduce, and the moments of its begin and end; see `tclab.timing._ledger.moment`."""

    i: int  # number of the all-reduce, which is the same on every rank
    cuts: list[Cut]  # of the ledger's open step, when its gradients were ready
    stage: str  # then
    bytes: int
    ready: Moment
    done: Any = None  # as `ready`


class _StepExchanges(NamedTuple):
    """The all-reduces of one step, their times read."""

    exchanges: list[_Exchange]  # without moments
    took: list[float]  # seconds of each
    busy: float  # seconds in which any of them ran
    exposed: float


class Communication:
    """Records the all-reduce of every bucket of a DDP model, in the completed steps of a ledger.

    Make it before the first step. As the ledger's `with` block ends, the ranks exchange their times (a collective, on
    every rank); without such a block, call `finish` on every rank after the last step. Then read `frame` and `late`.
    Ranks may have different numbers of steps, as under `model.join()`: a step is compared with those of the ranks that
    had it. The columns of `frame`, for each step that exchanged:

    - `exposed_seconds`: from the last bucket's gradients to the end of the last all-reduce. Nothing is left to
      compute then, so the step waits.
    - `overlapped_seconds`: the time in which any all-reduce ran, less `exposed_seconds`.
    - `exposed_rank_wait_seconds`: `exposed_seconds` less the smallest over the ranks: the wait for later ranks, since
      an all-reduce ends on no rank before the last one has joined.

    After `finish` the ledger's stage `rank_wait` holds `exposed_rank_wait_seconds` and the stage `communication` the
    rest of `exposed_seconds`, on the device's timeline on CUDA and else on the host's; both are taken out of the stage
    in which the last bucket was ready, `backward`.

    **Arguments:**

    - `model`: a `DistributedDataParallel` without a communication hook; this registers one.
    - `ledger`: the ledger whose steps are recorded; `None` records nothing until `watch`.
    - `hook`: bucket → future of its mean over ranks; by default what DDP does without a hook.
    """

    def __init__(self, model: Any, ledger: Ledger | None = None, *, hook: Callable[[Any], Any] | None = None) -> None:
        from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

        self._hook: Callable[[Any], Any] = hook or partial(allreduce_hook, None)  # type: ignore[arg-type]
        self._cuda = next(model.parameters()).is_cuda
        self._calls = 0  # all-reduces of any step, or of none
        self._pool: list[Any] = []  # CUDA events that are read
        self.watch(ledger)
        model.register_comm_hook(self, lambda record, bucket: _all_reduce(record, bucket))  # DDP checks annotations

    def watch(self, ledger: Ledger | None) -> None:
        """Drop earlier records and record the steps of another ledger; `None` records nothing."""
        self.ledger = ledger
        self.late: Counter[int] = Counter()  # rank → number of all-reduces that it joined last
        self._unread: deque[list[_Exchange]] = deque()  # of each step
        self._read: list[_StepExchanges] = []
        self._rows: list[dict[str, Any]] = []
        self._finished = False
        if ledger is not None:
            ledger.at_exit.append(lambda: None if self._finished or self.ledger is not ledger else self.finish())

    def _seconds(self, begin: Moment, end: Moment) -> float:
        return float(begin[1].elapsed_time(end[1]) / 1e3 if self._cuda else (end[0] - begin[0]) / 1e9)

    def _read_oldest(self) -> None:
        """Read the times of the oldest step that is unread; one that was interrupted is dropped."""
        exchanges = self._unread.popleft()
        if any(exchange.done is None for exchange in exchanges):
            return
        begin, busy, reached = exchanges[0].ready, 0.0, 0.0
        for ready, done in sorted((self._seconds(begin, e.ready), self._seconds(begin, e.done)) for e in exchanges):
            busy += max(0.0, done - max(ready, reached))
            reached = max(reached, done)
        exposed = max(0.0, reached - self._seconds(begin, exchanges[-1].ready))
        took = [self._seconds(exchange.ready, exchange.done) for exchange in exchanges]
        self._read.append(_StepExchanges(exchanges, took, busy, exposed))
        for exchange in exchanges:
            self._pool += [event for _, event in (exchange.ready, exchange.done) if event is not None]
            exchange.ready = exchange.done = (0, None)

    def finish(self) -> None:
        """Gather the times of all ranks and enter the exposed communication into the ledger; once, on every rank."""
        import torch
        from torch import distributed

        if self.ledger is None:
            return
        if self._cuda:
            torch.cuda.synchronize()
        while self._unread:
            self._read_oldest()
        numbers = {id(cuts): number for number, cuts in enumerate(self.ledger._steps)}  # of those that were completed
        steps = [(numbers[key], each) for each in self._read if (key := id(each.exchanges[0].cuts)) in numbers]
        self._read, self._finished = [], True
        calls = torch.tensor([self._calls], device="cuda" if self._cuda else "cpu")
        distributed.all_reduce(calls, distributed.ReduceOp.MAX)  # ranks that had fewer steps joined as many
        mine = torch.full((2, int(calls)), torch.inf, dtype=torch.float64)  # of each all-reduce, and each step's last
        for _, each in steps:
            of_step = [exchange.i for exchange in each.exchanges]
            mine[0, of_step], mine[1, of_step[-1]] = torch.tensor(each.took, dtype=torch.float64), each.exposed
        mine = mine.to(calls.device)
        least = mine.clone()
        distributed.all_reduce(least, distributed.ReduceOp.MIN)
        last = torch.where((mine == least) & mine.isfinite(), distributed.get_rank(), distributed.get_world_size())[0]
        distributed.all_reduce(last, distributed.ReduceOp.MIN)  # the last rank to join waits least
        self.late.update(last[mine[0].isfinite()].tolist())
        for step, (exchanges, _, busy, exposed) in steps:
            sizes, shortest = [exchange.bytes for exchange in exchanges], float(least[1, exchanges[-1].i])
            row = {"step": step, "buckets": len(sizes), "bytes": sum(sizes), "exposed_seconds": exposed}
            row |= {"overlapped_seconds": max(0.0, busy - exposed), "exposed_rank_wait_seconds": exposed - shortest}
            self._rows.append(row)
            if bool(self.ledger.cuda) == self._cuda:
                waits = {"rank_wait": exposed - shortest, "communication": shortest}
                self.ledger.move(step, waits, out_of=exchanges[-1].stage)

    def frame(self) -> pd.DataFrame:
        """Return one row per step: `step`, `buckets`, `bytes` and the columns of seconds that the class describes.

        A step without an exchange, as under `no_sync`, has no row.

        **Raises:** `RuntimeError` before the ledger's `with` block has ended, or `finish` was called.
        """
        import pandas as pd

        if not self._finished:
            raise RuntimeError(
                "the ranks have not exchanged their times: end the ledger's with block, or call finish()"
            )
        return pd.DataFrame(self._rows)


def _all_reduce(record: Communication, bucket: Any) -> Any:
    """Run the all-reduce of a bucket, and record its begin and end if it is in a step of the ledger."""
    ledger, i = record.ledger, record._calls
    record._calls += 1
    if ledger is None or ledger._cuts is None:
        return record._hook(bucket)
    exchange = _Exchange(i, ledger._cuts, ledger.current, bucket.buffer().nbytes, moment(record._cuda, record._pool))
    if not record._unread or record._unread[-1][0].cuts is not ledger._cuts:
        if len(record._unread) >= MOST_UNREAD and _is_done(record._unread[0]):
            record._read_oldest()
        record._unread.append([])
    record._unread[-1].append(exchange)

    def done(future: Any) -> Any:
        exchange.done = moment(record._cuda, record._pool)
        return future.value()

    return record._hook(bucket).then(done)


def _is_done(exchanges: list[_Exchange]) -> bool:
    """Return whether the device is done with a step's all-reduces, or whether one was interrupted."""
    return all(exchange.done is None or exchange.done[1] is None or exchange.done[1].query() for exchange in exchanges)
