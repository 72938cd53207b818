"""Whether loading is bound by bytes: the time of a batch against what it carries, over batch sizes."""

from __future__ import annotations

from typing import Any

import altair as alt
import numpy as np
import pandas as pd

from tclab.lab.charts import _colour, _title
from tclab.lab.stage_bars import ordered_ways
from tclab.lab.timeline import nothing
from tclab.timing.units import bytes_text

_FEWEST = 3  # batch sizes: through two, any line goes
GOOD = 0.9  # R², from which on the line is said to fit
_PANEL = 260


def _points(rows: pd.DataFrame) -> pd.DataFrame:
    """Return one line for each batch size: bytes and seconds a step in mode `data`."""
    plain = rows["habits"].isna() | (rows["habits"] == "")
    chosen = rows[(rows["stage"] == "step") & (rows["status"] == "ok") & (rows["mode"] == "data") & plain]
    columns = ["batch_size", "batch_bytes", "median_seconds", "q1_seconds", "q3_seconds"]
    made = chosen[["model", "strategy"]].astype(object)
    for name in columns:
        made[name] = chosen[name].astype("float64")
    made["way"] = made["model"] + " · " + made["strategy"]
    return made.sort_values(["way", "batch_size"]).reset_index(drop=True)


def bytes_fit(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the least-squares line of median seconds against bytes, over batch sizes, for each way of loading.

    Columns: way, model, strategy, batch_sizes (how many), seconds_per_byte with `low` and `high` (95 %),
    seconds_at_none (the constant), r_squared. Missing where fewer than 3 batch sizes were measured.
    """
    from scipy.stats import linregress, t

    found = []
    for way, own in _points(rows).groupby("way"):
        line: dict[str, Any] = {
            "way": way,
            "model": own["model"].iloc[0],
            "strategy": own["strategy"].iloc[0],
            "batch_sizes": own["batch_size"].nunique(),
        }
        if line["batch_sizes"] >= _FEWEST and own["batch_bytes"].nunique() > 1:
            fit = linregress(own["batch_bytes"], own["median_seconds"])
            reach = float(t.ppf(0.975, len(own) - 2)) * fit.stderr
            line |= {
                "seconds_per_byte": fit.slope,
                "low": fit.slope - reach,
                "high": fit.slope + reach,
                "seconds_at_none": fit.intercept,
                "r_squared": 0.0 if np.isnan(fit.rvalue) else fit.rvalue**2,  # nan: not one time differs
            }
        found.append(line)
    columns = ["way", "model", "strategy", "batch_sizes", "seconds_per_byte", "low", "high", "seconds_at_none"]
    return pd.DataFrame(found, columns=[*columns, "r_squared"])


def time_against_bytes(rows: pd.DataFrame) -> Any:
    """Return seconds a batch in mode `data` against its bytes, a panel for each way, with the line that fits.

    The panels share their time axis and have each its own of bytes.
    """
    points = _points(rows)
    if points.empty:
        return nothing("Mode data was not measured.")
    fits = {fit["way"]: fit for _, fit in bytes_fit(rows).iterrows()}
    longest = 1.15 * max(points["q3_seconds"].max(), points["median_seconds"].max())
    second, factor = ("s", 1.0) if longest >= 1 else ("ms", 1e3)
    points[["took", "q1", "q3"]] = factor * points[["median_seconds", "q1_seconds", "q3_seconds"]]
    panels = []
    for place, way in enumerate(ordered_ways(points)):
        own = points[points["way"] == way].copy()
        widest = own["batch_bytes"].max()
        unit, size = next((u, s) for u, s in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3), ("B", 1)) if widest >= s)
        own["sent"], end = own["batch_bytes"] / size, 1.12 * widest / size
        x = alt.X(
            "sent:Q",
            title=f"bytes of a batch [{unit}]",
            scale=alt.Scale(domain=[0, end], nice=False),
            axis=alt.Axis(tickCount=5, gridOpacity=0.4),
        )
        y = alt.Y(
            "took:Q",
            title=f"mode data [{second} a batch]" if place == 0 else None,
            scale=alt.Scale(domain=[0, factor * longest], nice=False),
            axis=alt.Axis(gridOpacity=0.4),
        )
        base = alt.Chart(own).encode(x=x, color=_colour(points).legend(None))
        layers = [
            base.mark_rule(strokeWidth=2).encode(y=alt.Y("q1:Q"), y2="q3:Q"),
            base.mark_point(filled=True, size=60, opacity=1).encode(y=y),
            base.mark_text(align="left", dx=7, dy=-7, fontSize=10, color="#555555").encode(
                y=y, text=alt.Text("batch_size:Q", format="d"), color=alt.value("#555555")
            ),
        ]
        fit = fits[way]
        if pd.notna(fit["r_squared"]):
            ends = pd.DataFrame({"sent": [0.0, end]})
            ends["took"] = factor * (fit["seconds_at_none"] + fit["seconds_per_byte"] * size * ends["sent"])
            line = alt.Chart(ends).mark_line(strokeDash=[5, 3], color="#333333", clip=True)
            layers.insert(0, line.encode(x=x, y=y))
        title = alt.TitleParams(way, subtitle=_fit_words(fit), anchor="start", fontSize=12)
        panels.append(alt.layer(*layers).properties(width=_PANEL, height=220, title=title))
    chart = alt.hconcat(*panels, spacing=16)
    more = "numbers: batch size; line: quartiles; dashed: least squares"
    return chart.properties(title=_title("Is loading bound by bytes?", rows, more))


def _fit_words(fit: pd.Series) -> str:
    if pd.isna(fit["r_squared"]):
        return f"{fit['batch_sizes']} batch sizes: too few for a line"
    if not fit["low"] > 0:  # missing where nothing varies
        return f"R² = {fit['r_squared']:.2f}: no slope that differs from 0"
    return f"R² = {fit['r_squared']:.3f}, {bytes_text(1 / fit['seconds_per_byte'])}/s"


def bytes_words(rows: pd.DataFrame) -> list[str]:
    """Return whether each way of loading is bound by bytes, a sentence each, and what the others say to it.

    In one strategy bytes grow with samples, so its line alone cannot tell them apart: a strategy that makes the
    same samples of fewer bytes can. Bound by bytes is what fits a line, grows with it for the most part, and takes
    more than twice as long as the same samples in few bytes.
    """
    points, said = _points(rows), []
    fits = {fit["way"]: fit for _, fit in bytes_fit(rows).iterrows()}
    for fit in (fits[way] for way in ordered_ways(points)):
        own = points[points["way"] == fit["way"]]
        if pd.isna(fit["r_squared"]):
            said.append(f"{fit['way']}: {fit['batch_sizes']} batch sizes are too few for a line.")
            continue
        top = own.iloc[-1]
        words = f"{fit['way']}: R² = {fit['r_squared']:.3f} over {fit['batch_sizes']} batch sizes"
        lean, cheaper = _lean(points, top)
        if fit["r_squared"] < GOOD or not fit["low"] > 0:
            said.append(
                f"{words}: not shown that time follows bytes, up to {bytes_text(top['batch_bytes'])}.{lean}"
            )
            continue
        grows = min(1.0, max(0.0, 1 - fit["seconds_at_none"] / top["median_seconds"]))
        words += (
            f": time follows bytes, {bytes_text(1 / fit['seconds_per_byte'])} a second, and {grows:.0%} of it at "
            f"batch {int(top['batch_size'])} grows with them.{lean}"
        )
        said.append(f"{words} So it is bound by bytes." if cheaper and grows > 0.5 else words)
    return said


def _lean(points: pd.DataFrame, top: pd.Series) -> tuple[str, bool]:
    """Return what the same samples take with the fewest bytes, and whether that is surely less than half."""
    same = points[(points["model"] == top["model"]) & (points["batch_size"] == top["batch_size"])]
    least = same.sort_values("batch_bytes").iloc[0]
    if least["way"] == top["way"] or least["batch_bytes"] > 0.1 * top["batch_bytes"]:
        return "", False
    words = (
        f" The same samples with {least['strategy']}, {bytes_text(least['batch_bytes'])} for "
        f"{bytes_text(top['batch_bytes'])}, take {least['median_seconds'] / top['median_seconds']:.1%} of that."
    )
    return words, bool(least["q3_seconds"] < 0.5 * top["q1_seconds"])
