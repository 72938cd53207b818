"""What a point is measured on: its graph and its samples, synthetic or of files; the last few are kept."""

from __future__ import annotations

import os
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tclab.errors import InputError, about, require
from tclab.graph._cell_graph import CellGraph, resolve_networks
from tclab.graph._synthetic_graph import NETWORK_SIZES
from tclab.perturbation import Perturbations
from tclab.sweeps._point import ALLOCATORS, Point, device_of

if TYPE_CHECKING:
    from tclab.readers._screens import ScreenPerturbations

Stamp = tuple[tuple[str, int, int], ...]  # name, size and time of a file, or of every file in a folder


def resolve(point: Point) -> Point:
    """Return a point with its device and its paths made definite; networks that are all that its model reads are null.

    **Raises:** `InputError` for `device="cuda"` where there is none, a file that is not there, or networks that the
    graph does not have.
    """
    check_files(point)
    every, networks = point.kind.default_networks, point.networks
    if networks is not None and networks_of(point) == every(network_names(point)):
        networks = None
    return replace(absolute(point), device=device_of(point.device), networks=networks)


def resolved_alone(point: Point, what: str, name: str = "point", *, here: bool = False) -> Point:
    """Return a resolved point that is run in one process alone, as `what` ("a race") is; `here` if in this one.

    **Raises:** `InputError` for what is no point, or cannot be run so; `name` is the argument's.
    """
    require(name, point, Point, "a tclab.Point")
    reason = point.skipped()
    if reason is None and point.ranks > 1:
        reason = f"{point.ranks} ranks asked for, and {what} is of one process"
    if here and any(os.environ.get(name) != value for name, value in ALLOCATORS[point.allocator].items()):
        reason = reason or f"allocator {point.allocator!r} asked for, which only a fresh process has"
    if reason is not None:
        raise InputError(f"{name} cannot be run: {reason}")
    return resolve(point)


def absolute(point: Point) -> Point:
    """Return a point with its paths made definite."""
    paths: dict[str, Any] = {name: str(Path(value).resolve()) for name, value in paths_of(point).items()}
    return replace(point, **paths)


def paths_of(point: Point) -> dict[str, str]:
    """Return field → path of the files that a point is measured on; empty where all is synthetic."""
    named = {"graph": point.graph, "perturbations": point.perturbations}
    return {name: value for name, value in named.items() if isinstance(value, str) and value != "synthetic"}


def check_files(point: Point) -> None:
    """Look whether the files that a point names are there, and hold the networks that it names.

    **Raises:** `InputError` for one that is not.
    """
    for name, path in paths_of(point).items():
        what = "'synthetic' or a folder or file" if name == "graph" else "a file of samples"
        if not (os.path.exists if name == "graph" else os.path.isfile)(path):
            raise InputError(f"{name} is {path!r}, expected {what} that exists", name=name)
    if point.graph != "synthetic" and point.networks is not None:
        networks_of(point)


def file_stamps(point: Point) -> dict[str, Stamp]:
    """Return path → what tells whether the files there have changed, of those that a point is measured on."""
    return {path: _stamp_of(path) for path in paths_of(point).values()}


def _stamp_of(place: str) -> Stamp:
    root = Path(place)
    files = sorted(path for path in root.rglob("*") if path.is_file()) if root.is_dir() else [root]
    return tuple((str(f.relative_to(root)), f.stat().st_size, f.stat().st_mtime_ns) for f in files)


def network_names(point: Point) -> list[str]:
    """Return the names of all networks of a point's graph, in order; a folder or file is read for them."""
    return list(NETWORK_SIZES if point.graph == "synthetic" else _whole(point).networks)


def cell_graph_of(point: Point) -> CellGraph:
    """Return the graph that a point runs on, on the CPU."""
    graph = _whole(point).select(networks_of(point))
    return graph.without_metabolism() if point.metabolism == "off" else graph


def networks_of(point: Point) -> list[str]:
    """Return the names of the networks that a point runs on, those that its model reads first."""
    every = network_names(point)
    read = point.kind.default_networks(every)
    with about("networks"):
        wanted = list(dict.fromkeys([*read, *every]))
        return read if point.networks is None else resolve_networks(point.networks, wanted)


def _whole(point: Point) -> CellGraph:
    return _whole_graph(point.graph, point.scale, point.seed, file_stamps(point).get(point.graph))


@lru_cache(maxsize=4)
def _whole_graph(graph: str, scale: float | None, seed: int, stamp: object) -> CellGraph:
    if graph == "synthetic":
        assert scale is not None  # checked by Point
        return CellGraph.synthetic(scale, seed)
    return CellGraph.from_folder(graph) if os.path.isdir(graph) else CellGraph.from_file(graph)


def screen_of(point: Point) -> ScreenPerturbations | None:
    """Return the samples of a point's file of perturbations, with a report of its rows; `None` for no file.

    **Raises:** `InputError` for a file that has no samples, or no sample for the point's graph.
    """
    if isinstance(point.perturbations, int):
        return None
    return _screen(point.perturbations, _whole(point), _stamp_of(point.perturbations))


@lru_cache(maxsize=2)
def _screen(path: str, graph: CellGraph, stamp: object) -> ScreenPerturbations:
    from tclab.readers import read_perturbations  # only a point with a file needs the readers

    return read_perturbations(path, graph)


def samples_of(point: Point, number: int, graph: CellGraph) -> Perturbations:
    """Return so many samples to train on: synthetic ones, or those of the file in an order drawn by the seed.

    A file that has fewer is gone through again. The samples delete nodes of `graph`, which is the point's own.
    """
    screen = screen_of(point)
    if screen is None:
        return Perturbations.synthetic(graph, number, deleted=int(point.perturbations), seed=point.seed)
    order = np.random.default_rng(point.seed).permutation(len(screen))
    return screen.read(np.resize(order, number).tolist())
