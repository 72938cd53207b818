"""Tables, traces and loaders in many ways: each is read as plain Python reads it, or refused; never wrong in silence.

    python benchmarks/silent_errors.py [--tables 10000] [--traces 2000] [--loaders 200] [--seed 0]

A table is a drawn list of edges, written with other names, columns in another order, another header or none, quotes,
separators, decimal signs, line ends, encodings, comments and packings. A trace is a drawn run of threads and devices,
written with other numbers of devices, makers' categories, years, decimals, orders and stray marks, and a backward pass
on autograd's own thread. The right value is known from the drawing: the edges and weights; each device's busy, idle and
compute time, each operator's self time and the backward pass that the main thread waits for, by a sweep over every
instant. What the reader gives must equal it, or be a sentence of `InputError`. A loader is a DataLoader in wrappers,
whose batches must stay, and be timed.
"""

import gzip
import io
import json
import random
import re
import tempfile
import zipfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

from cyclopts import run
from torch.utils.data import DataLoader

from tclab import InputError, trace
from tclab.readers import edge_list
from tclab.timing import loader_times

NAMES = [
    [str(i) for i in range(30)],
    [str(i) for i in (7, 19, 101, 4000, 12, 33, 2, 1)],
    ["YAL001C", "YBR002W", "YAL003W-A", "YDL227C", "YKR101W", "YOR202W"],
    ["Bern", "Olten", "Chur", "St. Gallen", "Zürich", "Genf", "Biel/Bienne", "Le Locle"],
    list("abcdefghij"),
    ["NA", "nan", "None", "TP53", "OCT1", "1-Oct", "MARCH1"],
    ["a,b", "c;d", 'e"f', "g h", "i", "j|k"],
    ["Node1", "Node2", "Node3", "Node12", "Node31"],
    ["4932.YAL001C", "4932.YBR002W", "9606.ENSP0001", "http://a/b#c", "GO:0001"],
]
HEADERS = [
    *[("source", "target"), ("Source", "Target"), ("from", "to"), ("src", "dst"), ("node1", "node2"), ("u", "v")],
    *[("gene_a", "gene_b"), ("TF", "TG"), ("protein1", "protein2"), ("bait", "prey"), ("source_id", "target_id")],
    *[("Quelle", "Ziel"), ("origine", "destinazione"), ("Knoten1", "Knoten2"), ("de", "vers"), ("alpha", "omega")],
    *[("Locus", "Partner"), ("entry", "hit"), ("v", "w"), ("left", "right"), ("ORF", "Name"), ("出発", "到着")],
]
WEIGHTS = ["weight", "score", "combined_score", "w", "Weight", "confidence", "Gewicht"]
EXTRAS = ["id", "index", "", "edge_id", "time", "label", "type", "km", "year"]
KNOWN_ENDS = 11  # so many of HEADERS say which is the source


