"""What a reader kept and what it dropped, and why."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

_SHOWN = 4  # reasons that a report says in words


@dataclass(frozen=True)
class Report:
    """What became of one file's rows.

    **Arguments:**

    - `path`: the file.
    - `rows`: how many rows it has, the header not counted.
    - `kept`: how many of them became an edge (or a gene, or a sample).
    - `dropped`: why → how many rows, so that `rows == kept + sum(dropped.values())`.
    - `mapped`: distinct names that were another name of a gene and were translated.
    - `unknown`: distinct names that no gene has, or that several genes have; `unknown_examples` are a few.
    - `self_loops`: edges from a node to itself; they are kept unless `dropped` says otherwise.
    - `duplicates`: rows that said again what another row had said.
    - `notes`: what else the reader noticed, in words.
    - `scores`: [kept] float, the edges' published scores in the order of the network's edges, where the
      format has one; models sum unweighted, so they are not the network's weight.
    - `node_names`: the names of the nodes, where the file itself was the list of them.
    """

    path: str
    rows: int
    kept: int
    dropped: Mapping[str, int] = field(default_factory=dict)
    mapped: int = 0
    unknown: int = 0
    unknown_examples: tuple[str, ...] = ()
    self_loops: int = 0
    duplicates: int = 0
    notes: tuple[str, ...] = ()
    scores: Any = field(default=None, repr=False, compare=False)
    node_names: tuple[str, ...] | None = field(default=None, repr=False, compare=False)

    def __str__(self) -> str:
        parts = [f"{self.path}: {self.kept:,} of {self.rows:,} rows kept"]
        reasons = sorted(self.dropped.items(), key=lambda item: -item[1])
        parts += [f"{number:,} dropped ({why})" for why, number in reasons[:_SHOWN]]
        if len(reasons) > _SHOWN:
            rest = sum(number for _, number in reasons[_SHOWN:])
            parts.append(f"{rest:,} dropped ({len(reasons) - _SHOWN} more reasons, in `dropped`)")
        if self.mapped:
            parts.append(f"{self.mapped:,} names translated")
        if self.unknown:
            parts.append(f"{self.unknown:,} names unknown, such as {', '.join(self.unknown_examples)}")
        if self.self_loops:
            parts.append(f"{self.self_loops:,} self-loops")
        return "; ".join([*parts, *self.notes])


@dataclass(frozen=True)
class FolderReport:
    """What became of a folder's files.

    **Arguments:**

    - `path`: the folder.
    - `read`: file → its report, in the order of the names.
    - `ignored`: file → why it was not read.
    - `ambiguous`: names that the gene lists together give to several genes, and the genes; none is guessed.
    """

    path: str
    read: Mapping[str, Report]
    ignored: Mapping[str, str]
    ambiguous: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def __str__(self) -> str:
        lines = [f"{self.path}: {len(self.read)} files read, {len(self.ignored)} passed over"]
        lines += [f"  {report}" for report in self.read.values()]
        lines += [f"  {path}: {why}" for path, why in self.ignored.items()]
        if self.ambiguous:
            few = ", ".join(sorted(self.ambiguous)[:5])
            lines.append(f"  {len(self.ambiguous):,} names mean several genes and so none, such as {few}")
        return "\n".join(lines)
