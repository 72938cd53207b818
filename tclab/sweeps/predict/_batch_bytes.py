"""The bytes of a batch, estimated before anything of its size is made."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from tclab.graph._synthetic_graph import NETWORK_SIZES, NUM_GENES
from tclab.masking import get as strategy_of
from tclab.perturbation import synthetic_perturbations
from tclab.sweeps.config._point import Point
from tclab.sweeps.config._point_inputs import cell_graph_of, deletions_a_sample
from tclab.sweeps.store._code_fingerprint import code_digests

_SAMPLES = 8
_SMALL = (0.01, 0.03)  # scales that a batch is made at: two points of a line
_MOST_BEND = 1.5  # bytes an edge at one scale over those at the other, up to which it is called a line


def expected_batch_bytes(point: Point) -> int | None:
    """Return about how many bytes will travel with each batch of a point; `None` where only running it tells.

    Two batches of small synthetic graphs give the bytes an edge, a node and a sample; a user's own strategy makes them
    too. A folder is read for its sizes.
    """
    own = tuple(code_digests(point).items())
    rates = _rates(point.strategy, point.model, deletions_a_sample(point), point.ship_edges, own)
    if rates is None:
        return None
    (edges, nodes), (per_edge, per_node, per_sample) = _sizes(point), rates
    return round(point.batch_size * (per_edge * edges + per_node * nodes + per_sample))


def _sizes(point: Point) -> tuple[int, int]:
    """Return edges and nodes of a point's graph; of a synthetic one known without making it."""
    if point.graph != "synthetic":
        graph = cell_graph_of(point)
        return graph.num_edges, graph.num_nodes[graph.deleted_type]
    assert point.scale is not None  # checked by Point
    names = point.network_subset(list(NETWORK_SIZES))
    edges = sum(max(1, round(NETWORK_SIZES[name].edges * point.scale**2)) for name in names)
    return edges, max(2, round(NUM_GENES * point.scale))


@lru_cache(maxsize=256)
def _rates(strategy: str, model: str, deleted: int, ship_edges: bool, own: object) -> tuple[float, float, float] | None:
    """Return a strategy's bytes for each sample: an edge, a node, and what depends on neither.

    `None` for one whose bytes do not grow with the edges, as those of `delta`, `fastest` and `khop_1`: how far a
    deletion is felt decides.
    """
    found = []
    for scale in _SMALL:
        small = Point(model=model, strategy=strategy, scale=scale, num_deletions=deleted, ship_edges=ship_edges)
        graph = cell_graph_of(replace(small, networks=None))
        samples = synthetic_perturbations(graph, _SAMPLES, deleted=deleted, seed=0)
        batch = strategy_of(strategy)(graph, ship_edges=ship_edges).prepared_batch(samples)
        carried = (batch.edge_bytes, batch.bytes - batch.edge_bytes)
        found.append((graph.num_edges, graph.num_nodes[graph.deleted_type], *carried))
    (fewer, few, on_fewer, least), (edges, many, on_edges, most) = found
    ends = sorted((on_fewer * edges, on_edges * fewer))
    if ends[1] > _MOST_BEND * ends[0]:
        return None
    per_node = max(0.0, (most - least) / (many - few) / _SAMPLES)
    per_sample = max(0.0, least / _SAMPLES - per_node * few)
    return on_edges / _SAMPLES / max(1, edges), per_node, per_sample
