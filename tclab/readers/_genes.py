"""Gene lists with standard names and aliases, the files that have them, and the lookup of a file's names in them."""

from __future__ import annotations

import re
import unicodedata
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from tclab._source import opened
from tclab.errors import InputError
from tclab.readers._table import NAME, Column, ReadError, quoted, sniff

UNKNOWN = -1
UNKNOWN_LIMIT = 0.5  # a file that loses more than half its rows to unknown names is another organism's
_MANY_UNKNOWN = 0.1  # share of the rows or of the names, from which a warning says so

DANGO_GENES_FILE = "yeast_string_genes.txt"


@dataclass(frozen=True)
class Report:
    """Counts of what a reader did with the rows of one file.

    **Arguments:**

    - `path`: the file.
    - `rows`: how many rows it has, without the header.
    - `kept`: how many of them became an edge, a gene, or a sample.
    - `dropped`: reason → number of rows, so that `rows == kept + sum(dropped.values())`.
    - `unknown`: distinct names that mean no gene, or several genes, sorted.
    - `notes`: further observations, as text.
    - `scores`: [kept] float, the edges' published scores in the order of the network's edges, where the format has
      scores. Models sum without weights, so they are not the network's weight.
    - `node_names`: the names of the nodes, where the file itself lists them.
    - `edge_of_row`: of an edge list, [rows] int64: the edge that a row became or was merged into, in the order of the
      network's edges; -1 where it was dropped. After `in_both_directions()` [2, rows]: the edge as it was stored, and
      the opposite one, which for a self-loop is the same.
    """

    path: str
    rows: int
    kept: int
    dropped: Mapping[str, int] = field(default_factory=dict)
    unknown: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    scores: Any = field(default=None, repr=False, compare=False)
    node_names: tuple[str, ...] | None = field(default=None, repr=False, compare=False)
    edge_of_row: Any = field(default=None, repr=False, compare=False)

    def __str__(self) -> str:
        parts = [f"{self.path}: {self.kept:,} of {self.rows:,} rows kept"]
        parts += [f"{n:,} dropped ({why})" for why, n in sorted(self.dropped.items(), key=lambda item: -item[1])]
        parts += [f"{len(self.unknown):,} names unknown, such as {', '.join(self.unknown[:5])}"] * bool(self.unknown)
        return "; ".join([*parts, *self.notes])


@dataclass(frozen=True, eq=False)
class Genes:
    """A gene list in its order, with the other names of its genes.

    A name is looked up as a systematic name first, then among the others. Upper and lower case differ. A name that
    several genes share is ambiguous and treated as unknown.

    **Arguments:**

    - `names`: the systematic names, without repetition; a gene's index is its position here.
    - `also`: standard name or alias → the systematic names that have it. A standard name is reserved for one gene
      (SGD's gene-naming guidelines), so where it is another gene's alias it is the first's alone.
    - `report`: what the reader did with the file's rows.
    """

    names: tuple[str, ...]
    also: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    report: Report | None = None

    def __post_init__(self) -> None:
        for name, times in Counter(self.names).items():
            if times > 1:
                raise InputError(f"gene {name!r} is in the list twice")
        object.__setattr__(self, "_index", {name: i for i, name in enumerate(self.names)})

    @staticmethod
    def union(lists: Sequence[Genes]) -> Genes:
        """Return the sorted union of gene lists; a name that two of them give to different genes becomes ambiguous."""
        names = tuple(sorted({name for genes in lists for name in genes.names}))
        pairs = ((name, gene) for genes in lists for name, owners in genes.also.items() for gene in owners)
        return Genes(names, _owners(pairs))

    def __len__(self) -> int:
        return len(self.names)

    def place(self, name: str) -> int:
        """Return the index of the gene with a name; `UNKNOWN` (-1) where there is none, or several have it."""
        index: dict[str, int] = self._index  # type: ignore[attr-defined]
        if name in index:
            return index[name]
        owners = [index[owner] for owner in self.also.get(name, ()) if owner in index]
        return owners[0] if len(owners) == 1 else UNKNOWN


