"""Genetic interaction screens: which genes a pair of strains deletes, and with what score.

The common course of every screen format: columns by the names in the header (text or XLSX), strain ids, filters,
repeats, samples. The strain ids are those of the Boone and Myers laboratories: `YAL015C+YDL227C_tm461` is a
double-mutant query, `YBL007C_dma91` a deletion array strain. Other kinds: `sn` deletion query, `tsa` and `tsq`
temperature-sensitive array and query, `damp` DAmP allele, `S` suppressor. The alleles of a `tm` are in the SGA
pipeline's `double_mutant_allele_compsition_*.csv` (that spelling; between tabs).
"""

from __future__ import annotations

import re
import zipfile
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
import pandas as pd
import pyarrow as pa
import torch

from tclab._io import is_bomb
from tclab.errors import InputError, unknown
from tclab.perturbation import Deletions, Perturbations
from tclab.readers._gene_names import UNKNOWN_LIMIT, Genes, Lookup
from tclab.readers._old_source import LIMIT_BYTES, Progress, ReadError, bad_file, check_regular, quoted
from tclab.readers._read_report import Report
from tclab.readers._table import NUMBER, TEXT, Table, no_column

# hoΔ, whose loss has no effect, and the URA3 marker: they take a gene's place in a query that deletes one gene fewer.
NEUTRAL = ("YDL227C", "URA3control")
STRAIN = re.compile(r"(?P<first>[^\s+_]+)(?:\+(?P<second>[^\s+_]+))?_(?P<kind>[A-Za-z]+)(?P<number>\d+)")

MutantType: TypeAlias = Literal["trigenic", "digenic", "any"]
Repeats: TypeAlias = Literal["keep", "mean", "median", "lowest p", "refuse"]
Fields: TypeAlias = Mapping[str, tuple[pa.DataType, Sequence[str]]]
"""Field → its type, and the names that a header has for it, in lower case and without what is in brackets."""

STRAINS: Fields = {
    "query": (TEXT, ("query strain id",)),
    "array": (TEXT, ("array strain id",)),
}
ALLELES: Fields = {
    "query_allele": (TEXT, ("query allele name",)),
    "array_allele": (TEXT, ("array allele name",)),
}

_GENES_DELETED = {"digenic": 2, "trigenic": 3}
_MISSING = ("", "NaN", "nan", "NA")
_DELETION_KINDS = ("dma", "sn", "tm")  # tm is made of dma and sn, unless its alleles differ
_LARGEST_SCORE = 1e6  # fitness is about 1; beyond this it is no score, and float32 could not hold all of it
_NO_GENE = np.iinfo(np.int64).max  # sorts behind every gene
_LONGEST_NAME = 200
_MOST_COLUMNS = 256  # of a sheet; one cell far out makes every row as long as its column number
_TITLE_ROWS = 5  # rows of a sheet in which the header is searched: the published sheets begin with a title


