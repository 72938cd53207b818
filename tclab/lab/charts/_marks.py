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

from tclab._display import seconds_text
from tclab.lab.charts._style import GREY, GROUND, INK, NO_FRAME, colours_of

_FADED = 0.12  # opacity of what a legend does not name
_WIDTH, _DOTS = 520, 400  # pixels of a plot of bars, and of one of dots
_LETTER = 6.0  # pixels of a letter, at most
_LINE = 16.0  # pixels between two words
_LEADER = 24  # pixels from a line's last point to its name
_WIDE = 4.0  # the ratio of a logarithmic axis' ends from which Vega labels two ticks or more by itself
_NARROW = 1.1  # the least such ratio: below it noise would fill the plot
_SLIVER = 0.01  # the share of a bar below which a part can be neither seen nor pointed at
_ZOOM = alt.selection_interval(bind="scales", encodings=["x", "y"], zoom="wheel![event.ctrlKey || event.metaKey]")
_REST = {"rest": "#6b6b6b"}
_OTHERS = {"others": GREY}  # faint lines


def ratios(
    rows: pd.DataFrame, title: Any, *, axis: str, colours: Mapping[str, str] | None = None, one: float | None = 1.0,
    band: tuple[float, float] | None = None,
) -> Any:  # fmt: skip
    """Return a row a line with a dot at its value, its interval, and words to the right of the plot.

    **Arguments:**

    - `rows`: `line`, the row's name; `value`; `low` and `high` of its interval. Further columns, each optional:
      `kind`, which has the colour; `sure`, false for a hollow dot; `text`, the words; `why`, more of them under the
      mouse.
    - `title`: of the chart, text or `chart_title`.
    - `axis`: its title; it is logarithmic.
    - `colours`: kind → colour; those of strategies unless given.
    - `one`: a value that a rule marks. `band`: the ends of a grey band around it.
    """
    rows = _with_columns(rows, {"sure": True, "text": "", "kind": rows["line"]})
    numbers, texts = ["value", "low", "high"], [name for name in ("line", "why") if name in rows]
    rows[numbers] = rows[numbers].astype(float)
    channels, _ = _picked("kind", rows["kind"], colours, legend=False)
    marked = [value for value in (one, *(band or ())) if value is not None]
    scale = _log_axis(np.append(rows[numbers], marked))
    x = alt.X("value:Q", title=axis, **scale)
    of_rows = alt.Axis(labelLimit=380, grid=False, ticks=False)
    y = alt.Y("line:N", title=None, sort=list(dict.fromkeys(rows["line"])), axis=of_rows)
    tips = _tips(texts, value=axis, low="interval from", high="to")
    base = alt.Chart(rows).encode(y=y, tooltip=tips, **channels)
    solid = base.mark_point(filled=True, size=80).transform_filter("datum.sure")
    hollow = base.mark_point(filled=False, size=80, strokeWidth=2).transform_filter("!datum.sure")
    layers: list[Any] = []
    if band is not None:
        ends = alt.Chart(pd.DataFrame({"from": band[:1], "to": band[1:]}))
        layers.append(ends.mark_rect(color=GREY, opacity=0.25).encode(x="from:Q", x2="to:Q"))
    if one is not None:
        at = alt.Chart(pd.DataFrame({"one": [one]}))
        layers.append(at.mark_rule(color=GREY, strokeDash=[4, 3]).encode(x="one:Q"))
    layers += [
        base.mark_rule(strokeWidth=3).encode(x=alt.X("low:Q", **scale), x2="high:Q"),
        solid.encode(x=x),
        hollow.encode(x=x),
        base.mark_text(align="left", dx=8).encode(x=alt.value(_DOTS), text="text:N", color=alt.value(INK)),
    ]
    return alt.layer(*layers).properties(width=_DOTS, height=alt.Step(24), title=title)