def _owners(pairs: Iterable[tuple[str, str]]) -> dict[str, tuple[str, ...]]:
    """Return name → the genes that have it, sorted, of pairs of a name and a gene."""
    owners: dict[str, set[str]] = {}
    for name, gene in pairs:
        owners.setdefault(name, set()).add(gene)
    return {name: tuple(sorted(genes)) for name, genes in owners.items()}


def folded(name: str) -> str:
    """Return a key that names have in common that differ in case, in Unicode or in “.0” alone.

    “é” may be “e” and an accent, and pandas writes whole numbers beside a missing one as 1.0.
    """
    return re.sub(r"(?<=^\d)(\d*)\.0$", r"\1", unicodedata.normalize("NFKC", name).casefold())


class Lookup:
    """Lookup of one file's names in a gene list, which remembers every distinct name.

    **Arguments:**

    - `path`: the file.
    - `genes`: the list.
    - `unknown_limit`: the share of the file's rows that may be lost to unknown names.
    - `clean`: makes of a name what is looked up: without STRING's taxon, say.
    - `noun`: what the names are of, for messages.
    """

    def __init__(
        self, path: str | Path, genes: Genes | Iterable[str], unknown_limit: float, clean: Callable[[str], str] = str,
        noun: str = "gene",
    ) -> None:  # fmt: skip
        self.path, self.unknown_limit, self.clean, self.noun = path, unknown_limit, clean, noun
        self.genes = genes if isinstance(genes, Genes) else Genes(tuple(genes))
        self.index_of: dict[str, int] = {}  # name as in the file → index, below 0 where it means no gene

    def place(self, name: str) -> int:
        """Return the index of the gene with a name, below 0 where there is none."""
        return self.index_of.setdefault(name, self.genes.place(self.clean(name)))

    def places(self, column: pd.Series) -> np.ndarray:
        """Return the index of each name of a column of categories, [rows] int32, below 0 where it means none."""
        column = column.cat.remove_unused_categories()  # a filter leaves some
        found = np.array([self.place(name) for name in column.cat.categories], dtype=np.int32)
        return found[column.cat.codes.to_numpy()]

    @property
    def unknown(self) -> list[str]:
        """The distinct names of the file that mean no gene, in the order in which they were looked up."""
        return [name for name, i in self.index_of.items() if i < 0]

    def check_lost(self, rows: int, lost: int, what: str = "rows") -> None:
        """Look at how many of the file's rows have an unknown name.

        Warns from a tenth of the rows or of the distinct names on, and where a name is known in another case.

        **Raises:** `ValueError` for a larger share than the limit.
        """
        if not lost:
            return
        unknown, of_all = self.unknown, f"{lost:,} of {rows:,} {what}"
        why = f"name a {self.noun} that is not in the {self.noun} list of {len(self.genes):,}"
        known = {folded(name): name for name in (*self.genes.also, *self.genes.names)}
        alike = [(name, known.get(folded(self.clean(name)), self.clean(name))) for name in unknown]
        cases = [(name, other) for name, other in alike if other != self.clean(name)]
        case = "".join(
            f"; {name!r} differs from {other!r} only in case, in Unicode or in “.0”" for name, other in cases[:1]
        )
        example = f"such as {quoted(unknown[0])}{case}"
        if lost / rows > self.unknown_limit:
            like = f"expected one like {quoted(next(iter(self.genes.names), 'none'))}"
            raise ValueError(f"{of_all} {why} ({example}; {like}); unknown_limit is {self.unknown_limit:g}")
        if cases or lost / rows >= _MANY_UNKNOWN or len(unknown) / len(self.index_of) >= _MANY_UNKNOWN:
            warnings.warn(f"{self.path}: {of_all} were dropped: they {why}, {example}", stacklevel=4)

    def report(self, rows: int, kept: int, dropped: Mapping[str, int], **more: Any) -> Report:
        """Return the report of the file; reasons that dropped no row are left out."""
        dropped = {reason: count for reason, count in dropped.items() if count}
        return Report(str(self.path), rows, kept, dropped, tuple(sorted(self.unknown)), **more)


