"""The fitted costs of masking and filtering an edge, as a table and in words."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from tclab.sweeps.predict._cost_model import CostModel

_SYMBOLS = {"alpha": "α", "beta": "β", "gamma": "γ", "delta": "δ"}
_MEANINGS = {
    "alpha": "masking an edge",
    "beta": "a feature of a message, both ways",
    "gamma": "finding whether an edge is kept",
    "delta": "writing an edge that is kept",
}


def costs_table(model: CostModel) -> pd.DataFrame:
    """Return the four costs in nanoseconds, each with its 95 % interval."""
    rows = []
    for name, symbol in _SYMBOLS.items():
        low, high = model.interval(name)
        figures = {"ns": model.costs[name] * 1e9, "low": low * 1e9, "high": high * 1e9}
        rows.append({"cost": symbol, "of": _MEANINGS[name], **figures})
    return pd.DataFrame(rows).set_index("cost").round(4)


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