def stacked(parts: pd.DataFrame, title: Any, *, axis: str, colours: Mapping[str, str]) -> Any:
    """Return a bar a line whose parts stand end to end, named where there is room, in panels below one another.

    Parts of less than 1 % of their bar are one, "rest", which is listed under the mouse wherever that is on the bar.

    **Arguments:**

    - `parts`: `bar`, `part`, `value` (of at least 0). Further columns, each optional: `panel`; `label`, a part's own
      name; `text`, words behind the bar.
    - `title`: of the chart, text or `chart_title`.
    - `axis`: its title, with "[s]"; where all are short, values are shown in ms.
    - `colours`: part → colour, in the order of the legend.
    """
    parts = _placed(parts, list(colours))
    colours = {**colours, **_REST}
    axis = axis.replace("[s]", f"[{parts.attrs['unit']}]")
    words = (parts["text"].str.len() + 2) * _LETTER / _WIDTH  # the share of the axis that they take behind a bar
    domain = [0.0, float((parts["text_at"] / (1 - words.clip(upper=0.7))).max())]
    room = _WIDTH * parts["value"] / domain[1] / _LETTER
    clear = parts["part"].map(colours).str.startswith("rgba")  # the page shows through: no ink suits both themes
    parts["name"] = parts["label"].where((parts["label"].str.len() < room) & ~clear, "")
    several = parts["part"].nunique() > 1 and (parts["bar"] != parts["part"]).any()
    channels, params = _picked("part", parts["part"], colours, legend=bool(several))
    ticks = alt.Axis(tickCount=6, gridOpacity=0.4)
    x = alt.X("start:Q", title=axis, scale=alt.Scale(domain=domain, nice=False), axis=ticks)
    of_bars = alt.Axis(labelLimit=380, ticks=False)
    base = alt.Chart().encode(y=alt.Y("bar:N", sort=list(dict.fromkeys(parts["bar"])), title=None, axis=of_bars))
    texts = [name for name in ("bar", "label", "rest") if name in parts]
    tips = _tips(texts, value=axis, share="share") if several else _tips(["bar", "text"], value=axis)
    inside = base.mark_text(align="left", dx=3, fontSize=10, color="#1b1b1b", clip=True)
    layers = [
        base.mark_bar(stroke=GROUND, strokeWidth=0.4).encode(x=x, x2="end:Q", tooltip=tips, **channels),
        inside.encode(x=x, text="name:N"),
        base.mark_text(align="left", dx=6, fontSize=11, color=INK).encode(x="text_at:Q", text="text:N"),
    ]
    chart = alt.layer(*layers).properties(width=_WIDTH, height=alt.Step(24)).add_params(*params)
    if (parts["panel"] == "").all():
        return chart.properties(data=parts, title=title)
    header = alt.Header(labelAngle=0, labelOrient="top", labelAnchor="start", labelFontWeight="bold", labelPadding=0)
    panels = alt.Row("panel:N", sort=list(dict.fromkeys(parts["panel"])), header=header, title=None)
    return chart.facet(data=parts, row=panels, spacing=6).resolve_scale(y="independent").properties(title=title)


def _placed(parts: pd.DataFrame, order: list[str]) -> pd.DataFrame:
    """Return parts with `start`, `end`, `share` and `text_at`; seconds in the unit that `attrs["unit"]` names.

    The words behind a bar stand at its first part alone.
    """
    parts = _with_columns(parts, {"panel": "", "label": parts["part"], "text": ""})
    bar = ["panel", "bar"]
    parts["value"] = parts["value"].astype(float).clip(lower=0)
    parts = _with_rest(parts)
    ranks = parts["part"].map({name: place for place, name in enumerate(order)})
    # the rest stands first: behind a worker's idle time it would look like work after it
    inside = parts.assign(rank=ranks.fillna(-1)).sort_values("rank", kind="stable")
    parts["start"] = inside.groupby(bar, sort=False)["value"].cumsum() - inside["value"]
    parts["end"] = parts["start"] + parts["value"]
    parts["share"] = parts["value"] / parts.groupby(bar)["value"].transform("sum")
    parts["text"] = parts["text"].mask(parts.duplicated(bar), "")
    parts["text_at"] = parts.groupby(bar)["end"].transform("max")
    numbers = ["value", "start", "end", "text_at"]
    unit, factor = ("s", 1.0) if parts["end"].max() >= 1 else ("ms", 1e3)
    parts[numbers] = factor * parts[numbers].astype(float)
    parts.attrs["unit"] = unit
    return parts


