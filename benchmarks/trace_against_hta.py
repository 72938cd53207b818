"""Time and memory of analysing a trace, compared with Holistic Trace Analysis on the same file in the same run.

    python benchmarks/trace_against_hta.py --hta-python VENV/bin/python [--rounds 5] [--megabytes 50 300]
    python benchmarks/trace_against_hta.py --megabytes 54 --snapshot 1500    # ours alone, and a memory snapshot

HTA (package `traceinsight`) may be in a separate environment. Each measurement is a fresh child process; the two take
turns, and each round starts with the other one. Inside a child the clock runs
from after the imports to the summary: `analyze` with all its tables and findings here, parsing and the
temporal breakdown there. The ratios are the result, not the absolute times. Ours is also timed without the analysis,
`read_trace` alone, which uses one core: its processor time is what it takes on a machine with nothing else to do.

`--snapshot` writes a CUDA memory snapshot of so many megabytes in torch's format and prints the seconds that
`memory_owners` takes and the largest resident set of its process.
"""

import argparse
import json
import random
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

OURS = """
import json, resource, sys, time
from pathlib import Path
import tclab.trace
from tclab.trace._events import read_trace
begin = time.perf_counter()
report = tclab.trace.analyze(sys.argv[1])
seconds = time.perf_counter() - begin
row = report.breakdown.iloc[0]
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
begin, used = time.perf_counter(), time.process_time()
read_trace(Path(sys.argv[1]))
read, processor = time.perf_counter() - begin, time.process_time() - used
print(json.dumps({"seconds": seconds, "peak_bytes": peak, "compute_us": float(row.compute_us),
                  "read": read, "processor": processor}))
"""
OWNERS = """
import json, sys, time
import tclab.trace
begin = time.perf_counter()
found = tclab.trace.memory_owners(sys.argv[1])
seconds = time.perf_counter() - begin
peak = int(open("/proc/self/status").read().split("VmHWM:")[1].split()[0]) * 1024  # maxrss begins with the parent's
first = found.owners.iloc[0]
print(json.dumps({"seconds": seconds, "peak_bytes": peak, "owner": f"{first.line}, {first.bytes} bytes"}))
"""
THEIRS = """
import json, logging, resource, sys, time
from hta.trace_analysis import TraceAnalysis
logging.disable(logging.CRITICAL)
begin = time.perf_counter()
table = TraceAnalysis(trace_files={0: sys.argv[1]}, trace_dir="").get_temporal_breakdown(visualize=False)
seconds = time.perf_counter() - begin
both = resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN
peak = max(resource.getrusage(who).ru_maxrss for who in both) * 1024
print(json.dumps({"seconds": seconds, "peak_bytes": peak,
                  "compute_us": float(table["compute_time(us)"].iloc[0])}))
"""

LAYERS = ("linear1", "linear2", "attention", "norm", "readout")
OPS = (
    "aten::linear",
    "aten::addmm",
    "aten::relu",
    "aten::index_select",
    "aten::scatter_add",
    "aten::mul",
    "aten::sum",
)
KERNELS = (
    "ampere_sgemm_128x64_tn",
    "void at::native::vectorized_elementwise_kernel<4, at::native::MulFunctor<float>, Array<char*, 3>>",
    "void at::native::indexSelectLargeIndex<float, long, unsigned int, 2, 2, -2, true>(TensorInfo<float>)",
    "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
)


