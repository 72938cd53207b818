"""From the two ends of each row to a network with its report."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import torch

from tclab.graph import Network
from tclab.readers.errors import ReadError, bad_file, shown
from tclab.readers.genes import AMBIGUOUS, UNKNOWN, Genes
from tclab.readers.report import Report

UNKNOWN_LIMIT = 0.5  # a file that loses more than half its rows to unknown names is another organism's


@dataclass
class Lookup:
    """Looks up the names of a file's rows, batch by batch, and remembers what it met.

    **Arguments:**

    - `genes`: where to look.
    - `first`: names that are looked up here before, where the file comes with a list of its own.
    - `without`: what is taken off the front of every name, such as a taxon.
    - `or_with`: what a name that is unknown may have in the place of what, such as `-` for `_`.
    """

    genes: Genes
    first: Genes | None = None
    without: re.Pattern[str] | None = None
    or_with: tuple[str, str] | None = None
    found: dict[str, int] = field(default_factory=dict)

    def place(self, name: str) -> int:
        """Return the index of the gene that a name means, below 0 where it means none."""
        if name not in self.found:
            own = self.first.place(name) if self.first else AMBIGUOUS
            known = self.first.names[own] if self.first and own >= 0 else name
            place = self.genes.place(self._bare(known))
            if place == UNKNOWN and self.or_with:
                place = self.genes.place(name.replace(*self.or_with))
            self.found[name] = place
        return self.found[name]

    def places(self, column: pa.Array | pa.ChunkedArray | Sequence[str]) -> np.ndarray:
        """Return the index of each name of a column, [rows] int64, below 0 where it means none."""
        if isinstance(column, pa.DictionaryArray):
            distinct = column.dictionary.to_pylist()
            codes, at = np.unique(column.indices.to_numpy(), return_inverse=True)  # a filter leaves some unused
            places = np.fromiter((self.place(distinct[code]) for code in codes), np.int64, len(codes))
            return np.asarray(places[at])
        names = column.to_pylist() if isinstance(column, (pa.Array, pa.ChunkedArray)) else column
        return np.fromiter((self.place(name) for name in names), np.int64, len(names))

    @property
    def mapped(self) -> int:
        """How many distinct names were translated."""
        found = self.found.items()
        return sum(place >= 0 and self.genes.names[place] != self._bare(name) for name, place in found)

    def _bare(self, name: str) -> str:
        return self.without.sub("", name, count=1) if self.without and self.without.match(name) else name

    @property
    def unknown(self) -> list[str]:
        """The distinct names that mean no gene, or several, in the order they were met."""
        return [name for name, place in self.found.items() if place < 0]


def unknown_rows(
    path: str | Path, rows: int, lost: int, lookup: Lookup, *, limit: float = UNKNOWN_LIMIT
) -> ReadError | None:
    """Return the error for a file that lost more than a share of its rows to unknown names, or None."""
    if not rows or lost / rows <= limit:
        return None
    example = lookup.unknown[0]
    return bad_file(
        path,
        f"{lost:,} of {rows:,} rows name a gene that is not in the gene list of {len(lookup.genes):,} "
        f"(first {shown(example)}, expected one like {shown(next(iter(lookup.genes.names), 'none'))}); "
        f"unknown_limit is {limit:g}",
    )


def network_of(
    name: str,
    source: np.ndarray,
    target: np.ndarray,
    lookup: Lookup,
    *,
    path: str | Path,
    directed: bool,
    node_type: str = "gene",
    scores: np.ndarray | None = None,
    weighted: bool = False,
    dropped: Counter[str] | None = None,
    self_loops: bool = True,
    unknown_limit: float = UNKNOWN_LIMIT,
    node_names: Iterable[str] | None = None,
) -> Network:
    """Return the network of a file's rows.

    Rows with an unknown end are dropped; of an undirected edge the direction low → high is kept; an edge that
    stands several times is kept once, with its highest score, so that the order of the rows plays no part.

    **Arguments:**

    - `source`, `target`: [rows] int64, below 0 where the name is unknown.
    - `scores`: [rows] float; kept in the report, and as the weight only where `weighted`.
    - `dropped`: rows that the reader left out before, by reason.
    - `self_loops`: whether edges from a node to itself are kept.
    - `unknown_limit`: the share of rows that may be lost to unknown names.

    **Raises:** `ReadError` where more are lost.
    """
    reasons: Counter[str] = Counter(dropped or {})
    rows = len(source) + sum(reasons.values())
    known = (source >= 0) & (target >= 0)
    lost = int(len(known) - known.sum())
    if error := unknown_rows(path, len(source), lost, lookup, limit=unknown_limit):
        raise error
    reasons["unknown gene"] += lost
    loops = known & (source == target)
    if not self_loops:
        reasons["self-loop"] += int(loops.sum())
        known &= ~loops
    ends = np.stack([source[known], target[known]])
    if not directed:
        mirrored = ends[0] > ends[1]
        ends = np.sort(ends, axis=0)
    key = ends[0] * max(len(lookup.genes), 1) + ends[1]
    kept_scores = None if scores is None else scores[known]
    order = np.argsort(key, kind="stable") if kept_scores is None else np.lexsort((-kept_scores, key))
    first = np.ones(len(key), dtype=bool)
    first[1:] = key[order][1:] != key[order][:-1]
    kept = order[first]
    duplicates = len(key) - len(kept)
    if not directed:
        both = _stands_both_ways(key, mirrored)
        if both:
            reasons["reverse of an undirected edge"] += both
            duplicates -= both
    reasons["said before"] += duplicates
    edge_index = torch.from_numpy(np.ascontiguousarray(ends[:, kept]))
    kept_tensor = None if kept_scores is None else torch.from_numpy(kept_scores[kept])
    report = Report(
        path=str(path),
        rows=rows,
        kept=edge_index.size(1),
        dropped={why: number for why, number in reasons.items() if number},
        mapped=lookup.mapped,
        unknown=len(lookup.unknown),
        unknown_examples=tuple(sorted(lookup.unknown)[:5]),
        self_loops=int(loops.sum()),
        duplicates=duplicates,
        scores=kept_tensor,
        node_names=None if node_names is None else tuple(node_names),
    )
    number = len(lookup.genes)
    weight = kept_tensor.to(torch.float64) if weighted and kept_tensor is not None else None
    return Network(
        name,
        edge_index,
        node_type,
        node_type,
        number,
        number,
        weight=weight,
        directed=directed,
        report=report,
    )


def _stands_both_ways(key: np.ndarray, mirrored: np.ndarray) -> int:
    """Return how many undirected edges stand in both directions."""
    return len(np.intersect1d(np.unique(key[~mirrored]), np.unique(key[mirrored])))


def equals(column: pa.DictionaryArray, value: str) -> np.ndarray:
    """Return which rows of a column hold a value, [rows] bool."""
    matches = np.array([name == value for name in column.dictionary.to_pylist()], dtype=bool)
    return np.asarray(matches[column.indices.to_numpy()])
