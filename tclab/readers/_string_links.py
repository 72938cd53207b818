"""STRING's protein links, `<taxon>.protein.links[.detailed|.full].v<version>.txt[.gz]`, any version.

https://string-db.org/cgi/download; columns between single spaces, scores in thousandths.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import torch

from tclab.errors import InputError, unknown
from tclab.graph import Network
from tclab.readers._gene_names import UNKNOWN_LIMIT, Genes, Lookup
from tclab.readers._old_source import LIMIT_BYTES, Progress
from tclab.readers._table import INTEGER, NAME, Table

LINKS_FILE = re.compile(
    r"(?P<taxon>\d+)\.protein\.(physical\.)?links(\.detailed|\.full)?\.v(?P<version>\d+(\.\d+)?)(\..*)?\.txt(\.gz)?"
)

# DANGO's channels, in its order. "cooccurence" is STRING's spelling; `full` tables have "experiments".
CHANNELS = ("neighborhood", "fusion", "cooccurence", "coexpression", "experimental", "database")
_FURTHER = ("textmining", "combined")
_COLUMNS_OF = {
    "experimental": ("experimental", "experiments"),
    "combined": ("combined_score",),
    "cooccurence": ("cooccurence", "cooccurrence"),
}
_TAXON = re.compile(r"^\d+\.")  # before a name: 4932.YAL001C
_PRIOR = 0.041  # the score of a random pair, in STRING's own combine_subscores.py


def string_links(
    path: str | Path,
    genes: Genes | Iterable[str],
    *,
    channels: Sequence[str] | None = None,
    threshold: int = 1,
    transferred: bool = True,
    version: str | None = None,
    unknown_limit: float = UNKNOWN_LIMIT,
    limit_bytes: int = LIMIT_BYTES,
    progress: Progress | None = None,
) -> dict[str, Network]:
    """Return one undirected network for each channel of a table, called `string<version>_<channel>`.

    The table is read in batches. The taxon (`4932.`) is removed from the names. STRING has each pair twice; it is kept
    once, from the lower index to the higher. Scores, 1 to 1000, are in `network.report.scores`.

    **Arguments:**

    - `path`: a table of links.
    - `genes`: the nodes of the networks.
    - `channels`: names among `CHANNELS`, `textmining` and `combined`; None takes all of `CHANNELS` that the table has,
      or `combined` where it has no other.
    - `threshold`: the lowest score of an edge, in thousandths; a score of 0 is never an edge.
    - `transferred`: in a `full` table, whether evidence from other organisms counts too; the two scores are combined
      as in STRING's `combine_subscores.py`.
    - `version`: such as "12.0"; None takes the version in the file's name.
    - `unknown_limit`: the share of rows that may be lost to unknown names.
    - `limit_bytes`: how much the file may unpack to.
    - `progress`: called as the file is read.

    **Raises:** `ReadError` with the line for a wrong number of columns or a score outside 0 to 1000; for a
    missing column, or too many names that are not in `genes`.
    """
    if isinstance(threshold, bool) or not 0 <= threshold <= 1000:
        raise InputError(f"threshold is {threshold!r}, expected 0 to 1000 (STRING's scores are thousandths)")
    table = Table(path, separator=" ", limit_bytes=limit_bytes, progress=progress)
    table.require("protein1", "protein2")
    wanted = _wanted(table, channels, transferred)
    parts = [column for columns in wanted.values() for column in columns]
    types: dict[str, pa.DataType] = dict.fromkeys(["protein1", "protein2"], NAME) | dict.fromkeys(parts, INTEGER)
    score_columns = list(types)[2:]
    lookup = Lookup(Genes.of(genes), prefix=lambda name: _TAXON.sub("", name, count=1))
    keys, scores, rows, lost = [], [], 0, 0
    for batch in table.batches(types):
        one, other = lookup.places(batch.column(0)), lookup.places(batch.column(1))
        known = (one >= 0) & (other >= 0)
        values = np.stack([column.to_numpy() for column in batch.columns[2:]])
        _check_scores(table, values, score_columns, rows)
        rows += batch.num_rows
        lost += int(len(known) - known.sum())
        one, other, values = one[known], other[known], values[:, known].astype(np.int16)
        of_column = dict(zip(score_columns, values, strict=True))
        keys.append(np.minimum(one, other) * len(lookup.genes) + np.maximum(one, other))
        scores.append(np.stack([_combined([of_column[part] for part in parts]) for parts in wanted.values()]))
    lookup.check_lost(path, rows, lost, limit=unknown_limit)
    pairs = _Pairs(keys, scores)
    match = LINKS_FILE.fullmatch(Path(path).name)
    release = (version or (match["version"] if match else "")).replace(".", "_")
    return {
        name: pairs.network(name, place, lookup, path=str(path), rows=rows, lost=lost, threshold=threshold)
        for place, name in enumerate(f"string{release}_{channel}" for channel in wanted)
    }


def _wanted(table: Table, channels: Sequence[str] | None, transferred: bool) -> dict[str, list[str]]:
    """Return the columns of each channel that is asked for."""
    there: dict[str, list[str]] = {}
    for channel in (*CHANNELS, *_FURTHER):
        for column in _COLUMNS_OF.get(channel, (channel,)):
            if column in table.columns:
                also = f"{column}_transferred"
                there[channel] = [column, also] if transferred and also in table.columns else [column]
    if channels is None:
        channels = [channel for channel in CHANNELS if channel in there] or list(there)[-1:]
    if not there:
        table.require("combined_score")
    for channel in channels:
        if channel not in there:
            raise unknown("channel", channel, there)
    return {channel: there[channel] for channel in channels}


def _check_scores(table: Table, values: np.ndarray, columns: list[str], rows_before: int) -> None:
    bad = (values < 0) | (values > 1000)
    if bad.any():
        row = int(np.argmax(bad.any(axis=0)))
        place = int(np.argmax(bad[:, row]))
        why = f"{columns[place]} is {values[place, row]}, expected 0 to 1000 (thousandths)"
        raise table.bad_row(rows_before + row, why)


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


class _Pairs:
    """The table's rows sorted by pair, once for all channels."""

    def __init__(self, keys: list[np.ndarray], scores: list[np.ndarray]):
        every = np.concatenate(keys)
        keys.clear()  # the batches are as large as the whole
        order = np.argsort(every, kind="stable")
        every = every[order]
        first = np.ones(len(every), dtype=bool)
        first[1:] = every[1:] != every[:-1]
        self.keys = every[first]
        self.starts = np.flatnonzero(first)
        self.scores = np.concatenate(scores, axis=1)
        scores.clear()
        for row in self.scores:
            row[:] = row[order]

    def network(
        self, name: str, place: int, lookup: Lookup, *, path: str, rows: int, lost: int, threshold: int
    ) -> Network:
        """Return one channel's network with its report."""
        scores = self.scores[place]
        highest = np.maximum.reduceat(scores, self.starts) if len(self.keys) else scores
        kept = highest >= max(threshold, 1)
        keys = self.keys[kept]
        number = len(lookup.genes)
        edge_index = torch.from_numpy(np.stack([keys // number, keys % number]))
        absent, enough = int((scores == 0).sum()), int((scores >= max(threshold, 1)).sum())
        dropped = {
            "unknown gene": lost,
            "no score in this channel": absent,
            f"score below {threshold}": len(scores) - absent - enough,
            "reverse of an undirected edge": enough - len(keys),
        }
        rows_of = np.diff(self.starts, append=self.scores.shape[1])
        once = int((rows_of[kept] == 1).sum())
        note = f"{once:,} edges appear once, though STRING has each twice: an excerpt, or cut short"
        return Network(
            name,
            edge_index,
            "gene",
            "gene",
            number,
            number,
            directed=False,
            report=lookup.report(
                path,
                rows,
                len(keys),
                dropped,
                self_loops=int((edge_index[0] == edge_index[1]).sum()),
                scores=torch.from_numpy(highest[kept]),
                notes=(note,) if once else (),
            ),
        )
