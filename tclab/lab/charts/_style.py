"""The visual language of all charts: colours, shapes, titles, logarithmic axes, and the chart without figures."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any
from zlib import crc32

import altair as alt
import numpy as np
import pandas as pd

from tclab.sweeps.store._machine_label import graph_text, this_machine, where_measured

# Okabe and Ito's colour-blind safe palette, then Paul Tol's muted and vibrant ones for what it lacks, the dark ones
# lighter, to be seen on a dark page; the same strategy has the same colour in every chart, and points have shapes too.
STRATEGY_COLOURS = {
    "subgraph": "#999999",
    "edge_mask": "#d55e00",
    "stored_index": "#e69f00",
    "stored_mask": "#f0c340",
    "gpu_mask_loop": "#cc79a7",
    "gpu_mask": "#8a4fa0",
    "gpu_mask_cached": "#7a52b8",
    "gpu_filter": "#56b4e9",
    "node_mask": "#009e73",
    "indices": "#0072b2",
    "gene_mask_cache": "#b3397a",
    "dense": "#117733",
    "delta": "#ee3377",
    "khop_1": "#5a78e0",
    "khop_2": "#88ccee",
    "khop_3": "#ddcc77",
    "sampled_edges": "#aa4499",
    "fastest": "#b0452b",
}
# In the order in which a batch goes through them. Kinds of work share a hue: making a batch is yellow to orange,
# masks are red, the model blue, the update green; waiting and what lies between are greys, and idle next to nothing.
STAGE_COLOURS = {
    "sample": "#f0e442",
    "data_wait": "#b0b0b0",
    "transfer": "#e69f00",
    "mask": "#d55e00",
    "collate": "#8c5a2b",
    "forward": "#56b4e9",
    "loss": "#cc79a7",
    "gather": "#b3397a",
    "backward": "#0072b2",
    "rank_wait": "#b9a3d0",
    "communication": "#7a52b8",
    "clip": "#7fd6b8",
    "optimizer": "#009e73",
    "log": "#7a7a1e",
    "loop": "#8a7a9b",
    "other": "#757575",
    "idle": "rgba(140, 140, 140, 0.2)",
}
_MORE_COLOURS = ("#7a7a1e", "#3f8f8f", "#6f7f8f", "#4e77c9", "#c08a3e", "#a0557f", "#5c8a1e", "#c43a4b")
_WITHIN = ((1.0, 3.0), (1.0, 2.0, 5.0), (1.0, 1.5, 2.0, 3.0, 5.0, 7.0))  # of a decade
_MIN_LABELS = 4  # labels
SHAPES = (
    "circle",
    "square",
    "triangle-up",
    "diamond",
    "cross",
    "triangle-down",
    "triangle-left",
    "triangle-right",
)
GREY = "#8a8a8a"  # of words and lines: it can be read on a light page and on a dark one
EMPTY = "Nothing to show"  # how the text of a chart without figures begins


def strategy_colours(names: Iterable[str]) -> dict[str, str]:
    """Return strategy → colour; a strategy that a user registered gets one by its name."""
    return _with_more(STRATEGY_COLOURS, names)


def stage_colours(names: Iterable[str]) -> dict[str, str]:
    """Return stage → colour; a stage of a user's own loop gets one by its name."""
    return _with_more(STAGE_COLOURS, names)


def _with_more(fixed: Mapping[str, str], names: Iterable[str]) -> dict[str, str]:
    """Return fixed colours and one for each further name, which does not depend on the other names of a chart.

    Only where two names would share a colour, the later one in the alphabet takes the next.
    """
    colours = dict(fixed)
    left = list(_MORE_COLOURS)
    for name in sorted(set(names) - set(fixed)):
        left = left or list(_MORE_COLOURS)
        place = crc32(name.encode()) % len(_MORE_COLOURS)
        colours[name] = next(c for c in (*_MORE_COLOURS[place:], *_MORE_COLOURS[:place]) if c in left)
        left.remove(colours[name])
    return colours


def log_ticks(values: Iterable[float | None]) -> list[float]:
    """Return ticks for a logarithmic axis: round numbers from the least to the largest of some values.

    Ticks are decades, finer ones where these are few, or of one step size where all values are within a part of a
    decade. Values that are missing or not above 0 are ignored.
    """
    known = np.asarray([np.nan if value is None else value for value in values], dtype=float)
    known = known[np.isfinite(known) & (known > 0)]
    if not len(known):
        return []
    low, high = float(known.min()), float(known.max())
    if high / low < 1 + 1e-9:
        return [float(f"{low:.3g}")]
    powers = np.arange(np.floor(np.log10(low)), np.ceil(np.log10(high)) + 1)
    tried = [10.0 ** powers[powers % every == 0] for every in (3, 2, 1)]
    tried += [np.multiply.outer(10.0**powers, steps).ravel() for steps in _WITHIN]
    tried.append(_even(low, high))
    for ticks in tried:
        inside = ticks[(ticks >= low * (1 - 1e-9)) & (ticks <= high * (1 + 1e-9))]
        if len(inside) >= _MIN_LABELS:
            break
    return [float(f"{tick:.12g}") for tick in inside]