@dataclass(frozen=True)
class ScreenReader:
    """The reader of one format of screens; call it with a path."""

    name: str  # in `tclab.readers`
    description: str  # where the format is published, and what is particular to it
    files: re.Pattern[str]  # of its files' names
    score: str  # what its scores are
    mutant_types: Sequence[MutantType]  # the one that it is published for first
    # its columns: `query` and `array` are strain ids, `score` and `p` numbers; `query_allele` and `array_allele` end in
    # Δ where the allele is a deletion; others go into the screen's table
    fields: Fields
    columns: Sequence[str] | None = None  # the names of all columns of a table without a header
    # adds those of `query`, `score` and `p` that the table lacks, from its other columns
    complete: Callable[[dict[str, np.ndarray]], None] | None = None
    has_pairs: bool = True  # whether each row is a query and an array strain, with a p-value; else it is a query alone

    def __call__(
        self,
        path: str | Path,
        genes: Genes | Iterable[str] | None = None,
        *,
        mutant_type: MutantType | None = None,
        p_below: float | None = None,
        deletions_only: bool = False,
        repeats: Repeats = "keep",
        neutral: Sequence[str] = NEUTRAL,
        composition: str | Path | None = None,
        unknown_limit: float = UNKNOWN_LIMIT,
        limit_bytes: int = LIMIT_BYTES,
        progress: Progress | None = None,
    ) -> Screen:
        """Return the samples of a screen.

        **Arguments:**

        - `path`: text between tabs, gzipped or not, or a workbook (`.xlsx`) whose first sheet is the table; columns
          are found by their names in the header.
        - `genes`: the gene list; None takes the genes of the samples, sorted.
        - `mutant_type`: `trigenic` for samples that delete three genes, `digenic` for two, `any` for any number above
          0; None for what the format is published for.
        - `p_below`: only rows with a p-value below this; rows without one are dropped then.
        - `deletions_only`: only strains whose genes are deleted, not those with a temperature-sensitive, DAmP or
          suppressor allele.
        - `repeats`: for several rows that delete the same genes: `keep` them as separate samples, take the `mean` or
          `median` score or the row of the `lowest p`, or `refuse` the file.
        - `neutral`: genes whose deletion does not count, in either position of a query.
        - `composition`: the pipeline's table of double-mutant strains and their alleles, in which `deletions_only`
          looks up whether a `tm` strain deletes both its genes; a strain that is missing there does not. Without a
          table, every one does.
        - `unknown_limit`: the share of rows that may be lost to unknown genes.
        - `limit_bytes`: how much the file may unpack to.
        - `progress`: called as a text is read.

        **Raises:** `ReadError` with the line for a missing column, a wrong number of columns, an invalid number or
        strain id, or a p-value outside 0 to 1; for too many unknown genes. `InputError` for an option that the format
        does not have, and for repeats where they are refused.
        """
        if mutant_type is None:
            mutant_type = self.mutant_types[0]
        if mutant_type not in get_args(MutantType):
            raise unknown("mutant type", mutant_type, get_args(MutantType))
        if mutant_type not in self.mutant_types:
            expected = " or ".join(map(repr, self.mutant_types))
            raise InputError(f"{path}: mutant_type is {mutant_type!r}, expected {expected} for {self.description}")
        if repeats not in get_args(Repeats):
            raise unknown("treatment of repeats", repeats, get_args(Repeats))
        if p_below is not None and not 0 <= p_below <= 1:
            raise InputError(f"p_below is {p_below!r}, expected 0 to 1")
        if not self.has_pairs and (p_below is not None or deletions_only):
            why = f"p_below and deletions_only are for tables of interactions, and this is {self.description}"
            raise InputError(f"{path}: {why}")
        columns, bad_row = _columns(path, self, limit_bytes, progress)
        if self.complete:
            self.complete(columns)
        rows = len(columns["score"])
        p, score = columns["p"], columns["score"]
        outside = ~np.isnan(p) & ~((p >= 0) & (p <= 1))
        if outside.any():
            row = int(np.argmax(outside))
            raise bad_row(row, f"the p-value is {p[row]:g}, expected 0 to 1")
        large = np.isfinite(score) & (np.abs(score) > _LARGEST_SCORE)
        if large.any():
            row = int(np.argmax(large))
            raise bad_row(row, f"the score is {score[row]:g}, expected at most {_LARGEST_SCORE:g} in size")
        genes_of, deletion, at = _strains(columns, neutral, composition, bad_row)

        dropped: Counter[str] = Counter()
        kept = np.ones(rows, dtype=bool)

        def drop(reason: str, bad: Any) -> None:
            dropped[reason] += int((kept & bad).sum())
            kept[bad] = False

        drop("no score", ~np.isfinite(score))
        arrays = genes_of[at[1]][:, :1] if self.has_pairs else np.full((rows, 1), None)
        each = np.concatenate([genes_of[at[0]], arrays], axis=1)  # [rows, 3], None where there is none
        present = each != None  # noqa: E711 elementwise
        number = present.sum(axis=1)
        if mutant_type != "any":
            drop(f"not {mutant_type}", number != _GENES_DELETED[mutant_type])
        drop("deletes nothing", number == 0)
        if p_below is not None:
            drop(f"p not below {p_below:g}", ~(p < p_below))
        if deletions_only:
            drop("not a deletion", ~(deletion[at].all(axis=0) & _delta(columns, rows)))

        lookup = Lookup(Genes.of(sorted(set(each[kept][present[kept]]))) if genes is None else Genes.of(genes))
        places = np.full((rows, 3), _NO_GENE, dtype=np.int64)
        looked_up = present & kept[:, None]
        places[looked_up] = lookup.places(each[looked_up].tolist())
        unknown_rows = Counter(each[places < 0].tolist())
        before = int(kept.sum())
        drop("unknown gene", (places < 0).any(axis=1))
        lookup.check_lost(path, before, dropped["unknown gene"], limit=unknown_limit)
        ordered = np.sort(places, axis=1)
        twice = ((ordered[:, 1:] == ordered[:, :-1]) & (ordered[:, 1:] < _NO_GENE)).any(axis=1)
        drop("names a gene twice", twice)

        table = pd.DataFrame({name: values[kept] for name, values in columns.items()})
        gene_names = np.array([*lookup.genes.names, None], dtype=object)
        for place in range(3):
            index = np.minimum(ordered[kept, place], len(lookup.genes))
            table.insert(place, f"gene_{place + 1}", gene_names[index])
        table, ordered, repeated = _with_repeats(path, table, ordered[kept], repeats)
        if repeats != "keep":
            dropped[f"repeats ({repeats})"] += repeated
        report = lookup.report(
            path,
            rows,
            len(table),
            dropped,
            duplicates=repeated,
            unknown_rows=dict(sorted(unknown_rows.items(), key=lambda item: (-item[1], item[0]))),
        )
        scores: Any = table["score"].to_numpy(dtype=np.float32, copy=True)
        deletions = Deletions.joined(ordered[ordered < _NO_GENE], (ordered < _NO_GENE).sum(axis=1))
        return Screen(Perturbations(deletions, torch.from_numpy(scores)), table, lookup.genes, report)


