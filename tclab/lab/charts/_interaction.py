"""What a chart does under the mouse in a front end: a click on its legend, zoom and pan. Pictures have none of it."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from typing import Any

from tclab.lab.charts._style import GREY

_SHARES = ("vconcat", "hconcat", "concat", "layer")
_LEGENDS = ("color", "stroke", "shape", "strokeDash")  # channels, the one first whose field is told apart best
_FADED = 0.12
_NUMBERS = ("quantitative", "temporal")
# the wheel alone scrolls the page, also where the mouse is over a chart
_WHEEL = "wheel![event.ctrlKey || event.metaKey]"


def with_interaction(spec: dict[str, Any]) -> dict[str, Any]:
    """Return a chart's Vega-Lite with what the mouse can do; until then it looks the same, but for black words.

    These are grey: a front end's dark theme leaves their colour as it is, and black cannot be read on it.
    A click on an entry of a legend fades the others, with Shift one more stays, a click elsewhere brings all back.
    Where both axes are numbers, dragging moves them, Ctrl with the wheel zooms, and a double click goes back.
    """
    made = deepcopy(spec)
    made.setdefault("config", {}).setdefault("text", {}).setdefault("color", GREY)
    if "params" not in made:
        _bind_legends(list(_units(made)))
        _bind_axes(made, [])
    return made


def _units(spec: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Iterate over the parts of a chart that have a mark."""
    if "mark" in spec:
        yield spec
    for part in _parts(spec):
        yield from _units(part)


def _parts(spec: dict[str, Any]) -> list[dict[str, Any]]:
    return [*([spec["spec"]] if "spec" in spec else []), *(part for name in _SHARES for part in spec.get(name, []))]


def _bind_legends(units: list[dict[str, Any]]) -> None:
    """Let a click on a legend fade what it does not name: one selection for each field that has a legend."""
    bound: dict[str, str] = {}
    fields = [(unit, _legend_fields(unit.get("encoding", {}))) for unit in units]
    for unit, found in fields:
        field = next((field for field, shown in found.items() if shown), None)
        if field is not None and field not in bound:
            bound[field] = f"legend_{len(bound) + 1}"
            select = {"type": "point", "fields": [field]}
            unit.setdefault("params", []).append({"name": bound[field], "select": select, "bind": "legend"})
    for unit, found in fields:
        field = next((field for field in found if field in bound), None)
        if field is not None and "opacity" not in unit["encoding"]:
            mark = unit["mark"]
            full = mark.get("opacity", 1) if isinstance(mark, dict) else 1
            unit["encoding"]["opacity"] = {"condition": {"param": bound[field], "value": full}, "value": _FADED}


def _legend_fields(encoding: dict[str, Any]) -> dict[str, bool]:
    """Return the fields that a mark tells apart by name, each with whether it has a legend."""
    found: dict[str, bool] = {}
    for channel in (encoding[name] for name in _LEGENDS if name in encoding):
        if channel.get("type") == "nominal" and "field" in channel:
            found[channel["field"]] = found.get(channel["field"], False) or channel.get("legend", {}) is not None
    return found


def _bind_axes(spec: dict[str, Any], named: list[str]) -> None:
    """Let the axes of each panel zoom, those that panels of a column share together; extend the selections `named`."""
    panels = [part for name in ("vconcat", "hconcat", "concat") for part in spec.get(name, [])]
    shared = [
        axis for axis, how in spec.get("resolve", {}).get("scale", {}).items() if how == "shared" and axis in "xy"
    ]
    if panels and shared:
        named.append(f"zoom_{len(named) + 1}")
    for panel in panels:
        if shared:
            _zoom(panel, named[-1], only=shared)
        else:
            _bind_axes(panel, named)
    if not panels:
        named.append(f"zoom_{len(named) + 1}")
        _zoom(spec, named[-1])


def _zoom(panel: dict[str, Any], name: str, only: list[str] | None = None) -> None:
    for unit in _units(panel):
        encoding = unit.get("encoding", {})
        axes = [axis for axis in ("x", "y") if _is_number(encoding.get(axis, {}))]
        shown = [axis for axis in axes if encoding[axis].get("axis", {}) is not None and (not only or axis in only)]
        if len(axes) == 2 and (only or shown):
            select = {"type": "interval", "encodings": only or shown, "zoom": _WHEEL}
            unit.setdefault("params", []).append({"name": name, "select": select, "bind": "scales"})
            for words in _units(panel):
                _keep_pinned(words)
            return


def _keep_pinned(unit: dict[str, Any]) -> None:
    """Draw words that stand at a fixed place beside a panel, which zooming would cut off at the panel's edge."""
    mark, encoding = unit["mark"], unit.get("encoding", {})
    mark = mark if isinstance(mark, dict) else {"type": mark}
    if mark["type"] == "text" and any("value" in encoding.get(axis, {}) for axis in ("x", "y")):
        unit["mark"] = {"clip": False, **mark}


def _is_number(channel: dict[str, Any]) -> bool:
    """Return whether an encoding is a field on a continuous axis that a selection can be bound to."""
    made = channel.get("bin") or "aggregate" in channel
    return channel.get("type") in _NUMBERS and "field" in channel and not made
