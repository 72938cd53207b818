"""Reports of what a reader kept and what it dropped, for a file and for a folder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

_SHOWN = 4  # reasons that a report spells out


@dataclass(frozen=True)
class Report:
    """Counts of what a reader did with the rows of one file.

    **Arguments:**

    - `path`: the file.
    - `rows`: how many rows it has, without the header.
    - `kept`: how many of them became an edge, a gene, or a sample.
    - `dropped`: reason → number of rows, so that `rows == kept + sum(dropped.values())`.
    - `mapped`: distinct names that are a standard name or an alias and were translated.
    - `unknown`: distinct names that mean no gene, or several genes.
    - `unknown_examples`: up to five of them.
    - `self_loops`: edges from a node to itself; they are kept unless `dropped` lists them.
    - `duplicates`: rows that repeat an earlier row's edge, or a sample's set of genes.
    - `notes`: further observations, as text.
    - `scores`: [kept] float, the edges' published scores in the order of the network's edges, where the format has
      scores. Models sum without weights, so they are not the network's weight.
    - `node_names`: the names of the nodes, where the file itself lists them.
    - `unknown_rows`: unknown name → number of rows that have it, most rows first; screens only.
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
    unknown_rows: Mapping[str, int] = field(default_factory=dict, repr=False)

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
    """What a reader did with the files of a folder.

    **Arguments:**

    - `path`: the folder.
    - `read`: file → its report, in the order of the file names.
    - `ignored`: file → why it was not read.
    - `ambiguous`: name → the genes that the gene lists give it to, where they are several; such a name is unknown.
    """

    path: str
    read: Mapping[str, Report]
    ignored: Mapping[str, str]
    ambiguous: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def __str__(self) -> str:
        lines = [f"{self.path}: {len(self.read)} files read, {len(self.ignored)} ignored"]
        lines += [f"  {report}" for report in self.read.values()]
        lines += [f"  {path}: {why}" for path, why in self.ignored.items()]
        if self.ambiguous:
            few = ", ".join(sorted(self.ambiguous)[:5])
            lines.append(
                f"  {len(self.ambiguous):,} names belong to several genes and are treated as unknown, such as {few}"
            )
        return "\n".join(lines)
