"""The three marks that every chart is drawn with: `ratios`, `stacked` and `lines`.

Each takes a frame with a fixed meaning of its columns. A click on an entry of a legend fades the others; where both
axes are numbers, dragging moves them and Ctrl with the wheel zooms (the wheel alone scrolls the page).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import altair as alt
import numpy as np
import pandas as pd

from tclab.lab.charts._style import GREY, colours_of, log_ticks

_FADED = 0.12  # opacity of what a legend does not name
_LETTER = 6.0  # pixels of a letter, at most
_LINE = 16.0  # pixels between two words
_SHAPES = ("circle", "diamond", "square", "triangle-up", "cross", "triangle-down")


def ratios(
    rows: pd.DataFrame,
    title: Any,
    *,
    axis: str,
    colours: Mapping[str, str] | None = None,
    log: bool = True,
    one: float | None = 1.0,
    band: tuple[float, float] | None = None,
    width: int = 400,
) -> Any:
    """Return a row a line with a dot at its value, its interval, and words to the right of the plot.

    **Arguments:**

    - `rows`: `line`, the row's name; `value`; `low` and `high` of its 95 % interval. Further columns, each optional:
      `widest_low` and `widest_high`, a thinner interval; `kind`, which of several dots of a row it is; `sure`, false
      for a hollow dot; `text`, the words; `why`, more of them under the mouse.
    - `axis`: its title. `log`: whether it is logarithmic.
    - `colours`: kind → colour; without kinds a line's.
    - `one`: a value that a rule marks. `band`: the ends of a grey band around it.
    """
    rows = _with_columns(rows, {"widest_low": np.nan, "widest_high": np.nan, "sure": True, "text": "", "why": ""})
    several = "kind" in rows
    by = "kind" if several else "line"
    rows["order"] = range(len(rows))
    numbers = ["value", "low", "high", "widest_low", "widest_high"]
    rows[numbers] = rows[numbers].astype(float)
    found = rows[numbers].to_numpy().ravel()
    kinds = list(colours or colours_of(rows[by]))
    kinds = [kind for kind in kinds if kind in set(rows[by])]
    palette = dict(colours or colours_of(rows[by]))
    scale: dict[str, Any] = (
        _log_axis([*found, one, *(band or ())]) if log else {"scale": alt.Scale(zero=False, padding=20)}
    )
    x = alt.X("value:Q", title=axis, **scale)
    pick = alt.selection_point(fields=["kind"], bind="legend") if several else None
    base = alt.Chart(rows).encode(
        y=alt.Y("line:N", title=None, sort=None, axis=alt.Axis(labelLimit=380, grid=several, ticks=False)),
        color=alt.Color(f"{by}:N", scale=_fixed(palette, kinds), legend=_legend() if several else None),
        tooltip=[
            alt.Tooltip("line:N", title="row"),
            *([alt.Tooltip("kind:N")] if several else []),
            alt.Tooltip("value:Q", format=".4~g"),
            alt.Tooltip("low:Q", format=".4~g", title="95 % from"),
            alt.Tooltip("high:Q", format=".4~g", title="to"),
            *([alt.Tooltip("why:N")] if rows["why"].any() else []),
        ],
        **({"yOffset": alt.YOffset("kind:N", sort=kinds, scale=alt.Scale(paddingOuter=0.4))} if several else {}),
        **({"opacity": alt.condition(pick, alt.value(1.0), alt.value(_FADED))} if several else {}),
    )
    shape = (
        {"shape": alt.Shape("kind:N", scale=alt.Scale(domain=kinds, range=_shapes(kinds)), legend=None)}
        if several
        else {}
    )
    dots = base.mark_point(filled=True, size=80)
    layers = [
        *_references(one, band),
        base.mark_rule(strokeWidth=1).encode(x=alt.X("widest_low:Q", **scale), x2="widest_high:Q"),
        base.mark_rule(strokeWidth=3).encode(x=alt.X("low:Q", **scale), x2="high:Q"),
        dots.transform_filter("datum.sure").encode(x=x, **shape),
        base.mark_point(filled=False, size=80, strokeWidth=2).transform_filter("!datum.sure").encode(x=x, **shape),
        base.mark_text(align="left", dx=8).encode(x=alt.value(width), text="text:N", color=alt.value(GREY)),
    ]
    chart = alt.layer(*layers)
    if pick is not None:
        chart = chart.add_params(pick)
    return chart.properties(width=width, height=alt.Step(14 if several else 24), title=title)


def _references(one: float | None, band: tuple[float, float] | None) -> list[Any]:
    """Return the layers of a band and of the rule that marks a value."""
    layers = []
    if band is not None:
        ends = alt.Chart(pd.DataFrame({"from": band[:1], "to": band[1:]}))
        layers.append(ends.mark_rect(color=GREY, opacity=0.25).encode(x="from:Q", x2="to:Q"))
    if one is not None:
        layers.append(
            alt.Chart(pd.DataFrame({"one": [one]})).mark_rule(color=GREY, strokeDash=[4, 3]).encode(x="one:Q")
        )
    return layers


def stacked(
    parts: pd.DataFrame,
    title: Any,
    *,
    axis: str,
    colours: Mapping[str, str],
    seconds: bool = True,
    zoom: bool = False,
    named: bool = True,
    legend: bool = True,
    width: int = 520,
) -> Any:
    """Return a bar a line whose parts stand end to end, named where there is room, in panels below one another.

    **Arguments:**

    - `parts`: `bar`, `part`, `value` (of at least 0). Further columns, each optional: `panel`; `start`, where the parts
      do not follow one another; `label`, a part's own name; `low` and `high`, between which nine in ten whole bars lie;
      `text`, words behind the bar.
    - `axis`: its title. `seconds`: values are seconds, and shown in ms where all are short; else shares of 1.
    - `colours`: part → colour, in the order of the legend.
    - `zoom`: the axis can be moved and zoomed.
    - `named`: the bars have their names at the left. `legend`: the parts are named below.
    """
    parts = _with_columns(parts, {"panel": "", "label": None, "low": np.nan, "high": np.nan, "text": ""})
    bar = ["panel", "bar"]
    parts["value"] = parts["value"].astype(float).clip(lower=0)
    parts["order"] = parts["part"].map({name: place for place, name in enumerate(colours)}).astype(float)
    if "start" not in parts:
        parts = parts.sort_values("order", kind="stable")
        parts["start"] = parts.groupby(bar, sort=False)["value"].cumsum() - parts["value"]
    parts["end"] = parts["start"] + parts["value"]
    parts["share"] = parts["value"] / parts.groupby(bar)["value"].transform("sum")
    first = ~parts.duplicated(bar)
    parts.loc[~first, ["low", "high"]] = np.nan
    parts.loc[~first, "text"] = ""
    parts["text_at"] = parts.groupby(bar)["end"].transform("max")
    parts["text_at"] = parts[["text_at", "high"]].max(axis=1)
    numbers = ["value", "start", "end", "low", "high", "text_at"]
    if seconds:
        unit, factor = ("s", 1.0) if parts["end"].max() >= 1 else ("ms", 1e3)
        parts[numbers] = factor * parts[numbers].astype(float)
        axis = axis.replace("[s]", f"[{unit}]")
    begin, longest = float(parts["start"].min()), float(parts[["end", "high"]].max().max())
    words = parts["text"].str.len().max() * _LETTER / width
    domain = [begin, begin + (longest - begin) * (1 + (words / max(0.3, 1 - words) if words else 0.02))]
    room = (width * parts["value"] / (domain[1] - domain[0]) / _LETTER).astype(float)
    names = parts["label"].where(parts["label"].notna(), parts["part"])
    parts["name"] = [name if len(name) < fits else "" for name, fits in zip(names, room, strict=True)]
    parts["label"] = names
    shown = [name for name in colours if name in set(parts["part"])]
    pick = alt.selection_point(fields=["part"], bind="legend")
    order = list(dict.fromkeys(parts.sort_index()["bar"]))
    x = alt.X(
        "start:Q",
        title=axis,
        scale=alt.Scale(domain=domain, nice=False),
        axis=alt.Axis(tickCount=6, gridOpacity=0.4, **({} if seconds else {"format": ".0%"})),
    )
    base = alt.Chart().encode(
        y=alt.Y("bar:N", sort=order, title=None, axis=alt.Axis(labelLimit=380, ticks=False, labels=named))
    )
    bars = base.mark_bar(stroke="white", strokeWidth=0.4).encode(
        x=x,
        x2="end:Q",
        color=alt.Color(
            "part:N", scale=_fixed(colours, shown), legend=_legend() if legend and len(shown) > 1 else None
        ),
        opacity=alt.condition(pick, alt.value(1.0), alt.value(_FADED)),
        tooltip=[
            alt.Tooltip("bar:N"),
            alt.Tooltip("label:N", title="part"),
            alt.Tooltip("value:Q", format=".4~g", title=axis),
            alt.Tooltip("share:Q", format=".1%"),
        ],
    )
    spread = [
        base.mark_rule(strokeWidth=size, color=colour).encode(x=alt.X("low:Q"), x2="high:Q")
        for size, colour in ((3.5, "#ffffff"), (1.5, "#000000"))
    ]
    words_in = base.mark_text(align="left", dx=3, fontSize=10, color="#1b1b1b", clip=True).encode(x=x, text="name:N")
    words_behind = base.mark_text(align="left", dx=6, fontSize=11, color=GREY).encode(x="text_at:Q", text="text:N")
    layers = [bars.add_params(pick), words_in, *(spread if parts["low"].notna().any() else []), words_behind]
    chart = alt.layer(*layers).properties(width=width, height=alt.Step(24))
    if zoom:
        chart = chart.add_params(_zoom(["x"]))
    if (parts["panel"] == "").all():
        return chart.properties(data=parts.sort_index(), title=title)
    header = alt.Header(labelAngle=0, labelOrient="top", labelAnchor="start", labelFontWeight="bold", title=None)
    panels = alt.Row("panel:N", sort=list(dict.fromkeys(parts.sort_index()["panel"])), header=header, title=None)
    chart = chart.facet(data=parts.sort_index(), row=panels, spacing=6)
    return chart.resolve_scale(y="independent").properties(title=title)


def lines(
    points: pd.DataFrame,
    title: Any,
    *,
    x: str,
    y: str,
    colours: Mapping[str, str] | None = None,
    log: str = "xy",
    x_values: list[float] | None = None,
    percent: str = "",
    legend: bool = False,
    interpolate: str = "linear",
    width: int = 440,
    height: int = 300,
) -> Any:
    """Return lines with their points, intervals and, at the last point, their names, in panels beside one another.

    **Arguments:**

    - `points`: `line`, `x`, `y`. Further columns, each optional: `low` and `high` of a 95 % interval; `kind`, which has
      the colour where several lines share one; `dashed`, a line without points; `panel`; `text`, words at a point.
    - `x`, `y`: titles of the axes. `log`: those that are logarithmic. `percent`: those that are shares.
    - `colours`: kind, or else line → colour.
    - `x_values`: of the ticks.
    - `legend`: name the colours in a legend and not at the lines.
    """
    more = {"low": np.nan, "high": np.nan, "dashed": False, "panel": "", "text": "", "kind": points["line"]}
    points = _with_columns(points, more)
    points[["x", "y", "low", "high"]] = points[["x", "y", "low", "high"]].astype(float)
    palette = dict(colours or colours_of(points["kind"]))
    shown = [name for name in palette if name in set(points["kind"])]
    pick = alt.selection_point(fields=["kind"], bind="legend")
    reach = {"x": points["x"], "y": points[["y", "low", "high"]].stack()}
    given: dict[str, dict[str, Any]] = {}
    for name, values in reach.items():
        if name in log:
            given[name] = _log_axis(values)
        else:
            more_axis = {"format": "%"} if name in percent else {}
            given[name] = {"scale": alt.Scale(zero=name == "y", padding=14, nice=False), "axis": alt.Axis(**more_axis)}
    if x_values is not None:
        given["x"]["axis"] = alt.Axis(values=x_values, format="~g", grid=False)
    to_x, to_y = alt.X("x:Q", title=x, **given["x"]), alt.Y("y:Q", title=y, **given["y"])
    base = alt.Chart().encode(
        x=to_x,
        color=alt.Color("kind:N", scale=_fixed(palette, shown), legend=_legend() if legend else None),
        detail="line:N",
        opacity=alt.condition(pick, alt.value(1.0), alt.value(_FADED)),
        tooltip=[
            alt.Tooltip("line:N"),
            alt.Tooltip("x:Q", format=".4~g", title=x),
            alt.Tooltip("y:Q", format=".4~g", title=y),
            alt.Tooltip("low:Q", format=".4~g", title="95 % from"),
            alt.Tooltip("high:Q", format=".4~g", title="to"),
        ],
    )
    solid, dashed = (base.transform_filter(f"{sign}datum.dashed") for sign in ("!", ""))
    few = len(points) <= 400
    layers = [
        solid.mark_line(strokeWidth=2, interpolate=interpolate).encode(y=to_y).add_params(pick),
        dashed.mark_line(strokeWidth=1.5, strokeDash=[5, 3]).encode(y=to_y),
        *([solid.mark_rule(strokeWidth=1.5).encode(y=alt.Y("low:Q"), y2="high:Q")] if few else []),
        *([solid.mark_point(filled=True, size=50).encode(y=to_y)] if few else []),
    ]
    points["at"], points["name"] = points["y"], points["text"]
    if not legend:
        _name_ends(points, "y" in log, height)
    named = base.transform_filter("datum.name != ''").mark_text(align="left", dx=8, fontSize=11, clip=False)
    layers.append(named.encode(y=alt.Y("at:Q"), text="name:N"))
    chart = alt.layer(*layers).properties(width=width, height=height).add_params(_zoom(["x", "y"]))
    if (points["panel"] == "").all():
        return chart.properties(data=points, title=title)
    panels = alt.Facet("panel:N", sort=list(dict.fromkeys(points["panel"])), title=None)
    return chart.facet(data=points, facet=panels, columns=3, spacing=24).properties(title=title)


def _name_ends(points: pd.DataFrame, log: bool, height: int) -> None:
    """Put each line's name at its last point, in place, moved up or down so that no two names overlap."""
    for _, panel in points.groupby("panel"):
        last = panel.sort_values("x").groupby("line", sort=False).tail(1)
        last = last[last["line"] != ""].sort_values("y")
        values = panel[["y", "low", "high"]].to_numpy()
        scaled = np.log(values) if log else np.append(values, 0.0)
        span = float(np.nanmax(scaled) - np.nanmin(scaled)) or 1.0
        least, at = span * _LINE / height, -np.inf
        for index, y in last["y"].items():
            at = max(at + least, float(np.log(y) if log else y))
            points.loc[index, "at"] = np.exp(at) if log else at
            words = [str(points.loc[index, "line"]), str(points.loc[index, "text"])]
            points.loc[index, "name"] = " · ".join(word for word in words if word)


