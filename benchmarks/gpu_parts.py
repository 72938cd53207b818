"""The parts of `gpu.py`, which runs each in a process of its own: PART DEVICE SCALE OUT MINUTES."""

import json
import re
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import version
from importlib.util import find_spec
from itertools import islice, product
from pathlib import Path
from typing import Any, TypeVar

import pandas as pd
import torch
from gpu import PARTS, ROOT
from torch import distributed

import tclab
from tclab import Point, masking
from tclab._io import atomic_write
from tclab.sweeps import loop_of
from tclab.sweeps._measure import setup
from tclab.sweeps._point_inputs import resolve
from tclab.sweeps._rows import columns_of, keys_of
from tclab.sweeps._run import close_workers
from tclab.timing import Ledger, race, receipt, spike_in
from tclab.timing._environment import conditions, environment
from tclab.timing._ledger import Timer
from tclab.timing._verdict import ratio_text
from tclab.training._step import MODES, Step

STRATEGIES = ("edge_mask", "node_mask", "delta")
TIMED = (("hetero_cell", "node_mask"), ("hetero_cell", "edge_mask"), ("dango", "indices"))
FIRST = ("indices", *STRATEGIES)  # the front page's table
T = TypeVar("T")


@dataclass(frozen=True)
class Settings:
    """What every part is told."""

    device: str
    scale: float
    out: Path
    minutes: float

    @property
    def whole(self) -> bool:
        """Whether this is the real size, and not a rehearsal."""
        return self.scale >= 0.5

    def either(self, whole: T, rehearsed: T) -> T:
        """Return what is for the real size, or for a rehearsal."""
        return whole if self.whole else rehearsed

    @property
    def seconds(self) -> float:
        """Seconds in which a part begins new work; the rest of its minutes is for what has begun."""
        return self.either(45 * self.minutes, 6.0)

    def keep(self, name: str, rows: pd.DataFrame | Iterable[dict[str, Any]]) -> pd.DataFrame:
        """Print rows and write them to disk, as `<part>_<what>`; return them."""
        frame = rows if isinstance(rows, pd.DataFrame) else pd.DataFrame(list(rows))
        atomic_write(self.out / f"{name}.csv", frame.to_csv(index=False))
        print(frame.to_string(index=False, max_colwidth=60, float_format="{:.6g}".format), flush=True)
        return frame

    def recordings(self) -> Path:
        """Return the folder of this machine's recording."""
        on_cuda = self.device == "cuda"
        name = str(environment()["gpu" if on_cuda else "cpu"])
        folder = ROOT / "data_samples" / "recordings" if on_cuda else self.out / "recordings"
        return folder / re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


Verdict = tuple[bool, str]


