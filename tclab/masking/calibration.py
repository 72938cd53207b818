"""The kernels that are fastest on this machine for a graph, batch size, dtype and device: timed once and stored."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tclab._io import atomic_write, cache_folder
from tclab._version import __version__
from tclab.graph import Network
from tclab.graph._cell_graph import CellGraph
from tclab.message_passing import SharedView, View
from tclab.message_passing._shared_view import dense_sum, sparse_matrix
from tclab.message_passing.kernels._spmm import least_seconds, spmm
from tclab.perturbation import Deletions, synthetic_perturbations
from tclab.timing._environment import fingerprint

WIDTH = 64  # features a row, as in both models' published configurations
_COLUMNS = 256  # at most so many are timed: the kernels' order does not change beyond
_SAMPLES = 8  # at most so many samples are timed
DELETED = 3  # nodes that a sample deletes, by default
_DEPTH = 3  # layers, as in both configurations of HeteroCell
_SPARSEST = 200  # where a dense product does more than so many times the work, it is not timed
_KERNELS = 4  # raise it when a kernel that is timed changes: stored choices are then timed again


@dataclass(frozen=True)
class Choice:
    """Which kernels are used.

    **Arguments:**

    - `dense`: the networks whose sums are dense products; the others' are sparse ones.
    - `delta`: carry what differs from the wild type through the first layers.
    - `seconds`: kernel → the shortest of a few calls, forward and backward; `None` for a choice that was set by
      hand.
    """

    dense: tuple[str, ...] = ()
    delta: bool = False
    seconds: dict[str, float] | None = None

    def __str__(self) -> str:
        networks = f"dense: {', '.join(self.dense)}" if self.dense else "every network sparse"
        how = "timed" if self.seconds else "not timed"
        return f"{networks}; {'delta' if self.delta else 'shared product'} ({how})"

    @staticmethod
    def from_dict(fields: Mapping[str, Any]) -> Choice:
        """Return the choice of its fields, as they come back from JSON."""
        return Choice(**{**fields, "dense": tuple(fields["dense"])})


def cache_path() -> Path:
    """Return the file of stored choices: `fastest.json` in `TCLAB_CACHE`, or in the user's cache folder."""
    return cache_folder() / "fastest.json"


def _stored() -> dict[str, Any]:
    try:
        found = json.loads(cache_path().read_text())
    except (OSError, ValueError):  # missing or damaged: it is written again
        return {}
    if not isinstance(found, dict):
        return {}
    return {machine: asked for machine, asked in found.items() if isinstance(asked, dict)}


def _choice_of(found: Any) -> Choice | None:
    """Return the choice of a file's entry; `None` for an entry of another version."""
    try:
        return Choice.from_dict(found)
    except (TypeError, KeyError):
        return None


def cache_stamp() -> int | None:
    """Return the file's modification time, which changes with every stored choice; `None` where there is no file."""
    try:
        return cache_path().stat().st_mtime_ns
    except OSError:
        return None


def _keys(graph: CellGraph, batch_size: int, dtype: str, device: str, deleted: int, width: int) -> tuple[str, str]:
    """Return the key of the machine and the key of the question."""
    here = {**fingerprint("process"), "tclab": __version__, "kernels": _KERNELS}
    machine = json.dumps(here, sort_keys=True)
    shape = hashlib.sha256(graph.fingerprint().encode()).hexdigest()[:12]
    sizes = f"{deleted} deleted, width {width}, batch {batch_size}, {dtype}, {device}"
    return machine, f"graph {shape}, {len(graph.networks)} networks, {sizes}"


def kept_choice(
    graph: CellGraph, batch_size: int, dtype: str, device: str, *, deleted: int = DELETED, width: int = WIDTH
) -> Choice | None:
    """Return the stored choice for this machine, timed or set by hand; `None` where there is none."""
    machine, asked = _keys(graph, batch_size, dtype, device, deleted, width)
    return _choice_of(_stored().get(machine, {}).get(asked))