def _with_rest(parts: pd.DataFrame) -> pd.DataFrame:
    """Return parts with those of less than 1 % of their bar as one, and the column `rest`, which lists them."""
    bar = ["panel", "bar"]
    small = parts["value"] < _SLIVER * parts.groupby(bar)["value"].transform("sum")
    texts = parts.assign(rest=parts["label"] + " " + parts["value"].map(seconds_text))[small]
    listed = texts.groupby(bar)["rest"].agg(", ".join)
    parts.loc[small, ["part", "label"]] = "rest"
    parts = parts.groupby([*bar, "part", "label"], sort=False, as_index=False).agg({"value": "sum", "text": "first"})
    return parts.merge(listed, how="left", on=bar).fillna({"rest": "none"})


def lines(
    points: pd.DataFrame, title: Any, *, x: str, y: str, log: str = "xy", percent: bool = False, legend: bool = False,
    width: int = 440, height: int = 300,
) -> Any:  # fmt: skip
    """Return lines with their points, intervals and, at the last point, their names, in panels beside one another.

    The ticks of the first axis are at the points.

    **Arguments:**

    - `points`: `line`, `x`, `y`. Further columns, each optional: `low` and `high` of an interval; `kind`, which has
      the colour where several lines share one; `dashed`, a line without points; `faint`, a thin grey line below the
      others; `panel`; `text`, words at a point.
    - `title`: of the chart, text or `chart_title`. `width`, `height`: of a panel, in pixels.
    - `x`, `y`: titles of the axes. `log`: those that are logarithmic. `percent`: whether `y` is a share.
    - `legend`: name the colours in a legend and not at the lines.
    """
    more = {"low": np.nan, "high": np.nan, "dashed": False, "faint": False, "panel": "", "text": ""}
    points = _with_columns(points, {**more, "kind": points["line"]})
    points[["x", "y", "low", "high"]] = points[["x", "y", "low", "high"]].astype(float)
    colours = {**colours_of(points["kind"]), **_OTHERS}
    points["kind"] = points["kind"].mask(points["faint"], *_OTHERS)
    channels, params = _picked("kind", points["kind"], colours, legend=legend)
    plain = alt.Scale(zero=False, padding=14, nice=False)
    x_scale = _log_axis(points["x"].to_numpy())["scale"] if "x" in log else plain
    x_axis = alt.Axis(values=sorted(points["x"].unique()), format="~g", grid=False)
    of_y: dict[str, Any] = {"scale": alt.Scale(padding=14, nice=False), "axis": alt.Axis(gridOpacity=0.4)}
    if "y" in log:
        of_y = _log_axis(points[["y", "low", "high"]].to_numpy())
    if percent:
        of_y["axis"] = alt.Axis(format="%", gridOpacity=0.4)
    to_x, to_y = alt.X("x:Q", title=x, scale=x_scale, axis=x_axis), alt.Y("y:Q", title=y, **of_y)
    tips = _tips(["line"], x=x, y=y, low="interval from", high="to")
    base = alt.Chart().encode(x=to_x, detail="line:N", tooltip=tips, **channels)
    faint = base.transform_filter("datum.faint")
    solid, dashed = (base.transform_filter(f"{sign}datum.dashed && !datum.faint") for sign in ("!", ""))
    layers = [
        faint.mark_line(strokeWidth=1).encode(y=to_y),
        faint.mark_point(filled=True, size=20).encode(y=to_y),
        solid.mark_line(strokeWidth=2).encode(y=to_y),
        dashed.mark_line(strokeWidth=1.5, strokeDash=[5, 3]).encode(y=to_y),
        solid.mark_rule(strokeWidth=1.5).encode(y=alt.Y("low:Q"), y2="high:Q"),
        solid.mark_point(filled=True, size=50).encode(y=to_y),
    ]
    points["at"], points["end"], points["name"] = points["y"], points["x"], points["text"]
    if not legend:
        _name_ends(points, "y" in log, height)
    named = base.transform_filter("datum.name != ''").mark_text(align="left", dx=_LEADER, fontSize=11, clip=False)
    dotted: dict[str, Any] = {"strokeDash": [2, 2], "strokeWidth": 1.5, "xOffset": 5, "x2Offset": _LEADER - 2}
    leader = base.transform_filter("datum.name != datum.text").mark_rule(**dotted, clip=False)
    ink = alt.condition("datum.faint", alt.value(GREY), alt.value(INK))
    layers.append(named.encode(x=alt.X("end:Q"), y=alt.Y("at:Q"), text="name:N", color=ink))
    layers.append(leader.encode(y=to_y, y2="at:Q", x2="end:Q"))
    chart = alt.layer(*layers).properties(width=width, height=height, view=NO_FRAME)  # names would cross it
    chart = chart.add_params(*params, _ZOOM)
    if (points["panel"] == "").all():
        return chart.properties(data=points, title=title)
    panels = alt.Facet("panel:N", sort=list(dict.fromkeys(points["panel"])), title=None)
    return chart.facet(data=points, facet=panels, columns=3, spacing=24).properties(title=title)


