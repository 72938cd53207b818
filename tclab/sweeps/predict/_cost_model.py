"""What masking and filtering cost, fitted and asked about other sizes.

With E edges in all samples together, H features and p the share of edges that deletions remove:

    T_mask   = (α' + β)·E·H + α·E
    T_filter = (γ + δ)·E + β·(1 - p)·E·H

β: a message's feature, gathered and added up, forward and backward. α: an edge's mask; α': what it costs for each
feature, as every message is multiplied by it and kept for the backward. γ: finding out whether an edge is kept. δ:
writing the edges that are. The case study's formulas have no α'. Filtering pays from p = (γ + δ - α - α'·H) / (β·H) on.

Where an allocator gives large tensors' pages back, α' and β are mostly page faults: costs of cells whose messages are
small hold for no large one, and those of one allocator for no other. A call's own overhead is in none of the costs: it
matters where there are few edges.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import product
from time import perf_counter, process_time
from typing import Annotated, Any

import numpy as np
import pandas as pd
import torch
from msgspec import Meta
from torch import Tensor

from tclab._display import Display, Shown
from tclab.errors import InputError
from tclab.graph._cell_graph import CellGraph
from tclab.masking import get as strategy_of
from tclab.masking._edge_masks import removed_counts
from tclab.message_passing import View
from tclab.perturbation import Deletions, Perturbations
from tclab.perturbation._deletions import removed_by
from tclab.sweeps.config._fields import AtLeast1, checked
from tclab.sweeps.config._grid import Listed, listed
from tclab.sweeps.config._point import Point
from tclab.sweeps.config._point_inputs import resolve
from tclab.sweeps.execution._run import rows_of_task
from tclab.timing._environment import busy_notes, conditions, contention

_MEANINGS = {
    "alpha": ("α", "masking an edge"),
    "alpha_width": ("α′", "masking a feature of a message"),
    "beta": ("β", "a feature of a message, both ways"),
    "gamma": ("γ", "finding whether an edge is kept"),
    "delta": ("δ", "writing an edge that is kept"),
}
_CALLS = ("mask", "sum", "find", "write")  # that are timed
_SIZES = ["edges", "width", "batch_size", "removed"]  # of a cell
_ENDS = (0.025, 0.975)  # of a 95 % interval
_DEGREE = 40  # edges a node, about as in a mid-sized network of the graph that this lab was made for
_DRAWS = 400  # of the bootstrap
_Share = Annotated[float, Meta(ge=0, lt=1, description="a share from 0 to below 1")]


def clock_of(device: str) -> Callable[[], float]:
    """Return the clock to time a device's calls with, in seconds; a GPU's waits until it has done them.

    On one CPU thread it is processor time, which other processes do not add to.
    """
    if device == "cuda":
        return _synchronized
    return process_time if torch.get_num_threads() == 1 else perf_counter


def _synchronized() -> float:
    torch.cuda.synchronize()
    return perf_counter()


def least_seconds(
    calls: Mapping[str, Callable[[], object]], *, clock: Callable[[], float], rounds: int = 5
) -> dict[str, float]:
    """Return the least seconds of each call; in turns, as another process may be at work.

    **Arguments:**

    - `clock`: what is read before and after a call, seconds.
    - `rounds`: how often each is called.
    """
    seconds = dict.fromkeys(calls, float("inf"))
    for _ in range(rounds):
        for name, call in calls.items():
            begin = clock()
            call()
            seconds[name] = min(seconds[name], clock() - begin)
    return seconds


# ---- mask or filter


def cells(edges: Listed, widths: Listed, batch_sizes: Listed, removed: Listed) -> pd.DataFrame:
    """Return a row for each combination of sizes: columns `edges`, `width`, `batch_size`, `removed`.

    Each is one number, a list of them, or a text with commas between: "64,128".

    **Arguments:**

    - `edges`: E of one sample. `widths`: H. `batch_sizes`: B. `removed`: p, the share of edges that is removed.

    **Raises:** `InputError` for what is no size.
    """
    sizes = zip(_SIZES, (edges, widths, batch_sizes, removed), (*[AtLeast1] * 3, _Share), strict=True)
    found = [[checked(name, one, kind) for one in listed(name, value)] for name, value, kind in sizes]
    return pd.DataFrame(list(product(*found)), columns=_SIZES)


def removed_share(graph: CellGraph, *, deleted: int, samples: int = 64) -> float:
    """Return the share of a graph's edges that the deletion of some random nodes removes, on average."""
    removed = removed_by(graph, Perturbations.synthetic(graph, samples, deleted=deleted).deletions)
    counts = [each.sum() for network in graph.networks.values() for each in removed_counts(network, removed).values()]
    return float(sum(counts) / (samples * graph.num_edges))


