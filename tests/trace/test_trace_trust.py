"""What speaks against a trace: a pathology put in at a known size is named with it; real traces give no alarm."""

import copy
import gzip
import json

import numpy as np
import pytest

import tclab.trace as trace

DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")


def made():
    """Return a run of 4 steps of 40 launches on a thread, its kernels on a stream, a collective at the end of each."""
    rng = np.random.default_rng(3)
    events, number = [], 100
    for step in range(4):
        begin = 10_000.5 * step
        mark = {"ph": "X", "cat": "user_annotation", "name": f"ProfilerStep#{step + 5}", "pid": 1, "tid": 1}
        events.append(mark | {"ts": begin, "dur": 9_990.25})
        for call in range(40):
            number, at = number + 1, begin + 20.5 + 240 * call
            host = {"ph": "X", "pid": 1, "tid": 1}
            events.append(host | {"cat": "cpu_op", "name": "aten::mm", "ts": at, "dur": 20.25})
            launch = host | {"cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": at + 5, "dur": 6.5}
            events.append(launch | {"args": {"correlation": number}})
            name = "ncclDevKernel_AllReduce_Sum_f32" if call == 39 else f"gemm_{call % 4}"
            lasts = 100 + 10 * (call % 4) + float(rng.uniform(0, 0.5))
            kernel = {"ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": 7, "ts": at + 30.25, "dur": lasts}
            events.append(kernel | {"args": {"correlation": number}})
    return {"distributedInfo": {"rank": 0, "world_size": 2}, "baseTimeNanoseconds": 0, "traceEvents": events}


@pytest.fixture(
    params=["made", "hta_fsdp_ws128_rank0", pytest.param("hta_ddp_ws2_nccl_meta_rank0", marks=pytest.mark.slow)]
)
def whole(request):
    if request.param == "made":
        return made()
    folder = request.getfixturevalue("real_traces")
    return json.loads(gzip.decompress((folder / f"{request.param}.json.gz").read_bytes()))


def complete_events(run):
    return [event for event in run["traceEvents"] if event.get("ph") == "X"]


def on_device(run):
    rows = [e for e in complete_events(run) if e["cat"].lower() in DEVICE]
    return sorted(rows, key=lambda e: e["ts"])


def launches(run):
    found = [e for e in complete_events(run) if "LaunchKernel" in e["name"] and e["cat"] == "cuda_runtime"]
    return sorted(found, key=lambda e: e["ts"])


def number_of(event):
    return event["args"]["correlation"]


def without(run, lost):
    """Take the kernels and copies with these numbers out."""
    kept = [e for e in run["traceEvents"] if e.get("cat", "").lower() not in DEVICE or number_of(e) not in lost]
    run["traceEvents"] = kept


def drop_head_kernels(run):
    """As pytorch #192021: the window's first kernels are lost, their launches are not."""
    kernels = {number_of(e): e for e in on_device(run)}
    calls = sorted((e for e in complete_events(run) if number_of_call(e) in kernels), key=lambda e: e["ts"])
    lost = {number_of(e) for e in calls[:7]}
    without(run, lost)
    return 7, kernels[number_of(calls[7])]["ts"] - calls[0]["ts"]


def number_of_call(event):
    return event["args"].get("correlation") if event["cat"] == "cuda_runtime" else None


def drop_inner_kernels(run):
    kernels = {number_of(e): e for e in on_device(run)}
    calls = sorted((e for e in complete_events(run) if number_of_call(e) in kernels), key=lambda e: e["ts"])
    middle = len(calls) // 2
    lost = {number_of(e) for e in calls[middle : middle + 12]}
    before, after = kernels[number_of(calls[middle - 1])], kernels[number_of(calls[middle + 12])]
    without(run, lost)
    return 12, after["ts"] - max(before["ts"] + before["dur"], calls[middle]["ts"])


def begin_before_the_launch(run):
    call = {number_of(e): e for e in launches(run)}
    rows = [e for e in on_device(run) if number_of(e) in call][10:30]
    for at, event in enumerate(rows):
        event["ts"] = call[number_of(event)]["ts"] - 100 - at
    return 20, sum(100 + at for at in range(20))


def lose_the_last_steps_end(run):
    """A third of the last step has no event."""
    mark = max((e for e in complete_events(run) if e["name"].startswith("ProfilerStep")), key=lambda e: e["ts"])
    cut = mark["ts"] + mark["dur"] * 2 / 3
    run["traceEvents"] = [e for e in run["traceEvents"] if e.get("ph") != "X" or e is mark or e["ts"] + e["dur"] < cut]
    rest = [e for e in complete_events(run) if e["cat"].lower() in ("cpu_op", "operator", "cuda_runtime")]
    return 1, mark["ts"] + mark["dur"] - max(e["ts"] + e["dur"] for e in rest)


