"""How charts come out of a cell: a picture, and where a front end is attached the chart itself."""

from __future__ import annotations

from typing import Any

import altair as alt

from tclab.lab._notebook import has_front_end

# What JupyterLab draws by itself, without a network and in its own theme. Charts of this library are the same in both
# versions of Vega-Lite: `tests/test_browser.py` looks at one.
_DRAWN = "application/vnd.vegalite.v5+json"
_SCHEMA = "https://vega.github.io/schema/vega-lite/v5.json"


def show_charts(*, scale_factor: float = 1.0, live: bool | None = None) -> None:
    """Show charts as pictures; in an interactive front end as charts, with figures under the mouse and in its theme.

    A notebook keeps the picture beside the chart, for whatever draws none: a browser of repositories, nbconvert.

    **Arguments:**

    - `scale_factor`: of a picture's pixels.
    - `live`: whether there is an interactive front end; detected unless given.
    """
    if not (has_front_end() if live is None else live):
        alt.renderers.enable("png", scale_factor=scale_factor)
        return
    alt.renderers.register("tclab", _chart_and_picture)
    alt.renderers.enable("tclab", scale_factor=scale_factor)


def _chart_and_picture(spec: dict[str, Any], *, scale_factor: float) -> dict[str, Any]:
    import vl_convert

    return {
        _DRAWN: {**spec, "$schema": _SCHEMA},
        "image/png": vl_convert.vegalite_to_png(spec, scale=scale_factor),
    }