def measure_cells(
    wanted: pd.DataFrame, *, device: str = "cpu", rounds: int = 5, allocator: str = "default"
) -> pd.DataFrame:
    """Measure each cell in a child process and return a row a cell, with the seconds of each call, and of both ways.

    `mask_seconds` are those of a sum with a mask, `sum_seconds` of one without over the edges that are left, both
    forward and backward; `find_seconds` decide which edges are left, `write_seconds` copy them; `filter_seconds` are
    the last three together. The minimum over `rounds` counts, as another process can only add to a time. Nodes are
    drawn at random: `removed` is the share of edges that their deletion removed. `busy_percent` is the percentage of
    the time of all cells in which something waited for a processor, where the machine was busy; else missing.

    **Arguments:**

    - `wanted`: as `cells` returns them. `rounds`: that are timed.
    - `device`, `allocator`: of `tclab.Point`. glibc reads an allocator's settings when a process starts.

    **Raises:** `InputError` for an unknown device or allocator; `RuntimeError` where the process failed.
    """
    fields: dict[str, Any] = {"device": device, "allocator": allocator}
    sizes = wanted[_SIZES].to_dict("records")
    rows = rows_of_task(resolve(Point(**fields)), rows_of_cells, sizes=sizes, rounds=rounds)
    return pd.DataFrame(rows)[[*_SIZES, *(f"{name}_seconds" for name in (*_CALLS, "filter")), "busy_percent"]]


def rows_of_cells(point: Point, sizes: list[dict[str, Any]], rounds: int) -> list[dict[str, Any]]:
    """Measure cells in this process, which was started with the point's allocator."""
    before, rows = conditions(), []
    for size in sizes:
        calls, removed = _calls(**size, device=point.device)
        for call in calls.values():
            call()  # to warm up
        took = least_seconds(calls, clock=clock_of(point.device), rounds=rounds)
        took["filter"] = took["find"] + took["write"] + took["sum"]
        seconds = {f"{name}_seconds": one for name, one in took.items()}
        rows.append({"status": "ok", **size, "removed": removed, **seconds})
    busy = contention(before, conditions()).busy_percent
    return [row | {"busy_percent": busy} for row in rows]


