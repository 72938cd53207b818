"""Everything that needs a GPU, most valuable first: one command, one log with a verdict a part, rows as each part ends.

    python benchmarks/gpu.py [--device cuda] [--scale 1.0] [--parts abcdefghij] [--out runs/gpu] [--minutes 9]

`make gpu` runs it. Each part is a process of its own, of at most nine minutes. What a part measured is in
`OUT/<part>_<name>.csv`, its words in `OUT/<part>.log`, its verdict in `OUT/<part>.json`, and a line of each in
`OUT/log.txt`. Started again, it goes on with the first part that has not passed; parts that sweep points, or race,
go on where they were. (d) and (g) write a recording, which notebooks show on any machine: on CUDA into
`data_samples/recordings/<device>/`, otherwise under OUT. No notebook package is needed. What is missing is said first.

A rehearsal of every part, of what can be shown on a CPU:

    python benchmarks/gpu.py --device cpu --scale 0.02 --out DIR
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # nothing need be installed

from tclab._child_process import child_command
from tclab._io import atomic_write

ROOT = Path(__file__).resolve().parents[1]

if TYPE_CHECKING:
    import pandas as pd

    from tclab import Point

# beside torch and what `pip install '.[sweep]'` brings
WANTED = {
    "triton": "our kernels, in (c) and (j)",
    "lightning": "Lightning's loop, in (e)",
    "pytest": "the tests that need CUDA, in (b)",
    "xdist": "the tests that need CUDA, in (b)",
    "hypothesis": "the tests that need CUDA, in (b)",
}
PLACEMENT = "edge_mask,node_mask,delta"
FIRST = {"indices", "fastest", *PLACEMENT.split(",")}  # in the order of what matters


@dataclass(frozen=True)
class Settings:
    """What every part is told; see the options of this command."""

    device: str
    scale: float
    out: Path
    minutes: float

    @property
    def whole(self) -> bool:
        """Whether this is the real size, and not a rehearsal."""
        return self.scale >= 0.5

    @property
    def seconds(self) -> float:
        """Seconds in which a part begins new work; the rest of its minutes is for what has begun."""
        return 45 * self.minutes if self.whole else 6.0

    def keep(self, part: str, name: str, rows: pd.DataFrame | Iterable[dict[str, Any]]) -> pd.DataFrame:
        """Print rows and write them to disk; return them."""
        import pandas as pd

        frame = rows if isinstance(rows, pd.DataFrame) else pd.DataFrame(list(rows))
        atomic_write(self.out / f"{part}_{name}.csv", frame.to_csv(index=False))
        print(frame.to_string(index=False, max_colwidth=60, float_format=lambda x: f"{x:.6g}"), flush=True)
        return frame

    def recordings(self) -> Path:
        """Return the folder of this machine's recording."""
        from tclab.timing import environment

        here = environment()
        name = str(here["gpu"] if self.device == "cuda" else here["cpu"])
        folder = ROOT / "data_samples" / "recordings" if self.device == "cuda" else self.out / "recordings"
        return folder / re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


Verdict = tuple[bool, str]


def environment_and_smoke(s: Settings) -> Verdict:
    """(a) The environment, and one small point from its check to its rows."""
    import torch

    import tclab
    from tclab import Point
    from tclab.timing import conditions, environment

    here = {**environment(), **conditions(), "triton": version("triton") if find_spec("triton") else None}
    atomic_write(s.out / "a_environment.json", json.dumps(here, indent=1) + "\n")
    rows = tclab.run(Point(scale=min(s.scale, 0.1), batch_size=2, networks=3, device=s.device, workers=0))
    step = s.keep("a", "smoke", rows[rows["stage"] == "step"].loc[:, ["status", "median_seconds", "peak_bytes"]])
    where = here["gpu"] if s.device == "cuda" else here["cpu"]
    ok = bool((step["status"] == "ok").all()) and (s.device == "cpu" or torch.cuda.is_available())
    return ok, f"{where}, torch {torch.__version__}, triton {here['triton'] or 'missing'}; a small step: " + (
        f"{1e3 * step['median_seconds'].iloc[0]:.2f} ms" if ok else step["status"].iloc[0]
    )


