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
from tclab.readers.edges import UNKNOWN_LIMIT, Lookup, unknown_rows
from tclab.readers.genes import Genes
from tclab.readers.report import Report
from tclab.readers.source import LIMIT_BYTES, Progress
from tclab.readers.table import INTEGER, NAME, bad_row, batches, header, required

LINKS_FILE = re.compile(
    r"(?P<taxon>\d+)\.protein\.(physical\.)?links(\.detailed|\.full)?\.v(?P<version>\d+(\.\d+)?)(\..*)?\.txt(\.gz)?"
)

# The channels that DANGO takes, in its order. STRING spells "cooccurence" so; `full` says "experiments".
CHANNELS = ("neighborhood", "fusion", "cooccurence", "coexpression", "experimental", "database")
_FURTHER = ("textmining", "combined")
_COLUMNS_OF = {
    "experimental": ("experimental", "experiments"),
    "combined": ("combined_score",),
    "cooccurence": ("cooccurence", "cooccurrence"),
}
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

    The table is read in pieces. The taxon (`4932.`) is taken off the names. STRING says each pair twice; it
    is kept once, from the lower index to the higher. Scores, 1 to 1000, are in `network.report.scores`.

    **Arguments:**

    - `path`: a table of links.
    - `genes`: the nodes of the networks.
    - `channels`: names among `CHANNELS`, `textmining` and `combined`; without them, all of `CHANNELS` that
      the table has, or `combined` where it has no other.
    - `threshold`: the lowest score that makes an edge, in thousandths; a score of 0 never does.
    - `transferred`: where the table is a `full` one, whether evidence from other organisms counts too; the
      two are joined as STRING's `combine_subscores.py` joins them.
    - `version`: such as "12.0"; without it, the version in the file's name.
    - `unknown_limit`: the share of rows that may be lost to unknown names.
    - `limit_bytes`: how much the file may unpack to.
    - `progress`: called as the file is read.

    **Raises:** `ReadError` with the line for a wrong number of columns or a score outside 0 to 1000; for a
    missing column, or too many names that are not in `genes`.
    """
    if isinstance(threshold, bool) or not 0 <= threshold <= 1000:
        raise InputError(f"threshold is {threshold!r}, expected 0 to 1000 (STRING's scores are thousandths)")
    columns = header(path, separator=" ")
    required(path, columns, ("protein1", "protein2"), separator=" ")
    wanted = _wanted(path, columns, channels, transferred)
    types: dict[str, pa.DataType] = {"protein1": NAME, "protein2": NAME}
    types |= {column: INTEGER for parts in wanted.values() for column in parts}
    lookup = Lookup(Genes.of(genes), without=re.compile(r"\d+\."))
    keys, scores, rows, lost = [], [], 0, 0
    for batch in batches(
        path, columns, types, separator=" ", has_header=True, limit_bytes=limit_bytes, progress=progress
    ):
        one, other = lookup.places(batch.column(0)), lookup.places(batch.column(1))
        known = (one >= 0) & (other >= 0)
        values = np.stack([column.to_numpy() for column in batch.columns[2:]])
        _check_scores(path, values, list(types)[2:], rows)
        rows += batch.num_rows
        lost += int(len(known) - known.sum())
        one, other, values = one[known], other[known], values[:, known].astype(np.int16)
        at = {column: place for place, column in enumerate(list(types)[2:])}
        keys.append(np.minimum(one, other) * len(lookup.genes) + np.maximum(one, other))
        scores.append(np.stack([_joined([values[at[part]] for part in parts]) for parts in wanted.values()]))
    if error := unknown_rows(path, rows, lost, lookup, limit=unknown_limit):
        raise error
    pairs = _Pairs(keys, scores)
    named = LINKS_FILE.fullmatch(Path(path).name)
    of = (version or (named["version"] if named else "")).replace(".", "_")
    return {
        name: pairs.network(name, place, lookup, path=str(path), rows=rows, lost=lost, threshold=threshold)
        for place, name in enumerate(f"string{of}_{channel}" for channel in wanted)
    }


def _wanted(
    path: str | Path, columns: Sequence[str], channels: Sequence[str] | None, transferred: bool
) -> dict[str, list[str]]:
    """Return the columns that make up each channel that is asked for."""
    there: dict[str, list[str]] = {}
    for channel in (*CHANNELS, *_FURTHER):
        for column in _COLUMNS_OF.get(channel, (channel,)):
            if column in columns:
                also = f"{column}_transferred"
                there[channel] = [column, also] if transferred and also in columns else [column]
    if channels is None:
        channels = [channel for channel in CHANNELS if channel in there] or list(there)[-1:]
    if not there:
        required(path, columns, ("combined_score",), separator=" ")
    for channel in channels:
        if channel not in there:
            raise unknown("channel", channel, there)
    return {channel: there[channel] for channel in channels}


def _check_scores(path: str | Path, values: np.ndarray, columns: list[str], rows_before: int) -> None:
    bad = (values < 0) | (values > 1000)
    if bad.any():
        row = int(np.argmax(bad.any(axis=0)))
        place = int(np.argmax(bad[:, row]))
        why = f"{columns[place]} is {values[place, row]}, expected 0 to 1000 (thousandths)"
        raise bad_row(path, rows_before + row, why, has_header=True)


def _joined(parts: list[np.ndarray]) -> np.ndarray:
    """Return one score of direct and transferred evidence, in thousandths, int16; 0 where both are 0."""
    if len(parts) == 1:
        return parts[0]
    missing = np.ones(len(parts[0]))
    for part in parts:
        missing *= 1 - np.maximum(part / 1000 - _PRIOR, 0) / (1 - _PRIOR)
    joined = ((1 - missing) * (1 - _PRIOR) + _PRIOR) * 1000
    # a score below the prior says less than nothing in STRING's sum, but it is in the table: keep the higher
    highest = np.maximum.reduce(parts)
    return np.asarray(np.where(highest > 0, np.maximum(np.rint(joined - 1e-9), highest), 0), dtype=np.int16)


class _Pairs:
    """The table's rows by pair: sorted once for all channels."""

    def __init__(self, keys: list[np.ndarray], scores: list[np.ndarray]):
        every = np.concatenate(keys)
        keys.clear()  # the pieces are as large as the whole
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
        said = np.diff(self.starts, append=self.scores.shape[1])
        once = int((said[kept] == 1).sum())
        return Network(
            name,
            edge_index,
            "gene",
            "gene",
            number,
            number,
            directed=False,
            report=Report(
                path,
                rows,
                len(keys),
                {why: count for why, count in dropped.items() if count},
                mapped=lookup.mapped,
                unknown=len(lookup.unknown),
                unknown_examples=tuple(sorted(lookup.unknown)[:5]),
                self_loops=int((edge_index[0] == edge_index[1]).sum()),
                scores=torch.from_numpy(highest[kept]),
                notes=(f"{once:,} edges stand once, though STRING says each twice: an excerpt, or cut short",)
                if once
                else (),
            ),
        )
