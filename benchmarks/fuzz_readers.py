"""Fuzz test of all that reads: thousands of damaged files, each a clear error or a result, never a crash or a hang.

    python benchmarks/fuzz_readers.py [--inputs 10000] [--seed 0] [--processes 1] [FORMAT ...]

Each input of a reader is a sample of `data_samples/cell` with one to four random changes: bits flipped, pieces cut,
repeated or moved, words replaced by such as break parsers, or gzipped and damaged again. What tclab itself writes or
is given (rows, graphs, records of races and jobs, a panel's state, traces, memory snapshots, points,
parameters of notebooks, names of strategies) is changed so too, or by its structure: values replaced, taken out,
doubled, renamed or nested. An input passes if it is read, or refused by `InputError` with one line that names the
file, within ten seconds; if what has a checksum reads back as it was written; and if nothing is written elsewhere,
as a pickle that is run would do.
"""

from __future__ import annotations

import argparse
import gzip
import io
import json
import os
import pickle
import signal
import sys
import tempfile
import time
import warnings
import zipfile
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import numpy as np

from tclab import CellGraph, InputError, Point, grid, masking, readers, trace
from tclab.lab._notebook_parameters import check_parameters
from tclab.lab.panel._panel_state import SAVED, PanelState
from tclab.readers._gene_names import Genes
from tclab.readers._metabolic_model import MetabolicModel
from tclab.sweeps import write_rows
from tclab.sweeps.config._point_inputs import resolve
from tclab.sweeps.slurm._slurm_executor import noted_jobs
from tclab.sweeps.store._results import Results
from tclab.sweeps.store._row_files import read_rows
from tclab.sweeps.store._rows import columns_of, frame, table
from tclab.timing import race, read_samples

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tools"))
from made_up_samples import sample_files
from synthetic_machine import SyntheticMachine

SECONDS = 10
LIMIT_BYTES = 1 << 24
TABLE = "aao1729_data_s1.tsv"

