"""Communication under DDP: how much of the gradient exchange is exposed or overlapped, and which rank comes last."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from tclab.timing._ledger import Ledger, moment

if TYPE_CHECKING:
    import pandas as pd

Moment = tuple[int, Any]


@dataclass
class _Exchange:
    """One bucket's all-reduce, and the moments of its begin and end; see `tclab.timing._ledger.moment`."""

    i: int  # number of the all-reduce, which is the same on every rank
    stage: str  # the ledger's, when its gradients were ready
    bytes: int
    ready: Moment
    done: Any = None  # as `ready`


class Communication:
    """Records the all-reduce of every bucket of a DDP model, in the completed steps of a ledger.

    Make it before the first step. As the ledger's `with` block ends, the ranks exchange their times (a collective, on
    every rank); without such a block, call `finish` on every rank after the last step. Then read `frame` and `late`.
    Ranks may have different numbers of steps, as under `model.join()`: a step is compared with those of the ranks that
    had it. On CUDA two events a bucket are held until then, which is too much for millions of steps. The columns of
    `frame`, for each step that exchanged:

    - `exposed_seconds`: from the last bucket's gradients to the end of the last all-reduce. Nothing is left to
      compute then, so the step waits.
    - `overlapped_seconds`: the time in which any all-reduce ran, less `exposed_seconds`.
    - `exposed_rank_wait_seconds`: `exposed_seconds` less the smallest over the ranks: the wait for later ranks, since
      an all-reduce ends on no rank before the last one has joined.

    After `finish` the ledger's stage `rank_wait` holds `exposed_rank_wait_seconds` and the stage `communication` the
    rest of `exposed_seconds`, on the device's timeline on CUDA and else on the host's; both are taken out of the stage
    in which the last bucket was ready, `backward`.

    Delete the model before you call `destroy_process_group`: gloo may otherwise wait for ever as the model is freed,
    soon after such a collective (pytorch, issue 56297).

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
        self.watch(ledger)
        model.register_comm_hook(self, lambda record, bucket: _all_reduce(record, bucket))  # DDP checks annotations

    def watch(self, ledger: Ledger | None) -> None:
        """Drop earlier records and record the steps of another ledger; `None` records nothing."""
        self.ledger = ledger
        self.late: Counter[int] = Counter()  # rank → number of all-reduces that it joined last
        self._open: list[_Exchange] = []  # of the open step
        self._exchanges: dict[int, list[_Exchange]] = {}  # number of each completed step → its exchanges
        self._rows: list[dict[str, Any]] | None = None  # when the ranks have exchanged their times
        if ledger is not None:
            ledger.at_exit.append(lambda: self.finish() if self.ledger is ledger else None)
            ledger.at_step.append(partial(self._ended, ledger))

    def _seconds(self, begin: Moment, end: Moment) -> float:
        return float(begin[1].elapsed_time(end[1]) / 1e3 if self._cuda else (end[0] - begin[0]) / 1e9)

    def _ended(self, ledger: Ledger, step: int | None) -> None:
        """Keep the exchanges of a step that is complete; those of one that was dropped are in none."""
        if self.ledger is ledger:
            done, self._open = [each for each in self._open if each.done is not None], []
            self._exchanges |= {step: done} if step is not None and done else {}

    def finish(self) -> None:
        """Gather the times of all ranks and enter the exposed communication into the ledger; once, on every rank."""
        import torch
        from torch import distributed

        if self.ledger is None or self._rows is not None:
            return
        if self._cuda:
            torch.cuda.synchronize()
        steps, self._rows = self._exchanges, []
        calls = torch.tensor([self._calls], device="cuda" if self._cuda else "cpu")
        distributed.all_reduce(calls, distributed.ReduceOp.MAX)  # ranks that had fewer steps joined as many
        mine = torch.full((2, int(calls)), torch.inf, dtype=torch.float64)  # of each all-reduce, and each step's last
        for exchanges in steps.values():
            for each in exchanges:
                mine[0, each.i] = self._seconds(each.ready, each.done)
            mine[1, exchanges[-1].i] = self._spans(exchanges)[1]
        mine = mine.to(calls.device)
        every = [torch.empty_like(mine) for _ in range(distributed.get_world_size())]
        distributed.all_gather(every, mine)
        ranks = torch.stack(every).cpu()  # [ranks, 2, all-reduces]
        own = [each.i for exchanges in steps.values() for each in exchanges]
        self.late.update(ranks[:, 0, own].argmin(0).tolist())  # the last rank to join waits least
        for step, exchanges in steps.items():
            busy, exposed = self._spans(exchanges)
            shortest, sizes = float(ranks[:, 1, exchanges[-1].i].min()), [each.bytes for each in exchanges]
            row = {"step": step, "buckets": len(sizes), "bytes": sum(sizes), "exposed_seconds": exposed}
            row |= {"overlapped_seconds": max(0.0, busy - exposed), "exposed_rank_wait_seconds": exposed - shortest}
            self._rows.append(row)
            if bool(self.ledger.cuda) == self._cuda:
                moved = {"rank_wait": exposed - shortest, "communication": shortest}
                self.ledger.move(step, moved, out_of=exchanges[-1].stage)

    def _spans(self, exchanges: list[_Exchange]) -> tuple[float, float]:
        """Return the seconds in which any all-reduce of a step ran, and those of them that are exposed."""
        begin = exchanges[0].ready
        busy, reached = 0.0, 0.0
        for ready, done in sorted((self._seconds(begin, e.ready), self._seconds(begin, e.done)) for e in exchanges):
            busy += max(0.0, done - max(ready, reached))
            reached = max(reached, done)
        return busy, max(0.0, reached - self._seconds(begin, exchanges[-1].ready))

    def frame(self) -> pd.DataFrame:
        """Return one row per step: `step`, `buckets`, `bytes` and the columns of seconds that the class describes.

        A step without an exchange, as under `no_sync`, has no row.

        **Raises:** `RuntimeError` before the ledger's `with` block has ended, or `finish` was called.
        """
        import pandas as pd

        if self._rows is None:
            raise RuntimeError("the ranks have not exchanged their times: end the ledger's with block or call finish()")
        return pd.DataFrame(self._rows)


def _all_reduce(record: Communication, bucket: Any) -> Any:
    """Run the all-reduce of a bucket, and record its begin and end if it is in a step of the ledger."""
    ledger, i = record.ledger, record._calls
    record._calls += 1
    if ledger is None or not ledger.in_step:
        return record._hook(bucket)
    exchange = _Exchange(i, ledger.current, bucket.buffer().nbytes, moment(record._cuda))
    record._open.append(exchange)

    def done(future: Any) -> Any:
        exchange.done = moment(record._cuda)
        return future.value()

    return record._hook(bucket).then(done)