def _calls(
    edges: int, width: int, batch_size: int, removed: float, device: str
) -> tuple[dict[str, Callable[[], object]], float]:
    """Return the calls to time, by name, and the share of edges that is removed."""
    generator = torch.Generator().manual_seed(0)
    nodes = max(edges // _DEGREE, 2)
    one = torch.randint(nodes, (2, edges), generator=generator)
    # an edge is removed with either of its ends: nodes are drawn so that this share of the edges is
    gone = torch.rand(batch_size, nodes, generator=generator) < 1 - (1 - removed) ** 0.5
    deletions = Deletions.of([row.nonzero().flatten() for row in gone], num_nodes=nodes)
    graph = CellGraph.from_edges({"edges": one}, num_nodes=nodes)
    views = _views(graph, Perturbations(deletions, torch.zeros(batch_size)), device)
    edge_index = torch.cat([one + b * nodes for b in range(batch_size)], dim=1).to(device)
    rows = gone.flatten().nonzero().flatten().to(device)
    kept = _kept(edge_index, rows)
    x = torch.randn(batch_size * nodes, width, generator=generator).to(device).requires_grad_()
    calls: dict[str, Callable[[], object]] = {
        "mask": lambda: _both_ways(views["edge_mask"], x),
        "sum": lambda: _both_ways(views["gpu_filter"], x),
        "find": lambda: _kept(edge_index, rows),
        "write": lambda: edge_index[:, kept],
    }
    return calls, 1 - kept.double().mean().item()


def _views(graph: CellGraph, samples: Perturbations, device: str) -> dict[str, View]:
    """Return the views of both ways: of every edge with a mask, and of the edges that are left."""
    views = {}
    for name in ("edge_mask", "gpu_filter"):
        batch = strategy_of(name)(graph).batch(samples)
        views[name] = strategy_of(name)(graph.to(device)).view(batch.to(device))
    return views


def _kept(edge_index: Tensor, removed: Tensor) -> Tensor:
    return ~(torch.isin(edge_index[0], removed) | torch.isin(edge_index[1], removed))


def _both_ways(view: View, x: Tensor) -> None:
    x.grad = None
    out = view.neighbour_sum("edges", x)
    out.backward(torch.ones_like(out))


@dataclass(frozen=True, repr=False)
class CostModel(Shown):
    """The five costs, in seconds an edge (α′, β: an edge and feature).

    **Arguments:**

    - `costs`: [1 + draws, 5], columns alpha, alpha_width, beta, gamma, delta: the fit, then those of a bootstrap.
    - `most`: E·H of the largest cell that they were fitted to.
    - `busy_percent`: as `measure_cells` returns it; `None` where the machine was not busy, or that is not known.
    """

    costs: pd.DataFrame
    most: float = float("nan")
    busy_percent: float | None = None

    def _display(self) -> Display:
        lines = []
        for name, (symbol, meaning) in _MEANINGS.items():
            best, low, high = (f"{1e9 * one:.3g}" for one in _with_interval(self.costs[name]))
            lines.append((symbol, meaning, f"{best} [{low}, {high}]"))
        return Display("", ("cost", "of", "ns [95 % interval]"), lines, busy_notes(self.busy_percent))

    def break_even(self, width: int) -> tuple[float, float, float]:
        """Return the p from which on filtering pays at H features, and its 95 % interval.

        Above 1 it never does; below 0 always. Where a feature costs nothing in the fit (beta is 0), p is infinite, or
        undefined (NaN) where both ways cost the same, and so is then the interval.
        """
        one = self.costs
        once = one["gamma"] + one["delta"] - one["alpha"] - one["alpha_width"] * width
        with np.errstate(divide="ignore", invalid="ignore"):
            return _with_interval(np.divide(once.to_numpy(float), one["beta"].to_numpy(float) * width))

    def predict(self, wanted: pd.DataFrame) -> pd.DataFrame:
        """Return each cell with the seconds that both ways are predicted to take.

        `filter_over_mask` is their ratio, `low` and `high` its 95 % interval, and `faster` "undecided" where that
        holds 1. `extrapolated` is how many times larger, by E·H, the cell is than the largest that was measured; 1 for
        a smaller one.

        **Arguments:**

        - `wanted`: as `cells` returns them, before they run; or as `measure_cells` does, to compare with.
        """
        seconds = {call: factors @ self.costs.to_numpy(float).T for call, factors in _factors(wanted).items()}
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


def _with_interval(values: Iterable[float]) -> tuple[float, float, float]:
    """Return a fit's value, and the ends of the 95 % interval of its draws; infinities among these have no mean."""
    best, *draws = values
    low, high = np.quantile(draws, _ENDS, method="inverted_cdf").tolist()
    return best, low, high


def fit_costs(measured: pd.DataFrame) -> CostModel:
    """Return the model of some measured cells, by least squares of relative errors with no cost below 0.

    The intervals are those of a bootstrap over cells.

    **Raises:** `InputError` for fewer than six cells.
    """
    if len(measured) < 6:
        raise InputError(f"{len(measured)} cells were measured, expected at least 6 to fit five costs to")
    generator = np.random.default_rng(0)
    drawn = [measured.iloc[generator.integers(len(measured), size=len(measured))] for _ in range(_DRAWS)]
    costs = pd.DataFrame([_solved(rows) for rows in (measured, *drawn)], columns=list(_MEANINGS))
    most = float((measured["edges"] * measured["batch_size"] * measured["width"]).max())
    return CostModel(costs, most, max(measured["busy_percent"].dropna(), default=None))


def _factors(sizes: pd.DataFrame) -> dict[str, np.ndarray]:
    """Return call → what each of the five costs is multiplied by in its time, [cells, 5]."""
    edges = (sizes["edges"] * sizes["batch_size"]).to_numpy(float)
    features, none = edges * sizes["width"].to_numpy(float), np.zeros_like(edges)
    kept = features * (1 - sizes["removed"].to_numpy(float))
    every = {  # α, α′, β, γ, δ
        "mask": (edges, features, features, none, none),
        "sum": (none, none, kept, none, none),
        "find": (none, none, none, edges, none),
        "write": (none, none, none, none, edges),
    }
    return {call: np.stack(factors, axis=1) for call, factors in every.items()}


def _solved(measured: pd.DataFrame) -> np.ndarray:
    """Return the costs that fit the four calls of each cell best, [5]."""
    from scipy.optimize import nnls  # late, as no child that runs a point needs it

    # relative errors: a small cell counts as much as a large one
    every = _factors(measured).items()
    matrix = np.concatenate([factors / measured[f"{call}_seconds"].to_numpy(float)[:, None] for call, factors in every])
    scale = matrix.max(axis=0)
    found, _ = nnls(matrix / scale, np.ones(len(matrix)))
    return np.asarray(found / scale)