WORDS = [
    *(b"", b"\0", b"\xff\xfe", b"\xef\xbb\xbf", b"nan", b"-1", b"0", b"1e999", b"1e300", b"9" * 40),
    *(b"\r", b"\n\n", b"\t", b" ", b",", b";", b"#", b'"', b"'", b"(", b")", b" and ", b" or "),
    *(b"\xc3\xa9", b"+", b"_", b"%s", b"-", b"x" * 5000, b"(" * 3000, b"[" * 3000, b"&a [*a]"),
    *(b"!!python/object:os.system", b"<!ENTITY a 'b'>", b"YZA002C"),
]
NESTED = "nested as deep as can be"
ODD: list[Any] = [
    *(None, True, False, -1, 0, 1, 3, 1.5, -0.0, 1e308, 1 << 31, 1 << 63, 10**30, float("nan"), float("inf")),
    *(
        "",
        " ",
        "x",
        "auto",
        "none",
        "all",
        "1-3",
        "1,2",
        "1-9999999999",
        "9" * 40,
        "x" * 5000,
        "a\0b",
        "\ud800",
        "a\nb",
    ),
    *("../x", "/dev/null", "~", "$(touch ran)", "<script>alert(1)</script>", "__import__('os')", "%s", NESTED),
    *([], [[]], {}, [None], [1, "x"], {"a": {"b": [1]}}),
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


def restructured(value: Any, rng: np.random.Generator) -> Any:
    """Return a value of JSON with one change at a random place: replaced, taken out, doubled, renamed or nested."""
    value = list(value.items()) if (mapping := isinstance(value, dict)) else value
    if not isinstance(value, list) or not value or rng.random() < 0.05:
        return ODD[rng.integers(len(ODD))]
    place = int(rng.integers(len(value)))
    name, inner = value[place] if mapping else (None, value[place])
    kind = rng.integers(10)
    if kind < 6:
        inner = restructured(inner, rng)
    elif kind == 6:
        inner = [inner] * int(rng.integers(1, 4))
    elif kind == 7:
        name = str(ODD[rng.integers(len(ODD))]).replace(NESTED, "nested")  # no key can be
    elif kind == 8:
        other = value[rng.integers(len(value))]
        inner = other[1] if mapping else other
    changed = [*value[:place], *([] if kind == 9 else [(name, inner) if mapping else inner]), *value[place + 1 :]]
    return dict(changed) if mapping else changed


def by_structure(load: Callable[[bytes], Any], dump: Callable[[Any], bytes], share: float = 0.6) -> Mutate:
    """Return what changes a file by its structure, and the other share of times by its bytes."""

    def change(content: bytes, rng: np.random.Generator) -> bytes:
        if rng.random() >= share:
            return mutated(content, rng)
        value = load(content)
        for _ in range(rng.integers(1, 4)):
            value = restructured(value, rng)
        return dump(value)

    return change


def _as_json(value: Any, depth: int = 100_000) -> bytes:
    return json.dumps(value).replace(json.dumps(NESTED), "[" * depth + "]" * depth).encode()


def _lines_as_json(values: Any) -> bytes:
    return b"\n".join(map(_as_json, values if isinstance(values, list) else [values])) + b"\n"


class Runs:
    """What a pickle that is run leaves behind."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, ("ran",)


def _as_pickle(value: Any) -> bytes:
    text = pickle.dumps(value, protocol=len(repr(value)) % 5)
    return pickle.dumps([value, Runs()]) if len(text) % 11 == 0 else text


def _columns_changed(content: bytes, rng: np.random.Generator) -> bytes:
    """Change columns, rows, or what the file says of itself, and leave its checksums out or right."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = pq.read_table(io.BytesIO(content))
    about = json.loads(rows.schema.metadata[b"tclab"])
    if rng.random() < 0.9:
        about.pop("digest")
    for _ in range(rng.integers(1, 4)):
        place, kind = int(rng.integers(rows.num_columns)), rng.integers(6)
        name, column = rows.column_names[place], rows.column(place)
        odd = ODD[rng.integers(len(ODD))]
        if kind == 0:
            rows = rows.remove_column(place)
        elif kind == 1:
            try:
                rows = rows.set_column(place, name, pa.array([odd or None] * len(rows)))
            except (ValueError, OverflowError, pa.ArrowException):  # of no type of Arrow's
                rows = rows.set_column(place, name, pa.nulls(len(rows)))
        elif kind == 2:
            rows = rows.slice(int(rng.integers(len(rows) + 1)))
        elif kind == 3:
            rows = rows.set_column(place, str(odd).encode(errors="replace").decode(), column)
        elif kind == 4:
            rows = pa.concat_tables([rows, rows.slice(0, 1)])
        else:
            about = restructured(about, rng)
    told = io.BytesIO()
    pq.write_table(rows.replace_schema_metadata({b"tclab": _as_json(about)}), told)
    return told.getvalue()


Mutate = Callable[[bytes, np.random.Generator], bytes]


class Format(NamedTuple):
    """What is damaged, and what reads it."""

    file: str  # its name in a folder of its own
    made: Callable[[Path], bytes]  # gives the file's bytes, whole, and writes what belongs beside it into the folder
    read: Callable[[Path], object]  # the damaged file
    mutate: Mutate = mutated  # damages it
    named: bool = True  # whether an error has to name the file


def every_format() -> dict[str, Format]:
    """Return readers' formats and tclab's own by name."""
    samples = sample_files()

    def sample(name: str) -> Callable[[Path], bytes]:
        return lambda folder: sheet(samples[TABLE]) if name.endswith(".xlsx") else samples[name].encode()

    return {name: Format(file, sample(file), read) for name, (file, read) in formats().items()} | own_formats()


def own_formats() -> dict[str, Format]:
    """Return what tclab itself writes or is given, by name."""
    point = Point(scale=0.02, batch_size=2, networks=2, device="cpu")
    stages = [{**columns_of(point), "stage": stage, "where": "host", "n": 2, "status": "ok", "median_seconds": seconds,
               "measured_at": "2026-11-22T10:00:00+00:00", "samples_seconds": [seconds, seconds]}
              for stage, seconds in (("step", 0.5), ("forward", 0.3), ("backward", 0.2))]  # fmt: skip
    rows = table(stages)

    def parquet(folder: Path) -> bytes:
        Results(folder).write(point, rows, "rows.parquet")
        return (folder / "rows.parquet").read_bytes()

    def exported(kind: str) -> Callable[[Path], bytes]:
        return lambda folder: write_rows(frame(rows), folder / f"rows.{kind}").read_bytes()

    def kept(path: Path, whole: bool = True) -> None:
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            read = Results(path.parent).read_file(path.name)
            Results(path.parent).kept()
            Results(path.parent).frame()
        if read is None:
            raise InputError(str(told[0].message))
        assert not whole or read.equals(rows), "other rows than were written"

    def columns(path: Path) -> None:
        kept(path, whole=False)

    def race_record(folder: Path) -> bytes:
        machine, record = SyntheticMachine(0), folder / "race.jsonl"
        race({name: machine.arm(name, 0.02) for name in "ab"}, budget_seconds=3.0, clock=machine.clock, record=record)
        return (folder / "race.jsonl").read_bytes()

    def graph(folder: Path) -> bytes:
        CellGraph.synthetic(0.02, metabolism=False).save(folder / "graph.npz")
        return (folder / "graph.npz").read_bytes()

    def with_header(header: Any) -> bytes:
        buffer = io.BytesIO()
        arrays = dict(np.load(io.BytesIO(graph(Path(tempfile.mkdtemp())))))
        np.savez(buffer, **{**arrays, "header": np.array(json.dumps(header))})
        return buffer.getvalue()

    def state(folder: Path) -> bytes:
        PanelState.of(results=str(folder)).save()
        return (folder / SAVED).read_bytes()

    def read_state(path: Path) -> None:
        if (found := PanelState.saved(str(path.parent))) is not None:
            _ = found.budget, found.papermill(), found.python()
            found.points()

    def read_jobs(path: Path) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            noted_jobs(path.parent)

    def parameters(path: Path) -> None:
        given = json.loads(path.read_text())
        if isinstance(given, dict):
            (others,) = check_parameters(grid, more=given)
            grid(**others)

    def of_point(path: Path) -> None:
        given = json.loads(path.read_text())
        if isinstance(given, dict) and all(isinstance(name, str) for name in given):
            resolve(Point.from_dict(given))

    def strategy(path: Path) -> None:
        name = path.read_bytes().decode(errors="surrogateescape")
        masking.get(name)

    def header_of(content: bytes) -> Any:
        return json.loads(str(np.load(io.BytesIO(content))["header"]))

    as_json = by_structure(json.loads, _as_json)
    whole_json = by_structure(json.loads, lambda value: _as_json(value, depth=50), share=1.0)
    as_lines = by_structure(lambda text: [json.loads(line) for line in text.splitlines()], _lines_as_json)
    return {
        "rows": Format("rows.parquet", parquet, kept),
        "rows_by_structure": Format("rows.parquet", parquet, columns, _columns_changed),
        "rows_exported": Format("rows.parquet", exported("parquet"), read_rows),
        "rows_csv": Format("rows.csv", exported("csv"), read_rows),
        "race_record": Format("race.jsonl", race_record, read_samples, as_lines),
        "graph_file": Format("graph.npz", graph, CellGraph.from_file, by_structure(header_of, with_header)),
        "panel_state": Format(SAVED, state, read_state, as_json, named=False),
        "slurm_jobs": Format("jobs.json", lambda folder: _as_json({"a": "5_0"}), read_jobs, as_json, named=False),
        "trace": Format("trace.json", lambda folder: _as_json(TRACE), trace.analyze, as_json),
        "trace_memory": Format("trace.json", lambda folder: _as_json(TRACE), trace.memory_owners, as_json),
        "snapshot_json": Format("snap.json", lambda folder: _as_json(SNAPSHOT), trace.memory_owners, as_json),
        "snapshot": Format(
            "snap.pickle", lambda folder: pickle.dumps(SNAPSHOT), trace.memory_owners,
            by_structure(pickle.loads, _as_pickle),
        ),
        "point": Format(
            "point.json", lambda folder: _as_json(point.to_dict()), of_point, whole_json, named=False
        ),
        "notebook_parameters": Format(
            "parameters.json", lambda folder: _as_json(PARAMETERS), parameters, whole_json, named=False
        ),
        "strategy_name": Format("name", lambda folder: b"edge_mask", strategy, named=False),
    }  # fmt: skip


def _event(cat: str, name: str, ts: float, dur: float, **args: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": cat, "name": name, "pid": 1, "tid": 1, "ts": ts, "dur": dur, "args": args}


TRACE = {
    "schemaVersion": 1, "distributedInfo": {"rank": 0, "world_size": 2, "backend": "gloo"},
    "deviceProperties": [{"id": 0, "name": "a GPU", "totalGlobalMem": 1 << 30}], "baseTimeNanoseconds": 1_000_000,
    "traceEvents": [
        {"ph": "M", "name": "process_name", "pid": 1, "tid": 0, "ts": 0, "args": {"name": "python"}},
        *(_event("user_annotation", f"ProfilerStep#{step}", 100 * step, 90) for step in range(3)),
        *(_event("cpu_op", "aten::mm", 100 * step + 5, 30, **{"External id": step}) for step in range(3)),
        *(_event("python_function", "model.py(3): forward", 100 * step + 4, 40) for step in range(3)),
        *(_event("cuda_runtime", "cudaLaunchKernel", 100 * step + 10, 5, correlation=step) for step in range(3)),
        *(_event("kernel", "mm", 100 * step + 20, 9, correlation=step, stream=7, device=0) for step in range(3)),
        _event("gpu_memcpy", "Memcpy HtoD", 50, 4, correlation=9, bytes=64, stream=7, device=0),
        _event("kernel", "ncclDevKernel_AllReduce", 60, 8, **{"Collective name": "allreduce", "In msg nelems": 4}),
        *({"ph": "i", "cat": "cpu_instant_event", "name": "[memory]", "pid": 1, "tid": 1, "ts": 12 + 100 * step,
           "args": {"Total Allocated": 64, "Total Reserved": 128, "Bytes": size, "Addr": 4096, "Device Type": 0,
                    "Device Id": -1}} for step, size in enumerate((64, -64, 64))),
        {"ph": "s", "id": 1, "pid": 1, "tid": 1, "ts": 10, "cat": "ac2g", "name": "ac2g"},
    ],
}  # fmt: skip
_FRAMES = [
    {"filename": "/home/me/model.py", "line": 212, "name": "forward"},
    {"filename": "??", "line": 0, "name": "x"},
]
SNAPSHOT = {
    "segments": [{"device": 0, "address": 1, "total_size": 99, "blocks": [
        {"address": 1, "size": 40, "state": "active_allocated", "frames": _FRAMES}]}],
    "device_traces": [[
        {"action": action, "addr": address, "size": 40, "stream": 0, "time_us": at, "frames": _FRAMES}
        for at, (action, address) in enumerate([("alloc", 1), ("alloc", 2), ("free_completed", 2)])
    ]],
}  # fmt: skip
PARAMETERS = {
    "graph": "synthetic", "scale": 0.05, "models": "hetero_cell", "strategies": "edge_mask,node_mask", "gpus": 1,
    "batch_sizes": "1,2,4", "networks": "1-3", "mode": "step", "overheads": "none", "steps": 8, "dtype": "float32",
    "compile": False, "seed": 0, "num_deletions": 3, "workers": 0, "hidden": 32, "layers": 3, "device": "cpu",
}  # fmt: skip


def formats() -> dict[str, tuple[str, Callable[[Path], object]]]:
    """Return each reader by name: the sample that it reads, and a call that reads a file."""
    orfs = sample_files()["yeast_string_genes.txt"].split()
    names = {f"MAD{place}": (orf,) for place, orf in enumerate(orfs, 1)}
    genes = Genes(tuple(orfs), standard=names)
    limit: dict[str, Any] = {"limit_bytes": LIMIT_BYTES}

    def model(read: Callable[..., MetabolicModel], **more: Any) -> Callable[[Path], object]:
        return lambda path: readers.metabolism_of(read(path, **limit, **more), genes)

    graph = CellGraph({"gene": len(orfs)}, {}, "gene", {"gene": orfs})

    def perturbations(path: Path) -> object:
        return readers.read_perturbations(path, graph, **limit)

    def of(read: Callable[..., object], **more: Any) -> Callable[[Path], object]:
        return lambda path: read(path, genes, **limit, **more)

    return {
        "dango_genes": ("yeast_string_genes.txt", readers.dango_genes),
        "string_dango": ("yeast_string_fusion_adjacency.txt", of(readers.string_dango, counted_in=genes)),
        "string_links": ("4932.protein.links.detailed.v12.0.txt", of(readers.string_links)),
        "string_links_full": ("4932.protein.links.full.v10.5.txt", of(readers.string_links)),
        "edge_list": ("edge_list.csv", of(readers.edge_list)),
        "edge_list_alone": ("edge_list.csv", lambda path: readers.edge_list(path, **limit)),
        "biogrid": ("BIOGRID-ORGANISM-Made_up-0.0.0.tab3.txt", of(readers.biogrid)),
        "sgd_features": ("SGD_features.tab", lambda path: readers.sgd_features(path, **limit)),
        "sgd_gene_names": ("SGDgeneNames.tsv", lambda path: readers.sgd_gene_names(path, **limit)),
        "yeastract_names": ("orftogene.txt", readers.yeastract_names),
        "yeastract": ("RegulationTwoColumnTable_activator.tsv", of(readers.yeastract)),
        "yeastract_matrix": ("RegulationMatrix_documented.csv", of(readers.yeastract)),
        "yeastract_pairs": ("yeastract_orf_tf.csv", of(readers.yeastract)),
        "tflink": ("TFLink_made_up_simpleFormat_v1.0.tsv", of(readers.tflink)),
        "tflink_targets": ("targets_of_P00000.tsv", of(readers.tflink, factor="MAD1")),
        "sgd_regulation": ("sgd_regulation.tsv", of(readers.sgd_regulation)),
        "yeast_gem_yml": ("yeast-GEM.yml", model(readers.yeast_gem, cache=False)),
        "yeast_gem_txt": ("yeast-GEM.txt", model(readers.yeast_gem)),
        "bigg_json": ("iMU12.json", model(readers.bigg_json)),
        "sbml": ("iMU12.xml", model(readers.sbml, cache=False)),
        "kuzmin": ("aao1729_data_s1.tsv", of(readers.kuzmin, repeats="mean")),
        "kuzmin_xlsx": ("aaz5667_Table_S1.xlsx", of(readers.kuzmin)),
        "kuzmin_fitness": ("aaz5667_Table_S5.tsv", of(readers.kuzmin_fitness)),
        "costanzo": ("SGA_NxN.txt", of(readers.costanzo)),
        "sga_trigenic": ("scored_made_up_trigenic.txt", of(readers.sga_trigenic, deletions_only=True)),
        "sga_digenic": ("scored_made_up_digenic.txt", of(readers.sga_digenic, repeats="lowest p")),
        "perturbations": (TABLE, perturbations),
        "perturbations_headless": ("scored_made_up_digenic.txt", perturbations),
        "perturbations_xlsx": ("aaz5667_Table_S1.xlsx", perturbations),
    }


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


def fault(read: Callable[[Path], object], path: Path, named: bool = True) -> str | None:
    """Return what is wrong with how a file is read, or None."""
    try:
        read(path)
    except InputError as error:
        text = str(error)
        if len(text.splitlines()) != 1 or (named and path.name not in text and str(path.parent) not in text):
            return f"an error that does not name the file in one line: {text!r}"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None


def _hangs(number: int, frame: FrameType | None) -> None:
    raise TimeoutError(f"no answer within {SECONDS} s")


def tried(name: str, inputs: int, seed: int) -> tuple[str, float, dict[str, int]]:
    """Damage a format so many times; return its name, the seconds, and the faults, each with the last such input."""
    signal.signal(signal.SIGALRM, _hangs)
    wanted, found, start = every_format()[name], {}, time.perf_counter()
    with tempfile.TemporaryDirectory() as work:  # some readers look beside the file; nothing is to be written elsewhere
        folder, elsewhere = Path(work, "folder"), Path(work, "elsewhere")
        folder.mkdir()
        elsewhere.mkdir()
        os.chdir(elsewhere)
        content = wanted.made(folder)
        for number in range(inputs):
            (folder / wanted.file).write_bytes(wanted.mutate(content, np.random.default_rng([seed, number])))
            signal.alarm(SECONDS)
            try:
                wrong = fault(wanted.read, folder / wanted.file, wanted.named)
            finally:
                signal.alarm(0)
            if wrong is None and os.listdir(elsewhere):
                wrong = f"written elsewhere: {os.listdir(elsewhere)}"
            if wrong:
                found[wrong[:160]] = number
        os.chdir("/")
    return name, time.perf_counter() - start, found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--inputs", type=int, default=10_000, help="of each format")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("formats", nargs="*", default=list(every_format()))
    given = parser.parse_args()
    faults = total = 0
    with ProcessPoolExecutor(given.processes) as pool:
        running = [pool.submit(tried, name, given.inputs, given.seed) for name in given.formats]
        for one in as_completed(running):
            name, seconds, found = one.result()
            faults, total = faults + len(found), total + given.inputs
            print(f"{name}: {given.inputs:,} inputs in {seconds:.0f} s, {len(found)} faults", flush=True)
            for wrong, number in found.items():
                print(f"  input {number}: {wrong}", flush=True)
    print(f"| `fuzz_readers.py`, {len(given.formats)} formats | {total:,} inputs | {faults} |", flush=True)
    return int(faults > 0)


if __name__ == "__main__":
    sys.exit(main())
