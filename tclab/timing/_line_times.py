"""The lines of a program that its time went to: sampled, by stage, with loops and waits for the device."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tclab._display import Display, Shown
from tclab.timing._host_syncs import Syncs, place_text
from tclab.timing._stack_sampler import Site, source_of

if TYPE_CHECKING:
    import pandas as pd

_MOST = 10  # lines that are shown
_OF_WORKER = 2  # of each worker
_LONGEST = 36  # characters of a line's text that are shown
_FEW = 100  # samples below which a share is rough
MAIN = "main"
OUTSIDE = "outside"  # the stage of a sample outside steps


@dataclass(frozen=True)
class LineTime:
    """The time of one line of code in one stage.

    **Arguments:**

    - `where`: "main", or "worker 0", … for a DataLoader's workers.
    - `stage`: the ledger's stage; in a program without a ledger and in workers "".
    - `file`, `line`, `function`: the innermost line of the user's code; "" and 0 where the stack has none.
    - `inside`: library function that the line called and waited for; "" for the line's own work and for what is
      written in C.
    - `loops`: number of loops around the line within a step: its own, and those of its callers.
    - `seconds`: sampled.
    - `share`: of all sampled seconds of the main thread, or of that worker.
    - `waits`: times a step that the host waits for the device in the line, or would on a GPU; `None` if not counted.
    """

    where: str
    stage: str
    file: str
    line: int
    function: str
    inside: str
    loops: int
    seconds: float
    share: float
    waits: float | None = None

    @property
    def text(self) -> str:
        """The line's source, stripped; "" where it is not known."""
        return source_of(self.file, self.line) if self.file else ""

    @property
    def place(self) -> str:
        """File name and line, or the library's function where no line is the user's."""
        if not self.file:
            return self.inside or "the interpreter"
        cell = self.file.startswith("<ipython") or "ipykernel_" in self.file
        return f"{'cell' if cell else Path(self.file).name}:{self.line}"

    @property
    def remarks(self) -> str:
        """Whether the line is in a loop and waits for the device, in words; "" for neither."""
        found = ["in a loop"] if self.loops else []
        if self.waits:
            found.append(f"waits for the device {self.waits:.3g} times a step, or would on a GPU")
        return ", ".join(found)


@dataclass(frozen=True, repr=False)
class Lines(Shown):
    """The lines that the time went to, the longest first; `print` it.

    **Arguments:**

    - `times`: a `LineTime` for each stage and line; a line that calls several library functions has one for each.
    - `samples`: number of moments at which the main thread's stack was seen.
    - `hertz`: their rate.
    - `cuda`: waits were seen on a CUDA device; otherwise they are a forecast. `None` if none were counted.
    - `own_seconds`: processor time that the sampler itself took of the main thread.
    """

    times: tuple[LineTime, ...]
    samples: int
    hertz: float
    cuda: bool | None = None
    own_seconds: float = 0.0

    def frame(self) -> pd.DataFrame:
        """Return one row a `LineTime`, with its fields and its `text`."""
        import pandas as pd

        names = list(LineTime.__dataclass_fields__)
        rows = [[*(getattr(one, name) for name in names), one.text] for one in self.times]
        return pd.DataFrame(rows, columns=[*names, "text"])

    def by_line(self, where: str = MAIN) -> list[LineTime]:
        """Return the lines of the main thread or of a worker, each with all that it calls, the longest first."""
        return _merged(one for one in self.times if one.where == where)

    def by_function(self, where: str = MAIN) -> dict[str, float]:
        """Return function → share of the time whose innermost line of the user's code is in it, the largest first."""
        shares: dict[str, float] = {}
        for one in self.times:
            if one.where == where:
                name = one.function or one.place
                shares[name] = shares.get(name, 0.0) + one.share
        return dict(sorted(shares.items(), key=lambda item: -item[1]))

    def sentences(self, most: int = 3) -> list[str]:
        """Return the longest of the user's lines within steps, in words."""
        within = [one for one in self.by_line() if one.file and one.stage != OUTSIDE]
        return [
            f"{one.stage + ' ' if one.stage else ''}{one.share:.0%}: {one.place}{_quoted(one.text)}"
            f"{', ' if one.remarks else ''}{one.remarks}"
            for one in within[:most]
        ]

    def _display(self) -> Display:
        staged = any(one.stage for one in self.times if one.where == MAIN)
        lines = []
        for one in self.by_line()[:_MOST]:
            code = _short(one.text) or (f"in {one.function}" if one.function else "")
            waits = () if self.cuda is None else (f"{one.waits:.3g}" if one.waits else "",)
            loop = "yes" if one.loops else ""
            lines.append((*((one.stage,) if staged else ()), f"{one.share:.1%}", one.place, loop, *waits, code))
        columns = [*["stage"] * staged, "share", "line", "loop", *["waits"] * (self.cuda is not None), "code"]
        notes = []
        for where in sorted({one.where for one in self.times} - {MAIN}):
            most = ", ".join(f"{one.stage} {one.share:.0%} {one.place}{_quoted(one.text)}"
                             for one in self.by_line(where)[:_OF_WORKER])  # fmt: skip
            notes.append(f"{where}: {most}")
        if self.samples < _FEW:
            notes.append(
                f"{self.samples} samples are few: a share may be off by {50 / max(1, self.samples) ** 0.5:.0f} points"
            )
        if self.cuda is False and any(one.waits for one in self.times):
            notes.append("waits: times a step, a forecast, since nothing waits on a CPU")
        elif self.cuda:
            notes.append("waits: times a step that the host waits for the device there")
        title = f"{self.samples} samples of the stack at {self.hertz:.0f} Hz"
        return Display(title, columns, lines, notes)


def _quoted(text: str) -> str:
    return f" `{_short(text)}`" if text else ""


def _short(text: str) -> str:
    text = text.partition("  #")[0]
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"


def _merged(times: Iterable[LineTime]) -> list[LineTime]:
    """Return one `LineTime` a stage and line: what it calls is added up, the longest call named."""
    lines: dict[tuple[object, ...], list[LineTime]] = {}
    for one in times:
        own = "" if one.file else one.inside
        lines.setdefault((one.stage, one.file, one.line, own), []).append(one)
    merged = []
    for parts in lines.values():
        most = max(parts, key=lambda part: part.seconds)
        sums = {"seconds": sum(p.seconds for p in parts), "share": sum(p.share for p in parts)}
        merged.append(LineTime(**{**vars(most), **sums, "loops": max(p.loops for p in parts)}))
    return sorted(merged, key=lambda one: -one.seconds)


def line_times(
    sites: Mapping[tuple[str, Site], float], *, where: str = MAIN, waits: Syncs | None = None
) -> list[LineTime]:
    """Return the `LineTime`s of what a sampler saw, the longest first, with the synchronisations of one step."""
    whole = sum(sites.values())
    times = []
    for (stage, site), seconds in sites.items():
        count = None
        if waits is not None and site.file:
            count = float(waits.places.get(place_text(site.file, site.line, site.function), 0))
        times.append(
            LineTime(where, stage, site.file, site.line, site.function, site.inside, site.loops, seconds,
                     seconds / whole if whole else 0.0, count)
        )  # fmt: skip
    return sorted(times, key=lambda one: -one.seconds)
