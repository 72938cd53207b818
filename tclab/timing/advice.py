"""What to change, ranked by what it is predicted to gain, and what a change gave when it was tried."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from tclab.timing.errors import TimingError

if TYPE_CHECKING:
    import pandas as pd

    from tclab.timing.verdict import Pair

# what a prediction rests on
MEASURED = "measured apart"  # both were run, at different times
MODEL = "model"  # arithmetic from measured parts
AT_BEST = "at best"  # all of a part's time gone: no change can gain more there

Race = Callable[..., "Pair"]


@dataclass(frozen=True)
class Suggestion:
    """One change that is worth trying.

    **Arguments:**

    - `change`: in words. `why`: the evidence, in words.
    - `ratio`: predicted time of a step with the change over its time now; `interval`: 95 %, where it has one.
    - `basis`: "measured apart", "model" or "at best", which is a bound.
    - `setting`: the field of a `tclab.Point` that is changed → its new value; empty where it is no field.
    - `measured`: the change against what is now, from a race or from runs; `None` until `measure` was called.
    - `race`: how `measure` does it, given a budget in seconds; `None` where it must be given the two steps.
    """

    change: str
    why: str
    ratio: float
    interval: tuple[float, float] | None
    basis: str
    setting: Mapping[str, Any] = field(default_factory=dict)
    measured: Pair | None = None
    race: Race | None = field(default=None, repr=False, compare=False)

    def measure(
        self,
        *,
        budget_seconds: float = 60.0,
        now: Callable[[], Any] | None = None,
        changed: Callable[[], Any] | None = None,
        **options: Any,
    ) -> Suggestion:
        """Run what is now against the change and return this suggestion with what came out beside it.

        **Arguments:**

        - `budget_seconds`: for everything.
        - `now`, `changed`: calls that take one step each, for a loop of one's own; a suggestion from a sweep's rows
          knows its points.
        - `options`: of `tclab.timing.race`, or of `tclab.sweeps.race_points`.

        **Raises:** `TimingError` where there is nothing to run.
        """
        if now is not None and changed is not None:
            from tclab.timing.racing import race

            arms = {"changed": changed, "now": now}
            return replace(
                self, measured=race(arms, budget_seconds=budget_seconds, **options).pair("changed", "now")
            )
        if self.race is None:
            raise TimingError(
                f"{self.change!r} is no setting of a point, so give both: measure(now=step, changed=other_step)"
            )
        return replace(self, measured=self.race(budget_seconds=budget_seconds, **options))

    def __str__(self) -> str:
        ends = "" if self.interval is None else f" [{self.interval[0]:.3g}, {self.interval[1]:.3g}]"
        lines = f"{self.change}: predicted {self.ratio:.3g} × the time of a step{ends}, {self.basis}. {self.why}"
        if self.measured is None:
            return lines
        pair = self.measured
        if pair.ratio is None:
            return f"{lines} Measured: {pair.verdict}, {pair.why}."
        ends = f" [{pair.interval[0]:.3g}, {pair.interval[1]:.3g}]" if pair.interval else ""
        return f"{lines} Measured: {pair.verdict}, {pair.ratio:.3g} × the time{ends}."


@dataclass(frozen=True)
class Advice:
    """What to change, the largest predicted gain first; `print` it for the same in words.

    **Arguments:**

    - `of`: what it is advice for, in words.
    - `suggestions`: each with what it is predicted to gain, and why.
    - `missing`: where the evidence is too thin for advice, or there is none, and what would tell.
    - `where`: what the evidence was measured on; `None` for this machine.
    """

    of: str
    suggestions: tuple[Suggestion, ...]
    missing: tuple[str, ...] = ()
    where: str | None = None

    def measure(self, number: int | None = None, *, budget_seconds: float = 60.0, **options: Any) -> Advice:
        """Measure the suggestions that know how, the first `number` of them, and return the advice with it.

        **Arguments:**

        - `number`: all unless given.
        - `budget_seconds`: for all of them together.
        - `options`: as for `Suggestion.measure`.

        A suggestion that cannot be measured is left as it is, and `missing` says why; the others are measured.
        """
        able = [place for place, one in enumerate(self.suggestions) if one.race is not None][:number]
        made = list(self.suggestions)
        lost = []
        for place in able:
            try:
                made[place] = made[place].measure(budget_seconds=budget_seconds / len(able), **options)
            except Exception as error:
                why = (str(error).strip().splitlines() or [type(error).__name__])[0]
                lost.append(f"what {made[place].change!r} gives when it is run: {why}")
        return replace(self, suggestions=tuple(made), missing=(*self.missing, *lost))

    def frame(self) -> pd.DataFrame:
        """Return a line a suggestion: predicted and measured time over what it is now, and why."""
        import pandas as pd

        lines = []
        for one in self.suggestions:
            low, high = one.interval or (None, None)
            pair = one.measured
            ends = pair.interval if pair is not None and pair.interval else (None, None)
            lines.append(
                {
                    "change": one.change,
                    "predicted": one.ratio,
                    "low": low,
                    "high": high,
                    "basis": one.basis,
                    "measured": None if pair is None else pair.ratio,
                    "measured low": ends[0],
                    "measured high": ends[1],
                    "verdict": None if pair is None else pair.verdict,
                    "why": one.why,
                }
            )
        names = [
            "change",
            "predicted",
            "low",
            "high",
            "basis",
            "measured",
            "measured low",
            "measured high",
            "verdict",
        ]
        return pd.DataFrame(lines, columns=[*names, "why"]).set_index("change")

    def __str__(self) -> str:
        lines = [f"What to change, {self.of}:"]
        lines += [f"  {place}. {one}" for place, one in enumerate(self.suggestions, start=1)]
        if not self.suggestions:
            lines.append("  nothing that the evidence carries.")
        return "\n".join([*lines, *(f"  not known: {sentence}" for sentence in self.missing)])


def ranked(suggestions: list[Suggestion]) -> tuple[Suggestion, ...]:
    """Return suggestions by what they gain, the largest first; of one gain, what is surest."""
    order = (MEASURED, MODEL, AT_BEST)
    return tuple(sorted(suggestions, key=lambda one: (one.ratio, order.index(one.basis))))