def equivalence_and_tests(s: Settings) -> Verdict:
    """(b) Every exact strategy in every dtype through the equivalence check, and the tests that need CUDA."""
    import torch

    import tclab
    from tclab.masking import get, names
    from tclab.training._equivalence import equivalence_reference

    every = [name for name in names() if get(name).masks_graph and get(name).exact]
    dtypes = ("float32", "float64", "bfloat16")
    asked = [(name, dtype, False) for name in every for dtype in dtypes]
    if s.device == "cuda":
        asked += [(name, dtype, True) for name in ("node_mask", "delta") for dtype in dtypes]
    if not s.whole:
        asked = [(name, "bfloat16", False) for name in PLACEMENT.split(",")]
    graph = tclab.CellGraph.synthetic(0.01, seed=1, metabolism=False).select(2).to(s.device)
    reference = equivalence_reference(tclab.models.get("hetero_cell").sized(hidden=16, layers=2), graph)
    found = []
    for strategy, dtype, compiled in asked:
        torch.compiler.reset()
        result = reference.compare(strategy, dtype=dtype, compile=compiled)
        found.append({"strategy": strategy, "dtype": dtype, "compiled": compiled, "passed": result.passed,
                      "fp64_error": result.fp64_error, "ratio": result.fp32_ratio})  # fmt: skip
    frame = s.keep("b", "equivalence", found)
    failed = frame[~frame["passed"]]
    words = f"{len(frame)} checks of the strategies, {len(failed)} failed"
    if not failed.empty:
        words += f" ({', '.join((failed['strategy'] + ' ' + failed['dtype']).tolist())})"
    if any(find_spec(name) is None for name in ("pytest", "xdist", "hypothesis")):
        return failed.empty, words + "; the tests that need CUDA were left out"
    tests = ["tests/test_ledger_device.py"]
    code = subprocess.run([sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests], cwd=ROOT).returncode
    return failed.empty and code == 0, f"{words}; the tests that need CUDA {'passed' if code == 0 else 'FAILED'}"


def layer(s: Settings) -> Verdict:
    """(c) One layer's sums over all networks, forward and backward: each kernel, in fp32 and bf16."""
    import torch
    from layer import arms, compare

    rows: list[dict[str, Any]] = []
    # the interpreter gets bfloat16 wrong
    dtypes = (torch.float32, torch.bfloat16 if s.device == "cuda" else torch.float16)
    for size in (28, 64) if s.whole else (2,):
        for dtype in dtypes:
            rows += compare(arms(s.scale, size, dtype, s.device), s.device, batch_size=size, dtype=dtype)
            frame = s.keep("c", "layer", rows)
    ok = frame[frame["status"] == "ok"]
    at = ok[ok["batch_size"] == size].sort_values("seconds")
    words = "; ".join(f"{row.kernel} {row.dtype} {1e3 * row.seconds:.3g} ms" for row in at.itertuples())
    words += f" (batch {size}, forward and backward{'' if s.device == 'cuda' else ', tiles interpreted'})"
    there = find_spec("triton") is None or "tiles" in set(at["kernel"])
    ours = ok[ok["kernel"].isin(["sparse library", "tiles"])]  # scatter adds up in the dtype itself
    return there and bool((ours["error"] <= ours["allowed"]).all()), words


