"""Fuzz test of the door to files: thousands of damaged ones, each a clear error or a result, never a crash or a hang.

    python benchmarks/fuzz_readers.py [--inputs 10000] [--seed 0] [--processes 1] [FORMAT ...]

Each input is a sample of `data_samples/cell`, a trace, or a saved graph, with one to four random changes: bits flipped,
pieces cut, repeated or moved, words replaced by such as break parsers, or gzipped and damaged again. An input passes if
it is read, or refused by `InputError` with one line that names the file, within ten seconds, whose cause is none of the
errors that only a mistake of tclab's own raises.
"""

from __future__ import annotations

import argparse
import gzip
import io
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

from tclab import CellGraph, InputError, readers, trace

SAMPLES = Path(__file__).resolve().parents[1] / "data_samples" / "cell"

SECONDS = 10
OURS = (NameError, AttributeError, AssertionError, IndexError)  # what no parser is meant to raise
WORDS = [
    *(b"", b"\0", b"\xff\xfe", b"\xef\xbb\xbf", b"nan", b"-1", b"0", b"1e999", b"1e300", b"9" * 40, b"x" * 5000),
    *(b"\r", b"\n\n", b"\t", b" ", b",", b";", b"#", b'"', b"'", b"(", b")", b" and ", b" or ", b"(" * 3000),
    *(b"\xc3\xa9", b"+", b"_", b"%s", b"-", b"[" * 3000, b"- " * 3000, b"&a [*a]", b"{", b"}", b"!!python/object:os.x"),
]
TABLE = "aao1729_data_s1.tsv"


def mutated(content: bytes, rng: np.random.Generator) -> bytes:
    """Return a file's bytes after one to four random changes; now and then gzipped, and damaged once more."""
    for _ in range(rng.integers(1, 5)):
        content = _changed(content, rng)
    if rng.random() < 0.15:
        content = gzip.compress(content, 1)
        if rng.random() < 0.7:
            content = _changed(content, rng)
    return content


def _changed(content: bytes, rng: np.random.Generator) -> bytes:
    if not content:
        return WORDS[rng.integers(len(WORDS))]
    begin, far = sorted(rng.integers(0, len(content) + 1, 2).tolist())
    end = min(far, begin + int(rng.integers(1, 40)))
    head, piece, tail = content[:begin], content[begin:end], content[end:]
    lines = content.splitlines(keepends=True)
    signs = [b"\t", b" ", b",", b";", b"\n"]
    flipped = bytearray(content)
    for i in rng.integers(0, len(content), rng.integers(1, 8)):
        flipped[i] ^= 1 << int(rng.integers(8))
    return [
        bytes(flipped),
        head,
        head + tail,
        head + piece * int(rng.integers(2, 6)) + tail,
        head + WORDS[rng.integers(len(WORDS))] + tail,
        b"".join(lines[i] for i in rng.permutation(len(lines))),
        content.replace(signs[rng.integers(5)], signs[rng.integers(5)]),
    ][rng.integers(7)]


