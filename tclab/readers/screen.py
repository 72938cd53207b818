"""Genetic interaction screens: which genes a strain pair deletes, and with what score.

The strain ids are those of the Boone and Myers laboratories: `YAL015C+YDL227C_tm461` is a double-mutant
query, `YBL007C_dma91` a deletion array strain; see `sga_pipeline` for the other kinds.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
import pandas as pd
import torch

from tclab.errors import InputError, unknown
from tclab.perturbation import Deletions, Perturbations
from tclab.readers.edges import UNKNOWN_LIMIT, Lookup, unknown_rows
from tclab.readers.errors import shown
from tclab.readers.genes import Genes
from tclab.readers.report import Report
from tclab.readers.table import bad_row

# hoΔ, whose loss changes nothing, and the URA3 marker: what stands in a query that deletes one gene fewer.
NEUTRAL = ("YDL227C", "URA3control")

MutantType: TypeAlias = Literal["trigenic", "digenic"]
Repeats: TypeAlias = Literal["keep", "mean", "median", "lowest p", "refuse"]

_STRAIN = re.compile(r"(?P<first>[^\s+_]+)(?:\+(?P<second>[^\s+_]+))?_(?P<kind>[A-Za-z]+)(?P<number>\d+)")
_DELETION_KINDS = ("dma", "sn", "tm")  # tm: made of dma and sn, unless its alleles say otherwise
_LARGEST_SCORE = 1e6  # fitness is about 1; what is beyond this is no score, and float32 could not hold all of it
_NO_GENE = np.iinfo(np.int64).max  # sorts behind every gene


@dataclass(frozen=True, eq=False)
class Screen:
    """The samples of a screen.

    **Arguments:**

    - `perturbations`: the genes each sample deletes, as indices of `genes`, and its score (τ or ε).
    - `table`: the samples' rows in the same order: `gene_1` to `gene_3` by name (null where there are fewer),
      `query`, `array`, `score`, `p`, `fitness` and what else the format has; missing is null.
    - `genes`: the gene list.
    - `report`: what became of the file's rows.
    """

    perturbations: Perturbations
    table: pd.DataFrame
    genes: Genes
    report: Report

    def __len__(self) -> int:
        return len(self.perturbations)


@dataclass(frozen=True)
class Filters:
    """Which rows of a screen become samples.

    **Arguments:**

    - `mutant_type`: `trigenic` for samples that delete three genes, `digenic` for two, None for any.
    - `p_below`: only rows with a p-value below this; rows without one are dropped then.
    - `deletions_only`: only strains whose genes are deleted, not those with a temperature-sensitive, DAmP or
      suppressor allele.
    - `repeats`: what to do with several rows that delete the same genes: `keep` them as samples of their own,
      take the `mean` or `median` score, the row of the `lowest p`, or `refuse` the file.
    - `neutral`: genes whose deletion does not count, wherever they stand in a query.
    """

    mutant_type: MutantType | None = "trigenic"
    p_below: float | None = None
    deletions_only: bool = False
    repeats: Repeats = "keep"
    neutral: Sequence[str] = NEUTRAL

    def __post_init__(self) -> None:
        if self.mutant_type not in (None, "trigenic", "digenic"):
            raise unknown("mutant type", self.mutant_type, ("trigenic", "digenic"))
        if self.repeats not in ("keep", "mean", "median", "lowest p", "refuse"):
            raise unknown("way with repeats", self.repeats, ("keep", "mean", "median", "lowest p", "refuse"))
        if self.p_below is not None and not 0 <= self.p_below <= 1:
            raise InputError(f"p_below is {self.p_below!r}, expected 0 to 1")


def screen_of(
    path: str | Path,
    columns: Mapping[str, np.ndarray],
    genes: Genes | Iterable[str] | None,
    filters: Filters,
    *,
    has_header: bool,
    composition: Mapping[str, bool] | None = None,
    unknown_limit: float = UNKNOWN_LIMIT,
) -> Screen:
    """Return the screen of a table's columns.

    **Arguments:**

    - `columns`: `query`, `array` (strain ids), `score`, `p`, and any others; `query_allele` and
      `array_allele` say by a Δ at its end whether an allele is a deletion.
    - `genes`: the gene list; without it, the genes of the rows that are kept, sorted.
    - `composition`: double-mutant strain → whether both its genes are deleted.

    **Raises:** `ReadError` with the line for a strain id that cannot be read or a p-value outside 0 to 1; for
    too many unknown genes, and for repeats where they are refused.
    """
    rows = len(columns["score"])
    p = columns["p"]
    outside = ~np.isnan(p) & ~((p >= 0) & (p <= 1))
    if outside.any():
        row = int(np.argmax(outside))
        raise bad_row(path, row, f"the p-value is {p[row]:g}, expected 0 to 1", has_header=has_header)
    large = np.isfinite(columns["score"]) & (np.abs(columns["score"]) > _LARGEST_SCORE)
    if large.any():
        row = int(np.argmax(large))
        why = f"the score is {columns['score'][row]:g}, expected at most {_LARGEST_SCORE:g} in size"
        raise bad_row(path, row, why, has_header=has_header)
    strains, at = _strains(path, columns, filters, composition, has_header)

    dropped: Counter[str] = Counter()
    kept = np.ones(rows, dtype=bool)

    def drop(why: str, bad: Any) -> None:
        dropped[why] += int((kept & bad).sum())
        kept[bad] = False

    drop("no score", ~np.isfinite(columns["score"]))
    names = np.array([strain.genes for strain in strains], dtype=object).reshape(-1, 2)
    each = np.concatenate([names[at[0]], names[at[1]][:, :1]], axis=1)  # [rows, 3], None where there is none
    there = each != None  # noqa: E711 elementwise
    number = there.sum(axis=1)
    if filters.mutant_type is not None:
        drop(f"not {filters.mutant_type}", number != {"digenic": 2, "trigenic": 3}[filters.mutant_type])
    drop("deletes nothing", number == 0)
    if filters.p_below is not None:
        drop(f"p not below {filters.p_below:g}", ~(p < filters.p_below))
    if filters.deletions_only:
        deletion = np.array([strain.deletion for strain in strains])
        drop("not a deletion", ~(deletion[at[0]] & deletion[at[1]] & _delta(columns, rows)))

    lookup = Lookup(Genes.of(sorted(set(each[kept][there[kept]]))) if genes is None else Genes.of(genes))
    places = np.full((rows, 3), _NO_GENE, dtype=np.int64)
    looked_up = there & kept[:, None]
    places[looked_up] = lookup.places(each[looked_up].tolist())
    before = int(kept.sum())
    drop("unknown gene", (places < 0).any(axis=1))
    if error := unknown_rows(path, before, dropped["unknown gene"], lookup, limit=unknown_limit):
        raise error
    ordered = np.sort(places, axis=1)
    twice = ((ordered[:, 1:] == ordered[:, :-1]) & (ordered[:, 1:] < _NO_GENE)).any(axis=1)
    drop("names a gene twice", twice)

    table = pd.DataFrame({name: values[kept] for name, values in columns.items()})
    for place in range(3):
        table.insert(place, f"gene_{place + 1}", _names(ordered[kept, place], lookup.genes))
    table, ordered, repeated = _joined(path, table, ordered[kept], filters.repeats)
    if repeated and filters.repeats != "keep":
        dropped[f"repeats ({filters.repeats})"] += repeated
    report = Report(
        str(path),
        rows,
        len(table),
        {why: count for why, count in dropped.items() if count},
        mapped=lookup.mapped,
        unknown=len(lookup.unknown),
        unknown_examples=tuple(sorted(lookup.unknown)[:5]),
        duplicates=repeated,
    )
    return Screen(_perturbations(ordered, table), table, lookup.genes, report)


@dataclass(frozen=True)
class _Strain:
    genes: tuple[str | None, str | None]
    deletion: bool


def _strains(
    path: str | Path,
    columns: Mapping[str, np.ndarray],
    filters: Filters,
    composition: Mapping[str, bool] | None,
    has_header: bool,
) -> tuple[list[_Strain], np.ndarray]:
    """Return the distinct strains, and [2, rows] which of them is each row's query and its array."""
    ids = np.concatenate([columns["query"], columns["array"]])
    codes, distinct = pd.factorize(ids)
    rows = len(columns["query"])
    is_array = np.zeros(len(distinct), dtype=bool)
    is_array[codes[rows:]] = True
    strains = []
    for code, strain in enumerate(distinct):
        found = _STRAIN.fullmatch(strain)
        if not found or (is_array[code] and found["second"]):
            row = int(np.argmax(codes == code)) % rows
            like = "YBL007C_dma91" if is_array[code] else "YAL015C+YDL227C_tm461 or YAL001C_tsq508"
            why = f"strain {shown(strain)}, expected one like {like}"
            raise bad_row(path, row, why, has_header=has_header)
        genes = [g for g in (found["first"], found["second"]) if g and g not in filters.neutral]
        one, other = [*genes, None, None][:2]
        deletion = found["kind"] in _DELETION_KINDS
        if composition is not None and found["kind"] == "tm":
            deletion = composition.get(found["kind"] + found["number"], False)
        strains.append(_Strain((one, other), deletion))
    return strains, codes.reshape(2, rows)


