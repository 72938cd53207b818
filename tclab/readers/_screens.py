"""Genetic interaction screens: which genes a pair of strains deletes, and with what score; as perturbations of a graph.

The strain ids are those of the Boone and Myers laboratories: `YAL015C+YDL227C_tm461` is a double-mutant query,
`YBL007C_dma91` a deletion array strain. Other kinds: `sn` deletion query, `tsa` and `tsq` temperature-sensitive array
and query, `damp` DAmP allele, `S` suppressor.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
import pandas as pd
import torch

from tclab._source import opened
from tclab.errors import InputError, need, unknown
from tclab.graph._cell_graph import CellGraph
from tclab.perturbation import Deletions, Perturbations
from tclab.readers._genes import UNKNOWN_LIMIT, Genes, Lookup, Report
from tclab.readers._table import NAME, NUMBER, Column, ReadError, Table, plain_name, quoted

MutantType: TypeAlias = Literal["trigenic", "digenic", "any"]
Repeats: TypeAlias = Literal["keep", "mean", "lowest p"]

# hoΔ, whose loss has no effect, and the URA3 marker: they take a gene's place in a query that deletes one gene fewer.
_NEUTRAL = ("YDL227C", "URA3control")
_STRAIN = re.compile(r"(?P<first>[^\s+_]+)(?:\+(?P<second>[^\s+_]+))?_(?P<kind>[A-Za-z]+)\d+")
_DELETION_KINDS = ("dma", "sn", "tm")  # tm is made of dma and sn, unless its alleles differ
_GENES_DELETED = {"digenic": 2, "trigenic": 3}
_MISSING = ("", "NaN", "nan", "NA")
_LARGEST_SCORE = 1e6  # fitness is about 1; beyond this it is no score, and float32 could not hold all of it
_NO_GENE = np.iinfo(np.int64).max  # sorts behind every gene
_MOST_COLUMNS = 256  # of a sheet; one cell far out makes every row as long as its column number
_TITLE_ROWS = 5  # of a sheet in which the header is searched: the published sheets begin with a title


@dataclass(frozen=True, eq=False)
class Screen:
    """The samples of a screen.

    **Arguments:**

    - `perturbations`: the genes each sample deletes, as indices of `genes`, and its score (τ or ε).
    - `genes`: the gene list.
    - `report`: how many of the file's rows were kept, and why others were dropped.
    """

    perturbations: Perturbations
    genes: Genes
    report: Report

    def __len__(self) -> int:
        return len(self.perturbations)


@dataclass(frozen=True)
class ScreenFormat:
    """One published format of screens; call it with a path."""

    name: str  # in `tclab.readers`
    description: str  # where it is published
    files: re.Pattern[str]  # of its files' names
    mutant_types: Sequence[MutantType]  # the one that it is published for first
    score: str  # what its scores are, as the header calls them
    alleles: Mapping[str, str] = field(default_factory=dict)  # field → column of names that end in Δ where deleted
    mark: str = "p-value"  # a column that sets it apart

    @property
    def columns(self) -> dict[str, str]:
        """What the header calls each field."""
        fields = {"query": "query strain id", "array": "array strain id", "score": self.score, "p": "p-value"}
        return {**fields, **self.alleles}

    def __call__(self, path: str | Path, genes: Genes | Iterable[str] | None = None, **options: Any) -> Screen:
        """Return the samples of a screen; `options` are those of `read_perturbations`.

        **Arguments:**

        - `path`: text between tabs (or commas), gzipped or not, or a workbook (`.xlsx`) whose first sheet is the table.
        - `genes`: the gene list; None takes the genes of the samples, sorted.

        **Raises:** `ReadError` with the row for a missing column, a wrong number of columns, an invalid number or
        strain id, or a p-value outside 0 to 1; for too many unknown genes. `InputError` for an option that the format
        does not have.
        """
        with _opened_table(path) as table:
            return _screen(path, table, self, genes, **options)


_ADJUSTED = "adjusted genetic interaction score"
_ALL: Sequence[MutantType] = ("trigenic", "digenic", "any")
kuzmin = ScreenFormat(
    "kuzmin",
    "Kuzmin et al. 2018 Data S1, 2020 Tables S1 and S3",  # Science 360, eaao1729; Science 368, eaaz5667
    re.compile(r"(aao1729|aaz5667)\w*[_-](Data|Table)[_-]?(S1|S3)\w*\.(tsv|txt|xlsx)(\.gz)?", re.I),
    _ALL,
    _ADJUSTED,
    {"query_allele": "query allele name", "array_allele": "array allele name"},
    mark="combined mutant type",
)
costanzo = ScreenFormat(
    "costanzo",
    "Costanzo et al. 2016 Data File S1, SGA_*.txt",  # Science 353, aaf1420; its allele names are without Δ
    re.compile(r"SGA_(ExE|NxN|ExN_NxE|DAmP)\w*\.txt(\.gz)?", re.I),
    ("digenic",),
    "genetic interaction score",
    mark="arraytype/temp",
)
sga_trigenic = ScreenFormat(
    "sga_trigenic",
    "trigenic table of the SGA scoring pipeline",  # `print_trigenic.m` of github.com/csbio/SGA_Public
    re.compile(r"scored_\w*trigenic\w*\.txt(\.gz)?"),
    _ALL,
    _ADJUSTED,
)
# A header that has the columns of several formats belongs to the first of them.
SCREENS = (kuzmin, costanzo, sga_trigenic)


@dataclass(frozen=True)
class ScreenReport(Report):
    """Counts of the rows of a screen that was read for a graph; missing scores are `dropped["no score"]`.

    **Arguments:**

    - `format`: the reader's name, such as `kuzmin`.
    - `mutant_type`: which rows are samples: those that delete three genes (`trigenic`), two (`digenic`), or `any`.
    - `score`: what the scores are.
    - `assigned`: gene → node id where the graph has no node names and genes were assigned to nodes; else None.
    """

    format: str = ""
    mutant_type: MutantType = "any"
    score: str = ""
    assigned: Mapping[str, int] | None = field(default=None, repr=False)

    def __str__(self) -> str:
        repeats = f"; {self.duplicates:,} rows delete the same genes as another row" if self.duplicates else ""
        return (
            f"{super().__str__()}; format {self.format}, {self.mutant_type} samples; the score is {self.score}{repeats}"
        )


@dataclass(frozen=True, eq=False)
class ScreenPerturbations(Perturbations):
    """The samples of a screen, as nodes of a graph.

    **Arguments:**

    - `deletions`: of S samples, node ids of the graph's deleted type, ascending within a sample.
    - `scores`: [S] float32, as `report.score` says.
    - `report`: how many of the file's rows were kept, and why others were dropped.
    """

    report: ScreenReport

    def __str__(self) -> str:
        return f"Perturbations({self.report})"


def read_perturbations(
    path: str | Path,
    graph: CellGraph,
    *,
    mutant_type: MutantType | None = None,
    p_below: float | None = None,
    deletions_only: bool = False,
    repeats: Repeats = "keep",
    unknown_limit: float = UNKNOWN_LIMIT,
    assign_unnamed: bool | None = None,
) -> ScreenPerturbations:
    """Return the samples of a genetic interaction screen as deletions of a graph's nodes, with the file's scores.

    The format is found by the columns of the file, not by its name: Kuzmin et al. 2018 and 2020, Costanzo et
    al. 2016, and the trigenic table of the SGA scoring pipeline; as text, gzip, or XLSX.

    Genes are systematic names (YAL001C), looked up in the graph's node names. Rows with a gene that the graph
    lacks, or without a score, are left out and counted in `report`. A query `A+YDL227C_tm1` deletes A only, as hoΔ is
    neutral.

    A synthetic graph has no node names. There the genes of the file are *assigned* to nodes: the gene that the
    most samples delete to node 0, and so on, ties in the order of the names. Samples with a gene beyond the
    last node are left out and counted. Deletions and scores are then real, but the scores say nothing about the
    synthetic networks: time and memory are representative, what a model learns is not. The report says so.

    **Arguments:**

    - `path`: the file.
    - `graph`: `node_names[deleted_type]` are the genes' systematic names.
    - `mutant_type`: samples that delete three genes (`trigenic`), two (`digenic`), or `any` number above 0; None for
      what the format is published for: `digenic` for Costanzo's tables, `trigenic` for the others.
    - `p_below`: only rows with a p-value below this; rows without one are dropped then.
    - `deletions_only`: only strains whose genes are deleted, not those with a temperature-sensitive, DAmP or
      suppressor allele.
    - `repeats`: what happens to rows that delete the same genes: `keep` (samples of their own), the `mean` of their
      scores, or the row of the `lowest p`.
    - `unknown_limit`: the share of rows, 0 to 1, that may be lost to unknown genes before the file is refused.
    - `assign_unnamed`: whether genes are assigned to the nodes of a graph without node names; None for
      synthetic graphs only.

    **Raises:** `ReadError` for a file that is no screen, is damaged, or has no sample for this graph; for too
    many unknown genes. `InputError` for a graph without node names that is not synthetic.
    """
    names = (graph.node_names or {}).get(graph.deleted_type)
    if names is None and not (graph.source.startswith("synthetic") if assign_unnamed is None else assign_unnamed):
        raise InputError(
            f"the graph {graph.source!r} has no names for its {graph.deleted_type} nodes, so the genes of {path} have "
            "no nodes; expected node_names of systematic names such as YAL001C (a folder of public files gives them), "
            "or assign_unnamed=True to give each gene a node of no meaning"
        )
    with _opened_table(path) as table:
        format = _format_of(table)
        mutant_type = mutant_type or format.mutant_types[0]
        screen = _screen(
            path, table, format, names, mutant_type=mutant_type, p_below=p_below, deletions_only=deletions_only,
            repeats=repeats, unknown_limit=unknown_limit,
        )  # fmt: skip
        samples, report = screen.perturbations, screen.report
        if not report.kept:
            why = "; ".join(f"{count:,} {reason}" for reason, count in report.dropped.items())
            raise ValueError(f"none of its {report.rows:,} rows is a {mutant_type} sample: {why}")
        score = f"{format.score}, ε of two genes, τ of three"
        facts = vars(report) | {"format": format.name, "mutant_type": mutant_type, "score": score}
        if names is None:
            samples, assigned, note = _assigned(samples, screen.genes, graph.num_nodes[graph.deleted_type])
            facts |= {"kept": len(samples), "assigned": assigned, "notes": (*report.notes, note)}
            if left_out := report.kept - len(samples):
                facts["dropped"] = {**report.dropped, "no node left for a gene": left_out}
    return ScreenPerturbations(samples.deletions, samples.scores, ScreenReport(**facts))


@contextmanager
def _opened_table(path: str | Path) -> Iterator[Table]:
    """Open a screen: text, or a workbook whose first sheet becomes text between tabs, a line a row."""
    workbook = str(path).lower().endswith(".xlsx")
    if workbook:
        need("XLSX", "data", "openpyxl")
    with opened(path, "a genetic interaction screen", ReadError, archive=workbook) as file:
        yield Table(io.BufferedReader(io.BytesIO(_sheet(file))) if workbook else file, separator=None)


def _sheet(file: Any) -> bytes:
    import openpyxl

    sheet = openpyxl.load_workbook(file, read_only=True, data_only=True).worksheets[0]
    lines = [
        "\t".join("" if cell is None else " ".join(str(cell).split()) for cell in row) if any(row) else ""
        for row in sheet.iter_rows(max_col=_MOST_COLUMNS, values_only=True)
    ]
    heads = [map(plain_name, line.split("\t")) for line in lines[:_TITLE_ROWS]]
    titles = next((i for i, cells in enumerate(heads) if "query strain id" in cells), 0)
    return "\n".join(lines[titles:]).encode()


def _format_of(table: Table) -> ScreenFormat:
    """Return the format of a table, by its columns."""
    plain = {plain_name(column) for column in table.columns}
    lacks = {format.name: sorted({*format.columns.values(), format.mark} - plain) for format in SCREENS}
    nearest = min(SCREENS, key=lambda format: len(lacks[format.name]) / len(format.columns))
    if not lacks[nearest.name]:
        return nearest
    known = "; ".join(f"{format.name} ({format.description})" for format in SCREENS)
    why = f"of whose columns {quoted(' | '.join(table.columns), 120)} lacks {', '.join(lacks[nearest.name])}"
    raise ValueError(f"is no screen that tclab reads; the nearest is {nearest.name}, {why}; known: {known}")


def _screen(
    path: str | Path,
    table: Table,
    format: ScreenFormat,
    genes: Genes | Iterable[str] | None,
    *,
    mutant_type: MutantType | None = None,
    p_below: float | None = None,
    deletions_only: bool = False,
    repeats: Repeats = "keep",
    unknown_limit: float = UNKNOWN_LIMIT,
) -> Screen:
    mutant_type = mutant_type or format.mutant_types[0]
    if mutant_type not in format.mutant_types:
        raise unknown(f"mutant type of {format.description}:", mutant_type, format.mutant_types)
    if repeats not in get_args(Repeats):
        raise unknown("treatment of repeats", repeats, get_args(Repeats))
    if p_below is not None and not 0 <= p_below <= 1:
        raise InputError(f"p_below is {p_below!r}, expected 0 to 1")
    frame = _rows(table, format)
    names: dict[str, int] = {}  # of every gene that a strain names → its number
    queries, of_query = _strains(frame["query"], names)
    arrays, of_array = _strains(frame["array"], names)
    each = np.concatenate([queries, arrays[:, :1]], axis=1)  # [rows, 3], below 0 where there is none

    dropped: dict[str, int] = {}
    kept = np.ones(len(frame), dtype=bool)

    def drop(reason: str, bad: Any) -> None:
        dropped[reason] = int((kept & bad).sum())
        kept[bad] = False

    drop("no score", frame["score"].isna().to_numpy())
    count = (each >= 0).sum(axis=1)
    if mutant_type != "any":
        drop(f"not {mutant_type}", count != _GENES_DELETED[mutant_type])
    drop("deletes nothing", count == 0)
    if p_below is not None:
        drop(f"p not below {p_below:g}", ~(frame["p"].to_numpy() < p_below))
    if deletions_only:
        drop("not a deletion", ~(of_query & of_array & _delta(frame, format)))
    named = {*np.unique(each[kept]).tolist()}
    used = [name for name, number in names.items() if number in named]
    lookup = Lookup(Genes.of(sorted(used) if genes is None else genes))
    place_of = np.full(len(names) + 1, _NO_GENE)  # the last is that of no gene, -1
    for name in used:
        place_of[names[name]] = lookup.place(name)
    places = np.sort(place_of[each], axis=1)
    before = int(kept.sum())
    drop("unknown gene", (places < 0).any(axis=1))
    lookup.check_lost(before, dropped["unknown gene"], unknown_limit)
    drop("names a gene twice", ((places[:, 1:] == places[:, :-1]) & (places[:, 1:] < _NO_GENE)).any(axis=1))

    samples = pd.DataFrame(places[kept]).assign(score=frame["score"][kept].array, p=frame["p"][kept].array)
    repeated = int(samples.duplicated([0, 1, 2]).sum())
    if repeats != "keep":
        dropped[f"repeats ({repeats})"] = repeated
    if repeats == "mean":
        samples = samples.groupby([0, 1, 2], sort=False)[["score"]].mean().reset_index()
    if repeats == "lowest p":  # the score breaks ties, so that the order of the rows does not matter
        samples = samples.sort_values(["p", "score"]).drop_duplicates([0, 1, 2]).sort_index()
    report = lookup.report(path, len(frame), len(samples), dropped, duplicates=repeated)
    places = samples[[0, 1, 2]].to_numpy()
    deletions = Deletions.joined(places[places < _NO_GENE], (places < _NO_GENE).sum(axis=1))
    scores = torch.from_numpy(samples["score"].to_numpy(dtype=np.float32, copy=True))
    return Screen(Perturbations(deletions, scores), lookup.genes, report)


def _rows(table: Table, format: ScreenFormat) -> pd.DataFrame:
    """Return the rows of a screen by field: strains and alleles as categories, numbers with NaN where missing."""
    columns = {name: Column(table.column(header), NAME) for name, header in format.columns.items()}
    columns["query"] = columns["query"]._replace(fault=_no_query)
    columns["array"] = columns["array"]._replace(fault=_no_array)
    columns["score"] = Column(columns["score"].i, NUMBER, -_LARGEST_SCORE, _LARGEST_SCORE)
    columns["p"] = Column(columns["p"].i, NUMBER, 0, 1)
    return table.read(columns, missing=_MISSING)


def _no_query(strain: str) -> str | None:
    like = "YAL015C+YDL227C_tm461 or YAL001C_tsq508"
    return None if _STRAIN.fullmatch(strain) else f"is {quoted(strain)}, expected one like {like}"


def _no_array(strain: str) -> str | None:
    match = _STRAIN.fullmatch(strain)
    return None if match and not match["second"] else f"is {quoted(strain)}, expected one like YBL007C_dma91"


def _strains(strains: pd.Series, names: dict[str, int]) -> tuple[np.ndarray, np.ndarray]:
    """Return what each row's strain deletes: [rows, 2] numbers of genes, below 0 for none; whether it is a deletion.

    Genes are numbered in `names`, which grows.
    """
    genes, deletions = [], []
    for strain in strains.cat.categories:
        match = _STRAIN.fullmatch(strain)
        assert match  # checked as it was read
        deleted = [gene for gene in (match["first"], match["second"]) if gene and gene not in _NEUTRAL]
        genes.append([names.setdefault(gene, len(names)) for gene in deleted] + [-1] * (2 - len(deleted)))
        deletions.append(match["kind"] in _DELETION_KINDS)
    codes = strains.cat.codes.to_numpy()
    return np.array(genes)[codes], np.array(deletions)[codes]


def _delta(frame: pd.DataFrame, format: ScreenFormat) -> np.ndarray:
    """Return the rows whose allele names, where the table has them, all end in Δ."""
    every = np.ones(len(frame), dtype=bool)
    for name in format.alleles:
        alleles = [all(part.endswith("Δ") for part in allele.split("+")) for allele in frame[name].cat.categories]
        every &= np.array(alleles)[frame[name].cat.codes.to_numpy()]
    return every


def _assigned(samples: Perturbations, genes: Genes, nodes: int) -> tuple[Perturbations, dict[str, int], str]:
    """Return a screen's samples with its genes assigned to `nodes` nodes, gene → node, and what to know about it."""
    deletions = samples.deletions
    rows = np.bincount(deletions.nodes.numpy(), minlength=len(genes))
    order = np.argsort(-rows, kind="stable")  # genes are sorted by name
    node = np.empty(len(order), dtype=np.int64)
    node[order] = np.arange(len(order))
    deleted, sample = node[deletions.nodes.numpy()], deletions.samples().numpy()
    whole = np.ones(len(deletions), dtype=bool)
    whole[sample[deleted >= nodes]] = False
    if not whole.any():
        why = f"has all its genes among the {nodes:,} nodes of the graph; take a larger scale"
        raise ValueError(f"none of its {len(whole):,} samples {why}")
    inside = whole[sample]
    deleted = deleted[inside][np.lexsort((deleted[inside], sample[inside]))]
    kept = Deletions.joined(deleted, deletions.ptr.diff().numpy()[whole])
    assigned = {genes.names[gene]: i for i, gene in enumerate(order[:nodes])}
    note = (
        f"the graph has no node names: {len(assigned):,} of the file's {len(order):,} genes were assigned to nodes "
        "0, 1, … by how many samples delete them, so the scores say nothing about this graph's networks"
    )
    return Perturbations(kept, samples.scores[torch.from_numpy(whole)]), assigned, note