def formats() -> dict[str, tuple[str, bytes, Callable[[Path], object]]]:
    """Return what is read by name: the file's name, its bytes, and what reads it."""
    samples = {path.name: path.read_bytes() for path in SAMPLES.iterdir()}
    genes = tuple(samples["yeast_string_genes.txt"].decode().split())
    cell = CellGraph({"gene": len(genes)}, {}, "gene", {"gene": genes})

    def of(read: Callable[..., object], **more: Any) -> Callable[[Path], object]:
        return lambda path: read(path, genes, **more)

    def read_model(path: Path) -> object:
        return readers.metabolism_of(readers.yeast_gem(path), genes)

    def perturbations(path: Path) -> object:
        return readers.read_perturbations(path, cell, repeats="mean", p_below=0.5)

    read: dict[str, tuple[str, Callable[[Path], object]]] = {
        "dango_genes": ("yeast_string_genes.txt", readers.dango_genes),
        "sgd_features": ("SGD_features.tab", readers.sgd_features),
        "sgd_gene_names": ("SGDgeneNames.tsv", readers.sgd_gene_names),
        "string_dango": ("yeast_string_fusion_adjacency.txt", of(readers.string_dango, counted_in=genes)),
        "string_links": ("4932.protein.links.detailed.v12.0.txt", of(readers.string_links)),
        "string_links_full": ("4932.protein.links.full.v10.5.txt", of(readers.string_links)),
        "biogrid": ("BIOGRID-ORGANISM-Made_up-0.0.0.tab3.txt", of(readers.biogrid)),
        "tflink": ("TFLink_made_up_simpleFormat_v1.0.tsv", of(readers.tflink, unknown_limit=1)),
        "tflink_targets": ("targets_of_P00000.tsv", of(readers.tflink, factor=genes[0], unknown_limit=1)),
        "sgd_regulation": ("sgd_regulation.tsv", of(readers.sgd_regulation)),
        "edge_list": ("edge_list.csv", of(readers.edge_list)),
        "edge_list_alone": ("edge_list.csv", readers.edge_list),
        "yeast_gem": ("yeast-GEM.yml", read_model),
        "kuzmin": (TABLE, of(readers.kuzmin, repeats="lowest p")),
        "costanzo": ("SGA_NxN.txt", of(readers.costanzo)),
        "sga_trigenic": ("scored_made_up_trigenic.txt", of(readers.sga_trigenic, deletions_only=True)),
        "perturbations": (TABLE, perturbations),
    }
    found = {name: (file, samples[file], how) for name, (file, how) in read.items()}
    found["workbook"] = ("aaz5667_Table_S1.xlsx", _workbook(samples[TABLE].decode()), of(readers.kuzmin))
    found["trace"] = ("trace.json", json.dumps({"traceEvents": [_EVENT] * 9}).encode(), trace.analyze)
    with tempfile.TemporaryDirectory() as folder:
        CellGraph.synthetic(0.02, metabolism=False).save(Path(folder, "graph.npz"))
        found["graph"] = ("graph.npz", Path(folder, "graph.npz").read_bytes(), CellGraph.from_file)
    return found


_EVENT = {"ph": "X", "cat": "kernel", "name": "a", "pid": 0, "tid": 7, "ts": 1, "dur": 2, "args": {"correlation": 1}}


def _workbook(table: str) -> bytes:
    import openpyxl

    book, content = openpyxl.Workbook(), io.BytesIO()
    for line in table.splitlines():
        book.active.append(line.split("\t"))
    book.save(content)
    return content.getvalue()


def fault(read: Callable[[Path], object], path: Path) -> str | None:
    """Return what is wrong with how a file is read, or None."""
    try:
        read(path)
    except InputError as error:
        text = str(error)
        if len(text.splitlines()) != 1 or path.name not in text:
            return f"an error that does not name the file in one line: {text!r}"
        if isinstance(error.__cause__, OURS):
            return f"a mistake of tclab's own: {error.__cause__!r}"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None


def _hangs(number: int, frame: FrameType | None) -> None:
    raise TimeoutError(f"no answer within {SECONDS} s")


def tried(name: str, inputs: int, seed: int) -> tuple[str, float, dict[str, int]]:
    """Damage a format so many times; return its name, the seconds, and the faults, each with the last such input."""
    signal.signal(signal.SIGALRM, _hangs)
    faults: dict[str, int] = {}
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TCLAB_CACHE"] = folder
        file, content, read = formats()[name]
        for i in range(inputs):
            path = Path(folder, file)
            path.write_bytes(mutated(content, np.random.default_rng([seed, i])))
            signal.alarm(SECONDS)
            try:
                wrong = fault(read, path)
            finally:
                signal.alarm(0)
            if wrong:
                faults[wrong[:160]] = i
    return name, time.perf_counter() - start, faults


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--inputs", type=int, default=10_000, help="of each format")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("formats", nargs="*", default=list(formats()))
    given = parser.parse_args()
    faults = 0
    with ProcessPoolExecutor(given.processes) as pool:
        running = [pool.submit(tried, name, given.inputs, given.seed) for name in given.formats]
        for one in as_completed(running):
            name, seconds, found = one.result()
            faults += len(found)
            print(f"{name}: {given.inputs:,} inputs in {seconds:.0f} s, {len(found)} faults", flush=True)
            for wrong, i in found.items():
                print(f"  input {i}: {wrong}", flush=True)
    print(
        f"| `fuzz_readers.py`, {len(given.formats)} formats | {given.inputs * len(given.formats):,} inputs | {faults} |"
    )
    return int(faults > 0)


if __name__ == "__main__":
    sys.exit(main())
