"""Fuzz test of every reader: thousands of damaged files, each a clear error or a result, never a crash or a hang.

    python benchmarks/fuzz_readers.py [--inputs 10000] [--seed 0] [FORMAT ...]

Each input is a sample of `data_samples/cell` with one to four random changes: bits flipped, pieces cut,
repeated or moved, words replaced by such as break parsers, or gzipped and damaged again. An input passes if
the reader returns, or raises `InputError` with one line that names the file, within ten seconds.
"""

from __future__ import annotations

import argparse
import gzip
import io
import signal
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

from tclab import CellGraph, InputError, readers
from tclab.readers._metabolic_model import MetabolicModel

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tools"))
from made_up_samples import sample_files

SECONDS = 10
LIMIT_BYTES = 1 << 24
TABLE = "aao1729_data_s1.tsv"

WORDS = [
    *(b"", b"\0", b"\xff\xfe", b"\xef\xbb\xbf", b"nan", b"-1", b"0", b"1e999", b"1e300", b"9" * 40),
    *(b"\r", b"\n\n", b"\t", b" ", b",", b";", b"#", b'"', b"'", b"(", b")", b" and ", b" or "),
    *(b"\xc3\xa9", b"+", b"_", b"%s", b"-", b"x" * 5000, b"(" * 3000, b"[" * 3000, b"&a [*a]"),
    *(b"!!python/object:os.system", b"<!ENTITY a 'b'>", b"YZA002C"),
]


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
    one, other = sorted(rng.integers(0, len(content) + 1, 2).tolist())
    short = min(other, one + int(rng.integers(1, 40)))
    kind = rng.integers(8)
    if kind == 0:
        changed = bytearray(content)
        for place in rng.integers(0, len(content), rng.integers(1, 8)):
            changed[place] ^= 1 << int(rng.integers(8))
        return bytes(changed)
    if kind == 1:
        return content[:one]
    if kind == 2:
        return content[:one] + content[short:]
    if kind == 3:
        return content[:one] + content[one:short] * int(rng.integers(2, 6)) + content[short:]
    if kind == 4:
        return content[:one] + WORDS[rng.integers(len(WORDS))] + content[short:]
    lines = content.splitlines(keepends=True)
    if kind == 5:
        return b"".join(lines[place] for place in rng.permutation(len(lines)))
    if kind == 6:
        signs = [b"\t", b" ", b",", b";", b"\n"]
        return content.replace(signs[rng.integers(5)], signs[rng.integers(5)])
    cells = lines[rng.integers(len(lines))].split(b"\t")
    cells[rng.integers(len(cells))] = WORDS[rng.integers(len(WORDS))]
    place = int(rng.integers(len(lines)))
    return b"".join([*lines[:place], b"\t".join(cells), *lines[place + 1 :]])


