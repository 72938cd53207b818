"""What speaks against a trace: a pathology put in at a known size is named with it; the undamaged gives no alarm."""

import numpy as np
import pytest

import tclab.trace as trace

TODAY_US = 1_615_207_264_505_000  # since 1970
OUTSIDE = "outside any stage"


def made(ahead_us=0.0):
    """Return a run of 4 steps of 40 launches on a thread, its kernels on a stream, a collective at the end of each."""
    rng = np.random.default_rng(3)
    events, number = [], 100
    for step in range(4):
        begin = TODAY_US + 10_000.5 * step + ahead_us
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
    return events


def of(events, *categories):
    return [event for event in events if event["cat"] in categories]


def lose_kernels(events, first, last, *, untimed=False):
    """Kernels are lost, as of a window's begin (pytorch #192021), or were not timed, which are at time 0 (kineto #109).

    What the device did is not known between others.
    """
    kernels, calls = of(events, "kernel"), of(events, "cuda_runtime")
    since = max(kernels[first - 1]["ts"] + kernels[first - 1]["dur"] if first else 0, calls[first]["ts"])
    for kernel in kernels[first:last]:
        if untimed:
            kernel.update(ts=0, dur=0)
        else:
            events.remove(kernel)
    return last - first, kernels[last]["ts"] - since


def outlast_all_others(events, place):
    """A kernel's duration is wrong (TraceLens #669, #972)."""
    of(events, "kernel")[place]["dur"] = 1_600_000
    return 1, 1_600_000


def come_again(events, later_us, shorter=1):
    """All is there twice (kineto #136), or in two windows of one file (rocprofiler #84)."""
    for kernel in of(events, "kernel"):
        kernel["dur"] /= shorter
    events += [event | {"ts": event["ts"] + later_us} for event in events]
    kernels = of(events, "kernel")[:160]
    return (1, later_us) if later_us else (160, sum(kernel["dur"] for kernel in kernels))


def begin_before_the_launch(events):
    for i in range(20):
        of(events, "kernel")[10 + i]["ts"] = of(events, "cuda_runtime")[10 + i]["ts"] - 100 - i
    return 20, sum(100 + i for i in range(20))


def cut_the_last_step(events, closes):
    """A third of the last step has no event; the window closes there, or its mark goes on."""
    mark = of(events, "user_annotation")[-1]
    end = mark["ts"] + mark["dur"]
    cut = mark["ts"] + mark["dur"] * 2 / 3
    events[:] = [event for event in events if event is mark or event["ts"] + event["dur"] < cut]
    if closes:
        mark["dur"] = cut - mark["ts"]
        return 1, mark["dur"]
    return 1, end - max(event["ts"] + event["dur"] for event in of(events, "cpu_op", "cuda_runtime"))


def be_of_another_program(events):
    for event in events:
        event["cat"] = "python"
    return len(events), max(event["ts"] + event["dur"] for event in events) - events[0]["ts"]


# name → the damage, what it is, and what it is besides
DAMAGE = {
    "JAX's, or of torch's legacy export": (be_of_another_program, "no categories of torch.profiler", set()),
    "kernels lost at the head": (lambda events: lose_kernels(events, 0, 7), "launches without kernels", set()),
    "kernels lost within": (lambda events: lose_kernels(events, 90, 102), "launches without kernels", set()),
    "kernels at time 0": (
        lambda events: lose_kernels(events, 90, 102, untimed=True), "launches without kernels", set()),
    "a duration that runs over the next kernels": (
        lambda events: outlast_all_others(events, 50), "overlap on a stream", {"silence"}),
    "a last duration that is wrong": (lambda events: outlast_all_others(events, 159), "silence", set()),
    "events that are there twice": (lambda events: come_again(events, 0), "overlap on a stream", set()),
    "short ones that are there twice": (lambda events: come_again(events, 0, 50), "overlap on a stream", set()),
    "two windows": (lambda events: come_again(events, 1e10), "silence", set()),
    "kernels before their launch": (
        begin_before_the_launch, "kernels before their launch", {"overlap on a stream"}),
    "a silent end": (
        lambda events: cut_the_last_step(events, closes=False), "steps cut off", {"launches without kernels"}),
    "a step cut off": (
        lambda events: cut_the_last_step(events, closes=True), "steps cut off", {"launches without kernels"}),
}  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_of_a_known_size_is_named_with_it(damage, write_trace):
    spoil, pathology, besides = DAMAGE[damage]
    events = made()
    count, us = spoil(events)
    report = trace.analyze(write_trace(events))
    named = report.trust.set_index("pathology")
    assert {pathology} <= set(named.index) <= {pathology} | besides
    row = named.loc[pathology]
    assert row["events"] == count
    assert row["concerned_us"] == pytest.approx(us, rel=0.01)
    assert all(table in report.findings[0] for table in row["spoils"].split(", "))
    assert report.findings[0].startswith("Do not believe these yet: ")
    assert row["what"] in report.findings[1:]