def drawn_table(rng: random.Random) -> tuple[bytes, str, set[tuple[str, str]], dict[tuple[str, str], float] | None]:
    """Return a file's bytes, its suffix, its edges from source to target, and their weights where it has any."""
    names = rng.choice(NAMES)
    pairs = rng.sample([(a, b) for a in names for b in names], rng.randint(1, min(14, len(names) ** 2)))
    weights = None
    if rng.random() < 0.5:
        weights = {pair: rng.choice([rng.randint(-9, 99), round(rng.random(), 3), 1.5e-7, 2e5]) for pair in pairs}
    given = [(pair, 0 if weights is None else weights[pair]) for pair in pairs]
    if rng.random() < 0.15:  # an edge comes again, with a weaker weight
        given.insert(rng.randint(0, len(given)), (pairs[0], -given[0][1] / 4))
    header = rng.choice([None, *HEADERS])
    columns: dict[str, list[str]] = dict(
        zip(header or ("0", "1"), map(list, zip(*(pair for pair, _ in given), strict=True)), strict=True)
    )
    comma = rng.random() < 0.15
    if weights is not None:
        texts = [f"{weight!r}" for _, weight in given]
        columns[rng.choice(WEIGHTS)] = [text.replace(".", ",") if comma else text for text in texts]
    for name in rng.sample(EXTRAS, rng.choice([0, 0, 0, 1, 2])):
        columns.setdefault(name, [str(rng.choice([i, 1_577_836_800 + i])) for i in range(len(given))])
    order = list(columns)
    if header in HEADERS[:KNOWN_ENDS] and rng.random() < 0.5:  # of two foreign words the first is the source
        rng.shuffle(order)
    rows = [order] * bool(header) + [list(row) for row in zip(*(columns[name] for name in order), strict=True)]
    text = _written(rng, rows, commented=header in HEADERS[:KNOWN_ENDS] and rng.random() < 0.2)
    can_hold = text.encode("latin-1", "ignore").decode("latin-1") == text
    for encoding, chance in (("utf-16", 0.04), ("latin-1", 0.04 * can_hold), ("utf-8-sig", 0.1)):
        if rng.random() < chance:
            return text.encode(encoding), ".csv", set(pairs), weights
    content = text.encode()
    if rng.random() < 0.1:
        return gzip.compress(content), ".tsv.gz", set(pairs), weights
    if rng.random() < 0.05:
        packed = io.BytesIO()
        with zipfile.ZipFile(packed, "w") as archive:
            archive.writestr("edges.csv", content)
        return packed.getvalue(), ".zip", set(pairs), weights
    return content, rng.choice([".csv", ".txt", ".tsv", ".edges"]), set(pairs), weights


def _written(rng: random.Random, rows: list[list[str]], *, commented: bool) -> str:
    """Return rows as text: by RFC 4180 where cells need it, with comments, blanks and blank lines here and there.

    The header may be a comment itself.
    """
    sign = rng.choice(["\t", "\t", ",", ",", ";", " ", "|"])
    all_quoted, padded = rng.random() < 0.2, rng.random() < 0.1

    def cell(text: str) -> str:
        if all_quoted or any(each in text for each in (sign, '"', "\n")):
            text = '"' + text.replace('"', '""') + '"'
        return text + " " * (padded and sign != " " and not text.endswith('"'))

    lines = [sign.join(map(cell, row)) for row in rows]
    lines[0] = rng.choice(["#", "# ", "% "]) * commented + lines[0]
    if rng.random() < 0.2:
        lines = [f"{rng.choice('#%')} made by hand", *lines]
    if rng.random() < 0.1:
        lines.insert(rng.randint(0, len(lines)), "")
    end = rng.choice(["\n", "\n", "\r\n", "\r"])
    return end.join(lines) + end * rng.choice([0, 1, 1, 2])


def table_fault(path: Path, edges: set[tuple[str, str]], weights: dict[tuple[str, str], float] | None) -> str:
    """Return how a table is read: "read", "refused", or what is wrong."""
    try:
        network = edge_list(path, directed=True)
    except InputError:
        return "refused"
    except Exception as error:
        return f"wrong: {type(error).__name__}: {error}"
    names = network.report.node_names
    found = [(names[a], names[b]) for a, b in network.edge_index.T.tolist()]
    if {*found} != edges or len(found) != len(edges):
        return f"wrong: {sorted(found)} for {sorted(edges)}"
    if weights is not None and network.weight is not None:
        read = dict(zip(found, network.weight.tolist(), strict=True))
        third = read != {pair: float(weight) for pair, weight in weights.items()}
        if third and not any("columns" in note for note in network.report.notes):  # else it is said which was taken
            return f"wrong: weights {read} for {weights}"
    return "read"