def steps(s: Settings) -> Verdict:
    """(d) The whole step: every strategy of HeteroCell, and DANGO, over batch sizes; memory beside `fits`."""
    import pandas as pd

    sizes = (28, 2, 4, 8, 16, 64) if s.whole else (2,)
    points = _points(s, sizes, (), ("float32", "bfloat16") if s.whole else ("float32",))
    points.sort(key=lambda p: (p.strategy not in FIRST, p.dtype != "float32"))  # the front page's table first
    rows = _recorded(s, "d", points)
    step = rows[rows["stage"] == "step"].copy()
    estimated = [_estimated(row) for row in step.to_dict("records")]
    columns = ["model", "strategy", "batch_size", "dtype", "status", "median_seconds", "samples_per_second"]
    frame = s.keep("d", "steps", step.loc[:, [*columns, "peak_bytes", "host_syncs"]].assign(fits_bytes=estimated))
    ok = frame[frame["status"] == "ok"]
    plain = frame[frame["dtype"] == "float32"].copy()
    plain["rate"] = plain["samples_per_second"].map("{:,.4g}".format).where(plain["status"] == "ok", plain["status"])
    table = plain.pivot(index=["model", "strategy"], columns="batch_size", values="rate").fillna("")
    s.keep("d", "samples_per_second", table.reset_index())
    best = ok[(ok["model"] == "hetero_cell")].nlargest(1, "samples_per_second")
    dango = ok[ok["model"] == "dango"].nlargest(1, "samples_per_second")
    if best.empty or dango.empty:
        return False, f"{len(ok)} of {len(frame)} points were measured"
    ratio = dango["samples_per_second"].iloc[0] / best["samples_per_second"].iloc[0]
    failed = frame["status"].str.startswith("failed").sum()
    near = (ok["peak_bytes"].astype("Float64") / pd.Series(ok["fits_bytes"], dtype="Float64")).median()
    memory = "" if pd.isna(near) else f"; peak memory {near:.2f} × what fits says (median)"
    return failed == 0, (
        f"{len(ok)} of {len(frame)} points; HeteroCell at best {best['samples_per_second'].iloc[0]:.4g} samples/s "
        f"({best['strategy'].iloc[0]}, batch {best['batch_size'].iloc[0]}, {best['dtype'].iloc[0]}), "
        f"DANGO {ratio:.3g} × that{memory}"
    )


def _estimated(row: dict[str, Any]) -> int | None:
    from tclab import InputError, fits
    from tclab.sweeps.store._rows import point_of

    try:
        found = fits(point_of(row))
    except InputError:
        return None
    return int(found.host if row["device"] == "cpu" else found.device)


def _points(s: Settings, sizes: Iterable[int], networks: Iterable[int], dtypes: Iterable[str]) -> list[Point]:
    """Return points of every strategy and DANGO, what matters most first."""
    from tclab import Point
    from tclab.masking import get, names

    masked = [name for name in names() if get(name).masks_graph]
    first = PLACEMENT.split(",")
    masked = first + [name for name in masked if name not in first] if s.whole else ["node_mask"]
    ways: list[dict[str, Any]] = [{"model": "dango", "strategy": "indices"}, *({"strategy": name} for name in masked)]
    common = {"device": s.device, "scale": s.scale, "steps": 20 if s.whole else 2, "workers": 2 if s.whole else 0}
    counts = list(networks) or [None]
    return [
        Point(**way, batch_size=size, networks=count, dtype=dtype, **common)
        for size in sizes
        for dtype in dtypes
        for count in counts
        for way in ways
    ]


def _recorded(s: Settings, part: str, points: list[Point]) -> pd.DataFrame:
    """Sweep points into this machine's recording, and write what it holds by now."""
    import tclab
    from tclab.sweeps import close_workers
    from tclab.timing import environment

    folder = s.recordings()
    folder.mkdir(parents=True, exist_ok=True)
    kept = s.out / "rows"  # one file a point; the recording is one of all
    budget = s.seconds if s.whole or part == "g" else None  # the few of a rehearsal all run
    rows = tclab.sweep(points, results=kept, budget_seconds=budget)
    close_workers()
    atomic_write(folder / "rows.parquet", tclab.rows(kept).to_parquet(index=False))
    atomic_write(folder / "environment.json", json.dumps(environment(), indent=1) + "\n")
    return rows


