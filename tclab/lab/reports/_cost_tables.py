"""Whether masking or filtering is faster, by the fitted costs."""

from __future__ import annotations

from collections.abc import Sequence

from tclab.sweeps.predict._cost_model import CostModel


def break_even_finding(model: CostModel, widths: Sequence[int], deleted_share: float) -> str:
    """Return whether masking or filtering is faster for a share of removed edges, by the fitted model.

    The constant cost of a call, which matters on small graphs, is not in the model.
    """
    called = break_even_verdict(model, widths, deleted_share)
    return f"By the model, where {deleted_share:.2%} of the edges are removed: {called}."


def break_even_verdict(model: CostModel, widths: Sequence[int], deleted_share: float) -> str:
    ways = {}
    for width in widths:
        _, low, high = model.break_even(width)
        ways[width] = "masking" if deleted_share < low else "filtering" if deleted_share > high else "undecided"
    verdicts = []
    for way in ("masking", "filtering", "undecided"):
        at = [str(width) for width in widths if ways[width] == way]
        if at:
            verdict = "undecided" if way == "undecided" else f"{way} is the faster"
            verdicts.append(f"{verdict} at {', '.join(at)} features")
    return "; ".join(verdicts)