def _name_ends(points: pd.DataFrame, log: bool, height: int) -> None:
    """Put each line's name behind its panel's last point, in place, so that no two overlap; a faint line has none."""
    values = points[["y", "low", "high"]].to_numpy()  # of all panels, which share an axis
    scaled = np.log(values) if log else np.append(values, 0.0)
    line = (float(np.nanmax(scaled) - np.nanmin(scaled)) or 1.0) * _LINE / (height - 2 * _LINE)
    for _, panel in points.groupby("panel"):
        last = panel.sort_values("x").groupby("line", sort=False).tail(1)
        last = last[(last["line"] != "") & ~last["faint"]].sort_values("y")
        own = np.log(last["y"]) if log else last["y"]
        apart = np.arange(len(last)) * line
        at = np.maximum.accumulate(own - apart) + apart
        at = np.minimum(at, np.nanmax(scaled) - apart[::-1])  # back down, where they would leave the plot
        points.loc[at.index, "at"] = np.exp(at) if log else at
        points.loc[at.index, "end"] = last["x"].max()
        names = zip(last["line"][at.index], last["text"][at.index], strict=True)
        points.loc[at.index, "name"] = [" · ".join(filter(None, words)) for words in names]


def _with_columns(frame: pd.DataFrame, more: Mapping[str, Any]) -> pd.DataFrame:
    """Return a frame with the columns that it may lack, texts as objects: altair writes no other kind."""
    made = frame.assign(**{name: value for name, value in more.items() if name not in frame})
    made = made.reset_index(drop=True)
    texts = [name for name in made if pd.api.types.is_string_dtype(made[name].dtype)]
    return made.astype(dict.fromkeys(texts, object))


def _log_axis(values: np.ndarray) -> dict[str, Any]:
    """Return the scale and the axis of some values, with two labels at least; what is not above 0 has no place there.

    Ends that are near one another have the even ticks of a linear axis, of which Vega by itself labels few or none.
    """
    values = values[values > 0]
    low, high = (values.min(), values.max()) if len(values) else (1.0, 1.0)
    wider = max(1.0, _NARROW * low / high) ** 0.5
    scale = alt.Scale(type="log", nice=False, padding=16, domainMin=low / wider, domainMax=high * wider)
    label = "format(datum.value, '.4~g')" if high < _WIDE * low else "datum.label"
    faint = {"condition": {"test": f"{label} === ''", "value": 0.08}, "value": 0.4}  # between the labels
    axis = alt.Axis(tickCount=6, format="~g", labelExpr=label, gridOpacity=faint, labelSeparation=6)
    return {"scale": scale, "axis": axis}


def _picked(
    field: str, names: pd.Series, colours: Mapping[str, str] | None, *, legend: bool
) -> tuple[dict[str, Any], list[Any]]:
    """Return colour and opacity of marks by a field, and the selections that a click on its legend makes."""
    palette = colours or colours_of(names)
    shown = [name for name in palette if name in set(names)]
    scale = alt.Scale(domain=shown, range=[palette[name] for name in shown])
    below = alt.Legend(orient="bottom", title=None, columns=6, labelLimit=300, symbolOpacity=1, symbolStrokeWidth=0)
    colour = alt.Color(f"{field}:N", scale=scale, legend=below if legend else None)
    if not legend:
        return {"color": colour, "opacity": alt.value(1.0)}, []
    pick = alt.selection_point(fields=[field], bind="legend")
    return {"color": colour, "opacity": alt.condition(pick, alt.value(1.0), alt.value(_FADED))}, [pick]


def _tips(texts: list[str], **numbers: str) -> list[Any]:
    """Return what a mark shows under the mouse: fields of text, and field → title of numbers."""
    words = [alt.Tooltip(f"{field}:N") for field in texts]
    return words + [alt.Tooltip(f"{field}:Q", title=title, format=".4~g") for field, title in numbers.items()]