def formats() -> dict[str, tuple[str, Callable[[Path], object]]]:
    """Return each reader by name: the sample that it reads, and a call that reads a file."""
    orfs = sample_files()["yeast_string_genes.txt"].split()
    names = {f"MAD{place}": (orf,) for place, orf in enumerate(orfs, 1)}
    genes = readers.Genes(tuple(orfs), standard=names)
    limit: dict[str, Any] = {"limit_bytes": LIMIT_BYTES}

    def model(read: Callable[..., MetabolicModel], **more: Any) -> Callable[[Path], object]:
        return lambda path: readers.metabolism_of(read(path, **limit, **more), genes)

    graph = CellGraph({"gene": len(orfs)}, {}, "gene", {"gene": orfs})

    def perturbations(path: Path) -> object:
        return readers.read_perturbations(path, graph, **limit)

    found: dict[str, tuple[str, Callable[[Path], object]]] = {
        "dango_genes": ("yeast_string_genes.txt", readers.dango_genes),
        "string_dango": (
            "yeast_string_fusion_adjacency.txt",
            lambda path: readers.string_dango(path, genes, counted_in=genes, **limit),
        ),
        "string_links": (
            "4932.protein.links.detailed.v12.0.txt",
            lambda path: readers.string_links(path, genes, **limit),
        ),
        "string_links_full": (
            "4932.protein.links.full.v10.5.txt",
            lambda path: readers.string_links(path, genes, **limit),
        ),
        "edge_list": ("edge_list.csv", lambda path: readers.edge_list(path, genes, **limit)),
        "edge_list_alone": ("edge_list.csv", lambda path: readers.edge_list(path, **limit)),
        "biogrid": (
            "BIOGRID-ORGANISM-Made_up-0.0.0.tab3.txt",
            lambda path: readers.biogrid(path, genes, **limit),
        ),
        "sgd_features": ("SGD_features.tab", lambda path: readers.sgd_features(path, **limit)),
        "sgd_gene_names": ("SGDgeneNames.tsv", lambda path: readers.sgd_gene_names(path, **limit)),
        "yeastract_names": ("orftogene.txt", readers.yeastract_names),
        "yeastract": (
            "RegulationTwoColumnTable_activator.tsv",
            lambda path: readers.yeastract(path, genes, **limit),
        ),
        "yeastract_matrix": (
            "RegulationMatrix_documented.csv",
            lambda path: readers.yeastract(path, genes, **limit),
        ),
        "yeastract_pairs": (
            "yeastract_orf_tf.csv",
            lambda path: readers.yeastract(path, genes, **limit),
        ),
        "tflink": ("TFLink_made_up_simpleFormat_v1.0.tsv", lambda path: readers.tflink(path, genes, **limit)),
        "tflink_targets": (
            "targets_of_P00000.tsv",
            lambda path: readers.tflink(path, genes, factor="MAD1", **limit),
        ),
        "sgd_regulation": ("sgd_regulation.tsv", lambda path: readers.sgd_regulation(path, genes, **limit)),
        "yeast_gem_yml": ("yeast-GEM.yml", model(readers.yeast_gem, cache=False)),
        "yeast_gem_txt": ("yeast-GEM.txt", model(readers.yeast_gem)),
        "bigg_json": ("iMU12.json", model(readers.bigg_json)),
        "sbml": ("iMU12.xml", model(readers.sbml, cache=False)),
        "kuzmin": ("aao1729_data_s1.tsv", lambda path: readers.kuzmin(path, genes, repeats="mean", **limit)),
        "kuzmin_xlsx": ("aaz5667_Table_S1.xlsx", lambda path: readers.kuzmin(path, genes, **limit)),
        "kuzmin_fitness": (
            "aaz5667_Table_S5.tsv",
            lambda path: readers.kuzmin_fitness(path, genes, **limit),
        ),
        "costanzo": ("SGA_NxN.txt", lambda path: readers.costanzo(path, genes, **limit)),
        "sga_trigenic": (
            "scored_made_up_trigenic.txt",
            lambda path: readers.sga_trigenic(path, genes, deletions_only=True, **limit),
        ),
        "sga_digenic": (
            "scored_made_up_digenic.txt",
            lambda path: readers.sga_digenic(path, genes, repeats="lowest p", **limit),
        ),
        "perturbations": (TABLE, perturbations),
        "perturbations_headless": ("scored_made_up_digenic.txt", perturbations),
        "perturbations_xlsx": ("aaz5667_Table_S1.xlsx", perturbations),
    }
    return found


def sheet(table: str) -> bytes:
    """Return a table as an XLSX workbook, its parts stored and not packed, so that damage reaches them."""
    import openpyxl

    book = openpyxl.Workbook()
    for line in table.splitlines():
        book.active.append(line.split("\t"))
    packed, stored = io.BytesIO(), io.BytesIO()
    book.save(packed)
    with zipfile.ZipFile(packed) as whole, zipfile.ZipFile(stored, "w", zipfile.ZIP_STORED) as parts:
        for entry in whole.infolist():
            parts.writestr(entry.filename, whole.read(entry))
    return stored.getvalue()


def fault(read: Callable[[Path], object], path: Path) -> str | None:
    """Return what is wrong with how a reader takes a file, or None."""
    try:
        read(path)
    except InputError as error:
        text = str(error)
        if len(text.splitlines()) != 1 or path.name not in text:
            return f"an error that does not name the file in one line: {text!r}"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None


def _hangs(number: int, frame: FrameType | None) -> None:
    raise TimeoutError(f"no answer within {SECONDS} s")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--inputs", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("formats", nargs="*", default=list(formats()))
    given = parser.parse_args()
    samples = sample_files()
    signal.signal(signal.SIGALRM, _hangs)
    faults = 0
    for name in given.formats:
        with tempfile.TemporaryDirectory() as folder:  # of its own: some readers look beside the file
            sample, read = formats()[name]
            path = Path(folder, sample)
            content = sheet(samples[TABLE]) if sample.endswith(".xlsx") else samples[sample].encode()
            found: dict[str, int] = {}
            start = time.perf_counter()
            for number in range(given.inputs):
                path.write_bytes(mutated(content, np.random.default_rng([given.seed, number])))
                signal.alarm(SECONDS)
                wrong = fault(read, path)
                signal.alarm(0)
                if wrong:
                    found[wrong[:160]] = number
            faults += len(found)
            seconds = time.perf_counter() - start
            print(f"{name}: {given.inputs:,} inputs in {seconds:.0f} s, {len(found)} faults", flush=True)
            for wrong, number in found.items():
                print(f"  input {number}: {wrong}", flush=True)
    return int(faults > 0)


if __name__ == "__main__":
    sys.exit(main())
