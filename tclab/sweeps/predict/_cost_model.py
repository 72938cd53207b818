"""Mask or filter: the time of one edge type by a model of five costs, fitted, and then asked about other sizes.

With E edges in all samples together, H features and p the share of edges that deletions remove:

    T_mask   = (α' + β)·E·H + α·E
    T_filter = (γ + δ)·E + β·(1 - p)·E·H

β: a message's feature, gathered and added up, forward and backward. α: an edge's mask; α': what it costs for each
feature, as every message is multiplied by it and kept for the backward. γ: finding out whether an edge is kept. δ:
writing the edges that are. The case study's formulas have no α'; a constant for each call is added here, which small
graphs need. Filtering pays from p = (γ + δ - α - α'·H) / (β·H) on.

Where an allocator gives large tensors' pages back, α' and β are mostly page faults: costs of cells whose messages are
small hold for no large one, and those of one allocator for no other.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from tclab._display import Display, Shown
from tclab.errors import InputError
from tclab.graph._cell_graph import CellGraph
from tclab.masking._edge_masks import removed_counts
from tclab.message_passing._edge_list_view import EdgeList, EdgeListView
from tclab.perturbation import Deletions, synthetic_perturbations
from tclab.perturbation._deletions import removed_by
from tclab.sweeps.config._point import Point
from tclab.sweeps.config._point_inputs import resolve
from tclab.sweeps.execution._run import rows_of_task
from tclab.sweeps.predict._roofline import least_on

_MEANINGS = {
    "alpha": ("α", "masking an edge"),
    "alpha_width": ("α′", "masking a feature of a message"),
    "beta": ("β", "a feature of a message, both ways"),
    "gamma": ("γ", "finding whether an edge is kept"),
    "delta": ("δ", "writing an edge that is kept"),
}
_COSTS = list(_MEANINGS)
_CALLS = ["mask", "sum", "find", "write"]  # the timed calls; each has a constant
_ALL = [*_COSTS, *_CALLS]
_SIZES = ["edges", "width", "batch_size", "removed"]  # of a cell
_ENDS = (0.025, 0.975)  # of a 95 % interval
_DEGREE = 40  # edges a node, about as in a mid-sized network of the graph that this lab was made for
_DRAWS = 400  # of the bootstrap


def cells(sizes: str) -> pd.DataFrame:
    """Return a row for each cell that a text names: "120000,240000:64:4:0.02,0.5" has four.

    Columns: `edges`, E of one sample; `width`, H; `batch_size`, B; `removed`, p, the share of edges that is removed.

    **Arguments:**

    - `sizes`: edges:features:batch:removed, each one number or several, whose combinations are all cells. Several such
      texts have blanks between.

    **Raises:** `InputError` for what is no size.
    """
    found: list[tuple[float, ...]] = []
    try:
        for group in sizes.split():
            edges, widths, batch_sizes, removed = (numbers.split(",") for numbers in group.split(":"))
            found += product(map(int, edges), map(int, widths), map(int, batch_sizes), map(float, removed))
    except ValueError:
        found = []
    if not found or not all(min(cell[:3]) >= 1 and 0 <= cell[3] < 1 for cell in found):
        raise InputError(
            f"sizes is {sizes!r}, expected edges:features:batch:removed, as 10000,20000:64:2:0.1, with numbers of at "
            "least 1 and shares from 0 to below 1"
        )
    return pd.DataFrame(found, columns=_SIZES)


def removed_share(graph: CellGraph, *, deleted: int, samples: int = 64) -> float:
    """Return the share of a graph's edges that the deletion of some random nodes removes, on average."""
    removed = removed_by(graph, synthetic_perturbations(graph, samples, deleted=deleted).deletions)
    counts = [each.sum() for network in graph.networks.values() for each in removed_counts(network, removed).values()]
    return float(sum(counts) / (samples * graph.num_edges))


def measure_cells(
    wanted: pd.DataFrame, *, device: str = "cpu", rounds: int = 5, allocator: str = "default"
) -> pd.DataFrame:
    """Measure each cell in a fresh process and return a row a cell, with the seconds of each call, and of both ways.

    `mask` sums with a mask, `sum` without one over the edges that are left, both forward and backward; `find`
    decides which edges are left, `write` copies them. The minimum over `rounds` counts, as another process can only
    add to a time; one more round warms up. `removed` is the requested share of removed edges; nodes are drawn at
    random, and `removed_found` is the share of edges that their deletion removed.

    **Arguments:**

    - `wanted`: as `cells` returns them. `rounds`: that are timed.
    - `device`, `allocator`: of `tclab.Point`. glibc reads an allocator's settings when a process starts.

    **Raises:** `InputError` for an unknown device or allocator; `RuntimeError` where the process failed.
    """
    fields: dict[str, Any] = {"device": device, "allocator": allocator}
    point = resolve(Point(**fields))
    sizes = wanted[_SIZES].to_dict("records")
    found = rows_of_task(point, rows_of_cells, fresh=True, sizes=sizes, rounds=rounds)
    return pd.DataFrame(found)[[*_SIZES, "removed_found", *_CALLS, "mask_seconds", "filter_seconds"]]