MAKERS = {  # a maker's categories of kernels, copies, runtime calls
    "cuda": ("kernel", "gpu_memcpy", "cuda_runtime"),
    "old": ("Kernel", "Memcpy", "Runtime"),
    "mtia": ("mtia_ccp_events", "mtia_ccp_events", "mtia_runtime"),
    "hpu": ("hpu_op", "hpu_copy", "privateuse1_runtime"),
    "xpu": ("kernel", "gpu_memcpy", "xpu_driver"),
    "npu": ("of_my_npu", "PrivateUse1_Memcpy", "privateuse1_driver"),
}


def drawn_trace(rng: random.Random) -> tuple[bytes, str, dict[object, tuple[int, int, int]], dict[str, int], int]:
    """Return a file's bytes, its suffix, each device's span, busy and compute time, operators' self times, backward.

    Times are whole ns, written as decimals of µs; self time is that of the latest event that has begun and not ended.
    """
    kernel, copy, call = rng.choice([*MAKERS.values()])
    base = rng.choice([0, 5, 151_000_000_000, 5_100_000_000_000, 1_615_207_264_505_000, 4_102_444_800_000_000])
    tick = rng.choice([1, 1000])
    devices: dict[object, tuple[int, int, int]] = {}
    events, correlation = [], 0
    process = rng.sample([0, 1, 2, 3, 7, 40, "GPU 0", "GPU 1", "cuda:1"], rng.randint(0, 3))
    for at, pid in enumerate(process):
        work: list[tuple[str, int, int]] = []  # a kernel or a copy, its begin and its end
        for stream in rng.sample([7, 20, 24], rng.randint(1, 2)):
            now = rng.randint(0, 5000) * tick
            for _ in range(rng.randint(1, 12)):
                now, took = now + rng.choice([0, 1, 500, 9000]) * tick, rng.choice([0, 1, 999, 3000, 12_345]) * tick
                is_copy = rng.random() < 0.3
                correlation += 1
                args = {"correlation": correlation, "device": at, "stream": stream}
                name, category = ("Memcpy HtoD (Pageable -> Device)", copy) if is_copy else ("gemm", kernel)
                events.append((name, category, pid, stream, now, took, args))
                work.append((name, now, now + took))
                now += took
        span = max(end for _, _, end in work) - min(begin for _, begin, _ in work)
        compute = _self_times([one for one in work if one[0] == "gemm"]).total()
        devices[pid] = (span, _self_times(work).total(), compute)
    own: Counter[str] = Counter()
    backward, links = 0, []
    for thread in range(rng.randint(1, 3)):
        mine = []
        for i in range(rng.randint(1, 14)):
            begin, took = rng.randint(0, 40_000) * tick, rng.choice([1, 1000, 2000, 30_000]) * tick
            if any((begin, took) == one[4:6] for one in mine):
                continue  # of two events with one interval, which is the outer one is no arithmetic
            category = rng.choice(["cpu_op", "cpu_op", call, "user_annotation", "python_function"])
            mine.append((f"op {thread} {i}", category, 900, 900 + thread, begin, took, {}))
        events += mine
        spans = [(name, begin, begin + took) for name, _, _, _, begin, took, _ in mine]
        if thread == 0 and rng.random() < 0.5:
            nodes, caller = _backward(rng, tick), rng.choice([None, None, 900, 901])
            links += [_link(end, track, base, nodes[0][1]) for end, track in (("s", caller), ("f", 990)) if caller]
            events += [(name, "cpu_op", 900, 990, begin, end - begin, {}) for name, begin, end in nodes]
            own.update({name: end - begin for name, begin, end in nodes})
            edges = {edge for _, *ends in spans for edge in ends}
            waited = [one for one in nodes if caller != 901 and min(edges) <= one[1] and one[2] <= max(edges)
                      and not any(one[1] < edge < one[2] for edge in edges)]  # fmt: skip
            spent = _self_times(spans + waited)
            backward = sum(spent.pop(name, 0) for name, _, _ in waited)
            own.update(spent)
        else:
            own.update(_self_times(spans))
    entries = [
        {
            "ph": "X",
            "name": n,
            "cat": c,
            "pid": p,
            "tid": t,
            "ts": _decimal(rng, base * 1000 + s),
            "dur": rng.choice([d / 1000, str(d / 1000)]),
        }
        | ({"args": args} if args else {})
        for n, c, p, t, s, d, args in events
    ]
    entries += links + _marks(rng, base, process)
    rng.shuffle(entries)
    whole: object = {"schemaVersion": 1, "traceEvents": entries} if rng.random() < 0.7 else entries
    content = re.sub('"@([^@]+)@"', r"\1", json.dumps(whole, indent=rng.choice([None, 1]))).encode()
    right = devices, {name: took for name, took in own.items() if took}, backward
    if rng.random() < 0.3:
        return gzip.compress(content, 1), ".json.gz", *right
    return content, ".json", *right