def write_trace(path: Path, megabytes: float) -> int:
    """A trace in kineto's own layout: steps of nested operators, each with its launch, flow and kernel."""
    rng = random.Random(0)
    head = {"schemaVersion": 1, "distributedInfo": {"backend": "nccl", "rank": 0, "world_size": 1}}
    count, step, number, now = 0, 0, 1, 4_203_669_603_187.0
    host, device = {"pid": 4000, "tid": 4000}, {"pid": 0, "tid": 7}
    free_at = now
    with path.open("w") as file:
        file.write(json.dumps(head, indent=2)[:-2] + ',\n  "traceEvents": [\n')
        first = True

        def put(event: dict[str, object]) -> None:
            nonlocal first, count
            file.write(("" if first else ",\n") + json.dumps(event, indent=2))
            first = False
            count += event["ph"] == "X"

        def span(category: str, name: str, begin: float, end: float, place: dict[str, int], **args: object) -> None:
            times = {"ts": round(begin, 3), "dur": round(end - begin, 3)}
            put({"ph": "X", "cat": category, "name": name, **place, **times, "args": args})

        while file.tell() < megabytes * 1e6:
            step += 1
            began = now
            for stage in ("forward", "backward", "optimizer"):
                stage_began = now
                for layer in LAYERS * 4:
                    layer_began = now
                    for _ in range(6):
                        op_began = now
                        now += rng.uniform(2, 9)
                        inner, launch = now, now + 1.5
                        free_at = max(free_at, launch + 4) + rng.uniform(0, 3)
                        lasts = rng.uniform(1.5, 40)
                        ids = {"External id": number, "correlation": number}
                        span("cuda_runtime", "cudaLaunchKernel", launch, launch + 4, host, cbid=211, **ids)
                        flow = {"id": number, "cat": "ac2g", "name": "ac2g"}
                        put({"ph": "s", **flow, **host, "ts": launch})
                        kernel = rng.choices(KERNELS, (40, 40, 15, 2))[0]
                        shape = {"device": 0, "stream": 7, "grid": [128, 1, 1], "block": [256, 1, 1]}
                        span("kernel", kernel, free_at, free_at + lasts, device, **shape, **ids)
                        put({"ph": "f", **flow, **device, "ts": free_at, "bp": "e"})
                        free_at += lasts
                        now += rng.uniform(7, 12)
                        inside = {"External id": number, "Sequence number": number, "Ev Idx": count}
                        span("cpu_op", rng.choice(OPS), inner, now - 0.5, host, **inside)
                        span("cpu_op", rng.choice(OPS), op_began, now, host, **inside)
                        number += 1
                    span(
                        "user_annotation",
                        f"## {layer} {stage} ##",
                        layer_began,
                        now,
                        host,
                        **{"Ev Idx": count},
                    )
                span("user_annotation", f"## {stage} ##", stage_began, now, host, **{"Ev Idx": count})
                now += 5
            span("user_annotation", f"ProfilerStep#{step}", began, now, host, **{"Ev Idx": count})
            now += 3
        file.write('\n  ],\n  "displayTimeUnit": "ms",\n  "baseTimeNanoseconds": 1719853884000000000\n}\n')
    return count


def measure(python: str, code: str, path: Path) -> dict[str, float]:
    done = subprocess.run([python, "-c", code, str(path)], capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stderr[-2000:])
    answer: dict[str, float] = json.loads(done.stdout.strip().splitlines()[-1])
    return answer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--hta-python", help="interpreter with traceinsight; without it only ours is measured")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--megabytes", type=float, nargs="+", default=[50, 300])
    parser.add_argument("--file", type=Path, help="a trace of your own instead of generated ones")
    parser.add_argument("--snapshot", type=int, metavar="MEGABYTES", help="a memory snapshot too")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if chosen.snapshot:
            sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
            from tests.trace.test_trace_owners import large

            path = large(Path(folder) / "snapshot.pickle", chosen.snapshot)
            found = measure(sys.executable, OWNERS, path)
            print(f"{path.name}: {path.stat().st_size / 1e6:.1f} MB\n  memory_owners: {found['seconds']:.0f} s, peak "
                  f"{found['peak_bytes'] / 1e9:.2f} GB; first: {found['owner']}", flush=True)  # fmt: skip
            path.unlink()
        for megabytes in [0] if chosen.file else chosen.megabytes:
            path = chosen.file or Path(folder) / f"trace_{megabytes:g}.json"
            if not chosen.file:
                write_trace(path, megabytes)
            tools = {"ours": (sys.executable, OURS)}
            if chosen.hta_python:
                tools["hta"] = (chosen.hta_python, THEIRS)
            runs: dict[str, list[dict[str, float]]] = {name: [] for name in tools}
            for turn in range(chosen.rounds):
                for name in sorted(tools, reverse=bool(turn % 2)):
                    runs[name].append(measure(*tools[name], path))
            print(f"{path.name}: {path.stat().st_size / 1e6:.1f} MB")
            for name, found in runs.items():
                times = sorted(run["seconds"] for run in found)
                peak = max(run["peak_bytes"] for run in found) / 1e9
                listed = " ".join(f"{time:.2f}" for time in times)
                print(f"  {name}: median {statistics.median(times):.2f} s of [{listed}], peak {peak:.2f} GB, "
                      f"compute {found[0]['compute_us']:.3f} µs")  # fmt: skip
                if name == "ours":
                    reads, used = (statistics.median(run[key] for run in found) for key in ("read", "processor"))
                    print(f"  ours, read alone: median {reads:.2f} s, {used:.2f} s of processor time")
            if "hta" in runs:
                pairs = zip(runs["hta"], runs["ours"], strict=True)
                ratios = sorted(theirs["seconds"] / ours["seconds"] for theirs, ours in pairs)
                middle = statistics.median(ratios)
                print(f"  hta / ours: median {middle:.1f} ×, from {ratios[0]:.1f} to {ratios[-1]:.1f}")
            if not chosen.file:
                path.unlink()


if __name__ == "__main__":
    main()