def rows_of_cells(point: Point, sizes: list[dict[str, Any]], rounds: int) -> list[dict[str, Any]]:
    """Measure cells in this process, which was started with the point's allocator."""
    rows = []
    for size in sizes:
        calls, removed = _calls(**size, device=point.device)
        found = least_on(point.device, calls, rounds=rounds)
        filtering = found["find"] + found["write"] + found["sum"]
        both = {"mask_seconds": found["mask"], "filter_seconds": filtering}
        rows.append({**size, "removed_found": removed, **found, **both})
    return rows


def _calls(
    edges: int, width: int, batch_size: int, removed: float, device: str
) -> tuple[dict[str, Callable[[], object]], float]:
    """Return the calls to time, by name, and the share of edges that is removed."""
    generator = torch.Generator().manual_seed(0)
    nodes = max(edges // _DEGREE, 2)
    rows = nodes * batch_size
    one = torch.randint(nodes, (2, edges), generator=generator)
    # an edge is removed with either of its ends: nodes are drawn so that this share of the edges is
    gone = torch.nonzero(torch.rand(rows, generator=generator) < 1 - (1 - removed) ** 0.5).flatten().to(device)
    graph = CellGraph.from_edges({"edges": one}, num_nodes=nodes).to(device)
    edge_index = torch.cat([one + b * nodes for b in range(batch_size)], dim=1).to(device)
    kept = _kept(edge_index, gone)
    left = edge_index[:, kept]
    x = torch.randn(rows, width, generator=generator).to(device).requires_grad_()
    keep = {"node": torch.ones(rows, dtype=torch.bool, device=device)}
    nothing = Deletions.nothing(batch_size, device=device)
    masked = EdgeListView(graph, nothing, {"edges": EdgeList(edge_index, kept)}, keep=keep)
    filtered = EdgeListView(graph, nothing, {"edges": EdgeList(left)}, keep=keep)
    calls: dict[str, Callable[[], object]] = {
        "mask": lambda: _both_ways(masked, x),
        "sum": lambda: _both_ways(filtered, x),
        "find": lambda: _kept(edge_index, gone),
        "write": lambda: edge_index[:, kept],
    }
    return calls, 1 - left.size(1) / edge_index.size(1)


def _kept(edge_index: Tensor, removed: Tensor) -> Tensor:
    return ~(torch.isin(edge_index[0], removed) | torch.isin(edge_index[1], removed))


def _both_ways(view: EdgeListView, x: Tensor) -> None:
    x.grad = None
    out = view.neighbour_sum("edges", x)
    out.backward(torch.ones_like(out))


@dataclass(frozen=True, repr=False)
class CostModel(Shown):
    """The five costs, in seconds an edge (α′, β: an edge and feature), and each call's constant, in seconds.

    **Arguments:**

    - `costs`: α, α′, β, γ, δ by name, and the constants by call.
    - `draws`: the same of bootstrap draws over the cells, a row a draw.
    - `most`: E·H of the largest cell that they were fitted to.
    """

    costs: dict[str, float]
    draws: pd.DataFrame
    most: float = float("nan")

    def _display(self) -> Display:
        lines = []
        for name, (symbol, meaning) in _MEANINGS.items():
            low, high = (f"{1e9 * end:.3g}" for end in self.interval(name))
            lines.append((symbol, meaning, f"{1e9 * self.costs[name]:.3g} [{low}, {high}]"))
        return Display(columns=("cost", "of", "ns [95 % interval]"), lines=lines)

    def interval(self, name: str) -> tuple[float, float]:
        """Return a cost's 95 % interval over the draws."""
        low, high = np.quantile(self.draws[name], _ENDS).tolist()
        return low, high

    def break_even(self, width: int) -> tuple[float, float, float]:
        """Return the p from which on filtering pays at H features, and its 95 % interval.

        Above 1 it never does; below 0 always. Where a feature costs nothing in the fit (beta is 0), p is infinite, or
        undefined (NaN) where both ways cost the same, and so is then the interval.
        """
        every = pd.concat([pd.DataFrame([self.costs]), self.draws])[_COSTS].astype(float)
        once = every["gamma"] + every["delta"] - every["alpha"] - every["alpha_width"] * width
        with np.errstate(divide="ignore", invalid="ignore"):
            best, *p = np.divide(once.to_numpy(), every["beta"].to_numpy() * width).tolist()
        low, high = np.quantile(p, _ENDS, method="inverted_cdf").tolist()  # of draws, as infinities have no mean
        return best, low, high

    def predict(self, wanted: pd.DataFrame) -> pd.DataFrame:
        """Return each cell with the seconds that both ways are predicted to take, before anything of it runs.

        `filter_over_mask` is their ratio, `low` and `high` its 95 % interval, and `faster` "undecided" where that
        holds 1. `extrapolated` is how many times larger, by E·H, the cell is than the largest that was measured; 1 for
        a smaller one.

        **Arguments:**

        - `wanted`: as `cells` returns them.
        """
        every = pd.concat([pd.DataFrame([self.costs]), self.draws])[_ALL].to_numpy(float)
        seconds = {call: factors @ every.T for call, factors in _factors(wanted, wanted["removed"]).items()}
        mask, filtered = seconds["mask"], seconds["find"] + seconds["write"] + seconds["sum"]  # [cells, 1 + draws]
        ratio = filtered / mask
        low, high = np.quantile(ratio[:, 1:], _ENDS, axis=1)
        size = wanted["edges"] * wanted["batch_size"] * wanted["width"]
        return wanted.assign(
            predicted_mask_seconds=mask[:, 0],
            predicted_filter_seconds=filtered[:, 0],
            filter_over_mask=ratio[:, 0],
            low=low,
            high=high,
            faster=np.select([low > 1, high < 1], ["masking", "filtering"], "undecided"),
            extrapolated=np.maximum(size / self.most, 1.0),
        )

    def against(self, measured: pd.DataFrame) -> tuple[pd.DataFrame, str]:
        """Return predictions and measurements, a row a cell, and how often the predicted winner won, in words.

        `measured` is the winner; a prediction that is "undecided" is neither right nor wrong.

        **Arguments:**

        - `measured`: cells that the model was not fitted to, as `measure_cells` returns them.
        """
        mask_wins = measured["mask_seconds"] <= measured["filter_seconds"]
        both = self.predict(measured).assign(measured=np.where(mask_wins, "masking", "filtering"))
        decided = both[both["faster"] != "undecided"]
        errors = [both[f"predicted_{way}_seconds"] / both[f"{way}_seconds"] - 1 for way in ("mask", "filter")]
        hits = f"{(decided['faster'] == decided['measured']).sum()} of {len(decided)} winners predicted"
        undecided = f"{len(both) - len(decided)} undecided"
        return both, f"{hits}; {undecided}; times off by {pd.concat(errors).abs().median():.0%} (median)"


def fit_costs(measured: pd.DataFrame) -> CostModel:
    """Return the model of some measured cells, by least squares of relative errors with no cost below 0.

    The share of edges counts that was removed, not the one that was asked for. The intervals are those of
    a bootstrap over cells.

    **Raises:** `InputError` for fewer than six cells.
    """
    if len(measured) < 6:
        raise InputError(f"{len(measured)} cells were measured, expected at least 6 to fit five costs to")
    generator = np.random.default_rng(0)
    drawn = [_solved(measured.iloc[generator.integers(len(measured), size=len(measured))]) for _ in range(_DRAWS)]
    most = (measured["edges"] * measured["batch_size"] * measured["width"]).max()
    return CostModel(_solved(measured), pd.DataFrame(drawn), float(most))


def _factors(sizes: pd.DataFrame, removed: pd.Series) -> dict[str, np.ndarray]:
    """Return call → what each cost is multiplied by in its time, [cells, costs], in the order of `_ALL`."""
    edges = (sizes["edges"] * sizes["batch_size"]).to_numpy(float)
    features = edges * sizes["width"].to_numpy(float)
    parts = {
        "mask": {"alpha": edges, "alpha_width": features, "beta": features},
        "sum": {"beta": features * (1 - removed.to_numpy(float))},
        "find": {"gamma": edges},
        "write": {"delta": edges},
    }
    once, none = np.ones_like(edges), np.zeros_like(edges)
    return {call: np.stack([{**own, call: once}.get(name, none) for name in _ALL], 1) for call, own in parts.items()}


def _solved(measured: pd.DataFrame) -> dict[str, float]:
    """Return the costs that fit the four calls of each cell best."""
    from scipy.optimize import nnls  # late, as no child that runs a point needs it

    factors = _factors(measured, measured["removed_found"])
    # relative errors: a small cell counts as much as a large one
    matrix = np.concatenate([factors[call] / measured[call].to_numpy(float)[:, None] for call in _CALLS])
    scale = matrix.max(axis=0)
    scale[scale == 0] = 1.0
    found, _ = nnls(matrix / scale, np.ones(len(matrix)))
    return dict(zip(_ALL, (found / scale).tolist(), strict=True))
