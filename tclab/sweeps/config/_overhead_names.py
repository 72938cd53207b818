"""The overheads of the case study by name, as points have them; `case_study/_overheads.py` is what they do."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tclab.errors import InputError, unknown


@dataclass(frozen=True)
class Overhead:
    """One slow way of the case study's training code."""

    what: str  # it does in each step, in one line
    models: tuple[str, ...] | None = None  # that can take it on, by name; `None` if it is of the training loop: all


_HETERO = ("hetero_cell", "hetero_cell_production")
OVERHEADS = {
    "item_logging": Overhead("reads 15 figures of each step with .item()"),
    "print_loss": Overhead("prints the loss of each step"),
    "zero_params_loss": Overhead("adds zero times every parameter to the loss"),
    "isnan_checks": Overhead("checks each part of the model's output for NaN", _HETERO),
    "wild_type_apart": Overhead("encodes the wild type in a separate pass, not together with the samples", _HETERO),
    "preprocessor_per_sample": Overhead("runs the preprocessor on B + 1 copies of the same features", _HETERO),
    "second_forward": Overhead("runs the whole model a second time for the reconstructions", ("dango",)),
    "dense_targets": Overhead("makes each network's dense adjacency in every step", ("dango",)),
}
LOGGING = {"item_logging", "print_loss"}  # these take a stage of their own, `log`
STEP_WITH_OVERHEADS = "tclab.case_study._overheads:StepWithOverheads"  # imported only for points that have overheads
APPLY_TO_MODEL = "tclab.case_study._overheads:apply_to_model"


def validate_overheads(overheads: Iterable[str]) -> tuple[str, ...]:
    """Return overheads in the order of `OVERHEADS`, given their names, or one name as text.

    **Raises:** `InputError` for an unknown name, with the nearest one, or a name given twice.
    """
    wanted = [overheads] if isinstance(overheads, str) else list(overheads)
    for name in wanted:
        if name not in OVERHEADS:
            raise unknown("overhead", name, OVERHEADS)
    if len(set(wanted)) < len(wanted):
        raise InputError(f"overheads is {tuple(wanted)!r}, expected each overhead once")
    return tuple(name for name in OVERHEADS if name in wanted)


def applicable_overheads(model: str) -> list[str]:
    """Return the names of the overheads that apply to a model, by its name."""
    return [name for name, overhead in OVERHEADS.items() if overhead.models is None or model in overhead.models]
