"""The colours of strategies and stages, the same in every chart."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from zlib import crc32

# Okabe and Ito's colour-blind safe palette, then Paul Tol's muted and vibrant ones for what it lacks; the same
# strategy has the same colour in every chart, and points have shapes too.
STRATEGY_COLOURS = {
    "subgraph": "#999999",
    "edge_mask": "#d55e00",
    "stored_index": "#e69f00",
    "stored_mask": "#f0c340",
    "gpu_mask_loop": "#cc79a7",
    "gpu_mask": "#8a4fa0",
    "gpu_mask_cached": "#5b2a86",
    "gpu_filter": "#56b4e9",
    "node_mask": "#009e73",
    "indices": "#0072b2",
    "gene_mask_cache": "#882255",
    "dense": "#117733",
    "delta": "#ee3377",
    "khop_1": "#332288",
    "khop_2": "#88ccee",
    "khop_3": "#ddcc77",
    "sampled_edges": "#aa4499",
    "fastest": "#661100",
}

# In the order in which a batch goes through them. Kinds of work share a hue: making a batch is yellow to orange,
# masks are red, the model blue, the update green; waiting and what lies between are greys.
STAGE_COLOURS = {
    "sample": "#f0e442",
    "wait": "#b0b0b0",
    "transfer": "#e69f00",
    "mask": "#d55e00",
    "collate": "#8c5a2b",
    "forward": "#56b4e9",
    "loss": "#cc79a7",
    "gather": "#882255",
    "backward": "#0072b2",
    "waiting": "#b9a3d0",
    "communication": "#5b2a86",
    "clip": "#7fd6b8",
    "optimizer": "#009e73",
    "log": "#000000",
    "loop": "#8a7a9b",
    "other": "#5f5f5f",
    "idle": "#ececec",
}

_OWN = ("#000000", "#7f3b08", "#4d4d4d", "#1f3d7a", "#a6611a", "#4a0f3c", "#5c6b00", "#b2182b")


def strategy_colours(names: Iterable[str]) -> dict[str, str]:
    """Return the colour of each strategy, those of a user's own among them, which have theirs by their names."""
    return _with_own(STRATEGY_COLOURS, names)


def stage_colours(names: Iterable[str]) -> dict[str, str]:
    """Return the colour of each stage, those of a loop of a user's own among them."""
    return _with_own(STAGE_COLOURS, names)


def _with_own(fixed: Mapping[str, str], names: Iterable[str]) -> dict[str, str]:
    """Return colours with those of names that have none: each its own, whatever else is in the chart.

    Where two of one chart would share a colour, the later one in the alphabet takes the next.
    """
    found = dict(fixed)
    left = list(_OWN)
    for name in sorted(set(names) - set(fixed)):
        left = left or list(_OWN)
        place = crc32(name.encode()) % len(_OWN)
        found[name] = next(c for c in (*_OWN[place:], *_OWN[:place]) if c in left)
        left.remove(found[name])
    return found