def dango_genes(path: str | Path) -> Genes:
    """Return DANGO's gene list: one systematic name a line; the adjacencies refer to its line numbers.

    **Raises:** `ReadError` with the line for a line that is not one name, or a name that appears twice.
    """
    line_of: dict[str, int] = {}
    with opened(path, "a list of genes", ReadError) as content:
        for line, text in enumerate(content.decode().splitlines(), 1):
            name = text.strip()
            if not re.fullmatch(r"[^\s,;]*", name):
                raise ValueError(f"line {line}: {quoted(text)}, expected one systematic name such as YAL001C")
            if name in line_of:
                raise ValueError(f"line {line}: gene {name!r} is already on line {line_of[name]}")
            if name:
                line_of[name] = line
        if not line_of:
            raise ValueError("holds no gene")
    return Genes(tuple(line_of), report=Report(str(path), len(line_of), len(line_of)))


_FEATURES = {"type": 1, "name": 3, "standard": 4, "alias": 5}  # columns of its 16


def sgd_features(path: str | Path) -> Genes:
    """Return the open reading frames of the Saccharomyces Genome Database's `SGD_features.tab`, as genes.

    16 columns between tabs, no header. Standard names and aliases become names of their genes. An alias of several
    genes (hundreds are: SGD lists free text such as `acetyltransferase` there) is unknown in a lookup.

    **Raises:** `ReadError` with the row for a wrong number of columns; for a gene without a name or that appears
    twice, and where no row is a gene.
    """
    with opened(path, "SGD's table of features", ReadError) as content:
        table = sniff(content, columns=[f"column {i}" for i in range(1, 17)])
        frame = table.read({name: Column(i, NAME) for name, i in _FEATURES.items()})
        kept = frame[frame["type"] == "ORF"]
        dropped = {f"feature type {kind}": count for kind, count in Counter(frame["type"]).items() if kind != "ORF"}
        return _genes(path, len(frame), list(kept[["name", "standard", "alias"]].itertuples(index=False)), dropped)


def sgd_gene_names(path: str | Path) -> Genes:
    """Return the genes of `SGDgeneNames.tsv`, as yeast-GEM keeps it: header `Systematic_name`, `Standard_name`.

    **Raises:** `ReadError` with the row for a bad row; for a gene that appears twice.
    """
    with opened(path, "SGD's table of gene names", ReadError) as content:
        table = sniff(content)
        frame = table.read({n: Column(table.column(n), NAME) for n in ("Systematic_name", "Standard_name")})
        rows = [(name, "" if standard == name else standard, "") for name, standard in frame.itertuples(index=False)]
        return _genes(path, len(rows), rows, {})


def _genes(path: str | Path, rows: int, kept: list[tuple[str, str, str]], dropped: Mapping[str, int]) -> Genes:
    """Return the gene list of rows of a systematic name, a standard name, and aliases with bars between."""
    if not kept:
        raise ValueError(f"none of its {rows:,} rows is a gene")
    times = Counter(name for name, _, _ in kept)
    if "" in times:
        raise ValueError("a gene has no name, expected one such as YAL001C")
    if len(times) < len(kept):
        raise ValueError(f"gene {quoted(times.most_common(1)[0][0])} appears twice")
    standard = _owners((standard, name) for name, standard, _ in kept if standard)
    aliases = _owners((alias, name) for name, _, each in kept for alias in each.split("|") if alias)
    return Genes(tuple(sorted(times)), aliases | standard, Report(str(path), rows, len(kept), dict(dropped)))
