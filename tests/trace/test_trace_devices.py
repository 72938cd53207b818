"""A device's events are told by their place, each device has its own idle time, and a stray event spoils nothing."""

import pytest

import tclab.trace as trace

TIMES = ["span_us", "compute_us", "non_compute_us", "idle_us", "busy_us", "copy_us", "set_us", "kernel_sum_us"]


def run(complete, category="kernel", names=("gemm", "Memcpy HtoD (Pinned -> Device)"), pid=0, shift=0.0):
    """Twenty launches; a kernel and then a copy of 30 µs each, every 100 µs, on a device of this process id."""
    events = []
    for i in range(20):
        at, place = shift + 100 * i, {"pid": pid, "tid": 7, "correlation": i, "device": 0}
        events.append(complete("aten::mm", at, 20))
        events.append(complete("cudaLaunchKernel", at + 5, 10, "cuda_runtime", correlation=i))
        copies = {"kernel": "gpu_memcpy"}.get(category, category)
        events.append(complete(names[0], at + 20, 30, category, **place))
        events.append(complete(names[1], at + 50, 30, copies, **place))
    return events


@pytest.mark.parametrize("category", ["mtia_ccp_events", "hpu_op", "PrivateUse1_Kernel", "of_my_npu"])
def test_categories_of_another_maker_give_the_same_accounts(write_trace, complete, category):
    usual = trace.analyze(write_trace(run(complete)))
    other = trace.analyze(write_trace(run(complete, category), "other.json"))
    assert other.breakdown[TIMES].equals(usual.breakdown[TIMES])
    assert other.categories.equals(usual.categories)
    assert other.idle_causes.equals(usual.idle_causes)
    assert other.breakdown["copy_us"].item() == 600


@pytest.mark.parametrize("category", ["runtime", "driver", "privateuse1_runtime", "xpu_driver"])
def test_calls_of_any_runtime_launch_kernels(write_trace, complete, category):
    events = run(complete)
    for event in events:
        event["cat"] = category if event["cat"] == "cuda_runtime" else event["cat"]
    report = trace.analyze(write_trace(events))
    assert report.categories.set_index("category")["self_us"]["cuda_kernels"] == 200
    assert any("launched the next work" in finding for finding in report.findings)


@pytest.mark.parametrize("category", ["cuda_event", "mtia_counters", "xpu_sync", "cuda_sync"])
def test_marks_of_a_device_are_no_work(write_trace, complete, category):
    events = run(complete)
    marks = [complete("mark", 100 * i, 100, category, pid=0, tid=7, device=0) for i in range(20)]
    plain, marked = (trace.analyze(write_trace(found)) for found in (events, events + marks))
    assert marked.breakdown.drop(columns="file").equals(plain.breakdown.drop(columns="file"))


def test_each_device_has_its_own_idle_time(write_trace, complete):
    second = run(complete, pid="GPU 1", shift=50.0)
    for event in second:
        if "correlation" in event.get("args", {}):
            event["args"]["correlation"] += 100
    report = trace.analyze(write_trace(run(complete) + second))
    assert report.breakdown["device"].tolist() == [0, "GPU 1"]
    assert report.breakdown["idle_us"].tolist() == [19 * 40] * 2
    assert report.idle_causes.groupby("device")["idle_us"].sum().tolist() == [19 * 40] * 2
    assert len(report.gaps) == 20
    idle = [finding for finding in report.findings if "The device was idle for" in finding]
    assert all("38.8% of its 1.96 ms" in finding for finding in idle)
    assert "device GPU 1" in idle[1]


@pytest.mark.parametrize("away_us", [-3.6e9, 3.6e9, 86_400e6])
def test_an_event_far_from_the_rest_is_left_out_and_named(write_trace, complete, away_us):
    events = run(complete, shift=1e10)
    plain = trace.analyze(write_trace(events))
    stray = complete("stale", 1e10 + away_us, 40, "kernel", pid=0, tid=7)
    report = trace.analyze(write_trace([*events, stray]))
    assert report.breakdown.drop(columns="file").equals(plain.breakdown.drop(columns="file"))
    assert report.categories.equals(plain.categories)
    (said,) = [finding for finding in report.findings if finding.startswith("Left out")]
    assert "1 far from all others, such as 'stale'" in said
    assert ("before" if away_us < 0 else "after") in said


def test_a_pause_between_two_parts_of_a_run_is_part_of_it(write_trace, complete):
    events = run(complete) + run(complete, shift=5e6)
    assert trace.analyze(write_trace(events)).breakdown["span_us"].item() > 5e6
