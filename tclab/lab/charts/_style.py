"""The visual language of all charts: colours, titles, and the chart without figures."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any
from zlib import crc32

import altair as alt
import pandas as pd

from tclab.lab.reports._cells import sizes_text
from tclab.sweeps._rows import graph_text, this_machine, where_measured

# Okabe and Ito's colour-blind safe palette, then Paul Tol's muted and vibrant ones for what it lacks, the dark ones
# lighter, to be seen on a dark page; the same strategy has the same colour in every chart.
STRATEGY_COLOURS = {
    "subgraph": "#999999", "edge_mask": "#d55e00", "stored_index": "#e69f00", "stored_mask": "#f0c340",
    "gpu_mask_loop": "#cc79a7", "gpu_mask": "#9560ad", "gpu_mask_cached": "#8062c8", "gpu_filter": "#56b4e9",
    "node_mask": "#009e73", "indices": "#2b8cc4", "dense": "#2f8a4e",
    "delta": "#f783ac", "khop_1": "#5a78e0", "khop_2": "#88ccee", "khop_3": "#ddcc77", "sampled_edges": "#aa4499",
}  # fmt: skip
# In the order in which a batch goes through them; softer than a strategy's colour, so that neither is taken for the
# other. Kinds of work share a hue: making a batch is yellow to brown, masks are red, the model blue, the update green;
# waiting and what lies between are greys, and idle next to nothing.
STAGE_COLOURS = {
    "sample": "#efe08a", "data_wait": "#c2c2c2", "transfer": "#eeb977", "mask": "#e58a78", "collate": "#bf9b77",
    "forward": "#9fd0ec", "loss": "#dcaccb", "gather": "#c483aa", "backward": "#6f9fd0",
    "rank_wait": "#d3c8e2", "communication": "#a58fd0", "clip": "#b5e3cf", "optimizer": "#7cc3a2",
    "log": "#b3b36c", "loop": "#a99db4", "other": "#8f8f8f", "idle": "rgba(140, 140, 140, 0.2)",
}  # fmt: skip
# A category of a trace that is a stage of the step has that stage's colour.
CATEGORY_COLOURS = {
    "data_loading": STAGE_COLOURS["transfer"], "graph_processing": STAGE_COLOURS["mask"],
    "model_forward": STAGE_COLOURS["forward"], "loss_computation": STAGE_COLOURS["loss"],
    "backward": STAGE_COLOURS["backward"], "optimizer": STAGE_COLOURS["optimizer"],
    "ddp_communication": STAGE_COLOURS["communication"],
    "tensor_ops": "#ddcc77", "cuda_kernels": "#aaaa55", "other": STAGE_COLOURS["other"],
}  # fmt: skip
_MORE_COLOURS = ("#7a7a1e", "#3f8f8f", "#6f7f8f", "#4e77c9", "#c08a3e", "#a0557f", "#5c8a1e", "#c43a4b")
GREY = "#8a8a8a"  # of lines: it can be seen on a light page and on a dark one
# of words, as the chart's ground asks, or in the page's own colour where there is none
INK = alt.ExprRef("background === 'transparent' ? 'currentColor' : luminance(background) < 0.2 ? '#d0d0d0' : '#555555'")
GROUND = alt.ExprRef("background")  # the chart's, of gaps
NO_FRAME = alt.ViewBackground(stroke=None)
EMPTY = "Nothing to show"  # how the text of a chart without figures begins


def colours_of(names: Iterable[str], fixed: Mapping[str, str] = STRATEGY_COLOURS) -> dict[str, str]:
    """Return name → colour, the fixed ones in their order, then those of a user's own strategies, stages or series.

    Such a colour is chosen by the name alone, so that it does not depend on what else a chart has. Only where two names
    would share one, the later one in the alphabet takes the next.
    """
    wanted = set(names)
    colours = {name: colour for name, colour in fixed.items() if name in wanted}
    left = list(_MORE_COLOURS)
    for name in sorted(wanted - set(colours)):
        left = left or list(_MORE_COLOURS)
        first = crc32(name.encode()) % len(_MORE_COLOURS)
        colours[name] = next(c for c in (*_MORE_COLOURS[first:], *_MORE_COLOURS[:first]) if c in left)
        left.remove(colours[name])
    return colours


def machine_text(where: str | None = None, result: Any = None) -> str:
    """Return a machine as titles name it: `where`; this one where it is missing or a device, "cpu" or "cuda", of it.

    What follows a device, "cpu, keep_pages", stands behind the machine. Where `result`, which was measured, says that
    the machine was busy, the title does.
    """
    busy = getattr(result, "busy_percent", None) is not None
    device, _, more = (where or "").partition(", ")
    named = " · ".join(filter(None, (this_machine(device or None), more))) if device in ("", "cpu", "cuda") else where
    return f"{named}{' · busy' * busy}"


def chart_title(text: str | list[str], *lines: str, rows: pd.DataFrame | None = None) -> Any:
    """Return the title of a chart, with lines below it, at the left; empty ones are left out.

    Of `rows` of a sweep the first lines are what every chart of them says: the machine and whether it was busy; the
    graph and its scale, batch size and networks.
    """
    of = () if rows is None else (where_measured(rows), " · ".join(filter(None, (graph_text(rows), sizes_text(rows)))))
    shown = [line for line in (*of, *lines) if line]
    more: dict[str, Any] = {"subtitle": shown, "subtitleColor": INK} if shown else {}
    return alt.TitleParams(text, anchor="start", frame="bounds", offset=10, **more)


class _EmptyChart(alt.Chart):
    def __repr__(self) -> str:  # in a notebook's output with the chart; tools/notebook_pictures.py looks for it
        return f"{EMPTY}: {' '.join(self.data['text'])}"


def empty_chart(text: str) -> Any:
    """Return a chart whose text says why there are no figures."""
    words = _EmptyChart(pd.DataFrame({"text": [text]})).encode(text="text:N", x=alt.value(10), y=alt.value(15))
    words = words.mark_text(align="left", fontSize=13, color=INK, lineBreak="\n")
    return words.properties(width=620, height=30 + 16 * text.count("\n"), view=NO_FRAME)