def _even(low: float, high: float) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Return multiples of 1, 2 or 5 times a power of ten, at least four of them between two values."""
    widest = (high - low) / (_MIN_LABELS + 1)
    power = 10.0 ** np.floor(np.log10(widest))
    step = max(factor * power for factor in (1, 2, 5) if factor * power <= widest * (1 + 1e-9))
    return step * np.arange(np.floor(low / step), np.ceil(high / step) + 1)


def log_axis(values: Iterable[float | None], **scale: Any) -> dict[str, Any]:
    """Return `scale` and `axis` of an encoding with a logarithmic axis, whose ticks are the `log_ticks` of values."""
    return {
        "scale": alt.Scale(type="log", nice=False, **scale),
        "axis": alt.Axis(values=log_ticks(values), format="~g", gridOpacity=0.5),
    }


def fixed_colour(field: str, colours: Mapping[str, str], present: Iterable[str], **options: Any) -> Any:
    """Return the colour encoding of a field whose values have fixed colours; the legend has those that are present."""
    names = set(present)
    domain = [name for name in colours if name in names]
    scale = alt.Scale(domain=domain, range=[colours[name] for name in domain])
    return alt.Color(f"{field}:N", scale=scale, **options)


def plain_frame(frame: pd.DataFrame, columns: list[str]) -> pd.DataFrame:
    """Return some columns with the types that altair can write: text as objects, numbers as float64."""
    return frame[columns].astype(
        {name: object if pd.api.types.is_string_dtype(frame[name].dtype) else "float64" for name in columns}
    )


def interval_rule(chart: alt.Chart, **ends: Any) -> tuple[alt.Chart, alt.Chart]:
    """Return the layers of a line that can be seen on bars of any colour, on a light page and on a dark one."""
    wide = chart.mark_rule(strokeWidth=3.5, color="#ffffff").encode(**ends)
    return wide, chart.mark_rule(strokeWidth=1.5, color="#000000").encode(**ends)


def tooltips(texts: Mapping[str, str], numbers: Mapping[str, str]) -> list[Any]:
    """Return what a mark shows under the mouse: field → its title, of texts and of numbers."""
    words = [alt.Tooltip(f"{field}:N", title=title) for field, title in texts.items()]
    return words + [alt.Tooltip(f"{field}:Q", title=title, format=".4~g") for field, title in numbers.items()]


def strategy_colour(frame: pd.DataFrame) -> Any:
    """Return the colour encoding of the strategies in a frame's column `strategy`."""
    return fixed_colour("strategy", strategy_colours(frame["strategy"]), frame["strategy"], title="strategy")


def strategy_shape(frame: pd.DataFrame) -> Any:
    """Return the shape encoding of the strategies in a frame's column `strategy`."""
    places = {name: place for place, name in enumerate(STRATEGY_COLOURS)}
    domain = [name for name in strategy_colours(frame["strategy"]) if name in set(frame["strategy"])]
    shapes = [SHAPES[places.get(name, crc32(name.encode())) % len(SHAPES)] for name in domain]
    return alt.Shape("strategy:N", scale=alt.Scale(domain=domain, range=shapes), title="strategy")


def chart_title(text: str, *lines: str, size: int | None = None) -> Any:
    """Return a title with further lines below it but for empty ones, at the left; of a `size` in pixels for a panel."""
    options: dict[str, Any] = {} if size is None else {"fontSize": size}
    if any(lines):
        options["subtitle"] = [line for line in lines if line]
    return alt.TitleParams(text, anchor="start", **options)


def machine_text(where: str | None, result: Any = None) -> str:
    """Return a machine as titles name it: `where`; this one where it is missing or a device, "cpu" or "cuda", of it.

    What follows a device, "cpu, keep_pages", stands behind the machine. Where `result`, which was measured, says that
    the machine was busy, the title does.
    """
    busy = getattr(result, "busy_percent", None) is not None
    device, _, more = (where or "").partition(", ")
    named = " · ".join(filter(None, (this_machine(device or None), more))) if device in ("", "cpu", "cuda") else where
    return f"{named}{' · busy' * busy}"


def rows_title(text: str, rows: pd.DataFrame, more: str = "") -> Any:
    """Return the title of a chart of rows, with the machine that measured them and their graph below it."""
    title = chart_title(text, where_measured(rows), " · ".join(filter(None, (graph_text(rows), more))))
    title.offset = 10
    return title


class _EmptyChart(alt.Chart):
    def __repr__(self) -> str:  # in a notebook's output with the chart; tools/notebook_pictures.py looks for it
        return f"{EMPTY}: {' '.join(self.data['text'])}"


def empty_chart(text: str) -> Any:
    """Return a chart whose text says why there are no figures."""
    words = _EmptyChart(pd.DataFrame({"text": [text]})).encode(text="text:N", x=alt.value(10), y=alt.value(15))
    words = words.mark_text(align="left", fontSize=13, color=GREY, lineBreak="\n")
    return words.properties(width=620, height=30 + 16 * text.count("\n"))