def trust(s: Settings) -> Verdict:
    """(e) The ledger's accounted share, spike-in and cost, and the host's waits for the device in each strategy."""
    import pandas as pd
    from ledger_trust import closure, cost, spikes

    import tclab
    from tclab import Point

    small = min(s.scale, 0.1)
    waits = []
    for strategy in PLACEMENT.split(",") if s.whole else ["node_mask"]:
        rows = tclab.run(Point(strategy=strategy, scale=small, batch_size=4, steps=2, device=s.device, workers=0))
        step = rows[rows["stage"] == "step"].iloc[0]
        waits.append({"strategy": strategy, "status": step["status"], "host_syncs": step["host_syncs"]})
    syncs = s.keep("e", "syncs", waits)
    closed = s.keep("e", "closure", closure(small, 6, 10) if s.whole else closure(small, 1, 3, modes=["step"]))
    bill = cost(min(60.0, s.seconds / 2))
    ratio = bill.race.pair("instrumented", "bare").ratio
    s.keep("e", "cost", [{"cut_seconds": bill.cut_seconds, "ratio": ratio, "step_seconds": bill.step_seconds}])
    given = spikes(small, 3, 1000) if s.whole else spikes(small, 1, 8, seconds=(0.002,), steps=4)
    came = [
        {"stage": t.stage, "injected_seconds": t.injected_seconds, "recovered": t.recovered()} for t in given.trials
    ]
    s.keep("e", "spikes", came)
    share = closed["closed"].sum() / closed["blocks"].sum()
    right = share >= 0.95 and bool(pd.Series(syncs["status"] == "ok").all())
    asked = "" if s.whole else " (a rehearsal: no share is asked for)"
    passed = right and given.share() >= 0.95 if s.whole else bool((syncs["status"] == "ok").all())
    return passed, (
        f"{share:.0%} of the blocks closed within 2 %, {given.share():.0%} of the delays came back within 10 %{asked}; "
        f"the ledger costs {1e6 * bill.cut_seconds:.1f} µs a step; waits of the host: "
        + ", ".join(f"{row.strategy} {row.host_syncs}" for row in syncs.itertuples())
    )


def race(s: Settings) -> Verdict:
    """(f) A race of whole steps with its A/A: the same point twice must be no faster than itself."""
    from tclab import Point
    from tclab.sweeps.analysis._race_points import race_points
    from tclab.timing._verdict import FASTER, SLOWER

    common = {"scale": s.scale, "batch_size": 8 if s.whole else 2, "device": s.device, "workers": 0}
    same = Point(strategy="node_mask", **common)
    arms = {"node_mask": same, "node_mask again": same, "edge_mask": Point(strategy="edge_mask", **common)}
    result = race_points(arms, budget_seconds=s.seconds if s.whole else 4, processes=None, record=s.out / "f_race")
    print(result, flush=True)
    again, other = (result.pair("node_mask", name) for name in ("node_mask again", "edge_mask"))
    s.keep("f", "pairs", [
        {"a": "node_mask", "b": b, "verdict": pair.verdict, "ratio": pair.ratio, "interval": pair.interval}
        for b, pair in (("node_mask again", again), ("edge_mask", other))
    ])  # fmt: skip
    return again.verdict not in (FASTER, SLOWER), (
        f"node_mask against itself: {again.verdict}; against edge_mask: {other.verdict}, "
        f"{'no ratio' if other.ratio is None else f'{other.ratio:.3g} × the time'}"
    )


def record(s: Settings) -> Verdict:
    """(g) The sweep and the recording for the notebooks: batch sizes, networks and modes."""
    from tclab.sweeps.config import in_each_mode

    middle = 28 if s.whole else 2
    more = {"scale": s.scale, "steps": 20 if s.whole else 2, "gpus": 1 if s.device == "cuda" else 0,
            "workers": 2 if s.whole else 0}  # fmt: skip
    modes = "edge_mask,node_mask,delta,indices" if s.whole else "node_mask,indices"
    points = in_each_mode(models="hetero_cell,dango", strategies=modes, batch_sizes=middle, **more)
    points += _points(s, (middle,), range(1, 10) if s.whole else (1,), ("float32",))
    points += _points(s, (1, 32, 128), (), ("float32",)) if s.whole else []
    rows = _recorded(s, "g", list(dict.fromkeys(points)))
    step = rows[rows["stage"] == "step"]
    s.keep(
        "g", "steps", step.loc[:, ["model", "strategy", "networks", "batch_size", "mode", "status", "median_seconds"]]
    )
    left = int(step["status"].str.startswith("not run: the budget").sum())
    failed = int(step["status"].str.startswith("failed").sum())
    words = f"{int((step['status'] == 'ok').sum())} of {len(step)} points recorded in {s.recordings().name}"
    return failed == 0 and (not left or not s.whole), words + (f"; {left} are left: run it again" if left else "")


