"""Fuzz test of the door to files: thousands of damaged ones, each a clear error or a result, never a crash or a hang.

    python benchmarks/fuzz_readers.py [--inputs 10000] [--seed 0] [FORMAT ...]

Each input is a sample of `data_samples/cell`, a trace, or a saved graph, with one to four random changes: bits flipped,
pieces cut, repeated or moved, words replaced by such as break parsers, or gzipped and damaged again. An input passes if
it is read, or refused by `InputError` with one line that names the file, within ten seconds, whose cause is none of the
errors that only a mistake of tclab's own raises. `--inputs` says how many of each format.
"""

import gzip
import json
import os
import signal
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
from cyclopts import run

from tclab import CellGraph, InputError, readers, trace

SAMPLES = Path(__file__).resolve().parents[1] / "data_samples" / "cell"

SECONDS = 10
OURS = (NameError, AttributeError, AssertionError, IndexError)  # what no parser is meant to raise
WORDS = [
    *(b"", b"\0", b"\xff\xfe", b"\xef\xbb\xbf", b"nan", b"-1", b"0", b"1e999", b"1e300", b"9" * 40, b"x" * 5000),
    *(b"\r", b"\n\n", b"\t", b" ", b",", b";", b"#", b'"', b"'", b"(", b")", b" and ", b" or ", b"(" * 3000),
    *(b"\xc3\xa9", b"+", b"_", b"%s", b"-", b"[" * 3000, b"- " * 3000, b"&a [*a]", b"{", b"}", b"!!python/object:os.x"),
]
SIGNS = [b"\t", b" ", b",", b";", b"\n"]
KINDS = {"gemm": "kernel", "ncclKernel": "kernel", "Memcpy HtoD (Pinned -> Device)": "gpu_memcpy",
         "cudaLaunchKernel": "cuda_runtime", "aten::mm": "cpu_op", "ProfilerStep#1": "user_annotation"}  # fmt: skip
ARGS = {"correlation": 1, "bytes": 9, "device": 0, "stream": 7}
EVENT = {"ph": "X", "pid": 0, "tid": 7, "ts": 1, "dur": 2, "args": ARGS}
EVENTS = [EVENT | {"name": name, "cat": category} for name, category in KINDS.items()]


def mutated(content: bytes, rng: np.random.Generator) -> bytes:
    """Return a file's bytes after one to four random changes; now and then gzipped, and damaged once more."""
    for _ in range(rng.integers(1, 5)):
        content = _changed(content, rng)
    if rng.random() < 0.15:
        content = _changed(gzip.compress(content, 1), rng)
    return content


def _changed(content: bytes, rng: np.random.Generator) -> bytes:
    begin, far = sorted(rng.integers(0, len(content) + 1, 2).tolist())
    end = min(far, begin + int(rng.integers(1, 40)))
    head, piece, tail = content[:begin], content[begin:end], content[end:]
    lines = content.splitlines(keepends=True)
    flipped = bytes(byte ^ 1 << int(rng.integers(8)) for byte in piece)
    return [
        head + flipped + tail,
        head,
        head + tail,
        head + piece * int(rng.integers(2, 6)) + tail,
        head + WORDS[rng.integers(len(WORDS))] + tail,
        b"".join(lines[i] for i in rng.permutation(len(lines))),
        content.replace(SIGNS[rng.integers(5)], SIGNS[rng.integers(5)]),
    ][rng.integers(7)]


def formats() -> dict[str, tuple[str, bytes, Callable[[Path], object]]]:
    """Return what is read by name: the file's name, its bytes, and what reads it."""
    listed = SAMPLES / "yeast_string_genes.txt"
    genes = tuple(listed.read_text().split())
    cell = CellGraph({"gene": len(genes)}, {}, "gene", {"gene": genes})
    screen = partial(readers.read_perturbations, graph=cell)

    def dango(path: Path) -> object:
        path.with_name(listed.name).write_bytes(listed.read_bytes())
        return readers.string_dango(path)

    read: dict[str, tuple[str, Callable[[Path], object]]] = {
        "dango_genes": (listed.name, readers.dango_genes),
        "sgd_features": ("SGD_features.tab", readers.sgd_features),
        "sgd_gene_names": ("SGDgeneNames.tsv", readers.sgd_gene_names),
        "string_dango": ("yeast_string_fusion_adjacency.txt", dango),
        "string_links": ("4932.protein.links.detailed.v12.0.txt", partial(readers.string_links, genes=genes)),
        "biogrid": ("BIOGRID-ORGANISM-Made_up-0.0.0.tab3.txt", partial(readers.biogrid, genes=genes)),
        "tflink": ("TFLink_made_up_simpleFormat_v1.0.tsv", partial(readers.tflink, genes=genes, unknown_limit=1)),
        "sgd_regulation": ("sgd_regulation.tsv", partial(readers.sgd_regulation, genes=genes)),
        "edge_list": ("edge_list.csv", readers.edge_list),
        "yeast_gem": ("yeast-GEM.yml", partial(readers.yeast_gem, genes=genes)),
        "kuzmin": ("aao1729_data_s1.tsv", screen),
        "costanzo": ("SGA_NxN.txt", screen),
        "sga_trigenic": ("scored_made_up_trigenic.txt", screen),
    }
    found = {name: (file, (SAMPLES / file).read_bytes(), how) for name, (file, how) in read.items()}
    found["trace"] = ("trace.json", json.dumps({"traceEvents": EVENTS * 3}).encode(), trace.analyze)
    with tempfile.TemporaryDirectory() as folder:
        graph = Path(folder, "graph.npz")
        CellGraph.synthetic(0.02, metabolism=False).save(graph)
        found["graph"] = (graph.name, graph.read_bytes(), CellGraph.from_file)
    return found


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


def _hangs(*_: object) -> None:
    raise TimeoutError(f"no answer within {SECONDS} s")


def main(*names: str, inputs: int = 10_000, seed: int = 0) -> int:
    signal.signal(signal.SIGALRM, _hangs)
    faults = 0
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TCLAB_CACHE"] = folder
        for name in names or formats():
            file, content, read = formats()[name]
            path = Path(folder, file)
            for i in range(inputs):
                path.write_bytes(mutated(content, np.random.default_rng([seed, i])))
                signal.alarm(SECONDS)
                wrong = fault(read, path)
                signal.alarm(0)
                if wrong:
                    faults += 1
                    print(f"  input {i}: {wrong[:160]}", flush=True)
            print(f"{name}: {inputs:,} inputs, {faults} faults so far", flush=True)
    return int(faults > 0)


if __name__ == "__main__":
    main.__doc__ = __doc__
    run(main)
