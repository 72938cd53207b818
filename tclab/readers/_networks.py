"""Networks from published tables: tables with an edge in each row, and STRING's two kinds of table."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

import numpy as np
import pandas as pd
import torch

from tclab._source import opened
from tclab.errors import InputError, check_known
from tclab.graph import Network
from tclab.readers._genes import DANGO_GENES_FILE, UNKNOWN_LIMIT, Genes, Lookup, dango_genes
from tclab.readers._table import INTEGER, NAME, NUMBER, SCORE, Column, ReadError, Table, sniff, tab_or_comma


class NoRowError(ReadError):
    """A table none of whose rows is what is asked for: of another organism, say."""


ENDS = ["source", "target"]
YEAST = 559292  # NCBI taxon of S. cerevisiae S288C; STRING uses 4932
_SYSTEMS = ("physical", "genetic")
# An argument, the names that a header may have for its column, and the value that a row must have; None for any.
_Condition: TypeAlias = tuple[str, tuple[str, ...], object]


def biogrid(
    path: str | Path, genes: Genes | Iterable[str], *, system_type: str | None = "physical",
    organism: int | None = YEAST, unknown_limit: float = UNKNOWN_LIMIT,
) -> Network:  # fmt: skip
    """Return a table's interactions, BioGRID tab 2.0 or 3.0, as the undirected network `biogrid_<system_type>`.

    https://wiki.thebiogrid.org/doku.php/biogrid_tab_version_2.0 and `…_3.0`. Bait and prey give no direction. A pair
    that several experiments report is one edge.

    **Arguments:**

    - `path`: a `.tab3.txt` or `.tab2.txt` file.
    - `genes`: the nodes of the network, looked up by systematic name.
    - `system_type`: `physical` or `genetic`; None takes both, as the network `biogrid`.
    - `organism`: the NCBI taxon that both ends must have; None takes any.
    - `unknown_limit`: the share of rows that may be lost to unknown names.

    **Raises:** `ReadError` with the row for a wrong number of columns; for a missing column, a table without a row of
    the organism and system type, or too many names that are not in `genes`.
    """
    check_known("experimental system type", (None, *_SYSTEMS), system_type)
    where: list[_Condition] = [("system_type", ("Experimental System Type",), system_type)]
    where += [("organism", (f"Organism ID Interactor {end}", f"Organism Interactor {end}"), organism) for end in "AB"]
    name = f"biogrid_{system_type}" if system_type else "biogrid"
    ends = {"source": ("Systematic Name Interactor A",), "target": ("Systematic Name Interactor B",)}
    return _network("a BioGRID table", name, Lookup(path, genes, unknown_limit), ends, where, directed=False)


def tflink(
    path: str | Path, genes: Genes | Iterable[str], *, organism: str | None = "Saccharomyces cerevisiae",
    unknown_limit: float = UNKNOWN_LIMIT,
) -> Network:  # fmt: skip
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
    ends, where = {"source": ("Name.TF",), "target": ("Name.Target",)}, [("organism", ("Organism",), organism)]
    return _network("a TFLink table", "tflink", Lookup(path, genes, unknown_limit), ends, where)


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
    # the target's column is on SGD's own pages, and in YeastMine
    ends = {"source": ("Regulator Systematic Name",), "target": ("Target Systematic Name", "Gene Systematic Name")}
    return _network("SGD's table of regulation", "sgd_regulation", Lookup(path, genes, unknown_limit), ends, [])


def _network(
    what: str, name: str, lookup: Lookup, ends: Mapping[str, tuple[str, ...]], where: Sequence[_Condition], *,
    directed: bool = True,
) -> Network:  # fmt: skip
    """Return the network of a table with an edge in each row: columns between tabs (or commas), known by their names.

    Rows that a condition does not hold for are dropped.

    **Arguments:**

    - `what`: the table is, for messages.
    - `ends`: source and target → what a header may call their columns.
    """
    with opened(lookup.path, what, ReadError) as content:
        table = sniff(content, separator=tab_or_comma, comment="!")
        where = [condition for condition in where if condition[2] is not None]
        names = {**ends, **{known[0]: known for _, known, _ in where}}
        frame = table.read({field: Column(table.column(*known), NAME) for field, known in names.items()})
        dropped: Counter[str] = Counter()
        for argument, known, value in where:
            cells = frame[known[0]]
            kept = cells == str(value)
            if not kept.any():
                why = f"none of its rows is of {argument} {value}, but of {', '.join(map(str, cells.unique()[:3]))}"
                another = f"{argument}= takes another, or None any"
                raise NoRowError(f"{lookup.path}: {why}; {another} (read as {what})")
            dropped[f"{argument} is not {value}"] += int((~kept).sum())
            frame = frame[kept]
        source, target = (lookup.places(frame[end]) for end in ends)
        return network_of(lookup, name, source, target, directed=directed, dropped=dropped)


def network_of(
    lookup: Lookup, name: str, source: np.ndarray, target: np.ndarray, *, directed: bool,
    scores: np.ndarray | None = None, duplicates: str = "max", dropped: Mapping[str, int] | None = None,
    notes: Sequence[str] = (), first_row: int = 1,
) -> Network:  # fmt: skip
    """Return the network of a file's rows, without weights; the scores are in its report.

    Rows with an unknown end are dropped. Of an undirected edge the direction from the lower to the higher index is
    kept. An edge that appears several times is kept once, whatever the order of the rows.

    **Arguments:**

    - `source`, `target`: [rows] integers, below 0 where the name is unknown.
    - `directed`: whether an edge goes from source to target only.
    - `scores`: [rows], numbers.
    - `duplicates`: what an edge that appears several times has for a score, as for `edge_list`.
    - `dropped`: rows that the reader left out before, by reason.
    - `notes`: of the report. `first_row`: the number of the first row, for errors.

    **Raises:** `ValueError` where more rows are lost than the lookup's limit allows, and for `duplicates="error"`.
    """
    known = (source >= 0) & (target >= 0)
    lookup.check_lost(len(known), lost := int((~known).sum()))
    rows = pd.DataFrame({"source": source, "target": target, "score": 0 if scores is None else scores})[known]
    rows["mirrored"] = (rows["source"] > rows["target"]) & (not directed)
    if not directed:
        rows[ENDS] = np.sort(rows[ENDS])
    groups = rows.groupby(ENDS)
    edge = groups.ngroup()
    if duplicates == "error" and edge.duplicated().any():
        first, again = edge.index[edge == edge[edge.duplicated()].iloc[0]][:2] + first_row
        raise ValueError(f"row {again} has the edge of row {first} again; duplicates= 'max' or 'sum' merges")
    counts = {"times": ("score", "size"), "backward": ("mirrored", "sum")}
    edges = groups.agg(**counts, highest=("score", "max"), lowest=("score", "min")).reset_index()
    loops, twice = edges["source"] == edges["target"], int(edges["backward"].between(1, edges["times"] - 1).sum())
    if duplicates == "sum":
        score, rule = _sums(rows.assign(edge=edge), loops)
        several = edges["times"] > 1
    else:
        score, rule = edges["highest"].where(edges["highest"] >= -edges["lowest"], edges["lowest"]), "the largest"
        several = edges["highest"] != edges["lowest"]
    if scores is not None and several.any():
        merged = f"{several.sum():,} edges appear in several rows"
        notes = [*notes, f"{merged}: each has {rule} of their weights ({duplicates=})"]
    notes = [*notes, f"{loops.sum():,} of the edges are self-loops"] if loops.any() else notes
    reasons = Counter({f"unknown {lookup.noun}": lost, "reverse of an undirected edge": twice}) + Counter(dropped)
    reasons["duplicate edge"] = len(rows) - len(edges) - twice
    edge_of_row = np.full(len(known), -1)
    edge_of_row[known] = edge
    report = lookup.report(
        reasons.total() + len(edges), len(edges), reasons, notes=tuple(notes),
        scores=None if scores is None else torch.tensor(score.to_numpy()),
        edge_of_row=torch.from_numpy(edge_of_row) if dropped is None else None,  # else other rows were left out before
    )  # fmt: skip
    index, n = torch.tensor(edges[ENDS].to_numpy().T, dtype=torch.int64).contiguous(), len(lookup.genes)
    return Network(name, index, lookup.noun, lookup.noun, n, n, directed=directed, report=report)


def _sums(rows: pd.DataFrame, loops: pd.Series) -> tuple[pd.Series, str]:
    """Return the sum of each edge's scores, and the rule in words.

    Where the file has every undirected edge in both directions, with the same sum in each, one direction counts.
    """
    sums = rows.groupby("edge")["score"].sum()
    backward = rows[rows["mirrored"]].groupby("edge")["score"].sum().reindex(sums.index)
    if not loops.all() and np.isclose(2 * backward, sums)[~loops].all():
        return sums.where(loops, backward), "the sum, in one direction,"
    return sums, "the sum"


LINKS_FILE = re.compile(  # "v12.0 (1).txt" is a second download
    r"(?P<taxon>\d+)\.protein\.(physical\.)?links(\.detailed)?\.v(?P<version>\d+(\.\d+)?)"
    r"([^\d.].*|\.\D.*)?\.txt(\.gz)?"
)
CHANNELS = ("neighborhood", "fusion", "cooccurence", "coexpression", "experimental", "database")  # DANGO's order
_COLUMN_OF = {channel: channel for channel in (*CHANNELS, "textmining")} | {"combined": "combined_score"}
_TAXON = re.compile(r"^\d+\.")  # before a name: 4932.YAL001C


def string_links(
    path: str | Path, genes: Genes | Iterable[str], *, channels: Sequence[str] | None = None, threshold: int = 1,
    unknown_limit: float = UNKNOWN_LIMIT,
) -> dict[str, Network]:  # fmt: skip
    """Return one undirected network for each channel of STRING's links, called `string<version>_<channel>`
    by the version in the file's name.

    `<taxon>.protein.links[.detailed].v<version>.txt[.gz]` of https://string-db.org/cgi/download, any version;
    columns between single spaces. The taxon (`4932.`) is removed from the names. STRING has each pair twice; it is kept
    once, from the lower index to the higher. Scores, 1 to 1000 (thousandths), are in `network.report.scores`. The
    `full` tables, which have the evidence of other organisms apart, are refused.

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
    lookup = Lookup(path, genes, unknown_limit, lambda name: _TAXON.sub("", name, count=1))
    match, networks = LINKS_FILE.fullmatch(Path(path).name), {}
    release = match["version"].replace(".", "_") if match else ""
    with opened(path, "STRING's table of links", ReadError) as content:
        table = sniff(content, separator=" ")
        ends = {name: Column(table.column(name), NAME) for name in ("protein1", "protein2")}
        wanted = _wanted(table, channels)
        frame = table.read({**ends, **{c: Column(table.column(_COLUMN_OF[c]), SCORE, 0, 1000) for c in wanted}})
        source, target = (lookup.places(frame[name]) for name in ends)
        known = (source >= 0) & (target >= 0)
        lookup.check_lost(len(known), lost := int((~known).sum()))
        for channel in wanted:
            score = frame[channel].to_numpy()
            kept, absent = known & (score >= max(threshold, 1)), int((known & (score == 0)).sum())
            low = len(known) - lost - absent - int(kept.sum())
            dropped = {"unknown gene": lost, "no score in this channel": absent, f"score below {threshold}": low}
            name, rows = f"string{release}_{channel}", (source[kept], target[kept])
            networks[name] = network_of(lookup, name, *rows, directed=False, scores=score[kept], dropped=dropped)
    return networks


