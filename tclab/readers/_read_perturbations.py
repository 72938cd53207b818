"""Any genetic interaction screen as perturbations of a graph: format detection, node ids, report."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tclab.errors import InputError
from tclab.graph._cell_graph import CellGraph
from tclab.perturbation import Deletions, Perturbations
from tclab.readers._gene_names import UNKNOWN_LIMIT, Genes
from tclab.readers._old_source import LIMIT_BYTES, bad_file, quoted
from tclab.readers._read_report import Report
from tclab.readers._screen import STRAIN, MutantType, Repeats, Screen, ScreenReader, columns_named, first_cells
from tclab.readers._screen_formats import SCREEN_READERS, WITH_HEADER, sga_digenic

_NEAREST_FOR = 5  # unknown genes, those of the most rows, whose nearest names are searched


@dataclass(frozen=True)
class ScreenReport(Report):
    """Counts of the rows of a screen that was read for a graph.

    Missing scores are `dropped["no score"]`; `unknown_rows` has the genes that the graph lacks, with their rows.

    **Arguments:**

    - `format`: the reader's name, such as `kuzmin`.
    - `mutant_type`: which rows are samples: those that delete three genes (`trigenic`), two (`digenic`), or `any`.
    - `score`: what the scores are.
    - `nearest`: unknown gene → the nearest name that the graph has, for the unknown genes of the most rows.
    - `assigned`: gene → node id where the graph has no node names and genes were assigned to nodes; else None.
    """

    format: str = ""
    mutant_type: MutantType = "any"
    score: str = ""
    nearest: Mapping[str, str] = field(default_factory=dict)
    assigned: Mapping[str, int] | None = field(default=None, repr=False)

    def __str__(self) -> str:
        parts = [super().__str__(), f"format {self.format}, {self.mutant_type} samples", f"the score is {self.score}"]
        if self.duplicates:
            parts.append(f"{self.duplicates:,} rows delete the same genes as another row")
        if self.nearest:
            near = [f"{name} ({self.unknown_rows[name]:,} rows; nearest {to})" for name, to in self.nearest.items()]
            parts.append(f"unknown genes with a similar name in the graph: {', '.join(near)}")
        return "; ".join(parts)


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
    limit_bytes: int = LIMIT_BYTES,
) -> ScreenPerturbations:
    """Return the samples of a genetic interaction screen as deletions of a graph's nodes, with the file's scores.

    The format is found by the columns of the file, not by its name: Kuzmin et al. 2018 and 2020, Costanzo et
    al. 2016, and both tables of the SGA scoring pipeline; as text, gzip or, for those with a header, XLSX.

    Genes are systematic names (YAL001C), looked up in the graph's node names. Rows with a gene that the graph
    lacks, or without a score, are left out and counted in `report`.

    A synthetic graph has no node names. There the genes of the file are *assigned* to nodes: the gene that the
    most samples delete to node 0, and so on, ties in the order of the names. Samples with a gene beyond the
    last node are left out and counted. Deletions and scores are then real, but the scores say nothing about the
    synthetic networks: time and memory are representative, what a model learns is not. The report says so.

    **Arguments:**

    - `path`: the file.
    - `graph`: `node_names[deleted_type]` are the genes' systematic names.
    - `mutant_type`: samples that delete three genes (`trigenic`), two (`digenic`), or `any` number; None for what the
      format is published for: `trigenic` for Kuzmin's and the pipeline's trigenic tables, `digenic` for
      Costanzo's, `any` for the pipeline's digenic table and for Table S5, which is whole query strains.
    - `p_below`: only rows with a p-value below this; Table S5 has none.
    - `deletions_only`: only strains whose genes are deleted, not those with a temperature-sensitive, DAmP or
      suppressor allele.
    - `repeats`: what happens to rows that delete the same genes: `keep` (samples of their own), `mean`,
      `median`, `lowest p`, or `refuse`.
    - `unknown_limit`: the share of rows, 0 to 1, that may be lost to unknown genes before the file is refused.
    - `assign_unnamed`: whether genes are assigned to the nodes of a graph without node names; None for
      synthetic graphs only.
    - `limit_bytes`: how much the file may unpack to.

    **Raises:** `ReadError` for a file that is no screen, is damaged, or has no sample for this graph; for too
    many unknown genes. `InputError` for a graph without node names that is not synthetic.
    """
    path = Path(path)
    names = (graph.node_names or {}).get(graph.deleted_type)
    assign = names is None
    if names is None and not (graph.source.startswith("synthetic") if assign_unnamed is None else assign_unnamed):
        raise InputError(
            f"the graph {graph.source!r} has no names for its {graph.deleted_type} nodes, so the genes of {path} have "
            "no nodes; expected node_names of systematic names such as YAL001C (a folder of public files gives them), "
            "or assign_unnamed=True to give each gene a node of no meaning"
        )
    reader = _reader_of(path, limit_bytes)
    mutant_type = mutant_type or reader.mutant_types[0]
    screen = reader(
        path,
        None if names is None else Genes.of(names),
        mutant_type=mutant_type,
        p_below=p_below,
        deletions_only=deletions_only,
        repeats=repeats,
        unknown_limit=unknown_limit,
        limit_bytes=limit_bytes,
    )
    report = screen.report
    if not len(screen):
        why = "; ".join(f"{number:,} {reason}" for reason, number in report.dropped.items())
        raise bad_file(path, f"none of its {report.rows:,} rows is a {mutant_type} sample: {why}")
    facts: dict[str, Any] = {"format": reader.name, "mutant_type": mutant_type, "score": reader.score}
    samples = screen.perturbations
    if assign:
        samples, more = _assigned(path, screen, graph.num_nodes[graph.deleted_type])
        facts |= more
    else:
        few = list(report.unknown_rows)[:_NEAREST_FOR]
        near = {name: get_close_matches(name, screen.genes.names, n=1, cutoff=0.6) for name in few}
        facts["nearest"] = {name: found[0] for name, found in near.items() if found}
    return ScreenPerturbations(samples.deletions, samples.scores, ScreenReport(**{**vars(report), **facts}))


def _reader_of(path: Path, limit_bytes: int) -> ScreenReader:
    """Return the reader of a file, by its columns."""
    if not path.exists() and path.parent.is_dir():
        near = get_close_matches(path.name, [file.name for file in path.parent.iterdir()], n=1)
        raise bad_file(path, f"no such file{f'; did you mean {near[0]!r}?' if near else ''}")
    rows = first_cells(path, limit_bytes=limit_bytes)
    present = {reader.name: max((columns_named(row, reader.fields) for row in rows), key=len) for reader in WITH_HEADER}
    for reader in WITH_HEADER:
        if len(present[reader.name]) == len(reader.fields):
            return reader
    first = rows[0]
    if len(first) > 1 and all(STRAIN.fullmatch(cell) for cell in first[:2]):
        return sga_digenic  # the loader checks the number of columns
    nearest = max(WITH_HEADER, key=lambda each: len(present[each.name]) / len(each.fields))
    if present[nearest.name]:
        missing = [names[0] for field, (_, names) in nearest.fields.items() if field not in present[nearest.name]]
        why = f"the nearest is {nearest.name}, of whose columns it lacks {', '.join(map(repr, missing))}"
    else:
        why = f"its first line is {quoted(' | '.join(first), 120)}"
    known = "; ".join(f"{reader.name} ({reader.description})" for reader in SCREEN_READERS)
    raise bad_file(path, f"is no genetic interaction screen that tclab reads; {why}; known: {known}")


def _assigned(path: Path, screen: Screen, nodes: int) -> tuple[Perturbations, dict[str, Any]]:
    """Return a screen's samples with its genes assigned to `nodes` nodes, and the fields of its report."""
    deletions, report = screen.perturbations.deletions, screen.report
    rows = np.bincount(deletions.nodes.numpy(), minlength=len(screen.genes))
    order = np.argsort(-rows, kind="stable")  # genes are sorted by name
    node = np.empty(len(order), dtype=np.int64)
    node[order] = np.arange(len(order))
    deleted = node[deletions.nodes.numpy()]
    sample = deletions.samples().numpy()
    whole = np.ones(len(deletions), dtype=bool)
    whole[sample[deleted >= nodes]] = False
    inside = whole[sample]
    order_within = np.lexsort((deleted[inside], sample[inside]))
    length = deletions.ptr.diff().numpy()[whole]
    left_out = int((~whole).sum())
    if not whole.any():
        raise bad_file(
            path,
            f"none of its {len(whole):,} samples has all its genes among the {nodes:,} nodes of the graph; "
            "take a larger scale",
        )
    assigned = {screen.genes.names[gene]: place for place, gene in enumerate(order[:nodes])}
    note = (
        f"the graph has no node names: {len(assigned):,} of the file's {len(order):,} genes were assigned to nodes "
        "0, 1, … by how many samples delete them, so the scores say nothing about this graph's networks"
    )
    dropped = {**report.dropped, **({"no node left for a gene": left_out} if left_out else {})}
    samples = Perturbations(
        Deletions.joined(deleted[inside][order_within], length), screen.perturbations.scores[torch.from_numpy(whole)]
    )
    return samples, {"kept": len(samples), "dropped": dropped, "assigned": assigned, "notes": (*report.notes, note)}
