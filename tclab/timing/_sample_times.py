"""Where a sample's time goes, and what loaders cost when they start: results of a `LoaderWatch`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tclab._display import Display, Shown, counted, seconds_text
from tclab.timing._loader_watch import FetchTimes, LoaderPass
from tclab.timing._sample_parts import COLLATE, PARTS

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, repr=False)
class SampleTimes(Shown):
    """Where the time of making a sample goes, by process; `print` it.

    A batch's whole time and its collating are read from a clock; the rest is divided by samples of the stack: by the
    library that the innermost line of the user's code calls.

    **Arguments:**

    - `seconds`: process ("worker 0", …, or "main" without workers) → part (read, decode, validate, build, own code,
      collate) → seconds.
    - `samples`: process → number of samples that it made.
    """

    seconds: dict[str, dict[str, float]]
    samples: dict[str, int]

    def parts(self) -> dict[str, float]:
        """Return part → seconds a sample, over all processes."""
        made = sum(self.samples.values())
        return {
            part: sum(parts.get(part, 0.0) for parts in self.seconds.values()) / made if made else 0.0 for part in PARTS
        }

    def frame(self) -> pd.DataFrame:
        """Return one row a process and part: `where`, `part`, `seconds`, `samples`, `seconds_a_sample`."""
        import pandas as pd

        rows = [
            (where, part, seconds, self.samples[where], seconds / max(1, self.samples[where]))
            for where, parts in self.seconds.items()
            for part, seconds in parts.items()
        ]
        return pd.DataFrame(rows, columns=["where", "part", "seconds", "samples", "seconds_a_sample"])

    def _display(self) -> Display:
        lines = []
        for where, parts in self.seconds.items():
            whole = sum(parts.values()) or 1.0
            for part, seconds in parts.items():
                each = seconds_text(seconds / max(1, self.samples[where]))
                lines.append((where, part, each, f"{seconds / whole:.1%}"))
        made = sum(self.samples.values())
        title = f"{made} samples of {seconds_text(sum(self.parts().values()))}" if made else "no sample was made"
        return Display(title, ("where", "part", "a sample", "share"), lines)


def sample_times(fetches: Iterable[FetchTimes]) -> SampleTimes:
    """Return the split of what each process spent on making batches; processes of one worker number are added up."""
    fetch: dict[str, float] = {}
    collate: dict[str, float] = {}
    sampled: dict[str, dict[str, float]] = {}
    samples: dict[str, int] = {}
    for one in fetches:
        if not one.samples:
            continue
        fetch[one.where] = fetch.get(one.where, 0.0) + one.fetch_ns / 1e9
        collate[one.where] = collate.get(one.where, 0.0) + one.collate_ns / 1e9
        samples[one.where] = samples.get(one.where, 0) + one.samples
        parts = sampled.setdefault(one.where, {})
        for (_, site), seconds in one.sites.items():
            if site.part and site.part != COLLATE:
                parts[site.part] = parts.get(site.part, 0.0) + seconds
    split = {}
    for where in sorted(samples):
        whole = sum(sampled[where].values())
        rest = max(0.0, fetch[where] - collate[where])
        parts = {part: rest * sampled[where].get(part, 0.0) / whole if whole else 0.0 for part in PARTS}
        split[where] = {**parts, COLLATE: collate[where]}
    return SampleTimes(split, samples)


@dataclass(frozen=True, repr=False)
class Loaders(Shown):
    """How often DataLoaders were started, and what that cost, by all iterations over them; `print` it."""

    passes: Sequence[LoaderPass]

    def restarts(self, loader: int) -> list[LoaderPass]:
        """Return a loader's passes that started its processes anew, the first one left out."""
        return [one for one in self.passes if one.loader == loader and one.workers and one.fresh][1:]

    def frame(self) -> pd.DataFrame:
        """Return one row a pass, with the fields of a `LoaderPass`."""
        import pandas as pd

        return pd.DataFrame([vars(one) for one in self.passes], columns=list(LoaderPass.__dataclass_fields__))

    def _display(self) -> Display:
        lines, notes = [], []
        for number in dict.fromkeys(one.loader for one in self.passes):
            of = [one for one in self.passes if one.loader == number]
            fresh = [one for one in of if one.fresh and one.workers]
            first = of[0]
            start = sum(one.start_seconds for one in fresh)
            ready = max((one.ready_seconds for one in fresh if one.ready_seconds is not None), default=None)
            counts = (str(len(of)), str(first.workers), str(len(fresh)))
            start_text = seconds_text(start / len(fresh)) if fresh else ""
            ready_text = "" if ready is None else seconds_text(ready)
            waits = seconds_text(sum(one.wait_seconds for one in of))
            lines.append((first.place or f"loader {number}", *counts, start_text, ready_text, waits))
            if again := self.restarts(number):
                cost = seconds_text(sum(one.start_seconds + one.end_seconds for one in again))
                kind = "training" if first.training else "without gradients"
                notes.append(
                    f"the loader at {first.place} ({kind}) started {counted(first.workers, 'worker')} anew "
                    f"{counted(len(again), 'time')}, {cost} in all: persistent_workers=True keeps "
                    f"{'it' if first.workers == 1 else 'them'}"
                )
        columns = ("loader", "passes", "workers", "starts", "a start", "ready", "waits")
        return Display(f"{len(self.passes)} passes over DataLoaders", columns, lines, notes)