def ranks(s: Settings) -> Verdict:
    """(h) One rank of NCCL (gloo on a CPU): DDP's step beside the plain one."""
    import torch
    from torch import distributed

    import tclab
    from tclab import masking
    from tclab.perturbation import synthetic_perturbations
    from tclab.timing import Ledger, race
    from tclab.training._distributed import Exchange
    from tclab.training._loading import Batches
    from tclab.training._loops import run_plain
    from tclab.training._step import Step

    size = 28 if s.whole else 2
    graph = tclab.CellGraph.synthetic(s.scale).without_metabolism()
    strategy, kind = masking.get("node_mask"), tclab.models.get("hetero_cell")
    data = Batches(strategy(graph), synthetic_perturbations(graph, size), size)
    backend = "nccl" if s.device == "cuda" else "gloo"
    if not distributed.is_initialized():
        distributed.init_process_group(backend, store=distributed.HashStore(), rank=0, world_size=1)
    here = graph.to(s.device)
    arms = {name: Step(kind, strategy(here), exchange=how) for name, how in (("plain", None), ("ddp", Exchange()))}

    def step(name: str) -> Callable[[], object]:
        return lambda: run_plain(arms[name], [data[0]], steps=1, ledger=Ledger(cuda=False))

    tensor = torch.ones(sum(p.numel() for p in arms["plain"].model.parameters()), device=s.device)
    distributed.all_reduce(tensor)
    whole = bool((tensor == 1).all())
    calls = {name: step(name) for name in arms}
    calls["all_reduce"] = lambda: distributed.all_reduce(tensor)
    found = race(calls, budget_seconds=min(120, s.seconds / 3))
    pair = found.pair("ddp", "plain")
    distributed.destroy_process_group()
    s.keep("h", "ranks", [{"backend": backend, "ddp_over_plain": pair.ratio, "interval": pair.interval}])
    ratio = "?" if pair.ratio is None else f"{pair.ratio:.3f}"
    return whole, f"{backend}, one rank: a DDP step takes {ratio} × the plain one"


def traced(s: Settings) -> Verdict:
    """(i) torch.profiler's trace of our own step, read by `tclab.trace`: its stages against the ledger's."""
    from trace_against_clock import compare

    folder = s.out / "i_trace"
    folder.mkdir(exist_ok=True)
    report, table = compare(folder, steps=30 if s.whole else 6, scale=min(s.scale, 0.3), device=s.device)
    print(report, flush=True)
    s.keep("i", "stages", table.reset_index(names="part"))
    least = 0.01 * table["ledger_us"].sum()
    worst = table[table["ledger_us"] > least]["difference"].abs().max()
    return bool(worst <= 0.05) or not s.whole, f"trace and ledger agree within {worst:.1%} (5 % allowed at full size)"


def launches_tried(s: Settings) -> Verdict:
    """(j) Launches of the tile kernel, timed."""
    if find_spec("triton") is None:
        return True, "no launches of the tiles: Triton is not installed"
    import torch
    from layer import launches

    import tclab

    graph = tclab.CellGraph.synthetic(s.scale).without_metabolism()
    asked = (64, torch.bfloat16, "cuda", 20) if s.device == "cuda" else (2, torch.float16, "cpu", 1)
    tried = s.keep("j", "launches", launches(graph, *asked))
    if "seconds" not in tried or tried["seconds"].isna().iloc[0]:
        return False, f"today's launch of the tiles {tried['status'].iloc[0]}"
    return True, f"the fastest launch takes {tried['seconds'].min() / tried['seconds'].iloc[0]:.2f} × today's"


PARTS: dict[str, Callable[[Settings], Verdict]] = {
    "a": environment_and_smoke,
    "b": equivalence_and_tests,
    "c": layer,
    "d": steps,
    "e": trust,
    "f": race,
    "g": record,
    "h": ranks,
    "i": traced,
    "j": launches_tried,
}


def title(part: str) -> str:
    """Return what a part is, without its letter."""
    return str(PARTS[part].__doc__).splitlines()[0][4:]