def end_in_the_last_step(run):
    """The window closes after a third of the last step, whose mark ends there."""
    mark = max((e for e in complete_events(run) if e["name"].startswith("ProfilerStep")), key=lambda e: e["ts"])
    mark["dur"] /= 3
    cut = mark["ts"] + mark["dur"]
    run["traceEvents"] = [e for e in run["traceEvents"] if e.get("ph") != "X" or e is mark or e["ts"] + e["dur"] <= cut]
    return 1, mark["dur"]


DAMAGE = {
    drop_head_kernels: "launches without kernels",
    drop_inner_kernels: "launches without kernels",
    begin_before_the_launch: "kernels before their launch",
    lose_the_last_steps_end: "steps cut off",
    end_in_the_last_step: "steps cut off",
}
# what a damage is besides: the cut leaves launches in the air, a kernel that begins early runs into the one before
ALSO = {
    begin_before_the_launch: {"overlap on a stream"},
    lose_the_last_steps_end: {"launches without kernels"},
    end_in_the_last_step: {"launches without kernels"},
}


@pytest.mark.parametrize("damage", DAMAGE, ids=lambda damage: damage.__name__)
def test_damage_of_a_known_size_is_named_with_it(damage, whole, tmp_path):
    run = copy.deepcopy(whole)
    count, us = damage(run)
    path = tmp_path / "damaged.json"
    path.write_text(json.dumps(run))
    report = trace.analyze(path)
    named = report.trust.table.set_index("pathology")
    assert DAMAGE[damage] in named.index
    row = named.loc[DAMAGE[damage]]
    assert row["events"] == count
    assert row["concerned_us"] == pytest.approx(us, rel=0.01)
    assert set(named.index) <= {DAMAGE[damage]} | ALSO.get(damage, set())
    assert all(table in report.trust.verdict for table in row["spoils"].split(", "))
    assert report.findings[0] == report.trust.verdict
    assert report.findings[0].startswith("Do not believe these yet: ")
    assert row["what"] in report.findings[1:]


def test_the_undamaged_gives_no_alarm(whole, tmp_path):
    path = tmp_path / "whole.json"
    path.write_text(json.dumps(whole))
    trusted = trace.analyze(path).trust
    assert len(trusted.table) == 0
    assert trusted.verdict == "Nothing found that speaks against this trace's figures."


def test_a_capture_of_a_graph_and_a_copy_of_no_bytes_launch_nothing(write_trace, complete):
    events = [
        complete("cudaStreamBeginCapture", 0, 1, "cuda_runtime", correlation=1),
        complete("cudaLaunchKernel", 10, 4, "cuda_runtime", correlation=2),
        complete("cudaStreamEndCapture", 20, 1, "cuda_runtime", correlation=3),
        complete("cudaMemsetAsync", 30, 0.5, "cuda_runtime", correlation=4),
        complete("cudaGraphLaunch", 40, 5, "cuda_runtime", correlation=5),
        complete("gemm", 50, 10, "kernel", pid=0, tid=7, correlation=5),
        complete("gemm", 60, 10, "kernel", pid=0, tid=7, correlation=5),
    ]
    assert len(trace.analyze(write_trace(events)).trust.table) == 0
    (row,) = trace.analyze(write_trace(events[:5])).trust.table.to_dict("records")
    assert (row["events"], row["concerned_us"]) == (1, 5)


def ranks(folder, real_traces, ahead_us=0.0):
    for rank in (0, 1):
        run = json.loads(gzip.decompress((real_traces / f"hta_fsdp_ws128_rank{rank}.json.gz").read_bytes()))
        for event in run["traceEvents"]:
            if rank and "ts" in event:
                event["ts"] += ahead_us
        (folder / f"rank{rank}.json").write_text(json.dumps(run))
    return folder


def test_real_ranks_of_one_host_have_one_clock(real_traces, tmp_path):
    trusted = trace.analyze(ranks(tmp_path, real_traces)).trust
    assert len(trusted.table) == 0
    assert "share fewer than three collectives" not in trusted.verdict


@pytest.mark.parametrize("ahead", [70_000, -11_560_000, 3_600e6])
def test_a_shifted_clock_is_named(ahead, real_traces, tmp_path):
    report = trace.analyze(ranks(tmp_path, real_traces, ahead))
    (row,) = report.trust.table.to_dict("records")
    assert (row["pathology"], row["rank"]) == ("unaligned clocks", 1)
    assert row["concerned_us"] == pytest.approx(abs(ahead), rel=0.01)
    assert f"{'ahead of' if ahead > 0 else 'behind'} that of rank 0" in row["what"]


def test_ranks_that_share_no_collective_have_no_known_clock(write_trace, complete, tmp_path):
    for rank in (0, 1):
        write_trace([complete("aten::mm", 0, 10)], f"run/rank{rank}.json")
    assert "share fewer than three collectives" in trace.analyze(tmp_path / "run").trust.verdict
