"""One list of genes, and the other names by which files call them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

from tclab.errors import InputError
from tclab.readers.report import Report

UNKNOWN, AMBIGUOUS = -1, -2

Names: TypeAlias = Mapping[str, tuple[str, ...]]


@dataclass(frozen=True, eq=False)
class Genes:
    """A gene list in its order, and how else its genes are called.

    A name is looked up as a systematic name first, then as a standard name, then as an alias; a
    standard name is reserved for one gene (SGD's gene-naming guidelines), so it comes before another gene's
    alias. Upper and lower case differ. A name that several genes share at the level where it is found is
    ambiguous, and is treated as unknown: nothing is guessed.

    **Arguments:**

    - `names`: the systematic names, none of them twice; a gene's index is its place here.
    - `standard`: standard name → the systematic names that have it.
    - `aliases`: alias → the systematic names that have it.
    - `report`: what became of the file's rows.
    """

    names: tuple[str, ...]
    standard: Names = field(default_factory=dict)
    aliases: Names = field(default_factory=dict)
    report: Report | None = None

    def __post_init__(self) -> None:
        index = {name: place for place, name in enumerate(self.names)}
        if len(index) < len(self.names):
            twice = next(n for place, n in enumerate(self.names) if index[n] != place)
            raise InputError(f"gene {twice!r} is in the list twice")
        object.__setattr__(self, "_index", index)

    @staticmethod
    def of(genes: Genes | Iterable[str]) -> Genes:
        """Return a gene list from any names, in their order; a gene list is returned as it is."""
        return genes if isinstance(genes, Genes) else Genes(tuple(genes))

    @staticmethod
    def union(lists: Sequence[Genes]) -> Genes:
        """Return the sorted union of gene lists; a name that they give to two genes becomes ambiguous."""
        standard: dict[str, tuple[str, ...]] = {}
        aliases: dict[str, tuple[str, ...]] = {}
        for genes in lists:
            for into, names in ((standard, genes.standard), (aliases, genes.aliases)):
                for name, owners in names.items():
                    into[name] = tuple(sorted({*into.get(name, ()), *owners}))
        return Genes(tuple(sorted({name for genes in lists for name in genes.names})), standard, aliases)

    def __len__(self) -> int:
        return len(self.names)

    def place(self, name: str) -> int:
        """Return the index of the gene that a name means; `UNKNOWN` or `AMBIGUOUS` where it means none."""
        index: dict[str, int] = self._index  # type: ignore[attr-defined]
        found = index.get(name)
        if found is not None:
            return found
        for names in (self.standard, self.aliases):
            owners = [owner for owner in names.get(name, ()) if owner in index]
            if owners:
                return index[owners[0]] if len(owners) == 1 else AMBIGUOUS
        return UNKNOWN

    def places(self, names: Iterable[str]) -> np.ndarray:
        """Return the index of each name, [n] int64; below 0 where it means no gene, or several."""
        return np.fromiter((self.place(name) for name in names), dtype=np.int64)

    @property
    def ambiguous(self) -> dict[str, tuple[str, ...]]:
        """The standard names and aliases that several genes share, and the genes."""
        names = {**self.aliases, **self.standard}
        return {name: owners for name, owners in names.items() if self.place(name) == AMBIGUOUS}