def keep_choice(
    graph: CellGraph,
    batch_size: int,
    dtype: str,
    device: str,
    choice: Choice,
    *,
    deleted: int = DELETED,
    width: int = WIDTH,
) -> None:
    """Store a choice for this machine in place of the one that is there.

    A folder that cannot be written is no error: the kernels are timed again the next time.
    """
    machine, asked = _keys(graph, batch_size, dtype, device, deleted, width)
    every = _stored()
    every.setdefault(machine, {})[asked] = asdict(choice)
    path = cache_path()
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        atomic_write(path, json.dumps(every, indent=1))


def print_choices() -> None:
    """Print every stored choice, machine by machine."""
    for machine, asked in _stored().items():
        print(", ".join(f"{name} {value}" for name, value in json.loads(machine).items() if value is not None))
        for what, found in asked.items():
            print(f"  {what}: {_choice_of(found) or 'of another version'}")


def timed(
    graph: CellGraph,
    batch_size: int,
    dtype: torch.dtype,
    delta: Callable[[CellGraph, Deletions, Sequence[str]], View],
    *,
    deleted: int,
    width: int,
) -> Choice:
    """Time the kernels and return the fastest.

    **Arguments:**

    - `graph`: on the device.
    - `deleted`: nodes that a sample deletes. `width`: features a row.
    - `delta`: from the graph, deletions and the dense networks to the view that carries differences.
    """
    device = graph.device
    seconds: dict[str, float] = {}
    dense = []
    size = min(batch_size + 1, max(1, _COLUMNS // width))
    for name, network in graph.networks.items():
        if network.num_sources * network.num_targets > _SPARSEST * network.num_edges:
            continue
        x = torch.randn(size, network.num_sources, width, device=device).to(dtype).requires_grad_()
        arms: dict[str, Callable[[], object]] = {
            f"{name} sparse": _both_ways(partial(_sparse_sum, network), x),
            f"{name} dense": _both_ways(partial(dense_sum, network), x),
        }
        seconds |= least_seconds(arms, rounds=3)
        if seconds[f"{name} dense"] < seconds[f"{name} sparse"]:
            dense.append(name)
    deletions = synthetic_perturbations(graph.to("cpu"), min(batch_size, _SAMPLES), deleted=deleted).deletions
    x = torch.randn(graph.num_nodes[graph.deleted_type], width, device=device).to(dtype).requires_grad_()
    differences = delta(graph, deletions, dense)
    assert isinstance(differences, SharedView)
    shared = SharedView(graph, differences.removed, dense=dense)
    views = {"delta": differences, "shared": shared}
    calls: dict[str, Callable[[], object]] = {n: _both_ways(partial(_layers, view), x) for n, view in views.items()}
    seconds |= least_seconds(calls, rounds=3)
    return Choice(tuple(dense), seconds["delta"] < seconds["shared"], seconds)


def _sparse_sum(network: Network, x: Tensor) -> Tensor:
    (summed,) = spmm([sparse_matrix(network, x.dtype)], x)
    return summed


def _layers(view: View, x: Tensor) -> Tensor:
    """Return sums over all networks, layer after layer, of the wild type and the samples."""
    (both,) = view.with_wild_type()
    names = list(both.graph.networks)
    weights = [x.new_ones(1)] * len(names)
    rows = both
    out = rows.begin(x)
    for _ in range(_DEPTH):
        out = rows.convolve_sum(names, out, [_row_wise] * len(names), weights) / len(names)
    return rows.complete(out)


def _row_wise(x: Tensor) -> Tensor:
    return x.tanh()  # keeps numbers small from layer to layer


def _both_ways(forward: Callable[[Tensor], Tensor], x: Tensor) -> Callable[[], None]:
    def call() -> None:
        out = forward(x)
        x.grad = None
        out.backward(torch.ones_like(out))
        if out.is_cuda:
            torch.cuda.synchronize()

    return call
