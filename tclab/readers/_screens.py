"""Perturbations of a graph: a table of one's own, a row for each deleted node, or a genetic interaction screen.

The strain ids are those of the Boone and Myers laboratories: `YAL015C+YDL227C_tm461` is a double-mutant query,
`YBL007C_dma91` a deletion array strain. Other kinds: `sn` deletion query, `tsa` and `tsq` temperature-sensitive array
and query, `damp` DAmP allele, `S` suppressor.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import Literal, NamedTuple, TypeAlias, get_args

import numpy as np
import pandas as pd
import torch

from tclab._source import guarded, opened
from tclab.errors import InputError, check_known, need
from tclab.graph._cell_graph import CellGraph
from tclab.perturbation import Deletions, Perturbations
from tclab.readers._genes import UNKNOWN_LIMIT, Genes, Lookup, Report
from tclab.readers._table import NAME, NUMBER, Column, ReadError, Table, plain_name, quoted, sniff, tab_or_comma

MutantType: TypeAlias = Literal["trigenic", "digenic", "any"]

# hoΔ, whose loss has no effect, and the URA3 marker: they take a gene's place in a query that deletes one gene fewer.
_NEUTRAL = ("YDL227C", "URA3control")
_STRAIN = re.compile(r"(?P<first>[^\s+_]+)(?:\+(?P<second>[^\s+_]+))?_[A-Za-z]+\d+")
_STRAINS = {"query": "YAL015C+YDL227C_tm461 or YAL001C_tsq508", "array": "YBL007C_dma91"}  # an array's is of one gene
_GENES_DELETED = {"digenic": 2, "trigenic": 3}
_MISSING = ("", "NaN", "nan", "NA")
_LARGEST_SCORE = 1e6  # fitness is about 1; beyond this it is no score, and float32 could not hold all of it
_MOST_COLUMNS = 256  # of a sheet; one cell far out makes every row as long as its column number
_TITLE_ROWS = 5  # of a sheet in which the header is searched: the published sheets begin with a title
_OWN = {"sample": NAME, "node": NAME, "target": NUMBER}  # the columns of a table of one's own
_NO_GENE = np.iinfo(np.int64).max  # sorts behind every gene


class ScreenFormat(NamedTuple):
    """One published format of screens, known by the columns in its header."""

    mutant_type: MutantType  # the one that it is published for
    score: str  # what its scores are, as the header calls them
    mark: str  # a column that sets it apart


_ADJUSTED = "adjusted genetic interaction score"
# A header that has the columns of several formats belongs to the first of them.
SCREENS = {
    # Kuzmin et al. 2018 Data S1, Science 360, eaao1729; 2020 Tables S1 and S3, Science 368, eaaz5667
    "kuzmin": ScreenFormat("trigenic", _ADJUSTED, mark="combined mutant type"),
    # Costanzo et al. 2016 Data File S1, Science 353, aaf1420
    "costanzo": ScreenFormat("digenic", "genetic interaction score", mark="arraytype/temp"),
    # of the SGA scoring pipeline: `print_trigenic.m` of github.com/csbio/SGA_Public
    "sga_trigenic": ScreenFormat("trigenic", _ADJUSTED, mark="p-value"),
}


@dataclass(frozen=True, eq=False)
class ScreenPerturbations(Perturbations):
    """The samples of a file, as nodes of a graph.

    **Arguments:**

    - `deletions`: of S samples, node ids of the graph's deleted type, ascending within a sample.
    - `scores`: [S] float32, as a note of `report` says.
    - `report`: how many of the file's rows were kept, and why others were dropped; its notes name the format.
    """

    report: Report

    def __str__(self) -> str:
        return f"Perturbations({self.report})"


def read_perturbations(
    path: str | Path, graph: CellGraph, *, mutant_type: MutantType | None = None, unknown_limit: float = UNKNOWN_LIMIT
) -> ScreenPerturbations:
    """Return the samples of a file as deletions of a graph's nodes, with the file's scores.

    The format is found by the columns of the file, not by its name. It is text between tabs or commas, the first sheet
    of a workbook (XLSX), or Parquet (by the suffix `.parquet`).

    **A table of one's own** has the columns `sample`, `node` and `target`, and a row for each node that a sample
    deletes; samples may delete different numbers. A sample that deletes nothing has one row with an empty `node`. All
    rows of a sample have its target. Nodes are names of the graph's; or, if none is a name and no name is a number,
    positions from 0. Nothing is left out.

    **A genetic interaction screen** is a table of Kuzmin et al. 2018 and 2020, Costanzo et al. 2016, or the trigenic
    one of the SGA scoring pipeline.

    Genes are systematic names (YAL001C), looked up in the graph's node names. Rows with a gene that the graph
    lacks, or without a score, are left out and counted in `report`. A query `A+YDL227C_tm1` deletes A only, as hoΔ is
    neutral. Rows that delete the same genes are samples of their own.

    A synthetic graph has no node names. There the genes of the file are *assigned* to nodes: the gene that the
    most samples delete to node 0, and so on, ties in the order of the names. Samples with a gene beyond the
    last node are left out and counted. Deletions and scores are then real, but the scores say nothing about the
    synthetic networks: time and memory are representative, what a model learns is not. The report says so.

    **Arguments:**

    - `path`: the file.
    - `graph`: `node_names[deleted_type]` are the genes' systematic names.
    - `mutant_type`: samples that delete three genes (`trigenic`), two (`digenic`), or `any` number above 0; None for
      what the format is published for: `digenic` for Costanzo's tables, `trigenic` for the others.
    - `unknown_limit`: the share of rows, 0 to 1, that may be lost to unknown genes before the file is refused.

    **Raises:** `ReadError` for a file that is neither, is damaged (with the row), or has no sample for this graph; for
    too many unknown genes; in a table of one's own for an unknown node, one that its sample has already, a target that
    is missing or another than before. `InputError` for a screen and a graph without node names that is not synthetic.
    """
    check_known("mutant type", (None, *get_args(MutantType)), mutant_type)
    names = (graph.node_names or {}).get(graph.deleted_type)
    with _text_of(path) as content:
        table = sniff(content, separator=tab_or_comma)
        if len({*map(plain_name, table.columns)} & {*_OWN}) > 1:
            return _own_samples(path, table, names or (), graph.num_nodes[graph.deleted_type], graph.deleted_type)
        kind = _format_of(table)
        if names is None and not graph.source.startswith("synthetic"):
            nameless = f"the graph {graph.source!r} has no names for its {graph.deleted_type} nodes"
            like = "systematic names such as YAL001C (a folder of public files gives them)"
            raise InputError(f"{nameless}, so the genes of {path} have no nodes; expected node_names of {like}")
        wanted = mutant_type or SCREENS[kind].mutant_type
        faults = {end: partial(_no_strain, like) for end, like in _STRAINS.items()}
        columns = {end: Column(table.column(f"{end} strain id"), NAME, fault=fault) for end, fault in faults.items()}
        columns["score"] = Column(table.column(SCREENS[kind].score), NUMBER, -_LARGEST_SCORE, _LARGEST_SCORE)
        frame = table.read(columns, missing=_MISSING)
        samples, genes, report = _samples(path, frame, names, wanted, unknown_limit)
        if not report.kept:
            why = "; ".join(f"{count:,} {reason}" for reason, count in report.dropped.items())
            raise ValueError(f"none of its {report.rows:,} rows is a {wanted} sample: {why}")
        notes = [f"format {kind}, {wanted} samples", f"the score is {SCREENS[kind].score}, ε of two genes, τ of three"]
        notes, dropped = [*notes, *report.notes], dict(report.dropped)
        if names is None:
            samples, note = _assigned(samples, genes, graph.num_nodes[graph.deleted_type])
            notes.append(note)
            if len(samples) < report.kept:
                dropped["no node left for a gene"] = report.kept - len(samples)
        report = replace(report, kept=len(samples), dropped=dropped, notes=tuple(notes))
    return ScreenPerturbations(samples.deletions, samples.scores, report)


@contextmanager
def _text_of(path: str | Path) -> Iterator[bytes]:
    """Give a file's text: the first sheet of a workbook between tabs, a Parquet file between commas."""
    suffix = Path(path).suffix.lower()
    if suffix == ".parquet":
        with guarded(path, "a table of samples", ReadError):
            yield (frame := pd.read_parquet(path)).to_csv(index=any(frame.index.names)).encode()
    else:
        what = "a table of samples or a genetic interaction screen"
        with opened(path, what, ReadError, archive=suffix == ".xlsx") as content:
            yield _sheet(content) if suffix == ".xlsx" else content