def _wanted(table: Table, channels: Sequence[str] | None) -> Sequence[str]:
    """Return the channels that are asked for; those of DANGO that the table has, or else the combined score."""
    if any(column.endswith("_transferred") for column in table.columns):
        raise ValueError("is STRING's full table; take links.detailed, where a channel's evidence is one score")
    there = [channel for channel, column in _COLUMN_OF.items() if column in table.columns]
    if not there:
        table.column("combined_score")
    for channel in channels or ():
        check_known("channel", there, channel)
    return channels or [channel for channel in CHANNELS if channel in there] or there[-1:]


ADJACENCY_FILE = re.compile(r"yeast_string_(?P<channel>[a-z]+)_adjacency\.txt(\.gz)?")


def string_dango(path: str | Path, genes: Genes | Iterable[str] | None = None) -> Network:
    """Return one channel of STRING v9.1 as DANGO's authors publish it, as the network `string9_1_<channel>`.

    `yeast_string_<channel>_adjacency.txt[.gz]`, folder `data/yeast_network` of the repository of Zhang et al., *DANGO*
    (Cell Systems 2024). Three columns between tabs, no header: two genes as row numbers of the gene list, counted from
    1, and a score, 0 to 1. The file has each edge in both directions, with one score; it is kept once, from the lower
    index to the higher. The scores are in `network.report.scores`.

    **Arguments:**

    - `path`: the channel's file; the list whose line numbers it has, `yeast_string_genes.txt`, is in the same folder.
    - `genes`: the nodes of the network; None takes that list.

    **Raises:** `ReadError` with the row for a gene outside the list, or a score outside 0 to 1.
    """
    path = Path(path)
    match = ADJACENCY_FILE.fullmatch(path.name)
    name = f"string9_1_{match['channel'] if match else path.name.split('.')[0]}"
    listed = dango_genes(path.with_name(DANGO_GENES_FILE))
    lookup = Lookup(path, listed if genes is None else genes, UNKNOWN_LIMIT)
    with opened(path, "one of DANGO's adjacencies", ReadError) as content:
        table = sniff(content, columns=["first gene", "second gene", "score"])
        lines = {end: Column(i, INTEGER, 1, len(listed)) for i, end in enumerate(ENDS)}
        frame = table.read({**lines, "score": Column(2, NUMBER, 0, 1)})
        names = pd.Index(listed.names)
        named = (pd.Series(pd.Categorical.from_codes(frame[end] - 1, names)) for end in ENDS)
        score = frame["score"].to_numpy()
        return network_of(lookup, name, *map(lookup.places, named), directed=False, scores=score)