@dataclass(frozen=True, eq=False)
class Screen:
    """The samples of a screen.

    **Arguments:**

    - `perturbations`: the genes each sample deletes, as indices of `genes`, and its score (τ or ε).
    - `table`: the samples' rows in the same order: `gene_1` to `gene_3` by name (null where there are fewer), `query`,
      `array`, `score`, `p`, `fitness` and the format's other columns; missing is null.
    - `genes`: the gene list.
    - `report`: how many of the file's rows were kept, and why others were dropped.
    """

    perturbations: Perturbations
    table: pd.DataFrame
    genes: Genes
    report: Report

    def __len__(self) -> int:
        return len(self.perturbations)


_BadRow: TypeAlias = Callable[[int, str], ReadError]
"""(row from 0, reason) → the error with the row's line."""


def _strains(
    columns: Mapping[str, np.ndarray], neutral: Sequence[str], composition: str | Path | None, bad_row: _BadRow
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return what each row's strains delete.

    Of the distinct strains the genes, [strains, 2] with None where there are fewer, and whether they are deletions,
    [strains] bool; then which of them is each row's query and its array, [2, rows], [1, rows] without arrays.
    """
    deletes_both = None if composition is None else double_mutants(composition)
    ids = np.concatenate([columns[name] for name in STRAINS if name in columns])
    codes, distinct = pd.factorize(ids)
    rows = len(columns["query"])
    is_array = np.zeros(len(distinct), dtype=bool)
    is_array[codes[rows:]] = True
    genes, deletions = np.full((len(distinct), 2), None), np.zeros(len(distinct), dtype=bool)
    for code, strain in enumerate(distinct):
        match = STRAIN.fullmatch(strain)
        if not match or (is_array[code] and match["second"]):
            like = "YBL007C_dma91" if is_array[code] else "YAL015C+YDL227C_tm461 or YAL001C_tsq508"
            raise bad_row(int(np.argmax(codes == code)) % rows, f"strain {quoted(strain)}, expected one like {like}")
        named = [gene for gene in (match["first"], match["second"]) if gene and gene not in neutral]
        genes[code, : len(named)] = named
        deletions[code] = match["kind"] in _DELETION_KINDS
        if deletes_both is not None and match["kind"] == "tm":
            deletions[code] = deletes_both.get(match["kind"] + match["number"], False)
    return genes, deletions, codes.reshape(-1, rows)


def double_mutants(path: str | Path) -> dict[str, bool]:
    """Return which double-mutant strains, and single-mutant controls, have deletion alleles only."""
    strains = Table(path).rows("StrainID1", "StrainID2", "DMstrainID", "SM1strainID", "SM2strainID")
    deletions: dict[str, bool] = {}
    for one, other, both, first, second in strains:
        is_deletion = [bool(re.match(r"(sn|dma)\d*", strain, re.I)) for strain in (one, other)]
        for strain, deletion in ((both, all(is_deletion)), (first, is_deletion[0]), (second, is_deletion[1])):
            # of a strain that appears twice, every row must have deletions only
            deletions[strain] = deletions.get(strain, True) and deletion
    return deletions


def _delta(columns: Mapping[str, np.ndarray], rows: int) -> np.ndarray:
    """Return the rows whose allele names, where the table has them, all end in Δ."""
    every = np.ones(rows, dtype=bool)
    for name in ALLELES:
        if name in columns:
            codes, distinct = pd.factorize(columns[name])
            alleles = [all(part.endswith("Δ") for part in allele.split("+")) for allele in distinct]
            every &= np.array(alleles, dtype=bool)[codes]
    return every


def _with_repeats(
    path: str | Path, table: pd.DataFrame, places: np.ndarray, repeats: Repeats
) -> tuple[pd.DataFrame, np.ndarray, int]:
    """Return the table and its genes with repeats treated, and how many rows repeat another row's genes."""
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
        # the score breaks ties, so that the order of the rows does not matter
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
        # the values of a single row do not describe their mean
        for name in kept.columns.difference(["gene_1", "gene_2", "gene_3", "score", "rows"]):
            kept[name] = kept[name].mask(several)
    return kept, places[chosen], repeated


def _columns(
    path: str | Path, reader: ScreenReader, limit_bytes: int, progress: Progress | None
) -> tuple[dict[str, np.ndarray], _BadRow]:
    """Return a table's columns by field, and the error for a bad row.

    Text is an array of objects, numbers are float64 with NaN where they are missing.
    """
    if _is_workbook(path):
        return _sheet_columns(path, reader.fields, limit_bytes)
    table = Table(path, columns=reader.columns, limit_bytes=limit_bytes, progress=progress)
    if reader.columns is not None:
        places = {field: list(reader.columns).index(field) for field in reader.fields}
    else:
        places = _places(path, table.columns, reader.fields, line=1)
        # a header may have a name twice
        table.columns = [f"{place} ({name})" for place, name in enumerate(table.columns, 1)]
    types = {table.columns[place]: reader.fields[field][0] for field, place in places.items()}
    whole = pa.Table.from_batches(table.batches(types, missing=_MISSING))
    # a number that is null becomes NaN
    return {field: whole.column(at).to_numpy() for at, field in enumerate(places)}, table.bad_row


def first_cells(path: str | Path, *, limit_bytes: int = LIMIT_BYTES) -> list[list[str]]:
    """Return the cells of the rows in which a header may be: a text's first line, a sheet's first rows."""
    if not _is_workbook(path):
        return [Table(path, limit_bytes=limit_bytes).columns]
    return [[str(cell or "") for cell in row] for row in _sheet(path, limit_bytes, rows=_TITLE_ROWS)] or [[]]


def columns_named(cells: Sequence[str], fields: Fields) -> list[str]:
    """Return the fields that a header has a column for."""
    plain = {_plain(cell) for cell in cells}
    return [name for name, (_, known) in fields.items() if plain & set(known)]


def _plain(name: str) -> str:
    name = name[:_LONGEST_NAME]  # so that a name of nothing but brackets takes no time
    return " ".join(re.sub(r"\(.*?\)", "", name).lower().split())


def _places(path: str | Path, names: Sequence[str], fields: Fields, *, line: int) -> dict[str, int]:
    """Return the position of each field's column."""
    plain = [_plain(name) for name in names]
    places: dict[str, int] = {}
    for field, (_, known) in fields.items():
        present = [name for name in known if name in plain]
        if not present:
            raise no_column(path, known[0], plain, separator="\t")
        if plain.count(present[0]) > 1:
            raise bad_file(path, f"the header has the column {quoted(present[0])} twice", line=line)
        places[field] = plain.index(present[0])
    return places


def _is_workbook(path: str | Path) -> bool:
    return Path(path).suffix.lower() == ".xlsx"


def _sheet(path: str | Path, limit_bytes: int, *, rows: int | None = None) -> list[tuple[object, ...]]:
    """Return the cells of a workbook's first sheet, all rows or the first few."""
    try:
        import openpyxl
    except ImportError:
        raise InputError(f"{path}: XLSX needs openpyxl: pip install 'tclab[data]'") from None
    check_regular(path)
    try:
        with zipfile.ZipFile(path) as archive:
            unpacked = sum(entry.file_size for entry in archive.infolist())
            packed = sum(entry.compress_size for entry in archive.infolist())
        if unpacked > limit_bytes:
            raise bad_file(path, f"unpacks to more than {limit_bytes:,} bytes, the limit; pass a larger limit_bytes")
        if is_bomb(unpacked, packed):
            raise bad_file(path, f"unpacks to {unpacked // max(packed, 1):,} times its size")
        book = openpyxl.load_workbook(path, read_only=True, data_only=True)
        cells = list(book.worksheets[0].iter_rows(max_row=rows, max_col=_MOST_COLUMNS, values_only=True))
        book.close()
    except OSError as error:
        raise bad_file(path, f"cannot be read: {error.strerror or error}") from None
    except Exception as error:  # openpyxl and zipfile raise anything where a part of the archive is damaged
        if isinstance(error, InputError):
            raise
        raise bad_file(path, f"is not an XLSX workbook: {error}") from None
    return cells


def _sheet_columns(path: str | Path, fields: Fields, limit_bytes: int) -> tuple[dict[str, np.ndarray], _BadRow]:
    rows = _sheet(path, limit_bytes)
    heads = [[str(cell or "") for cell in row] for row in rows[:_TITLE_ROWS]]
    wanted = fields["query"][1]
    at = [line for line, cells in enumerate(heads, 1) if any(_plain(cell) in wanted for cell in cells)]
    if not at:
        raise bad_file(path, f"no column {wanted[0]!r} in the first {_TITLE_ROWS} rows of its sheet")
    names = heads[at[0] - 1]
    places = _places(path, names, fields, line=at[0])
    body = [(line, row) for line, row in enumerate(rows, 1) if line > at[0] and any(row)]
    if not body:
        raise bad_file(path, "holds no rows")
    columns: dict[str, np.ndarray] = {}
    for field, place in places.items():
        if fields[field][0] == NUMBER:
            columns[field] = np.array([_number(path, line, names[place], row[place]) for line, row in body])
        else:
            columns[field] = np.array([str(row[place] or "") for _, row in body], dtype=object)
    return columns, lambda row, why: bad_file(path, why, line=body[row][0])


def _number(path: str | Path, line: int, name: str, cell: object) -> float:
    if cell is None or (isinstance(cell, str) and cell.strip() in _MISSING):
        return np.nan
    try:
        return float(cell)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        raise bad_file(path, f"{name} is {quoted(cell)}, expected a number", line=line) from None