def _with_columns(frame: pd.DataFrame, more: Mapping[str, Any]) -> pd.DataFrame:
    """Return a frame with the columns that it may lack, texts as objects: altair writes no other kind."""
    made = frame.assign(**{name: value for name, value in more.items() if name not in frame})
    made = made.reset_index(drop=True)
    texts = [name for name in made if pd.api.types.is_string_dtype(made[name].dtype)]
    return made.astype(dict.fromkeys(texts, object))


def _log_axis(values: Any) -> dict[str, Any]:
    return {
        "scale": alt.Scale(type="log", nice=False, padding=16),
        "axis": alt.Axis(values=log_ticks(values), format="~g", gridOpacity=0.4),
    }


def _fixed(colours: Mapping[str, str], shown: list[str]) -> alt.Scale:
    return alt.Scale(domain=shown, range=[colours[name] for name in shown])


def _legend() -> alt.Legend:
    return alt.Legend(orient="bottom", title=None, columns=6, labelLimit=300, symbolOpacity=1)


def _shapes(kinds: list[str]) -> list[str]:
    return [_SHAPES[place % len(_SHAPES)] for place in range(len(kinds))]


def _zoom(axes: list[str]) -> Any:
    return alt.selection_interval(bind="scales", encodings=axes, zoom="wheel![event.ctrlKey || event.metaKey]")
