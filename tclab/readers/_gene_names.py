"""Gene lists with standard names and aliases, and the lookup of a file's names in them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from tclab.errors import InputError
from tclab.readers._old_source import bad_file, quoted
from tclab.readers._read_report import Report

UNKNOWN, AMBIGUOUS = -1, -2

UNKNOWN_LIMIT = 0.5  # a file that loses more than half its rows to unknown names is another organism's

Names: TypeAlias = Mapping[str, tuple[str, ...]]


def owners_of(pairs: Iterable[tuple[str, str]]) -> dict[str, tuple[str, ...]]:
    """Return name → the genes that have it, sorted, of pairs of a name and a gene."""
    owners: dict[str, set[str]] = {}
    for name, gene in pairs:
        owners.setdefault(name, set()).add(gene)
    return {name: tuple(sorted(genes)) for name, genes in owners.items()}


@dataclass(frozen=True, eq=False)
class Genes:
    """A gene list in its order, with the other names of its genes.

    A name is looked up as a systematic name first, then as a standard name, then as an alias; a standard name is
    reserved for one gene (SGD's gene-naming guidelines), so it precedes another gene's alias. Upper and lower case
    differ. A name that several genes share at the level where it is found is ambiguous and treated as unknown.

    **Arguments:**

    - `names`: the systematic names, without repetition; a gene's index is its position here.
    - `standard`: standard name → the systematic names that have it.
    - `aliases`: alias → the systematic names that have it.
    - `report`: what the reader did with the file's rows.
    """

    names: tuple[str, ...]
    standard: Names = field(default_factory=dict)
    aliases: Names = field(default_factory=dict)
    report: Report | None = None

    def __post_init__(self) -> None:
        index = {name: place for place, name in enumerate(self.names)}
        if len(index) < len(self.names):
            twice = next(name for place, name in enumerate(self.names) if index[name] != place)
            raise InputError(f"gene {twice!r} is in the list twice")
        object.__setattr__(self, "_index", index)

    @staticmethod
    def of(genes: Genes | Iterable[str]) -> Genes:
        """Return a gene list of any names, in their order; a gene list is returned unchanged."""
        return genes if isinstance(genes, Genes) else Genes(tuple(genes))

    @staticmethod
    def union(lists: Sequence[Genes]) -> Genes:
        """Return the sorted union of gene lists; a name that two of them give to different genes becomes ambiguous."""

        def merged(each: Iterable[Names]) -> Names:
            return owners_of((name, owner) for names in each for name, owners in names.items() for owner in owners)

        standard, aliases = merged(genes.standard for genes in lists), merged(genes.aliases for genes in lists)
        return Genes(tuple(sorted({name for genes in lists for name in genes.names})), standard, aliases)

    def __len__(self) -> int:
        return len(self.names)

    def place(self, name: str) -> int:
        """Return the index of the gene with a name; `UNKNOWN` (-1) or `AMBIGUOUS` (-2) where there is none."""
        index: dict[str, int] = self._index  # type: ignore[attr-defined]
        if name in index:
            return index[name]
        for names in (self.standard, self.aliases):
            owners = [owner for owner in names.get(name, ()) if owner in index]
            if owners:
                return index[owners[0]] if len(owners) == 1 else AMBIGUOUS
        return UNKNOWN

    @property
    def ambiguous(self) -> dict[str, tuple[str, ...]]:
        """The standard names and aliases that several genes share: name → the genes."""
        names = {**self.aliases, **self.standard}
        return {name: owners for name, owners in names.items() if self.place(name) == AMBIGUOUS}


@dataclass
class Lookup:
    """Lookup of the names in a file's columns, which remembers every distinct name."""

    genes: Genes
    first: Genes | None = None  # a list that comes with the file, looked up before `genes`
    prefix: Callable[[str], str] = str  # removes what every name of the file has in front, such as STRING's taxon
    respell: Callable[[str], str] = str  # to look up where a name is unknown: `YER060W-A` for `YER060W_A`
    index_of: dict[str, int] = field(default_factory=dict)

    def place(self, name: str) -> int:
        """Return the index of the gene with a name, below 0 where there is none."""
        if name not in self.index_of:
            place = self._place(name)
            if place == UNKNOWN and (other := self.respell(name)) != name:
                place = self._place(other)
            self.index_of[name] = place
        return self.index_of[name]

    def _place(self, name: str) -> int:
        place = self.first.place(name) if self.first else UNKNOWN
        return self.genes.place(self.first.names[place] if self.first and place >= 0 else self.prefix(name))

    def places(self, column: pa.DictionaryArray | Sequence[str]) -> np.ndarray:
        """Return the index of each name of a column, [rows] int64, below 0 where it means none."""
        if isinstance(column, pa.DictionaryArray):
            distinct = column.dictionary.to_pylist()
            codes, at = np.unique(column.indices.to_numpy(), return_inverse=True)  # a filter leaves some unused
            places = np.fromiter((self.place(distinct[code]) for code in codes), np.int64, len(codes))
            return np.asarray(places[at])
        return np.fromiter(map(self.place, column), np.int64, len(column))

    @property
    def unknown(self) -> list[str]:
        """The distinct names that mean no gene, or several, in the file's order."""
        return [name for name, place in self.index_of.items() if place < 0]

    def check_lost(self, path: str | Path, rows: int, lost: int, *, limit: float, what: str = "rows") -> None:
        """Raise `ReadError` where a larger share than `limit` of a file's rows have an unknown name."""
        if rows and lost / rows > limit:
            names = self.genes.names
            raise bad_file(
                path,
                f"{lost:,} of {rows:,} {what} name a gene that is not in the gene list of {len(names):,} "
                f"(first {quoted(self.unknown[0])}, expected one like {quoted(next(iter(names), 'none'))}); "
                f"unknown_limit is {limit:g}",
            )

    def report(self, path: str | Path, rows: int, kept: int, dropped: Mapping[str, int], **more: Any) -> Report:
        """Return the report of a file whose names were looked up here; reasons that dropped no row are left out."""
        places = self.index_of.items()
        unknown = self.unknown
        return Report(
            str(path),
            rows,
            kept,
            {reason: number for reason, number in dropped.items() if number},
            mapped=sum(place >= 0 and self.genes.names[place] != self.prefix(name) for name, place in places),
            unknown=len(unknown),
            unknown_examples=tuple(sorted(unknown)[:5]),
            **more,
        )