def test_the_undamaged_gives_no_alarm(write_trace):
    report = trace.analyze(write_trace(made()))
    assert len(report.trust) == 0
    assert report.findings[0] == "No defect was found in this trace."


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
    assert len(trace.analyze(write_trace(events)).trust) == 0
    (row,) = trace.analyze(write_trace(events[:5])).trust.to_dict("records")
    assert (row["events"], row["concerned_us"]) == (1, 5)


@pytest.mark.parametrize("ahead", [70_000, -11_560_000, 3_600e6])
def test_a_shifted_clock_is_named(ahead, write_trace):
    for rank in (0, 1):
        path = write_trace(made(ahead * rank), f"run/rank{rank}.json")
    (row,) = trace.analyze(path.parent).trust.to_dict("records")
    assert (row["pathology"], row["rank"], row["events"]) == ("unaligned clocks", 1, 4)
    assert row["concerned_us"] == pytest.approx(abs(ahead), rel=0.01)
    assert f"{'ahead of' if ahead > 0 else 'behind'} that of rank 0" in row["what"]


def test_clocks_count_from_the_base_of_each_file_and_are_not_known_where_no_collective_is_shared(write_trace):
    for rank in (0, 1):
        base = {"baseTimeNanoseconds": 1_700_000_000_000_000_000 - rank * 5_000_000_000}
        path = write_trace(made(5e6 * rank), f"run/rank{rank}.json", **base)
    assert len(trace.analyze(path.parent).trust) == 0
    for rank in (0, 1):
        path = write_trace(of(made(), "cpu_op"), f"apart/rank{rank}.json")
    assert "share fewer than three collectives" in trace.analyze(path.parent).findings[0]


LATE = {
    "a module that outlives its caller": ("nn.Module: Linear_0", "python_function", 30, 1970, "model_forward", 1890),
    "an operator that outlives it": ("aten::linear", "cpu_op", 30, 270, OUTSIDE, 200),
    "a call that outlives it": ("cudaDeviceSynchronize", "cuda_runtime", 90, 110, OUTSIDE, 100),
}


@pytest.mark.parametrize("kind", LATE)
def test_an_event_that_outlives_its_caller_is_named_with_its_effect(kind, write_trace, complete):
    name, category, start, took, stage, late_us = LATE[kind]
    caller = complete("train.py(3): step", 0, 100 if "module" not in kind else 110, "python_function")
    events = [complete("aten::relu", 3000, 5), caller, complete(name, start, took, category)]
    (row,) = trace.analyze(write_trace(events)).trust.to_dict("records")
    assert (row["pathology"], row["events"], row["concerned_us"]) == ("events that end too late", 1, late_us)
    assert f"{stage} may be " in row["what"]


def test_what_begins_as_its_neighbour_ends_or_crosses_a_mark_is_no_alarm(write_trace, complete):
    events = [
        complete("train.py(3): step", 0, 100, "python_function"),
        complete("a.py(1): f", 10, 40.4, "python_function"),
        complete("a.py(2): g", 50.1, 30, "python_function"),  # begins 0.3 µs before its neighbour's end
        complete("b.py(1): h", 85, 15.3, "python_function"),  # ends 0.3 µs after its caller
        complete("a mark", 60, 400, "user_annotation"),
        complete("PyTorch Profiler (0)", -5, 600, "Trace", pid="Spans", tid="PyTorch Profiler"),
    ]
    assert len(trace.analyze(write_trace(events)).trust) == 0
    step = complete("ProfilerStep#1", 90, 13_000, "user_annotation")
    (row,) = trace.analyze(write_trace([*events, step], "late.json")).trust.to_dict("records")
    assert (row["events"], row["concerned_us"]) == (1, 90 + 13_000 - 595)
    assert "1 event ends after the recording, by 12.5 ms, most ProfilerStep#1; an end was lost: " in row["what"]


@pytest.mark.parametrize(
    ("names", "missing"), [("abc abc bc", 1), ("abc abc abc a", 2), ("abc ab abcd abcd", 3), ("ab cd", 0)]
)
def test_a_graph_whose_replays_have_more_kernels_is_unreliable(names, missing, write_trace, complete):
    events = []
    for i, kernels in enumerate(names.split()):
        events.append(complete("cudaGraphLaunch", 1000 * i, 10, "cuda_runtime", correlation=i + 1))
        for j, name in enumerate(kernels):
            events.append(complete(name, 1000 * i + 50 + 20 * j, 15, "kernel", pid=0, tid=7, correlation=i + 1))
    trust = trace.analyze(write_trace(events)).trust[["pathology", "concerned_us"]].to_numpy().tolist()
    assert trust == [["graph launches without some kernels", 15 * missing]] * (missing > 0)


def test_calls_that_all_end_with_the_recording_are_named(write_trace, complete):
    """A custom operator's calls have no end of their own (pytorch #193440): each outlives the one around it."""
    calls = [complete("train.py(9): call", 100 * i, 90, "python_function") for i in range(9)]
    ops = [complete("<built-in method my_op>", 100 * i + 10, 990 - 100 * i, "python_function") for i in range(9)]
    step = complete("train.py(3): step", 0, 1000, "python_function")
    (row,) = trace.analyze(write_trace([step, *calls, *ops])).trust.to_dict("records")
    assert (row["pathology"], row["events"], row["concerned_us"]) == ("events that end too late", 9, 910)