def steps_of(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of whole steps."""
    return rows[rows["stage"] == "step"]


def environment_and_smoke(s: Settings) -> Verdict:
    triton = version("triton") if find_spec("triton") else "missing"
    here = {**environment(), **conditions(), "triton": triton}
    atomic_write(s.out / "a_environment.json", json.dumps(here, indent=1) + "\n")
    point = Point(scale=min(s.scale, 0.1), batch_size=2, networks=3, device=s.device, workers=0)
    step = s.keep("a_smoke", steps_of(tclab.run(point))[["status", "median_seconds", "peak_bytes"]])
    ok = bool((step["status"] == "ok").all())
    took = f"{1e3 * step['median_seconds'].iloc[0]:.2f} ms" if ok else step["status"].iloc[0]
    where = here["gpu" if s.device == "cuda" else "cpu"]
    return ok, f"{where}, torch {torch.__version__}, triton {triton}; a small step: {took}"


def equivalence(s: Settings) -> Verdict:
    from tclab.training._equivalence import EquivalenceReference

    every = [name for name in masking.names() if masking.get(name).masks_graph and masking.get(name).exact]
    dtypes = ("float32", "float64", "bfloat16")
    asked = [(name, dtype, False) for name in every for dtype in dtypes]
    if s.device == "cuda":
        asked += [(name, dtype, True) for name in ("node_mask", "delta") for dtype in dtypes]
    if not s.whole:
        asked = [("delta", "bfloat16", False)]
    graph = tclab.CellGraph.synthetic(0.01, seed=1, metabolism=False).select(2)
    kind = tclab.models.get("hetero_cell").sized(hidden=16, layers=2)
    reference = EquivalenceReference(lambda part: kind.build(part, "off").to(s.device).eval(), graph)
    found = []
    for strategy, dtype, compiled in asked:
        torch.compiler.reset()
        result = reference.compare(strategy, dtype=dtype, compile=compiled)
        found.append({"dtype": dtype, "compiled": compiled, **vars(result)})
    frame = s.keep("b_equivalence", found)
    failed = frame[~frame["passed"]]
    words = [f"{len(frame)} checks of the strategies", *(failed["strategy"] + " failed in " + failed["dtype"])]
    return failed.empty, ", ".join(words)


def captured(s: Settings) -> Verdict:
    from replay_on_cpu import captured_on_cpu

    batches, rows = 8, []
    with captured_on_cpu() if s.device == "cpu" else nullcontext():
        for size, dtype in product(s.either((28, 2, 8, 16), (2,)), s.either(("float32", "bfloat16"), ("float32",))):
            eager = Point(scale=s.scale, batch_size=size, dtype=dtype, device=s.device, workers=0)
            points, losses = {"captured": replace(eager, capture=True), "eager": eager}, {}
            for name, point in points.items():
                with setup(resolve(point), batches * size) as here:
                    losses[name] = [float(here.step(loaded.batch)) for loaded in islice(here.batches(), batches)]
            off = max(abs(a / b - 1) for a, b in zip(*losses.values(), strict=True))
            raced = tclab.sweeps.race_points(points, budget_seconds=s.either(s.seconds / 9, 2), processes=None)
            pair = raced.pair("captured", "eager")
            medians = pd.DataFrame(raced.samples()).groupby("arm")["seconds"].median()
            rows.append({"batch_size": size, "dtype": dtype, "off": off, "verdict": pair.verdict, "ratio": pair.ratio,
                         "interval": pair.interval, **medians.add_suffix("_seconds")})  # fmt: skip
            s.keep("j_captured", rows)
    allowed = {"float32": 1e-3, "bfloat16": 5e-2}  # sums by atomics, in another order each time
    words = "; ".join(f"batch {row['batch_size']} {row['dtype']} {row['ratio']:.3g}×" for row in rows if row["ratio"])
    same = all(row["off"] <= allowed[row["dtype"]] for row in rows)
    how = "" if s.device == "cuda" else " (a stand-in that replays nothing faster)"
    most = max(row["off"] for row in rows)
    return same, f"losses of {batches} batches differ by {most:.2g} at most; captured / eager time{how}: {words}"


def layer(s: Settings) -> Verdict:
    from layer import arms, compare

    rows: list[dict[str, Any]] = []
    # the interpreter gets bfloat16 wrong
    dtypes = (torch.float32, torch.bfloat16 if s.device == "cuda" else torch.float16)
    sizes = s.either((28, 64), (2,))
    for size in sizes:
        for dtype in dtypes:
            rows += compare(arms(s.scale, size, dtype, s.device), batch_size=size)
            frame = s.keep("c_layer", rows)
    ok = frame[frame["status"] == "ok"]
    at = ok[ok["batch_size"] == sizes[-1]].sort_values("seconds")
    words = "; ".join(f"{row.kernel} {row.dtype} {1e3 * row.seconds:.3g} ms" for row in at.itertuples())
    there = find_spec("triton") is None or "tiles" in set(at["kernel"])
    ours = ok[ok["kernel"].isin(["sparse library", "tiles"])]  # scatter adds up in the dtype itself
    how = "" if s.device == "cuda" else ", tiles interpreted"
    return there and bool((ours["error"] <= ours["allowed"]).all()), f"{words} (batch {sizes[-1]}{how})"


def steps(s: Settings) -> Verdict:
    points = _points(s, s.either((28, 2, 4, 8, 16, 64), (2,)), s.either(("float32", "bfloat16"), ("float32",)))
    points.sort(key=lambda p: (p.strategy not in FIRST, p.dtype != "float32"))
    ok, passed, words = _recorded(s, "d_steps", points, s.either(s.seconds, None))  # the few of a rehearsal all run
    said = pd.Series(list(map(_estimated, ok.to_dict("records"))), ok.index, dtype="Float64")
    s.keep("d_memory", ok[["strategy", "batch_size", "dtype", "peak_bytes"]].assign(fits_bytes=said))
    both = ok["model"].nunique() == 2
    return passed and both, f"{words}; peak memory / what fits says: {(ok['peak_bytes'] / said).median():.2f}"


def _estimated(row: dict[str, Any]) -> int | None:
    from tclab.sweeps._rows import point_of

    try:
        found = tclab.fits(point_of(row))
    except tclab.InputError:
        return None
    return int(found.host if row["device"] == "cpu" else found.device)


def _points(
    s: Settings, sizes: Iterable[int], dtypes: Iterable[str] = ("float32",), networks: Iterable[int | None] = (None,)
) -> list[Point]:
    """Return points of every strategy and DANGO, what matters most first."""
    masked = [name for name in masking.names() if masking.get(name).masks_graph]
    masked = s.either(list(dict.fromkeys([*STRATEGIES, *masked])), ["node_mask"])
    ways: list[dict[str, Any]] = [{"model": "dango", "strategy": "indices"}, *({"strategy": name} for name in masked)]
    return [
        Point(**way, batch_size=size, networks=count, dtype=dtype, device=s.device, **_common(s))
        for size in sizes
        for dtype in dtypes
        for count in networks
        for way in ways
    ]


def _common(s: Settings) -> dict[str, Any]:
    return {"scale": s.scale, "steps": s.either(20, 2), "workers": s.either(2, 0)}


def _recorded(s: Settings, name: str, points: list[Point], budget: float | None) -> tuple[pd.DataFrame, bool, str]:
    """Sweep points into this machine's recording; return the rows of the steps that were measured, and a verdict."""
    folder, kept = s.recordings(), s.out / "rows"  # one file a point; the recording is one of all
    folder.mkdir(parents=True, exist_ok=True)
    step = steps_of(tclab.sweep(points, results=kept, budget_seconds=budget))
    close_workers()
    rows = tclab.rows(kept)
    rows = rows[~rows["status"].str.startswith("not run")]
    if (there := folder / "rows.parquet").exists():  # what an earlier run recorded stays until it is measured anew
        fields = list(columns_of(points[0]))
        anew, old = set(keys_of(rows, fields)), tclab.rows(there)
        rows = pd.concat([old[[key not in anew for key in keys_of(old, fields)]], rows], ignore_index=True)
    atomic_write(there, rows.to_parquet(index=False))
    atomic_write(folder / "environment.json", json.dumps(environment(), indent=1) + "\n")
    s.keep(name, step[["model", "strategy", "networks", "batch_size", "mode", "dtype", "status", "median_seconds",
                       "samples_per_second", "host_syncs"]])  # fmt: skip
    ok, failed, left = (step["status"].str.startswith(how) for how in ("ok", "failed", "not run: the budget"))
    words = f"{ok.sum()} of {len(step)} points recorded in {folder.name}"
    words += f"; {left.sum()} are left: run it again" if left.any() else ""
    return step[ok], not failed.any() and not (left.any() and s.whole), words


def _closed(
    scale: float, models: Sequence[tuple[str, str]], blocks: int, steps: int, modes: Sequence[str]
) -> Iterator[dict[str, Any]]:
    """Yield for each mode how many blocks of steps closed within 2 % of the raw clock, and the share of `other`.

    Mode `empty` has no model: it is run for what Lightning's loop does between the stages.
    """
    for (model, strategy), mode, how in product(models, modes, ("plain", "lightning")):
        if (mode, how) == ("empty", "plain"):
            continue
        point = Point(model=model, strategy=strategy, mode=mode, loop=how, scale=scale, batch_size=4, workers=0)
        ledgers = [Ledger() for _ in range(blocks)]
        with loop_of(point, steps=steps) as loop:
            for ledger in ledgers:
                loop(ledger)
        off = [abs(ledger.accounted["host"] - 1) for ledger in ledgers]
        step, other = (sum(sum(ledger.seconds()[stage]) for ledger in ledgers) for stage in ("step", "other"))
        found = {"blocks": blocks, "closed": sum(one <= 0.02 for one in off), "worst": max(off), "other": other / step}
        yield {"model": model, "strategy": strategy, "mode": mode, "loop": how, **found}


def _twenty_ms(ledger: Timer) -> None:
    """Run five steps of 20 ms."""
    for _ in ledger.steps(range(5)):
        for stage in ("transfer", "mask", "forward", "loss", "backward", "clip", "optimizer"):
            with ledger.stage(stage):
                until = time.perf_counter() + 0.02 / 7
                while time.perf_counter() < until:
                    pass


def trust(s: Settings) -> Verdict:
    small = min(s.scale, 0.1)
    common = {"scale": small, "batch_size": 4, "steps": 2, "device": s.device, "workers": 0}
    ran = [tclab.run(Point(strategy=name, **common)) for name in s.either(STRATEGIES, ("node_mask",))]
    syncs = s.keep("e_syncs", steps_of(pd.concat(ran))[["strategy", "status", "host_syncs"]])
    closed = s.keep("e_closure", _closed(small, *s.either((TIMED, 6, 10, [*MODES]), (TIMED[:1], 1, 3, ["step"]))))
    bill, arms = receipt(_twenty_ms), {"with": lambda: _twenty_ms(Ledger()), "bare": lambda: _twenty_ms(Timer())}
    ratio = race(arms, budget_seconds=min(60.0, s.seconds / 2)).pairs[0].ratio
    s.keep("e_cost", [{"cut_seconds": bill.cut_seconds, "ratio": ratio, "step_seconds": bill.step_seconds}])
    stages = ("transfer", "mask", "forward", "loss", "backward", "optimizer", "other")
    lengths = s.either(3 * (0.0002, 0.0005, 0.001, 0.002, 0.005), (0.002,))
    with loop_of(Point(scale=small, batch_size=1, networks=1, workers=0), steps=s.either(50, 4)) as loop:
        given = spike_in(loop, stages=stages, seconds=lengths, most_steps=s.either(1000, 8))
    s.keep("e_spikes", ({**trial._asdict(), "recovered": trial.recovered()} for trial in given.trials))
    share = closed["closed"].sum() / closed["blocks"].sum()
    passed = bool((syncs["status"] == "ok").all()) and (not s.whole or min(share, given.share()) >= 0.95)
    return passed, (
        f"{share:.0%} of the blocks closed within 2 %, {given.share():.0%} of the delays came back within 10 %"
        f"{s.either('', ' (a rehearsal: no share is asked for)')}; the ledger costs {1e6 * bill.cut_seconds:.1f} µs "
        f"a step; waits of the host: {', '.join(f'{row.strategy} {row.host_syncs}' for row in syncs.itertuples())}"
    )


def whole_steps_raced(s: Settings) -> Verdict:
    common = {"scale": s.scale, "batch_size": s.either(8, 2), "device": s.device, "workers": 0}
    same, other = (Point(strategy=name, **common) for name in ("node_mask", "edge_mask"))
    arms = {"node_mask": same, "node_mask again": same, "edge_mask": other}
    budget = s.either(s.seconds, 4)
    result = tclab.sweeps.race_points(arms, budget_seconds=budget, processes=None, record=s.out / "f_race")
    print(result, flush=True)
    again, far = (result.pair("node_mask", name) for name in ("node_mask again", "edge_mask"))
    s.keep("f_pairs", ({"a": p.a, "b": p.b, "verdict": p.verdict, "ratio": p.ratio, "interval": p.interval}
                       for p in (again, far)))  # fmt: skip
    return again.verdict not in ("FASTER", "SLOWER"), (
        f"node_mask against itself: {again.verdict}; against edge_mask: {far.verdict}, {ratio_text(far)}"
    )


def recording(s: Settings) -> Verdict:
    from tclab.sweeps.config import in_each_mode

    middle, strategies = s.either(28, 2), s.either("edge_mask,node_mask,delta,indices", "node_mask,indices")
    common = {**_common(s), "batch_sizes": middle, "gpus": int(s.device == "cuda")}
    points = in_each_mode(models="hetero_cell,dango", strategies=strategies, **common)
    points += _points(s, (middle,), networks=s.either(range(1, 10), (1,)))
    points += _points(s, s.either((1, 32, 128), ()))
    points.sort(key=lambda p: p.strategy not in FIRST)
    _, passed, words = _recorded(s, "g_steps", list(dict.fromkeys(points)), s.seconds)
    return passed, words


def one_rank(s: Settings) -> Verdict:
    from tclab.training._step import Exchange

    point = resolve(Point(scale=s.scale, batch_size=s.either(28, 2), device=s.device, workers=0))
    backend = "nccl" if s.device == "cuda" else "gloo"
    distributed.init_process_group(backend, store=torch.distributed.HashStore(), rank=0, world_size=1)  # type: ignore[attr-defined]
    with setup(point, point.batch_size) as plain:
        batch = next(plain.batches())
        ddp = replace(plain, step=Step(point.kind, plain.step.strategy, exchange=Exchange()))
        tensor = torch.ones(sum(p.numel() for p in plain.step.model.parameters()), device=s.device)
        distributed.all_reduce(tensor)
        whole = bool((tensor == 1).all())
        arms = {name: partial(each.run, [batch], steps=1) for name, each in (("plain", plain), ("ddp", ddp))}
        arms["all_reduce"] = partial(distributed.all_reduce, tensor)
        pair = race(arms, budget_seconds=min(120, s.seconds / 3)).pair("ddp", "plain")
    distributed.destroy_process_group()
    s.keep("h_ranks", [{"backend": backend, "ddp_over_plain": pair.ratio, "interval": pair.interval}])
    return whole, f"{backend}, one rank: a DDP step against the plain one: {ratio_text(pair)}"


def traced(s: Settings) -> Verdict:
    from trace_against_clock import ALLOWED, compare

    folder = s.out / "i_trace"
    report, table, off = compare(folder, steps=s.either(30, 2), scale=min(s.scale, 0.3), device=s.device)
    print(report, flush=True)
    s.keep("i_stages", table.reset_index(names="part"))
    others = ", ".join(f"{part} {row.us_per_step:+.0f} µs a step" for part, row in table.iterrows())
    return off <= ALLOWED or not s.whole, (
        f"trace and ledger agree within {off:.1%} on each part of a hundredth of the step ({ALLOWED:.0%} allowed at "
        f"full size); each: {others}"
    )


RUN = (
    environment_and_smoke,
    equivalence,
    captured,
    layer,
    steps,
    trust,
    whole_steps_raced,
    recording,
    one_rank,
    traced,
)


def run_part(part: str, s: Settings) -> None:
    """Run a part and write its verdict."""
    passed, words = dict(zip(PARTS, RUN, strict=True))[part](s)
    atomic_write(s.out / f"{part}.json", json.dumps({"passed": bool(passed), "says": words}) + "\n")


def main() -> None:
    """Run a part in this process."""
    part, device, scale, out, minutes = sys.argv[1:]
    if device == "cpu":
        torch.set_num_threads(1)
    run_part(part, Settings(device, float(scale), Path(out), float(minutes)))