def _delta(columns: Mapping[str, np.ndarray], rows: int) -> np.ndarray:
    """Return the rows whose allele names, where the table has them, all end in Δ."""
    every = np.ones(rows, dtype=bool)
    for name in ("query_allele", "array_allele"):
        if name in columns:
            codes, distinct = pd.factorize(columns[name])
            alleles = [all(part.endswith("Δ") for part in allele.split("+")) for allele in distinct]
            every &= np.array(alleles, dtype=bool)[codes]
    return every


def _names(index: np.ndarray, genes: Genes) -> np.ndarray:
    names = np.array([*genes.names, None], dtype=object)
    return np.asarray(names[np.minimum(index, len(genes))])


def _joined(
    path: str | Path, table: pd.DataFrame, places: np.ndarray, repeats: Repeats
) -> tuple[pd.DataFrame, np.ndarray, int]:
    """Return the table and its genes with repeats treated, and how many rows said a set of genes again."""
    sets, first, group = np.unique(places, axis=0, return_index=True, return_inverse=True)
    group = group.reshape(-1)
    repeated = len(table) - len(sets)
    if not repeated or repeats == "keep":
        return table, places, repeated
    if repeats == "refuse":
        row = int(np.flatnonzero(np.bincount(group)[group] > 1)[0])
        genes = ", ".join(str(name) for name in table.iloc[row, :3] if isinstance(name, str))
        raise InputError(f"{path}: {repeated:,} rows delete genes that another row deletes, such as {genes}")
    if repeats == "lowest p":
        # the score breaks ties, so that the order of the rows plays no part
        order = np.lexsort((table["score"], table["p"].fillna(np.inf), group))
        chosen = order[np.unique(group[order], return_index=True)[1]]
    else:
        chosen = first
    chosen = chosen[np.argsort(chosen, kind="stable")]
    kept = table.iloc[chosen].reset_index(drop=True)
    kept["rows"] = np.bincount(group)[group[chosen]]
    if repeats in ("mean", "median"):
        scores = table["score"].groupby(group).agg(repeats)
        several = kept["rows"] > 1
        kept["score"] = scores.to_numpy()[group[chosen]]
        # what belongs to one row says nothing of their mean
        for name in kept.columns.difference(["gene_1", "gene_2", "gene_3", "score", "rows"]):
            kept[name] = kept[name].mask(several)
    return kept, places[chosen], repeated


def _perturbations(places: np.ndarray, table: pd.DataFrame) -> Perturbations:
    deleted = places < _NO_GENE
    lengths = deleted.sum(axis=1)
    ptr = torch.zeros(len(places) + 1, dtype=torch.int64)
    ptr[1:] = torch.from_numpy(np.cumsum(lengths, dtype=np.int64))
    nodes = torch.from_numpy(places[deleted])
    deletions = Deletions(nodes, ptr, int(lengths.max(initial=0)))
    scores: Any = table["score"].to_numpy(dtype=np.float32, copy=True)
    return Perturbations(deletions, torch.from_numpy(scores))
