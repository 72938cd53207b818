"""`Advice`: suggested changes with predicted gains and, once tried, the measured ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from tclab._display import Display, Shown
from tclab.errors import InputError
from tclab.timing._race import race
from tclab.timing._verdict import Pair

if TYPE_CHECKING:
    import pandas as pd

# the basis of a prediction
MEASURED = "from separate runs"  # both ran, at different times
MODEL = "model"  # computed from measured parts
AT_BEST = "at best"  # a part's whole time is gone, so no change of it can gain more
WORTH = 0.05  # share of a step below which nothing is suggested

Race = Callable[..., Pair]


@dataclass(frozen=True, repr=False)
class Suggestion(Shown):
    """One change that is worth trying.

    **Arguments:**

    - `change`: what to change, in words.
    - `why`: the evidence, in words.
    - `ratio`: predicted time with the change over the time now: of a step, or of what `subject` says.
    - `interval`: 95 % interval of `ratio`; `None` if it has none.
    - `basis`: "from separate runs", "model", or "at best", which is a bound.
    - `setting`: the field of a `tclab.Point` that changes → its new value; empty if it is no field.
    - `measured`: the change compared with now, from a race or from runs; `None` before `measure`.
    - `race`: runs the comparison for `measure`, given a budget in seconds; `None` if the user must give both steps.
    - `subject`: what takes that time: "a step", or "the run", from a ledger's opening to its end.
    """

    change: str
    why: str
    ratio: float
    interval: tuple[float, float] | None
    basis: str
    setting: Mapping[str, Any] = field(default_factory=dict)
    measured: Pair | None = None
    race: Race | None = field(default=None, repr=False, compare=False)
    subject: str = "a step"

    def measure(
        self,
        *,
        budget_seconds: float = 60.0,
        now: Callable[[], Any] | None = None,
        changed: Callable[[], Any] | None = None,
        **options: Any,
    ) -> Suggestion:
        """Race the change against now and return this suggestion with the measured comparison.

        **Arguments:**

        - `budget_seconds`: wall time for everything.
        - `now`, `changed`: functions that each run one step; needed for a training loop of your own, while suggestions
          from a sweep's rows run their points.
        - `options`: other arguments of `tclab.timing.race`, or of `tclab.sweeps.race_points`.

        **Raises:** `InputError` if there is nothing to run.
        """
        if now is not None and changed is not None:
            arms = {"changed": changed, "now": now}
            return replace(self, measured=race(arms, budget_seconds=budget_seconds, **options).pair("changed", "now"))
        if self.race is None:
            raise InputError(
                f"{self.change!r} is no setting of a point, so give both: measure(now=step, changed=other_step)"
            )
        return replace(self, measured=self.race(budget_seconds=budget_seconds, **options))

    @property
    def sentence(self) -> str:
        """The change, its predicted time, the evidence and, once tried, the measured time, in one line."""
        text = f"{self.change}: predicted {self._predicted}, {self.basis}. {self.why}"
        return text if self.measured is None else f"{text} Measured: {self.measured.outcome}."

    @property
    def _predicted(self) -> str:
        ends = "" if self.interval is None else f" [{self.interval[0]:.3g}, {self.interval[1]:.3g}]"
        return f"{self.ratio:.3g} × the time of {self.subject}{ends}"

    def __str__(self) -> str:
        return Display(notes=[self.sentence]).text()

    def _display(self) -> Display:
        return Advice("", (self,))._display()


@dataclass(frozen=True, repr=False)
class Advice(Shown):
    """Suggestions, the largest predicted gain first and bounds last; `print` it to read them.

    **Arguments:**

    - `subject`: the measured workload, in words.
    - `suggestions`: each with its predicted gain and the evidence.
    - `missing`: what the evidence leaves unknown, and what would show it, a sentence each.
    - `where`: the machine of the measurement; `None` for this one.
    """

    subject: str
    suggestions: tuple[Suggestion, ...]
    missing: tuple[str, ...] = ()
    where: str | None = None

    def measure(self, number: int | None = None, *, budget_seconds: float = 60.0, **options: Any) -> Advice:
        """Measure the suggestions that can be measured, and return the advice with the results.

        A suggestion whose measurement fails stays as it is, and `missing` says why.

        **Arguments:**

        - `number`: measure only the first `number` of them; all by default.
        - `budget_seconds`: wall time for all of them together.
        - `options`: as for `Suggestion.measure`.
        """
        able = [place for place, one in enumerate(self.suggestions) if one.race is not None][:number]
        suggestions = list(self.suggestions)
        failures = []
        for place in able:
            try:
                suggestions[place] = suggestions[place].measure(budget_seconds=budget_seconds / len(able), **options)
            except Exception as error:
                why = (str(error).strip().splitlines() or [type(error).__name__])[0]
                failures.append(f"what {suggestions[place].change!r} gives when it runs: {why}")
        return replace(self, suggestions=tuple(suggestions), missing=(*self.missing, *failures))

    def frame(self) -> pd.DataFrame:
        """Return one row a suggestion: predicted and measured time over the time now, and the evidence."""
        import pandas as pd

        rows = []
        for one in self.suggestions:
            pair = one.measured
            predicted = (one.ratio, *(one.interval or (None, None)), one.basis)
            measured: tuple[Any, ...] = (None, None, None, None)
            if pair is not None:
                measured = (pair.ratio, *(pair.interval or (None, None)), pair.verdict)
            rows.append((one.change, *predicted, *measured, one.why))
        columns = ["change", "predicted", "low", "high", "basis"]
        columns += ["measured", "measured low", "measured high", "verdict", "why"]
        return pd.DataFrame(rows, columns=columns).set_index("change")

    def __str__(self) -> str:
        suggestions = [f"{place}. {one.sentence}" for place, one in enumerate(self.suggestions, start=1)]
        display = self._display()
        return Display(display.title, notes=[*suggestions, *display.notes]).text()

    def _display(self) -> Display:
        lines = [
            (one.change, f"{one._predicted}, {one.basis}", one.measured.outcome if one.measured else "", one.why)
            for one in self.suggestions
        ]
        todo = "settle what is still open, or measure other settings" if self.missing else "measure other settings"
        nothing = "" if lines else f"no change is known to save {WORTH:.0%} or more. Next: {todo}."
        title = f"What to change, {self.subject}: {nothing}".rstrip() if self.subject else ""
        missing = [f"still open: {sentence}" for sentence in self.missing]
        return Display(title, ("change", "predicted", "measured", "why") if lines else (), lines, missing)


def ranked(suggestions: list[Suggestion]) -> tuple[Suggestion, ...]:
    """Return suggestions by predicted gain, the largest first, and after them those whose gain is at best so large."""
    order = (MEASURED, MODEL, AT_BEST)
    return tuple(sorted(suggestions, key=lambda one: (one.basis == AT_BEST, one.ratio, order.index(one.basis))))