def _decimal(rng: random.Random, ns: int) -> str:
    """Return a time as µs with all its decimals: as text, or between marks that the writer takes away."""
    if rng.random() < 0.1:
        return f"{ns // 1000}.{ns % 1000:03}"
    if rng.random() < 0.2 and ns:
        return f"@{str(ns)[0]}.{str(ns)[1:] or 0}e{len(str(ns)) - 4:+}@"
    return f"@{ns // 1000}.{ns % 1000:03}@"


def _link(end: str, track: int, base: int, ns: int) -> dict[str, object]:
    """Return an end of a link from a thread's forward pass to autograd's thread."""
    return {"ph": end, "cat": "fwdbwd", "name": "fwdbwd", "id": 3, "pid": 900, "tid": track, "ts": base + ns / 1000}


def _backward(rng: random.Random, tick: int) -> list[tuple[str, int, int]]:
    """Return nodes of a backward pass, one after another: name, begin, end."""
    nodes, now = [], rng.randint(0, 20_000) * tick
    for i in range(rng.randint(1, 6)):
        end = now + rng.choice([1, 500, 4000]) * tick
        nodes.append((f"autograd::engine::evaluate_function: Node{i}Backward0", now, end))
        now = end + rng.choice([0, 1, 3000]) * tick
    return nodes


def _marks(rng: random.Random, base: int, process: list[object]) -> list[dict[str, object]]:
    """Return events that are no work: marks on a device, flows, counters, names."""
    on = {"ph": "X", "pid": process[0] if process else 0, "tid": 7, "dur": 500, "ts": base + 1, "name": "mark"}
    kinds = ["gpu_user_annotation", "cuda_sync", "overhead", "mtia_insight"] * bool(process)
    found: list[dict[str, object]] = [on | {"cat": kind, "args": {"device": 0}} for kind in kinds if rng.random() < 0.3]
    found.append({"ph": "s", "id": 1, "ts": base, "name": "ac2g"})
    found.append({"ph": "M", "name": "process_name", "pid": 0, "args": {}})
    return found + [{"ph": "C", "name": "GPU utilization", "ts": base, "args": {"value": 1}}] * (rng.random() < 0.5)


def _self_times(spans: list[tuple[str, int, int]]) -> Counter[str]:
    """Return each event's time in which it is the latest that has begun and not ended; of equals the shorter one.

    Their total is the time in which something runs.
    """
    edges = sorted({edge for _, begin, end in spans for edge in (begin, end)})
    own: Counter[str] = Counter()
    for a, b in pairwise(edges):
        there = [(begin, -end, name) for name, begin, end in spans if begin <= a and b <= end]
        if there:
            own[max(there)[2]] += b - a
    return own