def run_part(part: str, s: Settings) -> None:
    """Run a part in this process and write its verdict."""
    if s.device == "cpu":
        import torch

        torch.set_num_threads(1)
    passed, words = PARTS[part](s)
    found = {"passed": bool(passed), "says": words}
    atomic_write(s.out / f"{part}.json", json.dumps(found) + "\n")


def verdict_of(part: str, s: Settings) -> dict[str, Any] | None:
    """Return a part's verdict; `None` where it has none yet."""
    path = s.out / f"{part}.json"
    return json.loads(path.read_text()) if path.exists() else None


def in_a_process(part: str, s: Settings) -> dict[str, Any]:
    """Run a part in a process of its own, which ends after its minutes and with this one, and return its verdict."""
    (s.out / f"{part}.json").unlink(missing_ok=True)
    how = ["--device", s.device, "--scale", str(s.scale), "--out", str(s.out), "--minutes", str(s.minutes)]
    path = os.pathsep.join([str(ROOT), str(ROOT / "benchmarks"), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1", "TCLAB_PARENT_PID": str(os.getpid())}
    environment.setdefault("TCLAB_CACHE", str(s.out / "cache"))
    if s.device == "cpu":
        environment |= {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
        environment |= {"TRITON_INTERPRET": "1"} if part in "cj" else {}  # it is no way to run a step
    with (
        (s.out / f"{part}.log").open("ab") as log,
        subprocess.Popen(
            child_command("gpu", *how, "--here", part), stdin=subprocess.PIPE, stdout=log, stderr=subprocess.STDOUT,
            env=environment, start_new_session=True,
        ) as child,
    ):  # fmt: skip
        try:
            why = f"ended with {child.wait(60 * s.minutes)}"
        except subprocess.TimeoutExpired:
            why = f"ran over {s.minutes:g} minutes"
        finally:
            with suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
    last = (s.out / f"{part}.log").read_text(errors="replace").strip().splitlines()[-1:] or ["it said nothing"]
    return verdict_of(part, s) or {"passed": False, "says": f"{why}: {last[0]}"}


def drive(s: Settings, parts: str) -> int:
    """Run the parts that have not passed; return how many did not pass."""
    s.out.mkdir(parents=True, exist_ok=True)
    asked = json.dumps({"device": s.device, "scale": s.scale})
    mark = s.out / "settings.json"
    if mark.exists() and mark.read_text() != asked:
        sys.exit(f"{s.out} is of {mark.read_text()}: give another --out for {asked}")
    atomic_write(mark, asked)

    def say(line: str) -> None:
        print(line, flush=True)
        with (s.out / "log.txt").open("a") as log:
            log.write(line + "\n")

    for name, what in WANTED.items():
        if find_spec(name) is None:
            say(f"missing package {name}, and with it {what}")
    failed = 0
    for part in parts:
        found = verdict_of(part, s)
        how, begin = "passed before", time.monotonic()
        if found is None or not found["passed"]:
            found = in_a_process(part, s)
            how = f"{'passed' if found['passed'] else 'FAILED'}, {time.monotonic() - begin:.0f} s"
        failed += not found["passed"]
        say(f"({part}) {how}: {title(part)}\n    {found['says']}")
    say(f"{len(parts) - failed} of {len(parts)} parts passed; rows in {s.out}")
    return failed


def main() -> None:
    """Run parts in processes of their own, or one of them here."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--parts", default="".join(PARTS))
    parser.add_argument("--out", type=Path, default=ROOT / "runs" / "gpu")
    parser.add_argument("--minutes", type=float, default=9.0, help="of one part, at most")
    parser.add_argument("--here", choices=tuple(PARTS), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if unknown := set(options.parts) - set(PARTS):
        parser.error(f"unknown parts {''.join(sorted(unknown))}; there are {''.join(PARTS)}")
    s = Settings(options.device, options.scale, options.out.resolve(), options.minutes)
    if options.here:
        run_part(options.here, s)
    else:
        failed = drive(s, options.parts)
        if s.device == "cuda" and find_spec("pandas"):
            sys.path.insert(0, str(ROOT / "tools"))
            import readme_figures

            readme_figures.main()
        sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
