"""Networks from published tables: a row of `FORMATS` for each table of edges, and STRING's two kinds of table."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pandas as pd
import torch

from tclab._source import opened
from tclab.errors import InputError, unknown
from tclab.graph import Network
from tclab.readers._genes import DANGO_GENES_FILE, UNKNOWN_LIMIT, Genes, Lookup, dango_genes
from tclab.readers._table import INTEGER, NAME, NUMBER, SCORE, Column, ReadError, Table, quoted


class OtherOrganismError(ReadError):
    """A table none of whose rows is of the organism that is asked for."""


class Format(NamedTuple):
    """A published table with an edge in each row: columns between tabs (or commas), known by names in the header."""

    what: str  # for messages
    files: re.Pattern[str]  # of its files' names
    source: str  # what a header calls the column of an edge's first node
    target: tuple[str, ...]
    directed: bool


FORMATS = {
    "biogrid": Format(
        "a BioGRID table", re.compile(r"BIOGRID-.+\.tab[23](\.txt)?(\.gz)?"),
        "Systematic Name Interactor A", ("Systematic Name Interactor B",), directed=False,
    ),
    "tflink": Format(
        "a TFLink table", re.compile(r"(TFLink_.*)?simpleFormat.*\.tsv(\.gz)?"),
        "Name.TF", ("Name.Target",), directed=True,
    ),
    "sgd_regulation": Format(
        "SGD's table of regulation", re.compile(r".*(_|\b)regulation(_annotations)?\.(tsv|txt|tab|csv)(\.gz)?"),
        "Regulator Systematic Name",
        ("Target Systematic Name", "Gene Systematic Name"),  # on SGD's own pages, in YeastMine
        directed=True,
    ),
}  # fmt: skip

YEAST = 559292  # NCBI taxon of S. cerevisiae S288C; STRING uses 4932
_SYSTEM = "Experimental System Type"
_SYSTEMS = ("physical", "genetic")
# Why rows are dropped → the columns, each by the names that a header may have for it, and the value that all must hold.
_Conditions: TypeAlias = Mapping[str, tuple[Sequence[tuple[str, ...]], str]]


def biogrid(
    path: str | Path,
    genes: Genes | Iterable[str],
    *,
    system_type: str | None = "physical",
    organism: int | None = YEAST,
    unknown_limit: float = UNKNOWN_LIMIT,
) -> Network:
    """Return a table's interactions, BioGRID tab 2.0 or 3.0, as the undirected network `biogrid_<system_type>`.

    https://wiki.thebiogrid.org/doku.php/biogrid_tab_version_2.0 and `…_3.0`. Bait and prey give no direction. A pair
    that several experiments report is one edge.

    **Arguments:**

    - `path`: a `.tab3.txt` or `.tab2.txt` file.
    - `genes`: the nodes of the network, looked up by systematic name.
    - `system_type`: `physical` or `genetic`; None takes both, as the network `biogrid`.
    - `organism`: the NCBI taxon that both ends must have; None takes any.
    - `unknown_limit`: the share of rows that may be lost to unknown names.

    **Raises:** `ReadError` with the row for a wrong number of columns or an unknown experimental system type; for a
    missing column, or too many names that are not in `genes`.
    """
    if system_type not in (None, *_SYSTEMS):
        raise unknown("experimental system type", system_type, _SYSTEMS)
    where: dict[str, tuple[Sequence[tuple[str, ...]], str]] = {}
    if system_type:
        where[f"{_SYSTEM} is not {system_type}"] = ([(_SYSTEM,)], system_type)
    if organism is not None:
        taxa = [(f"Organism ID Interactor {end}", f"Organism Interactor {end}") for end in "AB"]
        where[f"organism is not {organism}"] = (taxa, str(organism))
    name = f"biogrid_{system_type}" if system_type else "biogrid"
    return _network(path, "biogrid", name, genes, where, unknown_limit)


def tflink(
    path: str | Path,
    genes: Genes | Iterable[str],
    *,
    organism: str | None = "Saccharomyces cerevisiae",
    unknown_limit: float = UNKNOWN_LIMIT,
) -> Network:
    """Return a TFLink table as the directed network `tflink`, transcription factor → target.

    https://tflink.net/download: `TFLink_<organism>_interactions_<kind>_simpleFormat_v1.0.tsv`. Genes have standard
    names; `-` is a missing one, and a cell with several (`A;B`) is none of them for certain: both are unknown.

    **Arguments:**

    - `path`: a simpleFormat table.
    - `genes`: the nodes of the network.
    - `organism`: the value required in the column `Organism`; None takes any.
    - `unknown_limit`: the share of rows that may be lost to unknown names.

    **Raises:** `ReadError` with the row for a wrong number of columns; for a missing column, too many unknown names,
    or a table without a row of the organism.
    """
    where = {} if organism is None else {f"organism is not {organism}": ([("Organism",)], organism)}
    return _network(path, "tflink", "tflink", genes, where, unknown_limit)


def sgd_regulation(path: str | Path, genes: Genes | Iterable[str], *, unknown_limit: float = UNKNOWN_LIMIT) -> Network:
    """Return SGD's table of regulation as the directed network `sgd_regulation`, regulator → target.

    As a locus page or YeastMine exports it; lines before the header that begin with `!` are skipped. A pair with
    several annotations is one edge.

    **Arguments:**

    - `path`: the table.
    - `genes`: the nodes of the network, looked up by systematic name.
    - `unknown_limit`: the share of rows that may be lost to unknown names.

    **Raises:** `ReadError` with the row for a wrong number of columns; for a missing column, or too many unknown
    names.
    """
    return _network(path, "sgd_regulation", "sgd_regulation", genes, {}, unknown_limit)


def _network(
    path: str | Path,
    kind: str,
    name: str,
    genes: Genes | Iterable[str],
    where: _Conditions,
    unknown_limit: float,
) -> Network:
    """Return the network of one of `FORMATS`; rows that a condition does not hold for are dropped."""
    format, lookup = FORMATS[kind], Lookup(Genes.of(genes))
    with opened(path, format.what, ReadError) as file:
        table = Table(file, separator=None, comment="!")
        names = {"source": (format.source,), "target": format.target}
        names |= {column[0]: column for columns, _ in where.values() for column in columns}
        columns = {field: Column(table.column(*known), NAME) for field, known in names.items()}
        if kind == "biogrid":
            columns[_SYSTEM] = Column(table.column(_SYSTEM), NAME, fault=_no_system)
        frame = table.read(columns)
        dropped = {}
        for reason, (wanted, value) in where.items():
            kept = np.logical_and.reduce([frame[column[0]] == value for column in wanted])
            dropped[reason] = int((~kept).sum())
            if reason.startswith("organism") and len(kept) and not kept.any():
                found = ", ".join(map(str, frame[wanted[0][0]].unique()[:3]))
                why = f"none of its rows is of organism {value}, but of {found}; organism= takes another, or None any"
                raise OtherOrganismError(f"{path}: {why} (read as {format.what})")
            frame = frame[kept]
        source, target = lookup.places(frame["source"]), lookup.places(frame["target"])
        return network_of(
            path, name, source, target, lookup, directed=format.directed, dropped=dropped, unknown_limit=unknown_limit
        )


def _no_system(system: str) -> str | None:
    return None if system in _SYSTEMS else f"is {quoted(system)}, expected {' or '.join(_SYSTEMS)}"


def network_of(
    path: str | Path,
    name: str,
    source: np.ndarray,
    target: np.ndarray,
    lookup: Lookup,
    *,
    directed: bool,
    node_type: str = "gene",
    scores: np.ndarray | None = None,
    weighted: bool = False,
    dropped: Mapping[str, int] | None = None,
    unknown_limit: float = UNKNOWN_LIMIT,
    both_ways: bool = False,
    **more: Any,
) -> Network:
    """Return the network of a file's rows.

    Rows with an unknown end are dropped. Of an undirected edge the direction from the lower to the higher index is
    kept. An edge that appears several times is kept once, with its highest score, so that the order of the rows
    does not matter.

    **Arguments:**

    - `source`, `target`: [rows] integers, below 0 where the name is unknown.
    - `directed`: whether an edge goes from source to target only.
    - `scores`: [rows]; kept in the report, and as the network's weight only where `weighted`.
    - `dropped`: rows that the reader left out before, by reason.
    - `unknown_limit`: the share of rows that may be lost to unknown names.
    - `both_ways`: whether the format has each undirected edge twice, so that one that is there once is noted.
    - `more`: further fields of the report.

    **Raises:** `ValueError` where more are lost.
    """
    known = (source >= 0) & (target >= 0)
    lost = int((~known).sum())
    lookup.check_lost(len(known), lost, unknown_limit)
    rows = pd.DataFrame({"source": source, "target": target, "score": 0 if scores is None else scores})[known]
    rows["mirrored"] = (rows["source"] > rows["target"]) & (not directed)
    if not directed:
        ends = rows[["source", "target"]].to_numpy()
        rows["source"], rows["target"] = ends.min(axis=1), ends.max(axis=1)
    edges = rows.groupby(["source", "target"]).agg(
        times=("score", "size"), score=("score", "max"), backward=("mirrored", "sum")
    )
    twice = int(((edges["backward"] > 0) & (edges["backward"] < edges["times"])).sum())
    duplicates = len(rows) - len(edges) - twice
    reasons = dict(dropped or {})
    reasons["unknown gene"] = reasons.get("unknown gene", 0) + lost
    reasons |= {"reverse of an undirected edge": twice, "duplicate edge": duplicates}
    if both_ways and (once := int((edges["times"] == 1).sum())):
        more["notes"] = (f"{once:,} edges appear once, though the format has each twice: an excerpt, or cut short",)
    if scores is not None:
        more["scores"] = torch.from_numpy(edges["score"].to_numpy(copy=True))
    index = torch.tensor(np.stack([edges.index.get_level_values(i) for i in (0, 1)]), dtype=torch.int64)
    more |= {"self_loops": int((index[0] == index[1]).sum()), "duplicates": duplicates}
    report = lookup.report(path, sum(reasons.values()) + len(edges), len(edges), reasons, **more)
    weight = report.scores.to(torch.float64) if weighted and scores is not None else None
    n = len(lookup.genes)
    return Network(name, index, node_type, node_type, n, n, weight=weight, directed=directed, report=report)


LINKS_FILE = re.compile(  # "v12.0 (1).txt" is a second download
    r"(?P<taxon>\d+)\.protein\.(physical\.)?links(\.detailed|\.full)?\.v(?P<version>\d+(\.\d+)?)"
    r"([^\d.].*|\.\D.*)?\.txt(\.gz)?"
)
# DANGO's channels, in its order. "cooccurence" is STRING's spelling; `full` tables have "experiments".
CHANNELS = ("neighborhood", "fusion", "cooccurence", "coexpression", "experimental", "database")
_COLUMNS_OF: dict[str, tuple[str, ...]] = {channel: (channel,) for channel in (*CHANNELS, "textmining")} | {
    "experimental": ("experimental", "experiments"),
    "cooccurence": ("cooccurence", "cooccurrence"),
    "combined": ("combined_score",),
}
_TAXON = re.compile(r"^\d+\.")  # before a name: 4932.YAL001C
_PRIOR = 0.041  # the score of a random pair, in STRING's own combine_subscores.py


def string_links(
    path: str | Path,
    genes: Genes | Iterable[str],
    *,
    channels: Sequence[str] | None = None,
    threshold: int = 1,
    unknown_limit: float = UNKNOWN_LIMIT,
) -> dict[str, Network]:
    """Return one undirected network for each channel of STRING's links, called `string<version>_<channel>`
    by the version in the file's name.

    `<taxon>.protein.links[.detailed|.full].v<version>.txt[.gz]` of https://string-db.org/cgi/download, any version;
    columns between single spaces. The taxon (`4932.`) is removed from the names. STRING has each pair twice; it is kept
    once, from the lower index to the higher. Scores, 1 to 1000 (thousandths), are in `network.report.scores`; in a
    `full` table, evidence transferred from other organisms is combined with a channel's own as in STRING's
    `combine_subscores.py`.

    **Arguments:**

    - `path`: a table of links.
    - `genes`: the nodes of the networks.
    - `channels`: names among `neighborhood`, `fusion`, `cooccurence`, `coexpression`, `experimental`, `database`,
      `textmining` and `combined`; None takes the first six that the table has, or else `combined`.
    - `threshold`: the lowest score of an edge, in thousandths; a score of 0 is never an edge.
    - `unknown_limit`: the share of rows that may be lost to unknown names.

    **Raises:** `ReadError` with the row for a wrong number of columns or a score outside 0 to 1000; for a
    missing column, or too many names that are not in `genes`.
    """
    if isinstance(threshold, bool) or not 0 <= threshold <= 1000:
        raise InputError(f"threshold is {threshold!r}, expected 0 to 1000 (STRING's scores are thousandths)")
    lookup = Lookup(Genes.of(genes), lambda name: _TAXON.sub("", name, count=1))
    match = LINKS_FILE.fullmatch(Path(path).name)
    release = match["version"].replace(".", "_") if match else ""
    networks = {}
    with opened(path, "STRING's table of links", ReadError) as file:
        table = Table(file, separator=" ")
        ends = {name: Column(table.column(name), NAME) for name in ("protein1", "protein2")}
        wanted = _wanted(table, channels)
        scores = {part: Column(table.column(part), SCORE, 0, 1000) for parts in wanted.values() for part in parts}
        frame = table.read({**ends, **scores})
        one, other = (lookup.places(frame.pop(name)) for name in ends)
        known = (one >= 0) & (other >= 0)
        lost = int((~known).sum())
        lookup.check_lost(len(known), lost, unknown_limit)
        for channel, parts in wanted.items():
            score = _combined([frame[part].to_numpy() for part in parts])
            kept, absent = known & (score >= max(threshold, 1)), int((known & (score == 0)).sum())
            low = len(known) - lost - absent - int(kept.sum())
            dropped = {"unknown gene": lost, "no score in this channel": absent, f"score below {threshold}": low}
            name = f"string{release}_{channel}"
            networks[name] = network_of(
                path, name, one[kept], other[kept], lookup, directed=False, scores=score[kept], dropped=dropped,
                both_ways=True,
            )  # fmt: skip
    return networks


def _wanted(table: Table, channels: Sequence[str] | None) -> dict[str, list[str]]:
    """Return the columns of each channel that is asked for."""
    there: dict[str, list[str]] = {}
    for channel, names in _COLUMNS_OF.items():
        for column in set(names) & set(table.columns):
            also = f"{column}_transferred"
            there[channel] = [column, also] if also in table.columns else [column]
    if not there:
        table.column("combined_score")
    if channels is None:
        channels = [channel for channel in CHANNELS if channel in there] or list(there)[-1:]
    for channel in channels:
        if channel not in there:
            raise unknown("channel", channel, there)
    return {channel: there[channel] for channel in channels}


def _combined(parts: list[np.ndarray]) -> np.ndarray:
    """Return the score of direct and transferred evidence together, in thousandths, int16; 0 where both are 0."""
    if len(parts) == 1:
        return parts[0]
    missing = np.ones(len(parts[0]))
    for part in parts:
        missing *= 1 - np.maximum(part / 1000 - _PRIOR, 0) / (1 - _PRIOR)
    combined = ((1 - missing) * (1 - _PRIOR) + _PRIOR) * 1000
    # a score below the prior lowers STRING's combination, but it is in the table: keep the higher of the two
    highest = np.maximum.reduce(parts)
    return np.asarray(np.where(highest > 0, np.maximum(np.rint(combined - 1e-9), highest), 0), dtype=np.int16)


ADJACENCY_FILE = re.compile(r"yeast_string_(?P<channel>[a-z]+)_adjacency\.txt(\.gz)?")


def string_dango(
    path: str | Path, genes: Genes | Iterable[str] | None = None, *, counted_in: Genes | Iterable[str] | None = None
) -> Network:
    """Return one channel of STRING v9.1 as DANGO's authors publish it, as the network `string9_1_<channel>`.

    `yeast_string_<channel>_adjacency.txt[.gz]`, folder `data/yeast_network` of the repository of Zhang et al., *DANGO*
    (Cell Systems 2024). Three columns between tabs, no header: two genes as row numbers of the gene list, counted from
    1, and a score, 0 to 1. The file has each edge in both directions, with one score; it is kept once, from the lower
    index to the higher. The scores are in `network.report.scores`; a note says how many edges lack their reverse.

    **Arguments:**

    - `path`: the channel's file.
    - `genes`: the nodes of the network; None takes `counted_in`.
    - `counted_in`: the list whose line numbers the file has; None takes `yeast_string_genes.txt` in the same folder.

    **Raises:** `ReadError` with the row for a gene outside the list, or a score outside 0 to 1.
    """
    path = Path(path)
    match = ADJACENCY_FILE.fullmatch(path.name)
    name = f"string9_1_{match['channel'] if match else path.name.split('.')[0]}"
    if counted_in is None and not (list_file := path.with_name(DANGO_GENES_FILE)).exists():
        why = f"expected {DANGO_GENES_FILE} in the same folder, or the list as counted_in"
        raise ReadError(f"{path}: has line numbers of a gene list; {why}")
    listed = dango_genes(list_file) if counted_in is None else Genes.of(counted_in)
    lookup = Lookup(listed if genes is None else Genes.of(genes))
    with opened(path, "one of DANGO's adjacencies", ReadError) as file:
        table = Table(file, columns=["first gene", "second gene", "score"])
        ends = {end: Column(i, INTEGER, 1, len(listed)) for i, end in enumerate(("one", "other"))}
        frame = table.read({**ends, "score": Column(2, NUMBER, 0, 1)})
        one, other, score = (frame[column].to_numpy() for column in frame)
        place_of = np.full(len(listed) + 1, -1, dtype=np.int64)
        for line in np.union1d(one, other).tolist():
            place_of[line] = lookup.place(listed.names[line - 1])
        return network_of(
            path, name, place_of[one], place_of[other], lookup, directed=False, scores=score, both_ways=True
        )
