"""Traces as people bring them: other makers' devices, several of them, stray events, other programs; by their kind."""

import json
import random

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


def renamed(old, new):
    return lambda events: [event | {"cat": new} if event["cat"] == old else event for event in events]


def renumbered(pid):
    return lambda events: [event | {"pid": pid} if event["pid"] == 0 else event for event in events]


def in_other_years(events):
    return [event | {"ts": event["ts"] + 1_700_000_000_000_000} for event in events]


def by_stream_alone(events):
    changed = renamed("kernel", "of_my_npu")(events)
    for event in changed:
        if "device" in event.get("args", {}):
            event["args"] = event["args"] | {"stream": event["args"]["device"]}
            del event["args"]["device"]
    return changed


def shuffled(events):
    return random.Random(3).sample(events, len(events))


def with_marks_of_the_device(kind):
    def changed(events):
        mark = {"ph": "X", "cat": kind, "name": "mark", "pid": 0, "tid": 7, "dur": 100, "args": {"device": 0}}
        return [*events, *(mark | {"ts": 100 * i} for i in range(20))]

    return changed


def with_flows_and_counters(events):
    return [*events, {"ph": "s", "id": 1, "ts": 5, "name": "ac2g"}, {"ph": "C", "name": "x", "ts": 1, "args": {}}]


SAME = {
    "an NPU's kernels": renamed("kernel", "of_my_npu"),
    "MTIA's kernels": renamed("kernel", "mtia_ccp_events"),
    "HPU's kernels": renamed("kernel", "hpu_op"),
    "kernels with a stream and no device": by_stream_alone,
    "kernels in other letters": renamed("kernel", "Kernel"),
    "privateuse1's copies": renamed("gpu_memcpy", "PrivateUse1_Memcpy"),
    "XPU's driver": renamed("cuda_runtime", "xpu_driver"),
    "a driver": renamed("cuda_runtime", "driver"),
    "privateuse1's runtime": renamed("cuda_runtime", "privateuse1_runtime"),
    "another number": renumbered(5),
    "a name for a number": renumbered("GPU 3"),
    "another year": in_other_years,
    "another order": shuffled,
    "CUDA's events": with_marks_of_the_device("cuda_event"),
    "MTIA's counters": with_marks_of_the_device("mtia_counters"),
    "XPU's waits": with_marks_of_the_device("xpu_sync"),
    "flows and counters": with_flows_and_counters,
}


@pytest.mark.parametrize("change", SAME.values(), ids=SAME)
def test_what_says_the_same_gives_the_same_accounts(write_trace, complete, change):
    events = run(complete)
    usual = trace.analyze(write_trace(events))
    assert usual.breakdown[["copy_us", "idle_us"]].to_numpy().tolist() == [[600, 760]]
    assert accounts(trace.analyze(write_trace(change(events), "other.json"))) == accounts(usual)


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


# file of ../shared/cases → idle share of each device, and what a finding says; by right.py there and by hand
PUBLIC = {
    "f09_two_devices/two_devices.json": ([0.495, 0.495], "The device was idle for 49.5%"),
    "f09_two_devices/merged_ranks.json": ([0.495, 0.495], "The device was idle for 49.5%"),
    "f08_mtia/mtia.json": ([1160 / 2960], "The device was idle for 39.2%"),
    "f10_stale_kernel/stale_kernel.json": ([0.095], "far from all others"),
    "f19_not_torch/jax.json": ([], "another program wrote it"),
    "f19_not_torch/legacy.json": ([], "another program wrote it"),
}


@pytest.mark.parametrize("name", PUBLIC)
def test_a_case_of_a_public_report_has_its_right_value(name, cases):
    shares, words = PUBLIC[name]
    report = trace.analyze(cases / name)
    found = (report.breakdown["idle_us"] / report.breakdown["span_us"]).dropna().tolist()
    assert found == pytest.approx(shares, abs=0.001)
    assert any(words in finding for finding in report.findings)


def test_a_zipped_trace_is_read(cases):
    assert trace.analyze(cases / "f20_messages" / "trace.json.zip").findings


def test_two_windows_of_one_process_name_the_files(write_trace, complete):
    for name in ("host_1.100.pt.trace.json", "host_1.200.pt.trace.json"):
        path = write_trace([complete("aten::mm", 0, 5)], f"log/{name}", distributedInfo={"rank": 0})
    with pytest.raises(trace.TraceError, match=r"200\.pt\.trace\.json and host_1\.100.* are both rank 0|both rank 0"):
        trace.analyze(path.parent)


def test_the_accounts_of_a_file_are_those_of_plain_arithmetic(cases):
    """Busy time of each device by hand, as `right.py` of the case counts it."""
    path = cases / "f09_two_devices" / "two_devices.json"
    spans = {}
    for event in json.loads(path.read_text())["traceEvents"]:
        if event.get("cat") == "kernel":
            spans.setdefault(event["pid"], []).append((event["ts"], event["ts"] + event["dur"]))
    found = trace.analyze(path).breakdown.set_index("device")["busy_us"].to_dict()
    assert found == pytest.approx({pid: sum(b - a for a, b in of) for pid, of in spans.items()})
