"""A trial of a DataLoader that keeps its workers beside one that starts them anew."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import Any

from tclab.timing._advice import Race
from tclab.timing._race import race
from tclab.timing._verdict import Pair

_BATCHES = 2  # of each worker in a pass


def start_trial(loader: Any, passes_a_second: float) -> Race | None:
    """Return what races short passes over a DataLoader with workers that stay against workers that start anew.

    Its comparison is one of the run's time, in which so many passes start workers. There is none of a loader that is
    gone, or whose batches cannot be chosen.
    """
    from torch.utils.data import IterableDataset

    if loader is None or loader.batch_sampler is None or isinstance(loader.dataset, IterableDataset):
        return None

    def trial(*, budget_seconds: float, **options: Any) -> Pair:
        kept, anew = (_short(loader, persistent) for persistent in (True, False))
        try:
            _pass(kept)()
            found = race({"changed": _pass(kept), "now": _pass(anew)}, budget_seconds=budget_seconds, **options)
        finally:
            if kept._iterator is not None:
                kept._iterator._shutdown_workers()
        return of_the_run(found.pair("changed", "now"), passes_a_second)

    return trial


def _short(loader: Any, persistent: bool) -> Any:
    """Return a loader of the first batches of another."""
    from torch.utils.data import DataLoader

    same = ("num_workers", "collate_fn", "pin_memory", "timeout", "worker_init_fn", "multiprocessing_context",
            "prefetch_factor")  # fmt: skip
    batches = list(islice(loader.batch_sampler, _BATCHES * loader.num_workers))
    options = {name: getattr(loader, name) for name in same}
    return DataLoader(loader.dataset, batch_sampler=batches, persistent_workers=persistent, **options)


def _pass(loader: Any) -> Callable[[], None]:
    def run() -> None:
        for _ in loader:
            pass

    return run


def of_the_run(pair: Pair, passes_a_second: float) -> Pair:
    """Return a comparison of passes as one of the run that they are a part of."""
    if pair.b_seconds is None:
        return pair
    part = passes_a_second * pair.b_seconds
    why = f"of the run; {pair.ratio_text} of a short pass over the loader"
    return pair.rescaled(lambda ratio: max(1e-3, 1 - part * (1 - ratio)), why)