def _own_samples(
    path: str | Path, table: Table, names: Sequence[str], num_nodes: int, kind: str
) -> ScreenPerturbations:
    """Return the samples of a table that has a row for each node that a sample deletes, or one without a node."""
    columns = {name: Column(table.column(name), kind, -_LARGEST_SCORE, _LARGEST_SCORE) for name, kind in _OWN.items()}
    # quotes around a cell, and blanks, are no part of it
    frame = table._replace(loose=True).read(columns, missing=_MISSING)
    texts = list(frame["node"].cat.categories)
    numbered = any(name.removesuffix(".0").isdecimal() for name in names)  # then a number is a name, not a position
    known = names if numbered or {*names} & {*texts} else [str(i) for i in range(num_nodes)]
    beside_a_gap = {f"{name}.0": i for i, name in enumerate(known) if name.isdecimal()}  # as pandas writes numbers
    index = beside_a_gap | {name: i for i, name in enumerate(known)}
    node_of_text = np.array([index.get(text, _NO_GENE if text else -1) for text in texts])
    nodes, (samples, of_samples) = node_of_text[frame["node"].cat.codes.to_numpy()], pd.factorize(frame["sample"])
    targets = frame["target"].to_numpy(np.float32)
    first = np.unique(samples, return_index=True)[1]
    others = np.bincount(samples)[samples] > 1
    pairs = pd.DataFrame({"sample": samples, "node": nodes})
    allowed = ([] if numbered else [f"0 to {num_nodes - 1}"]) + [f"a name such as {quoted(name)}" for name in names[:1]]
    faults = {  # what is wrong with a row → where, and how it is said
        "the sample has no name": frame["sample"].astype(str) == "",
        f"{{node}} is not a {kind} node of the graph, expected {', or '.join(allowed)}": nodes == _NO_GENE,
        "{sample} has {node} already, expected each node once": pairs.duplicated() & (nodes >= 0),
        "{sample} has a row without a node beside other rows, expected it alone": (nodes < 0) & others,
        "{sample} has no target, expected a number": np.isnan(targets),
        "{sample} has another target in its first row, expected one target": targets != targets[first][samples],
    }
    for words, holds in faults.items():
        if np.any(holds):
            i = int(np.argmax(holds))
            sample, node, _ = map(quoted, frame.iloc[i])
            near = get_close_matches(frame["node"].iloc[i], names, n=1) if nodes[i] == _NO_GENE else []
            said = words.replace("{node}", f"node {node}").replace("{sample}", f"sample {sample}")
            raise ValueError(f"row {i + 1}: {said}" + (f"; did you mean {near[0]!r}?" if near else ""))
    deleted = np.bincount(samples[nodes >= 0], minlength=len(of_samples))
    note = f"{len(of_samples):,} samples of your own, which delete {deleted.min()} to {deleted.max()} nodes"
    report = Report(str(path), len(frame), len(frame), notes=(note,))
    nodes = nodes[np.lexsort((nodes, samples))]
    return ScreenPerturbations(Deletions.joined(nodes[nodes >= 0], deleted), torch.from_numpy(targets[first]), report)


