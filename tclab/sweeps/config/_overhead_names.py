"""The overheads of the case study by name, as points have them; `sweeps/execution/_overheads.py` is what they do."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Overhead:
    """One slow way of the case study's training code."""

    what: str  # it does in each step, in one line
    models: tuple[str, ...] | None = None  # that can take it on, by name; `None` if it is of the training loop: all
    exact: bool = True  # false if it changes predictions or gradients: no strategy with it is equal to `subgraph`


_HETERO = ("hetero_cell", "hetero_cell_production")
OVERHEADS = {
    "item_logging": Overhead("reads 15 figures of each step with .item()"),
    "print_loss": Overhead("prints the loss of each step"),
    "zero_params_loss": Overhead("adds zero times every parameter to the loss"),
    "isnan_checks": Overhead("checks each part of the model's output for NaN", _HETERO),
    "batch_wide_layer_norm": Overhead("normalises over the whole mini-batch: other predictions", _HETERO, exact=False),
    "wild_type_apart": Overhead("encodes the wild type in a separate pass, not together with the samples", _HETERO),
    "preprocessor_per_sample": Overhead("runs the preprocessor on B + 1 copies of the same features", _HETERO),
    "quadratic_attention": Overhead(
        "lets every removed node of the batch attend to every other, masked", ("hetero_cell_production", "dango")
    ),
    "second_forward": Overhead("runs the whole model a second time for the reconstructions", ("dango",)),
    "dense_targets": Overhead("makes each network's dense adjacency in every step", ("dango",)),
}


def applicable_overheads(model: str) -> list[str]:
    """Return the names of the overheads that apply to a model, by its name."""
    return [name for name, overhead in OVERHEADS.items() if overhead.models is None or model in overhead.models]