def trace_fault(path: Path, devices: dict[object, tuple[int, int, int]], own: dict[str, int], backward: int) -> str:
    """Return how a trace is read: "read", "refused", or what is wrong."""
    try:
        report = trace.analyze(path)
    except InputError:
        return "refused"
    except Exception as error:
        return f"wrong: {type(error).__name__}: {error}"
    for pid, right in devices.items():
        row = report.breakdown[report.breakdown["device"] == pid]
        found = row[["span_us", "busy_us", "compute_us"]].to_numpy()[0] * 1000 if len(row) else []
        if len(row) != 1 or any(abs(a - b) > 0.5 for a, b in zip(found, right, strict=True)):
            return f"wrong: device {pid} {found} for {right}"
    if not devices and report.breakdown["busy_us"].notna().any():
        return "wrong: a device where there is none"
    ops = report.ops[report.ops["self_us"] > 0]
    read = dict(zip(ops["name"], (ops["self_us"] * 1000).round(), strict=True))
    if read != own:
        return f"wrong: self times {read} for {own}"
    in_stage = report.stages.set_index("stage")["self_us"]["backward"] * 1000
    if abs(in_stage - backward) > 0.5:
        return f"wrong: backward {in_stage} for {backward}"
    return "read"


class Around:
    """Wraps what yields batches, as users and libraries do."""

    def __init__(self, batches: Iterable[Any], kind: str) -> None:
        self.batches, self.kind = batches, kind

    def __iter__(self) -> Iterator[Any]:
        iterator = iter(self.batches)
        if self.kind == "prefetch":
            iterator = iter([*iterator])
        return (batch for batch in iterator) if self.kind == "generator" else iterator


def drawn_loader(rng: random.Random) -> tuple[bytes, str, Iterable[Any], list[list[int]], int]:
    """Return nothing for a file, a DataLoader in wrappers, the batches of its passes, and how many passes there are."""
    n, size, drop = rng.randint(1, 9), rng.randint(1, 4), rng.random() < 0.3
    workers, passes = rng.choice([0, 0, 0, 1, 2]), rng.randint(1, 3)
    made = DataLoader(range(n), size, drop_last=drop, num_workers=workers, persistent_workers=workers == 2)
    loader: Iterable[Any] = made
    for _ in range(rng.randint(0, 3)):
        loader = Around(loader, rng.choice(["prefetch", "generator", "iterator"]))
    batches = [[*range(n)][i : i + size] for i in range(0, n, size)]
    return b"", "", loader, [batch for batch in batches if len(batch) == size or not drop] * passes, passes


def loader_fault(_: Path, loader: Iterable[Any], batches: list[list[int]], passes: int) -> str:
    """Return how a loader in wrappers is timed: "read", or what is wrong."""
    with loader_times() as times:
        found = [batch.tolist() for _ in range(passes) for batch in loader]
    timed = [len(each.batches) for each in times.passes]
    right = [len(batches) // passes] * passes
    return "read" if found == batches and timed == right else f"wrong: {found}, {timed} for {batches}, {right}"


Draw = Callable[[random.Random], tuple]


def variants(count: int, seed: int, draw: Draw, fault: Callable[..., str], folder: Path) -> Counter[str]:
    """Return how many drawn files are read, refused and wrong; print what is wrong."""
    counts: Counter[str] = Counter()
    for i in range(count):
        content, suffix, *right = draw(random.Random(f"{seed} {i}"))
        path = folder / f"file{suffix}"
        path.write_bytes(content)
        found = fault(path, *right)
        counts[found.split(":")[0]] += 1
        if found.startswith("wrong"):
            print(f"  {draw.__name__} {i}: {found[:200]} {content[:160]!r}", flush=True)
    print(f"{draw.__name__}: {count:,}, of which {dict(counts)}", flush=True)
    return counts


def main(*, tables: int = 10_000, traces: int = 2000, loaders: int = 200, seed: int = 0) -> int:
    with tempfile.TemporaryDirectory() as folder:
        wrong = variants(tables, seed, drawn_table, table_fault, Path(folder))["wrong"]
        wrong += variants(traces, seed, drawn_trace, trace_fault, Path(folder))["wrong"]
        wrong += variants(loaders, seed, drawn_loader, loader_fault, Path(folder))["wrong"]
    return int(wrong > 0)


if __name__ == "__main__":
    main.__doc__ = __doc__
    run(main)
