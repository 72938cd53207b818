"""Time and memory of reading STRING's largest kind of table: 2 million made-up rows.

    python benchmarks/read_string_links.py [--rows 2000000] [--gzip]

Prints the seconds of the call and the peak of resident memory of a process that does nothing else.
"""

from __future__ import annotations

import argparse
import gzip
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

GENES = 6_607


def write_table(path: Path, rows: int, *, packed: bool) -> None:
    """Write a `links.detailed` table: each of rows / 2 distinct pairs twice, in random order."""
    rng = np.random.default_rng(0)
    keys = np.unique(rng.integers(0, GENES, (2, rows)).min(0) * GENES + rng.integers(0, GENES, rows))
    one, other = np.divmod(rng.permutation(keys)[: rows // 2], GENES)
    scores = np.where(rng.random((len(one), 8)) < 0.4, rng.integers(1, 1000, (len(one), 8)), 0)
    names = [f"4932.Y{number:05d}" for number in range(GENES)]
    channels = "neighborhood fusion cooccurence coexpression experimental database textmining combined_score"
    with gzip.open(path, "wt", compresslevel=6) if packed else open(path, "w") as file:
        file.write(f"protein1 protein2 {channels}\n")
        for a, b, row in zip(one.tolist(), other.tolist(), scores.tolist(), strict=True):
            tail = " ".join(map(str, row))
            file.write(f"{names[a]} {names[b]} {tail}\n{names[b]} {names[a]} {tail}\n")


def peak_megabytes() -> int:
    # getrusage of a child starts at its parent's peak
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) // 1024


def read(path: str) -> None:
    from tclab.readers._gene_names import Genes

    from tclab.readers import string_links

    genes = Genes.of(f"Y{number:05d}" for number in range(GENES))
    before = peak_megabytes()
    start = time.perf_counter()
    networks = string_links(path, genes)
    seconds = time.perf_counter() - start
    peak = peak_megabytes()
    print(f"  {len(networks)} networks; {networks['string12_0_fusion'].report}".replace(path, "fusion"))
    print(f"{seconds:.2f} s; peak {peak} MB resident, of which {before} MB before the call")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--gzip", action="store_true")
    parser.add_argument("--read", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.read:
        read(given.read)
    else:
        with tempfile.TemporaryDirectory() as folder:
            table = Path(folder, "4932.protein.links.detailed.v12.0.txt" + ".gz" * given.gzip)
            write_table(table, given.rows, packed=given.gzip)
            print(f"{given.rows:,} rows, {table.stat().st_size / 1e6:.0f} MB")
            subprocess.run([sys.executable, __file__, "--read", str(table)], check=True)
