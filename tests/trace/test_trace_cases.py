"""Traces as people bring them: other makers' devices, several of them, stray events, other programs; by their kind."""

import pytest

import tclab.trace as trace

TIMES = ["span_us", "compute_us", "non_compute_us", "idle_us", "busy_us", "copy_us", "set_us", "kernel_sum_us"]


def run(complete, category="kernel", pid=0, shift=0.0, first=0):
    """Twenty launches; a kernel and then a copy of 30 µs each, every 100 µs, on a device of this process id."""
    events = []
    for i in range(20):
        at, place = shift + 100 * i, {"pid": pid, "tid": 7, "correlation": first + i, "device": pid}
        events.append(complete("aten::mm", at, 20))
        events.append(complete("cudaLaunchKernel", at + 5, 10, "cuda_runtime", correlation=first + i))
        copies = {"kernel": "gpu_memcpy"}.get(category, category)
        events.append(complete("gemm", at + 20, 30, category, **place))
        events.append(complete("Memcpy HtoD (Pinned -> Device)", at + 50, 30, copies, **place))
    return events


def accounts(report):
    return [table.drop(columns=["file", "device"], errors="ignore").to_dict("list") for table in (
        report.breakdown[TIMES], report.categories, report.stages, report.idle_causes, report.ops)]  # fmt: skip


def replaced(key, old, new):
    return lambda events: [event | {key: new} if event[key] == old else event for event in events]


def by_stream_alone(events):
    events = replaced("cat", "kernel", "of_my_npu")(events)
    return [event | {"args": {"stream": event["args"].get("device")}} if "args" in event else event for event in events]


def with_marks(kind):
    mark = {"ph": "X", "cat": kind, "name": "mark", "pid": 0, "tid": 7, "dur": 100, "args": {"device": 0}}
    return lambda events: [*events, *(mark | {"ts": 100 * i} for i in range(20))]


KERNELS = ("of_my_npu", "mtia_ccp_events", "hpu_op", "Kernel")
SAME = {
    **{f"kernels called {name}": replaced("cat", "kernel", name) for name in KERNELS},
    **{f"calls of {name}": replaced("cat", "cuda_runtime", name) for name in ("xpu_driver", "driver", "mtia_runtime")},
    **{f"device {pid}": replaced("pid", 0, pid) for pid in (5, "GPU 3")},
    **{f"marks of {kind}": with_marks(kind) for kind in ("cuda_event", "mtia_counters", "xpu_sync")},
    "privateuse1's copies": replaced("cat", "gpu_memcpy", "PrivateUse1_Memcpy"),
    "kernels with a stream and no device": by_stream_alone,
}


def test_what_says_the_same_gives_the_same_accounts(write_trace, complete):
    events = run(complete)
    usual = trace.analyze(write_trace(events))
    assert usual.breakdown[["copy_us", "idle_us"]].to_numpy().tolist() == [[600, 760]]
    for name, change in SAME.items():
        assert accounts(trace.analyze(write_trace(change(events), "other.json"))) == accounts(usual), name


@pytest.mark.parametrize("pids", [(0, 1), (0, "GPU 1"), (4, 9, 2)])
def test_each_device_has_its_own_idle_time(write_trace, complete, pids):
    events = [event for i, pid in enumerate(pids) for event in run(complete, pid=pid, shift=50.0 * i, first=100 * i)]
    report = trace.analyze(write_trace(events))
    assert report.breakdown.set_index("device")["idle_us"].to_dict() == dict.fromkeys(pids, 19 * 40)
    assert set(report.idle_causes.groupby("device")["idle_us"].sum()) == {19 * 40}
    idle = [finding for finding in report.findings if "The device was idle for" in finding]
    assert [finding.count("38.8% of its 1.96 ms") for finding in idle] == [1] * len(pids)


@pytest.mark.parametrize("away_us", [-3.6e9, 3.6e9, 86_400e6])
def test_an_event_far_from_the_rest_is_left_out_and_named(write_trace, complete, away_us):
    events = run(complete, shift=1e10)
    stray = complete("stale", 1e10 + away_us, 40, "kernel", pid=0, tid=7)
    report = trace.analyze(write_trace([*events, stray]))
    assert accounts(report) == accounts(trace.analyze(write_trace(events, "plain.json")))
    (said,) = [finding for finding in report.findings if finding.startswith("Left out")]
    assert "1 far from all others, such as 'stale'" in said
    assert ("before" if away_us < 0 else "after") in said


def test_a_pause_between_two_parts_of_a_run_is_part_of_it(write_trace, complete):
    events = run(complete) + run(complete, shift=5e6, first=100)
    assert trace.analyze(write_trace(events)).breakdown["span_us"].item() > 5e6


@pytest.mark.parametrize(
    ("names", "rank", "words"),
    [
        (["host_1.100.json", "host_1.200.json"], {"rank": 0}, r"200\.json and host_1\.100.* both rank 0"),
        (["a.json", "b.json"], {}, r"a\.json does not give its rank, one of 2"),
    ],
)
def test_two_windows_of_one_process_and_a_file_without_a_rank_are_named(write_trace, complete, names, rank, words):
    for name in names:
        path = write_trace([complete("aten::mm", 0, 5)], f"log/{name}", distributedInfo=rank)
    with pytest.raises(trace.TraceError, match=words + r".*; two windows of one process\? name one file"):
        trace.analyze(path.parent)