def _sheet(content: bytes) -> bytes:
    """Return the first sheet of a workbook as text between tabs, from its header on."""
    need("XLSX", "data", "openpyxl")
    import openpyxl

    sheet = openpyxl.load_workbook(io.BytesIO(content), read_only=True, data_only=True).worksheets[0]
    lines = [
        "\t".join("" if cell is None else " ".join(str(cell).split()) for cell in row) if any(row) else ""
        for row in sheet.iter_rows(max_col=_MOST_COLUMNS, values_only=True)
    ]
    begin = next((i for i, line in enumerate(lines[:_TITLE_ROWS]) if "query strain id" in line.lower()), 0)
    return "\n".join(lines[begin:]).encode()


def _format_of(table: Table) -> str:
    """Return the name of a table's format, by its columns."""
    has = {plain_name(column) for column in table.columns}
    wanted = {"query strain id", "array strain id", "p-value"}
    lacks = {name: (wanted | {form.score, form.mark}) - has for name, form in SCREENS.items()}
    nearest = min(SCREENS, key=lambda name: len(lacks[name]))
    if not lacks[nearest]:
        return nearest
    why = f"of whose columns {quoted(' | '.join(table.columns), 120)} lacks {', '.join(sorted(lacks[nearest]))}"
    kinds = f"{', '.join(SCREENS)}, nor a table of sample, node and target"
    raise ValueError(f"is not a screen that tclab reads, {kinds}; the nearest is {nearest}, {why}")


def _no_strain(like: str, strain: str) -> str | None:
    match = _STRAIN.fullmatch(strain)
    return None if match and ("+" in like or not match["second"]) else f"is {quoted(strain)}, expected one like {like}"


