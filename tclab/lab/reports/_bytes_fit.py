"""The line that fits seconds a batch against its bytes, and whether loading is bound by bytes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from tclab._display import bytes_text
from tclab.lab.reports._stage_parts import ordered_labels

_MIN_BATCH_SIZES = 3  # batch sizes: a line goes through any two
_FITS = 0.9  # R² from which on the line counts as a fit


def loading_points(rows: pd.DataFrame) -> pd.DataFrame:
    """Return one row for each batch size: bytes and seconds a step in mode `data`."""
    plain = rows["overheads"].isna() | (rows["overheads"] == "")
    chosen = rows[(rows["stage"] == "step") & (rows["status"] == "ok") & (rows["mode"] == "data") & plain]
    columns = ["batch_size", "batch_bytes", "mean_seconds", "low_seconds", "high_seconds"]
    made = chosen[["model", "strategy"]].astype(object)
    for name in columns:
        made[name] = chosen[name].astype("float64")
    made["label"] = made["model"] + " · " + made["strategy"]
    return made.sort_values(["label", "batch_size"]).reset_index(drop=True)


def bytes_fit(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the least-squares line of mean seconds against bytes, over batch sizes, for each model and strategy.

    Columns: label, model, strategy, batch_sizes (how many), seconds_per_byte with `low` and `high` (95 %),
    seconds_at_none (the constant), r_squared. Missing where fewer than 3 batch sizes were measured.
    """
    from scipy.stats import linregress, t

    found = []
    for label, group in loading_points(rows).groupby("label"):
        line: dict[str, Any] = {
            "label": label,
            "model": group["model"].iloc[0],
            "strategy": group["strategy"].iloc[0],
            "batch_sizes": group["batch_size"].nunique(),
        }
        if line["batch_sizes"] >= _MIN_BATCH_SIZES and group["batch_bytes"].nunique() > 1:
            fit = linregress(group["batch_bytes"], group["mean_seconds"])
            reach = float(t.ppf(0.975, len(group) - 2)) * fit.stderr
            line |= {
                "seconds_per_byte": fit.slope,
                "low": fit.slope - reach,
                "high": fit.slope + reach,
                "seconds_at_none": fit.intercept,
                "r_squared": 0.0 if np.isnan(fit.rvalue) else fit.rvalue**2,  # nan: all times are equal
            }
        found.append(line)
    columns = ["label", "model", "strategy", "batch_sizes", "seconds_per_byte", "low", "high", "seconds_at_none"]
    return pd.DataFrame(found, columns=[*columns, "r_squared"])


def bytes_findings(rows: pd.DataFrame) -> list[str]:
    """Return whether loading is bound by bytes, a sentence for each model and strategy.

    Within one strategy bytes grow with samples, so its line alone cannot separate the two: a strategy that makes
    the same samples of fewer bytes can. Loading is bound by bytes where a line fits, most of the time grows with
    bytes, and the same samples in few bytes take less than half as long.
    """
    points, sentences = loading_points(rows), []
    fits = {fit["label"]: fit for fit in bytes_fit(rows).to_dict("records")}
    for fit in (fits[label] for label in ordered_labels(points)):
        group = points[points["label"] == fit["label"]]
        if pd.isna(fit["r_squared"]):
            sentences.append(f"{fit['label']}: {fit['batch_sizes']} batch sizes are too few for a line.")
            continue
        top = group.iloc[-1]
        words = f"{fit['label']}: R² = {fit['r_squared']:.3f} over {fit['batch_sizes']} batch sizes"
        lean, cheaper = _lean(points, top)
        if fit["r_squared"] < _FITS or not fit["low"] > 0:
            sentences.append(
                f"{words}: it is not shown that time follows bytes, up to {bytes_text(top['batch_bytes'])}.{lean}"
            )
            continue
        grows = min(1.0, max(0.0, 1 - fit["seconds_at_none"] / top["mean_seconds"]))
        words += (
            f": time follows bytes, {bytes_text(1 / fit['seconds_per_byte'])} a second, and {grows:.0%} of it at "
            f"batch {int(top['batch_size'])} grows with them.{lean}"
        )
        sentences.append(f"{words} So it is bound by bytes." if cheaper and grows > 0.5 else words)
    return sentences


def _lean(points: pd.DataFrame, top: pd.Series) -> tuple[str, bool]:
    """Return the time of the same samples in the fewest bytes, and whether it is surely less than half."""
    same = points[(points["model"] == top["model"]) & (points["batch_size"] == top["batch_size"])]
    least = same.sort_values("batch_bytes").iloc[0]
    if least["label"] == top["label"] or least["batch_bytes"] > 0.1 * top["batch_bytes"]:
        return "", False
    words = (
        f" The same samples with {least['strategy']}, in {bytes_text(least['batch_bytes'])} and not "
        f"{bytes_text(top['batch_bytes'])}, take {least['mean_seconds'] / top['mean_seconds']:.1%} of that time."
    )
    return words, bool(least["high_seconds"] < 0.5 * top["low_seconds"])