def _samples(
    path: str | Path, frame: pd.DataFrame, genes: Sequence[str] | None, mutant_type: MutantType, unknown_limit: float
) -> tuple[Perturbations, Genes, Report]:
    """Return the samples among a screen's rows as indices of genes, these, and a report; None takes those named.

    **Arguments:**

    - `frame`: the rows: `query` and `array` strain as categories, and `score`, NaN where missing.
    """
    numbers: dict[str, int] = {}  # of every gene that a strain names
    queries, arrays = (_deleted(frame[strain], numbers) for strain in _STRAINS)
    each = np.concatenate([queries, arrays[:, :1]], axis=1)  # [rows, 3], -1 where there is none
    count, no_score = (each >= 0).sum(axis=1), frame["score"].isna().to_numpy()
    other_type = count == 0 if mutant_type == "any" else count != _GENES_DELETED[mutant_type]
    is_used = np.isin(np.arange(len(numbers)), each[~(no_score | other_type)])
    used = [name for name, is_named in zip(numbers, is_used, strict=True) if is_named]
    lookup = Lookup(path, sorted(used) if genes is None else genes, unknown_limit)
    place_of = np.full(len(numbers) + 1, _NO_GENE)  # the last is that of no gene, -1
    place_of[np.flatnonzero(is_used)] = [lookup.place(name) for name in used]
    places = np.sort(place_of[each], axis=1)
    twice = (places[:, 1:] == places[:, :-1]) & (places[:, 1:] < _NO_GENE)
    reasons = {"no score": no_score, f"not {mutant_type}": other_type}
    reasons |= {"unknown gene": (places < 0).any(axis=1), "names a gene twice": twice.any(axis=1)}
    holds = np.array(list(reasons.values()))  # [reasons, rows]: a row is dropped for the first that holds
    kept, first = ~holds.any(axis=0), holds.argmax(axis=0)
    dropped = {reason: int((~kept & (first == i)).sum()) for i, reason in enumerate(reasons)}
    with_score = len(frame) - dropped["no score"] - dropped[f"not {mutant_type}"]
    lookup.check_lost(with_score, dropped["unknown gene"])
    places = places[kept]
    repeated = int(pd.DataFrame(places).duplicated().sum())
    notes = (f"{repeated:,} rows delete the same genes as another row",) if repeated else ()
    report = lookup.report(len(frame), len(places), dropped, notes=notes)
    deletions = Deletions.joined(places[places < _NO_GENE], (places < _NO_GENE).sum(axis=1))
    scores = torch.from_numpy(frame["score"].to_numpy(dtype=np.float32, copy=True)[kept])
    return Perturbations(deletions, scores), lookup.genes, report


def _deleted(strains: pd.Series, names: dict[str, int]) -> np.ndarray:
    """Return what each row's strain deletes: [rows, 2] numbers of genes in `names`, which grows; below 0 for none."""
    genes = []
    for strain in strains.cat.categories:
        deleted = [gene for gene in _STRAIN.findall(strain)[0] if gene and gene not in _NEUTRAL]
        genes.append([names.setdefault(gene, len(names)) for gene in deleted] + [-1] * (2 - len(deleted)))
    return np.array(genes)[strains.cat.codes.to_numpy()]


def _assigned(samples: Perturbations, genes: Genes, nodes: int) -> tuple[Perturbations, str]:
    """Return a screen's samples with its genes assigned to `nodes` nodes, and what to know about it."""
    deleted = samples.deletions.nodes.numpy()
    order = np.argsort(-np.bincount(deleted, minlength=len(genes)), kind="stable")  # genes are sorted by name
    frame = pd.DataFrame({"sample": samples.deletions.samples().numpy(), "node": np.argsort(order)[deleted]})
    frame = frame.sort_values(["sample", "node"])
    inside = frame.groupby("sample")["node"].max().to_numpy() < nodes
    if not inside.any():
        why = f"has all its genes among the {nodes:,} nodes of the graph; take a larger scale"
        raise ValueError(f"none of its {len(inside):,} samples {why}")
    sizes = samples.deletions.ptr.diff().numpy()
    kept = Deletions.joined(frame["node"].to_numpy()[np.repeat(inside, sizes)], sizes[inside])
    note = f"the graph has no node names: {min(nodes, len(order)):,} of the file's {len(order):,} genes were assigned"
    by = "by how many samples delete them, so the scores say nothing about this graph's networks"
    return Perturbations(kept, samples.scores[torch.from_numpy(inside)]), f"{note} to nodes 0, 1, … {by}"
